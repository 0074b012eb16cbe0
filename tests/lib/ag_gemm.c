/* Tests of epa2a_ag_gemm_*: C equals the reference of the program, over several transports, with ranks as
 * processes and as threads. */
#include "../unit/test.h"

#include <epa2a.h>

#include "group.h"
#include "room.h"
#include "oracle.h"

enum { ITERATIONS = 5, SIZES = 4, TEXT = 500 };

static const struct {
    const char *dtype;
    bool bias;
    int32_t value;
    const char *out_dtype;
    int32_t out_value;
} dtypes[] = {
    {"bf16", false, EPA2A_BF16, "auto", 0},
    {"f16", true, EPA2A_F16, "auto", 0},
    {"fp8", true, EPA2A_FP8_E4M3, "auto", 0},
    {"bf16", true, EPA2A_BF16, "fp8", EPA2A_FP8_E4M3},
    {"fp8", false, EPA2A_FP8_E4M3, "fp8", EPA2A_FP8_E4M3},
};

static const char *const algorithms[] = {"ag_gemm_2d", "ag_then_gemm"};

struct task {
    const struct experiment *x;
    const char *transport, *options;
    int32_t dtype, out_dtype;
};

static int rank_fails(struct group_rank *me, const char *what, const char *why)
{
    snprintf(me->result->text, sizeof(me->result->text), "%s: %s", what, why);
    return me->result->code = 1;
}

static size_t element_of(const struct epa_ag_gemm *g)
{
    return g->dtype == EPA_FP8_E4M3 ? 1 : 2;
}

/* B of a rank in memory of the comm. */
struct weights {
    void *b, *b_scale, *bias;
};

static int create(struct group_rank *me, struct op_rank *op, struct weights *w, void *stream,
                  struct epa2a_comm **comm, struct epa2a_ag_gemm **out)
{
    const struct task *task = me->arg;
    const struct epa_ag_gemm *g = &oracle_inputs(op, 0)->u.ag_gemm;
    size_t scales = (size_t)epa_ag_gemm_groups(g->n) * epa_ag_gemm_groups(g->k) * sizeof(float);
    EPA2A_STRUCT(epa2a_comm_params, p);
    EPA2A_STRUCT(epa2a_ag_gemm_params, params);

    p.version = EPA2A_VERSION;
    p.rank = me->rank;
    p.ranks = me->ranks;
    p.allgather = group_allgather;
    p.arg = me;
    p.device = room_device(me->rank);
    p.options = task->transport;
    params.max_rows = g->max_rows;
    params.n = g->n;
    params.k = g->k;
    params.dtype = task->dtype;
    params.out_dtype = task->out_dtype;
    w->b = room_put(g->b, (size_t)g->n * g->k * element_of(g), stream);
    w->b_scale = room_put(g->b_scale, scales, stream);
    w->bias = room_put(g->bias ? g->bias_of : NULL, g->n * sizeof(float), stream);
    params.b = w->b;
    params.b_scale = w->b_scale;
    params.bias = w->bias;
    params.options = task->options;
    if (epa2a_comm_create(&p, comm) != EPA2A_OK)
        return rank_fails(me, "comm", epa2a_last_error());
    if (epa2a_ag_gemm_create(*comm, &params, out) != EPA2A_OK)
        return rank_fails(me, "ag_gemm", epa2a_last_error());
    return 0;
}

static int run(struct epa2a_ag_gemm *gemm, struct epa2a_comm *comm, const struct epa_ag_gemm *g,
               uint32_t rank, uint32_t ranks, void *stream)
{
    size_t mine = g->rows[rank], groups = epa_ag_gemm_groups(g->k);
    size_t c_rows = (size_t)ranks * g->max_rows, bytes = c_rows * g->n * epa_ag_gemm_c_bytes(g);
    size_t scale_bytes = c_rows * epa_ag_gemm_groups(g->n) * sizeof(float);
    uint32_t *rows = room_put(g->rows, ranks * sizeof(*rows), stream);
    void *a = room_put(g->a, mine * g->k * element_of(g), stream);
    float *a_scale = room_put(g->a_scale, mine * groups * sizeof(float), stream);
    void *c = room_put(g->c, bytes, stream);
    float *c_scale = g->out_fp8 ? room_put(g->c_scale, scale_bytes, stream) : NULL;
    int status = g->out_fp8 ? epa2a_ag_gemm_run_fp8(gemm, rows, a, a_scale, c, c_scale, stream)
                            : epa2a_ag_gemm_run(gemm, rows, a, a_scale, c, stream);

    if (status == EPA2A_OK)
        status = epa2a_comm_sync(comm, stream);
    room_copy(g->c, c, bytes, stream);
    if (c_scale != NULL)
        room_copy(g->c_scale, c_scale, scale_bytes, stream);
    room_drop(c_scale);
    room_drop(rows);
    room_drop(a);
    room_drop(a_scale);
    room_drop(c);
    return status;
}

static void gemm_rank(struct group_rank *me)
{
    const struct task *task = me->arg;
    struct epa_error err = {EPA_OK, ""};
    struct op_rank *op = oracle_create(task->x, me->rank, &err);
    struct epa2a_comm *comm = NULL;
    struct epa2a_ag_gemm *gemm = NULL;
    void *stream = room_stream(me->rank);
    struct weights w = {.b = NULL};

    if (op == NULL) {
        (void)rank_fails(me, "oracle", err.text);
        return;
    }
    if (create(me, op, &w, stream, &comm, &gemm) == 0)
        for (uint64_t i = 0; i < ITERATIONS && me->result->code == 0; i++) {
            struct epa_ag_gemm *g = &oracle_inputs(op, i)->u.ag_gemm;

            if (run(gemm, comm, g, me->rank, me->ranks, stream) != EPA2A_OK)
                (void)rank_fails(me, "run", epa2a_last_error());
            else if (oracle_check(op, EPA_STAGE_WHOLE, &err) != EPA_OK)
                (void)rank_fails(me, "check", err.text);
        }
    epa2a_ag_gemm_destroy(gemm);
    epa2a_comm_destroy(comm);
    room_drop(w.b);
    room_drop(w.b_scale);
    room_drop(w.bias);
    room_stream_end(stream);
    op_destroy(op);
}

static void check_products(const char *transport, enum group_kind kind, uint32_t least,
                           uint32_t most)
{
    char yaml[TEXT], comm_options[64], options[64];

    if (room_is_device() != (strcmp(transport, "nvlink") == 0))
        skip();
    snprintf(comm_options, sizeof(comm_options), "transport=%s%s", transport, room_options());
    for (uint32_t i = 0; i < LENGTH(algorithms) * LENGTH(dtypes); i++)
        for (uint32_t ranks = least; ranks <= most; ranks++) {
            const char *algorithm = algorithms[i / LENGTH(dtypes)];
            uint32_t d = i % LENGTH(dtypes);
            struct group *group;

            snprintf(options, sizeof(options), "algorithm=%s", algorithm);
            snprintf(yaml, sizeof(yaml),
                     "{version: 1, ranks: %u, %s, algorithm: %s, seed: %u, "
                     "gemm: {m: %u, n: %u, k: %u, dtype: %s, bias: %s, out_dtype: %s, "
                     "values: integers}, "
                     "tokens: {kind: random, min: 0}}",
                     ranks, room_experiment(), algorithm, ranks + i, 37 * ranks, 144 * ranks - 3,
                     room_is_device() ? 208 : 200 /* a multiple of 16 for FP8 */, dtypes[d].dtype,
                     dtypes[d].bias ? "true" : "false", dtypes[d].out_dtype);
            group = group_run(ranks, kind, gemm_rank,
                              &(struct task){.x = oracle_read(yaml),
                                             .transport = comm_options,
                                             .options = options,
                                             .dtype = dtypes[d].value,
                                             .out_dtype = dtypes[d].out_value});
            for (uint32_t r = 0; r < ranks; r++)
                if (group_result(group, r)->code != 0)
                    fail_msg("rank %u of %u, %s, %s, %s, out_dtype %s: %s", r, ranks, transport,
                             options, dtypes[d].dtype, dtypes[d].out_dtype,
                             group_result(group, r)->text);
            group_free(group);
        }
}

TEST(processes_over_shm_equal_the_reference)
{
    check_products("shm", GROUP_PROCESSES, 1, SIZES);
}

TEST(threads_over_shm_equal_the_reference)
{
    check_products("shm", GROUP_THREADS, 2, 3);
}

TEST(processes_over_reorder_equal_the_reference)
{
    check_products("reorder", GROUP_PROCESSES, SIZES, SIZES);
}

/* ---- wrong arguments ---- */

enum { ROWS = 6, COLUMNS = 48, DEPTH = 64, RANKS = 2 };

/* Right arguments, and memory for the largest type of elements. */
struct arguments {
    struct epa2a_ag_gemm_params params;
    uint32_t rows[RANKS];
    const void *a;
    const float *a_scale;
    void *c;
    float *c_scale;
    float scale[COLUMNS], out_scale[RANKS * ROWS];
    uint16_t memory[COLUMNS * DEPTH], out[RANKS * ROWS * COLUMNS];
};

static void fill_arguments(struct arguments *x, int32_t dtype, int32_t out_dtype)
{
    EPA2A_STRUCT(epa2a_ag_gemm_params, params);

    memset(x, 0, sizeof(*x));
    params.max_rows = ROWS;
    params.n = COLUMNS;
    params.k = DEPTH;
    params.dtype = dtype;
    params.b = x->memory;
    params.b_scale = dtype == EPA2A_FP8_E4M3 ? x->scale : NULL;
    params.out_dtype = out_dtype;
    x->params = params;
    x->rows[0] = ROWS;
    x->rows[1] = ROWS - 1;
    x->a = x->memory;
    x->a_scale = params.b_scale;
    x->c = x->out;
    x->c_scale = out_dtype == EPA2A_FP8_E4M3 ? x->out_scale : NULL;
}

/* Parameters of creation that rank 1 alone passes. */
static const struct wrong_creation {
    const char *words; /* in the message of all ranks */
    size_t field;      /* offset in struct epa2a_ag_gemm_params; UINT32_MAX: a pointer is NULL */
    uint32_t value;
    const char *options;
    int32_t dtype;
} wrong_creations[] = {
    {"size 0", offsetof(struct epa2a_ag_gemm_params, size), 0, NULL, 0},
    {"size", offsetof(struct epa2a_ag_gemm_params, size), 5000, NULL, 0},
    {"max_rows is 0", offsetof(struct epa2a_ag_gemm_params, max_rows), 0, NULL, 0},
    {"rows", offsetof(struct epa2a_ag_gemm_params, max_rows), UINT32_MAX, NULL, 0},
    {"k is 0 .. multiple of 8", offsetof(struct epa2a_ag_gemm_params, k), 0, NULL, 0},
    {"k is 12 .. multiple of 8", offsetof(struct epa2a_ag_gemm_params, k), 12, NULL, 0},
    {"dtype is 4 .. EPA2A_BF16", offsetof(struct epa2a_ag_gemm_params, dtype), 4, NULL, 0},
    {"dtype is -1 .. EPA2A_BF16", offsetof(struct epa2a_ag_gemm_params, dtype), UINT32_MAX, NULL,
     0},
    {"out_dtype is 1 .. EPA2A_FP8_E4M3", offsetof(struct epa2a_ag_gemm_params, out_dtype),
     EPA2A_BF16, NULL, 0},
    {"zero .. is 7", offsetof(struct epa2a_ag_gemm_params, zero), 7, NULL, 0},
    {"rank 1 passed another shape", offsetof(struct epa2a_ag_gemm_params, out_dtype),
     EPA2A_FP8_E4M3, NULL, 0},
    {"b_scale is NULL", offsetof(struct epa2a_ag_gemm_params, dtype), EPA2A_FP8_E4M3, NULL, 0},
    {"b_scale is set", offsetof(struct epa2a_ag_gemm_params, dtype), EPA2A_BF16, NULL,
     EPA2A_FP8_E4M3},
    {"rank 1 passed another shape", offsetof(struct epa2a_ag_gemm_params, max_rows), 3, NULL, 0},
    {"rank 1 passed another shape", offsetof(struct epa2a_ag_gemm_params, dtype), EPA2A_F16, NULL,
     0},
    {"no_such", UINT32_MAX, 0, "no_such=1", 0},
    {"ll_v1", UINT32_MAX, 0, "algorithm=ll_v1", 0},
    {"b is NULL", UINT32_MAX, 1, NULL, 0},
    {"epa2a_ag_gemm_params is NULL", UINT32_MAX, 2, NULL, 0},
    {"output pointer is NULL", UINT32_MAX, 3, NULL, 0},
};

static int create_comm(struct group_rank *me, struct epa2a_comm **out)
{
    EPA2A_STRUCT(epa2a_comm_params, p);

    p.version = EPA2A_VERSION;
    p.rank = me->rank;
    p.ranks = me->ranks;
    p.allgather = group_allgather;
    p.arg = me;
    p.device = EPA2A_HOST;
    p.timeout_ns = 60000000000;
    p.options = "transport=shm";
    return epa2a_comm_create(&p, out) == EPA2A_OK ? 0 : rank_fails(me, "comm", epa2a_last_error());
}

static bool has_words(const char *text, const char *words)
{
    char all[TEXT], *rest = NULL;

    snprintf(all, sizeof(all), "%s", words);
    for (char *word = all; word != NULL && text != NULL; word = rest) {
        rest = strstr(word, " .. ");
        if (rest != NULL) {
            *rest = '\0';
            rest += 4;
        }
        text = strstr(text, word);
    }
    return text != NULL;
}

/* All ranks must refuse the arguments with this message. */
static int expect_refusal(struct group_rank *me, int code, const char *words)
{
    char why[TEXT];

    if (code == EPA2A_ERR_CONFIG && has_words(epa2a_last_error(), words))
        return 0;
    snprintf(why, sizeof(why), "status %d, not EPA2A_ERR_CONFIG with '%s': %.300s", code, words,
             code == EPA2A_OK ? "" : epa2a_last_error());
    return rank_fails(me, "wrong argument", why);
}

static int create_wrongly(struct group_rank *me, struct epa2a_comm *comm,
                          const struct wrong_creation *w, struct arguments *x)
{
    struct epa2a_ag_gemm *gemm = NULL, **out = &gemm;
    struct epa2a_ag_gemm_params *params = &x->params;

    fill_arguments(x, w->dtype, 0);
    if (me->rank == 1) {
        params->options = w->options;
        if (w->field != UINT32_MAX)
            memcpy((char *)params + w->field, &w->value, sizeof(w->value));
        else if (w->value == 1)
            params->b = NULL;
        else if (w->value == 2)
            params = NULL;
        else if (w->value == 3)
            out = NULL;
    }
    return expect_refusal(me, epa2a_ag_gemm_create(comm, params, out), w->words);
}

static int run_of(struct epa2a_ag_gemm *gemm, const struct arguments *x, const uint32_t *rows,
                  const void *a, const float *a_scale, void *c)
{
    return x->c_scale != NULL ? epa2a_ag_gemm_run_fp8(gemm, rows, a, a_scale, c, x->c_scale, NULL)
                              : epa2a_ag_gemm_run(gemm, rows, a, a_scale, c, NULL);
}

/* The function of the other out_dtype. */
static int run_other_dtype(struct group_rank *me, struct epa2a_ag_gemm *gemm,
                           const struct arguments *x)
{
    float scale[RANKS * ROWS];

    if (x->c_scale == NULL)
        return expect_refusal(
            me, epa2a_ag_gemm_run_fp8(gemm, x->rows, x->a, x->a_scale, x->c, scale, NULL),
            "c_scale is set");
    if (expect_refusal(me, epa2a_ag_gemm_run_fp8(gemm, x->rows, x->a, x->a_scale, x->c, NULL, NULL),
                       "c_scale is NULL") != 0)
        return me->result->code;
    return expect_refusal(me, epa2a_ag_gemm_run(gemm, x->rows, x->a, x->a_scale, x->c, NULL),
                          "c_scale is NULL .. epa2a_ag_gemm_run_fp8()");
}

/* A refused call sends no data, so rank 1 calls again while rank 0 waits. */
static int run_wrongly(struct group_rank *me, struct epa2a_ag_gemm *gemm, const struct arguments *x)
{
    const uint32_t many[RANKS] = {ROWS, ROWS + 1};
    const struct arguments *y = x;

    if (me->rank != 1)
        return 0;
    if (expect_refusal(me, run_of(gemm, y, NULL, y->a, y->a_scale, y->c), "rows is NULL") != 0 ||
        expect_refusal(me, run_of(gemm, y, many, y->a, y->a_scale, y->c),
                       "rows[1] is 7 .. max_rows (6)") != 0 ||
        expect_refusal(me, run_of(gemm, y, y->rows, NULL, y->a_scale, y->c),
                       "a is NULL, with 5 rows") != 0 ||
        expect_refusal(me, run_of(gemm, y, y->rows, y->a, y->a_scale, NULL), "c is NULL") != 0 ||
        expect_refusal(me, run_of(NULL, y, y->rows, y->a, y->a_scale, y->c), "NULL") != 0 ||
        run_other_dtype(me, gemm, y) != 0)
        return me->result->code;
    if (y->a_scale == NULL)
        return 0;
    return expect_refusal(me, run_of(gemm, y, y->rows, y->a, NULL, y->c),
                          "a_scale is NULL, with 5 rows");
}

static int run_after_refusals(struct group_rank *me, struct epa2a_comm *comm, int32_t dtype,
                              int32_t out_dtype, struct arguments *x)
{
    struct epa2a_ag_gemm *gemm = NULL;

    fill_arguments(x, dtype, out_dtype);
    if (epa2a_ag_gemm_create(comm, &x->params, &gemm) != EPA2A_OK)
        return rank_fails(me, "create", epa2a_last_error());
    for (int i = 0; i < 2 && me->result->code == 0; i++)
        if (run_wrongly(me, gemm, x) == 0 &&
            run_of(gemm, x, x->rows, x->a, x->a_scale, x->c) != EPA2A_OK)
            (void)rank_fails(me, "run", epa2a_last_error());
    epa2a_ag_gemm_destroy(gemm);
    return me->result->code;
}

static void pass_wrong_arguments(struct group_rank *me)
{
    struct epa2a_comm *comm = NULL;
    struct arguments *x = calloc(1, sizeof(*x));
    int code = create_comm(me, &comm);

    for (size_t i = 0; code == 0 && i < LENGTH(wrong_creations); i++)
        code = create_wrongly(me, comm, &wrong_creations[i], x);
    for (size_t i = 0; code == 0 && i < LENGTH(dtypes); i++)
        code = run_after_refusals(me, comm, dtypes[i].value, dtypes[i].out_value, x);
    if (code == 0)
        code = expect_refusal(me, epa2a_ag_gemm_create(NULL, &x->params, NULL), "comm is NULL");
    epa2a_ag_gemm_destroy(NULL);
    epa2a_comm_destroy(comm);
    free(x);
}

TEST(wrong_arguments_are_refused_on_all_ranks)
{
    struct group *group;

    if (room_is_device()) /* the library cannot read the rows of a device */
        return;
    group = group_run(RANKS, GROUP_PROCESSES, pass_wrong_arguments, NULL);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_string_equal(group_result(group, r)->text, "");
    group_free(group);
}

TEST(devices_equal_the_reference)
{
    if (room_missing())
        exit(77);
    /* Processes first: a child of a process that used CUDA cannot use CUDA. */
    check_products("nvlink", GROUP_PROCESSES, 2, 2);
    check_products("nvlink", GROUP_THREADS, 1, 3);
}
