/* AllGather and GEMM as an operation. gemm.m rows of A are dealt to the ranks, or `tokens` says how
 * many each has; A is new in each iteration, B stays. What matrices hold, and how C is checked,
 * is in ag_gemm_check.c. */
#include "op/ag_gemm.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "op/ag_gemm_check.h"

/* What a row of C that is not written holds: NaN in bf16 and f16. */
enum { POISON = 0xff };

struct slot {
    struct epa_problem problem;
    uint64_t iteration;
    uint32_t *rows;    /* the backend's: [size] */
    uint32_t *counted; /* [size], for the host; `rows` where that is the backend */
    void *a, *c;       /* the backend's */
    float *a_scale;    /* the same; NULL: not FP8 */
};

struct op_ag_gemm {
    struct op_rank base;
    const struct experiment *x;
    struct epa_world world;
    struct epa_ag_gemm_footprint footprint;
    double flops;
    struct epa_backend *backend;
    struct gemm_values values;
    void *b; /* the backend's */
    float *b_scale, *bias;
    uint32_t n_slots;
    struct slot *slot;
    char *made; /* a device's: what is on its way there */
    char *read; /* a device's: a row of C, for the host */
    struct gemm_reference *reference;
};

static struct op_ag_gemm *op_of(const struct op_rank *rank)
{
    return (struct op_ag_gemm *)(uintptr_t)rank; /* base is the first member */
}

static bool is_host(const struct op_ag_gemm *op)
{
    return op->backend->memory == EPA_MEMORY_HOST;
}

/* ---- options ---- */

/* The rows of A of all ranks, dealt out evenly. */
static uint32_t even_share(const struct experiment *x, uint32_t rank)
{
    uint64_t m = x->gemm.m;

    return (uint32_t)(m * (rank + 1) / x->ranks - m * rank / x->ranks);
}

/* Of one rank, at most. */
static uint32_t max_rows(const struct experiment *x)
{
    uint32_t most = 1;

    if (x->tokens.kind != TOKENS_LIST)
        return (x->gemm.m + x->ranks - 1) / x->ranks;
    for (uint32_t i = 0; i < x->tokens.per_rank.n; i++)
        most = x->tokens.per_rank.item[i] > most ? x->tokens.per_rank.item[i] : most;
    return most;
}

static uint32_t rows_of(const struct experiment *x, uint32_t rank, uint64_t iteration)
{
    return op_tokens_of(x, x->tokens.kind == TOKENS_FULL ? even_share(x, rank) : max_rows(x), rank,
                        iteration);
}

/* Of all ranks together, at most. */
static uint64_t all_rows(const struct experiment *x)
{
    return (uint64_t)x->ranks * max_rows(x);
}

static void check_options(const struct config_check *c)
{
    const struct experiment *x = c->x;
    uint64_t sum = 0;

    if (x->gemm.n % x->ranks != 0)
        check_conflict(c, "gemm.n", "ranks", check_multiples(c, x->gemm.n, x->ranks),
                       "%s is not a multiple of %s", check_value(c, "gemm.n", x->gemm.n),
                       check_value(c, "ranks", x->ranks));
    if (x->gemm.k % 8 != 0)
        check_conflict(c, "gemm.k", NULL, check_multiples(c, x->gemm.k, 8),
                       "%s is not a multiple of 8", check_value(c, "gemm.k", x->gemm.k));
    if (x->tokens.kind == TOKENS_RANDOM && x->tokens.min > max_rows(x))
        check_conflict(c, "tokens.min", "gemm.m", NULL,
                       "%s is more than a rank's share of %s: %u rows",
                       check_value(c, "tokens.min", x->tokens.min),
                       check_value(c, "gemm.m", x->gemm.m), max_rows(x));
    for (uint32_t i = 0; x->tokens.kind == TOKENS_LIST && i < x->tokens.per_rank.n; i++)
        sum += x->tokens.per_rank.item[i];
    if (sum > x->gemm.m)
        check_conflict(c, "tokens.per_rank", "gemm.m", NULL,
                       "tokens.per_rank: %llu rows together are more than %s",
                       (unsigned long long)sum, check_value(c, "gemm.m", x->gemm.m));
}

static uint64_t size(const struct experiment *x)
{
    return x->gemm.m;
}

static void shape(const struct experiment *x, struct epa_problem *out)
{
    *out = (struct epa_problem){.op = EPA_OP_AG_GEMM,
                                .u.ag_gemm = {.max_rows = max_rows(x),
                                              .n = x->gemm.n / x->ranks,
                                              .k = x->gemm.k,
                                              .dtype = x->gemm.dtype,
                                              .bias = x->gemm.bias}};
}

static struct gemm_values values_of(const struct experiment *x)
{
    return (struct gemm_values){.seed = x->seed,
                                .n = x->gemm.n / x->ranks,
                                .k = x->gemm.k,
                                .dtype = x->gemm.dtype,
                                .integers = x->gemm.values == GEMM_INTEGERS,
                                .bias = x->gemm.bias};
}

/* ---- memory ---- */

static bool is_fp8(const struct experiment *x)
{
    return x->gemm.dtype == EPA_FP8_E4M3;
}

static size_t row_bytes(const struct experiment *x)
{
    return (size_t)x->gemm.k * (is_fp8(x) ? 1 : 2);
}

static size_t row_scale_bytes(const struct experiment *x)
{
    return is_fp8(x) ? epa_ag_gemm_groups(x->gemm.k) * sizeof(float) : 0;
}

static size_t a_bytes(const struct experiment *x)
{
    return max_rows(x) * row_bytes(x);
}

static size_t c_row_bytes(const struct experiment *x)
{
    return (size_t)x->gemm.n / x->ranks * sizeof(uint16_t);
}

/* One row more than there can be, which must stay as it is. */
static size_t c_bytes(const struct experiment *x)
{
    return (all_rows(x) + 1) * c_row_bytes(x);
}

static size_t b_bytes(const struct experiment *x)
{
    return (size_t)x->gemm.n / x->ranks * row_bytes(x);
}

static size_t b_scale_bytes(const struct experiment *x)
{
    return is_fp8(x) ? (size_t)epa_ag_gemm_groups(x->gemm.n / x->ranks) * row_scale_bytes(x) : 0;
}

static size_t bias_bytes(const struct experiment *x)
{
    return (size_t)x->gemm.n / x->ranks * sizeof(float);
}

static uint64_t bytes(const struct experiment *x, const struct epa_footprint *footprint,
                      enum epa_memory memory, uint32_t slots, bool checks)
{
    const struct gemm_values v = values_of(x);
    uint64_t one =
        a_bytes(x) + max_rows(x) * row_scale_bytes(x) + c_bytes(x) + x->ranks * sizeof(uint32_t);
    uint64_t constant = b_bytes(x) + b_scale_bytes(x) + bias_bytes(x), all;

    (void)footprint;
    all = memory == EPA_MEMORY_HOST ? constant + slots * one
                                    : (constant > one ? constant : one) + c_row_bytes(x);
    return checks ? all + gemm_reference_bytes(&v, all_rows(x)) : all;
}

static void release(struct op_ag_gemm *op, void *memory)
{
    if (memory != NULL)
        op->backend->ops->free(op->backend, memory);
}

static void destroy(struct op_rank *rank)
{
    struct op_ag_gemm *op = op_of(rank);

    if (op == NULL)
        return;
    for (uint32_t i = 0; op->slot != NULL && i < op->n_slots; i++) {
        struct slot *s = &op->slot[i];

        if (s->counted != s->rows)
            free(s->counted);
        release(op, s->rows);
        release(op, s->a);
        release(op, s->a_scale);
        release(op, s->c);
    }
    release(op, op->b);
    release(op, op->b_scale);
    release(op, op->bias);
    gemm_reference_destroy(op->reference);
    free(op->slot);
    free(op->made);
    free(op->read);
    free(op);
}

/* Nothing where there are no bytes. */
static enum epa_status take(struct op_ag_gemm *op, size_t n, void **out, struct epa_error *err)
{
    enum epa_status status;

    if (n == 0)
        return EPA_OK;
    status = op->backend->ops->alloc(op->backend, n, out);
    if (status == EPA_OK)
        return EPA_OK;
    op->backend->ops->explain(op->backend, err);
    return epa_fail(err, status, "no memory for a matrix: %zu bytes", n);
}

static enum epa_status slot_alloc(struct op_ag_gemm *op, struct slot *s, struct epa_error *err)
{
    const struct experiment *x = op->x;
    size_t counts = op->world.size * sizeof(*s->rows);
    void *rows = NULL, *a_scale = NULL;
    enum epa_status status = take(op, counts, &rows, err);

    s->rows = rows;
    s->counted = is_host(op) ? s->rows : malloc(counts);
    if (status == EPA_OK)
        status = take(op, a_bytes(x), &s->a, err);
    if (status == EPA_OK)
        status = take(op, max_rows(x) * row_scale_bytes(x), &a_scale, err);
    s->a_scale = a_scale;
    if (status == EPA_OK)
        status = take(op, c_bytes(x), &s->c, err);
    if (status == EPA_OK && s->counted == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory for counts of rows");
    return status;
}

/* Where something is made: there, or on its way to a device. */
static void *maker(const struct op_ag_gemm *op, void *there)
{
    return is_host(op) ? there : op->made;
}

static enum epa_status deliver(struct op_ag_gemm *op, void *there, size_t n)
{
    return is_host(op) || n == 0 ? EPA_OK
                                 : op->backend->ops->write(op->backend, there, op->made, n);
}

static enum epa_status make_weights(struct op_ag_gemm *op, struct epa_error *err)
{
    const struct experiment *x = op->x;
    const struct gemm_values *v = &op->values;
    void *b_scale = NULL, *bias = NULL;
    enum epa_status status = take(op, b_bytes(x), &op->b, err);

    if (status == EPA_OK)
        status = take(op, b_scale_bytes(x), &b_scale, err);
    op->b_scale = b_scale;
    if (status == EPA_OK)
        status = take(op, bias_bytes(x), &bias, err);
    op->bias = bias;
    if (status != EPA_OK)
        return status;
    for (uint32_t j = 0; j < v->n; j++)
        gemm_make_b(v, op->world.rank, j, (char *)maker(op, op->b) + j * row_bytes(x));
    status = deliver(op, op->b, b_bytes(x));
    if (status == EPA_OK && is_fp8(x)) {
        gemm_make_b_scale(v, op->world.rank, maker(op, op->b_scale));
        status = deliver(op, op->b_scale, b_scale_bytes(x));
    }
    if (status == EPA_OK) {
        gemm_make_bias(v, op->world.rank, maker(op, op->bias));
        status = deliver(op, op->bias, bias_bytes(x));
    }
    if (status != EPA_OK)
        op->backend->ops->explain(op->backend, err);
    return status;
}

static enum epa_status create(const struct op_params *p, struct op_rank **out,
                              struct epa_error *err)
{
    struct op_ag_gemm *op = calloc(1, sizeof(*op));
    size_t made = b_bytes(p->x) > a_bytes(p->x) ? b_bytes(p->x) : a_bytes(p->x);
    enum epa_status status = EPA_OK;

    if (op == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the problem");
    op->base.operation = &op_ag_gemm;
    op->x = p->x;
    op->world = *p->world;
    op->footprint = p->footprint->u.ag_gemm;
    op->flops = p->footprint->flops;
    op->backend = p->backend;
    op->values = values_of(p->x);
    op->n_slots = p->slots;
    op->slot = calloc(p->slots, sizeof(*op->slot));
    op->made = is_host(op) ? NULL : malloc(made);
    op->read = is_host(op) ? NULL : malloc(c_row_bytes(p->x));
    if (op->slot == NULL || (!is_host(op) && (op->made == NULL || op->read == NULL)))
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory for matrices: %zu bytes", made);
    if (status == EPA_OK)
        status = make_weights(op, err);
    for (uint32_t i = 0; i < p->slots && status == EPA_OK; i++)
        status = slot_alloc(op, &op->slot[i], err);
    if (status != EPA_OK) {
        destroy(&op->base);
        return status;
    }
    *out = &op->base;
    return EPA_OK;
}

/* ---- an iteration ---- */

static struct epa_problem *problem(struct op_rank *rank, uint32_t slot)
{
    return &op_of(rank)->slot[slot].problem;
}

static void set_weights(const struct op_rank *rank, struct epa_problem *out)
{
    const struct op_ag_gemm *op = op_of(rank);

    out->u.ag_gemm.b = op->b;
    out->u.ag_gemm.b_scale = op->b_scale;
    out->u.ag_gemm.bias_of = op->bias;
}

/* The scales of all rows are made before the rows, where both go by way of op->made. */
static enum epa_status make_a(struct op_ag_gemm *op, struct slot *s, uint32_t rows)
{
    const struct experiment *x = op->x;
    uint32_t groups = epa_ag_gemm_groups(x->gemm.k);
    char *a = maker(op, s->a);
    float *scale = is_host(op) ? s->a_scale : NULL, *device = NULL;
    enum epa_status status = EPA_OK;

    if (!is_host(op) && is_fp8(x)) {
        device = malloc((size_t)rows * groups * sizeof(*device) + 1);
        if (device == NULL)
            return EPA_ERR_NOMEM;
        scale = device;
    }
    for (uint32_t i = 0; i < rows; i++)
        gemm_make_a(&op->values, op->world.rank, s->iteration, i, a + i * row_bytes(x),
                    scale == NULL ? NULL : scale + (size_t)i * groups);
    status = deliver(op, s->a, rows * row_bytes(x));
    if (status == EPA_OK && device != NULL && rows > 0)
        status = op->backend->ops->write(op->backend, s->a_scale, device,
                                         (size_t)rows * groups * sizeof(*device));
    free(device);
    return status;
}

static enum epa_status inputs(struct op_rank *rank, uint32_t slot, uint64_t iteration)
{
    struct op_ag_gemm *op = op_of(rank);
    struct epa_backend *b = op->backend;
    struct slot *s = &op->slot[slot];
    struct epa_ag_gemm *g = &s->problem.u.ag_gemm;
    enum epa_status status;

    s->iteration = iteration;
    for (uint32_t r = 0; r < op->world.size; r++)
        s->counted[r] = rows_of(op->x, r, iteration);
    status = is_host(op) ? EPA_OK
                         : b->ops->write(b, s->rows, s->counted, op->world.size * sizeof(*s->rows));
    if (status == EPA_OK)
        status = make_a(op, s, s->counted[op->world.rank]);
    if (status == EPA_OK)
        status = b->ops->fill(b, s->c, POISON, c_bytes(op->x));
    if (status != EPA_OK)
        return status;
    shape(op->x, &s->problem);
    set_weights(rank, &s->problem);
    g->rows = s->rows;
    g->a = s->a;
    g->a_scale = s->a_scale;
    g->c = s->c;
    return EPA_OK;
}

static uint32_t units(struct op_rank *rank, uint32_t slot)
{
    const struct op_ag_gemm *op = op_of(rank);

    return op->slot[slot].counted[op->world.rank];
}

static uint32_t node_of(const struct op_ag_gemm *op, uint32_t rank)
{
    return op->world.node == NULL ? 0 : op->world.node[rank];
}

/* Its position among the ranks of its node. */
static uint32_t place_of(const struct op_ag_gemm *op, uint32_t rank)
{
    uint32_t place = 0;

    for (uint32_t r = 0; r < rank; r++)
        place += node_of(op, r) == node_of(op, rank);
    return place;
}

/* Every rank needs the rows of all others; its own leave at least once. */
static void traffic(const struct op_rank *rank, uint32_t slot, struct op_traffic *sum)
{
    const struct op_ag_gemm *op = op_of(rank);
    const struct slot *s = &op->slot[slot];
    uint32_t me = op->world.rank, size = op->world.size, others = size - 1, local = 0;
    uint64_t rows = 0, own = s->counted[me], sent = own * others, payload, control;
    struct op_traffic t = {.flops = 0};

    for (uint32_t r = 0; r < size; r++) {
        rows += s->counted[r];
        local += node_of(op, r) == node_of(op, me);
    }
    if (op->footprint.two_level) {
        sent = own * (size / local - 1); /* to other nodes; and each row that came, to this one */
        for (uint32_t r = 0; r < size; r++)
            if (place_of(op, r) == place_of(op, me))
                sent += (uint64_t)s->counted[r] * (local - 1);
    }
    payload = row_bytes(op->x) + row_scale_bytes(op->x);
    control = others * op->footprint.control_bytes;
    t.phase[0] = (struct op_bytes){
        .needed = (rows - own) * payload,
        .sent = sent * op->footprint.row_bytes + control,
        .received = (rows - own) * op->footprint.row_bytes + control,
        .least = others == 0 ? 0 : (own > rows - own ? own : rows - own) * payload};
    t.flops = op->flops * (double)rows / (double)all_rows(op->x);
    op_traffic_add(sum, &t);
}

/* ---- the check ---- */

/* A row of C where the host can read it. */
static enum epa_status read_row(struct op_ag_gemm *op, const struct slot *s, uint64_t row,
                                const uint16_t **out, struct epa_error *err)
{
    const char *at = (const char *)s->c + row * c_row_bytes(op->x);
    enum epa_status status;

    *out = (const void *)(is_host(op) ? at : op->read);
    if (is_host(op))
        return EPA_OK;
    status = op->backend->ops->read(op->backend, op->read, at, c_row_bytes(op->x));
    if (status != EPA_OK)
        op->backend->ops->explain(op->backend, err);
    return status;
}

static enum epa_status check_end(struct op_ag_gemm *op, const struct slot *s, uint64_t rows,
                                 uint64_t *wrong, struct epa_error *err)
{
    const uint16_t *c;
    enum epa_status status = read_row(op, s, rows, &c, err);

    for (uint32_t j = 0; j < op->values.n && status == EPA_OK; j++)
        if (c[j] != (POISON | POISON << 8) && (*wrong)++ == 0)
            (void)epa_fail(err, EPA_ERR_MISMATCH,
                           "iteration %llu, ag_gemm on rank %u: column %u behind the last row "
                           "(%llu rows) was written",
                           (unsigned long long)s->iteration, op->world.rank, j,
                           (unsigned long long)rows);
    return status;
}

static enum epa_status check(struct op_rank *rank, enum epa_stage_kind kind, uint32_t slot,
                             uint64_t *compared, uint64_t *wrong, struct epa_error *err)
{
    struct op_ag_gemm *op = op_of(rank);
    const struct slot *s = &op->slot[slot];
    enum epa_status status = EPA_OK;
    uint64_t at = 0, n = 0;

    if (kind != EPA_STAGE_WHOLE)
        return EPA_OK;
    if (op->reference == NULL)
        status = gemm_reference_create(&op->values, op->world.rank, all_rows(op->x), &op->reference,
                                       err);
    for (uint32_t r = 0; r < op->world.size; r++)
        for (uint32_t i = 0; i < s->counted[r] && status == EPA_OK; i++, at++) {
            char what[160];
            const uint16_t *c;
            uint64_t bad;

            status = read_row(op, s, at, &c, err);
            if (status != EPA_OK)
                break;
            bad = gemm_check_row(op->reference, s->iteration, r, i, c, what, sizeof(what));
            if (bad > 0 && n == 0)
                (void)epa_fail(err, EPA_ERR_MISMATCH,
                               "iteration %llu, ag_gemm on rank %u: row %llu (row %u of rank %u): "
                               "%s",
                               (unsigned long long)s->iteration, op->world.rank,
                               (unsigned long long)at, i, r, what);
            n += bad;
        }
    if (status == EPA_OK)
        status = check_end(op, s, at, &n, err);
    *compared += at * op->values.n;
    *wrong += n;
    return status != EPA_OK ? status : n == 0 ? EPA_OK : EPA_ERR_MISMATCH;
}

static const char *const head[] = {"gemm", "tokens", NULL, NULL};

const struct operation op_ag_gemm = {
    .op = EPA_OP_AG_GEMM,
    .name = "ag_gemm",
    .size_key = "gemm.m",
    .size_label = "rows of all ranks",
    .size = size,
    .head = head,
    .check_options = check_options,
    .device_nodes = true,
    .shape = shape,
    .bytes = bytes,
    .create = create,
    .destroy = destroy,
    .problem = problem,
    .weights = set_weights,
    .inputs = inputs,
    .unit = "rows",
    .units = units,
    .check = check,
    .traffic = traffic,
    .n_phases = 1,
    .phase = {{"ag_gemm", EPA_STAGE_WHOLE}},
};
