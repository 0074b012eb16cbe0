/* AllGather as an operation. Rows are random bytes; `tokens` says how many each rank has. The
 * output is compared byte by byte with the rows of all ranks, made again from the seed. */
#include "op/allgather.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"

struct slot {
    struct epa_problem problem;
    uint64_t iteration;
    void *in;          /* the backend's: [max_rows][row_bytes] */
    uint32_t *rows;    /* the backend's: [size] */
    uint32_t *counted; /* [size], for the host; `rows` where that is the backend */
};

struct op_allgather {
    struct op_rank base;
    const struct experiment *x;
    struct epa_world world;
    struct epa_allgather_footprint footprint;
    struct epa_backend *backend;
    uint32_t n_slots;
    struct slot *slot;
    char *made; /* a device's: rows on their way there */
    char *read; /* a device's: its output, for the host; made by the first check */
    char *row;  /* as it should be */
};

static struct op_allgather *op_of(const struct op_rank *rank)
{
    return (struct op_allgather *)(uintptr_t)rank; /* base is the first member */
}

static bool is_host(const struct op_allgather *op)
{
    return op->backend->memory == EPA_MEMORY_HOST;
}

/* ---- options ---- */

static void check_options(const struct config_check *c)
{
    uint32_t bytes = c->x->allgather.row_bytes;

    if (bytes % 16 != 0)
        check_conflict(c, "allgather.row_bytes", NULL, check_multiples(c, bytes, 16),
                       "%s is not a multiple of 16", check_value(c, "allgather.row_bytes", bytes));
}

static uint64_t max_rows(const struct experiment *x)
{
    return x->allgather.max_rows;
}

static void shape(const struct experiment *x, struct epa_problem *out)
{
    *out = (struct epa_problem){
        .op = EPA_OP_ALLGATHER,
        .u.allgather = {.max_rows = x->allgather.max_rows, .row_bytes = x->allgather.row_bytes}};
}

/* ---- memory ---- */

static size_t input_bytes(const struct experiment *x)
{
    return (size_t)x->allgather.max_rows * x->allgather.row_bytes;
}

static uint64_t bytes(const struct experiment *x, const struct epa_footprint *footprint,
                      enum epa_memory memory, uint32_t slots, bool checks)
{
    uint64_t counts = x->ranks * sizeof(uint32_t), all = x->allgather.row_bytes;

    (void)footprint;
    if (memory == EPA_MEMORY_HOST)
        return all + slots * (input_bytes(x) + counts);
    all += slots * counts + input_bytes(x);
    return checks ? all + x->ranks * input_bytes(x) : all;
}

static void destroy(struct op_rank *rank)
{
    struct op_allgather *op = op_of(rank);

    if (op == NULL)
        return;
    for (uint32_t i = 0; op->slot != NULL && i < op->n_slots; i++) {
        struct slot *s = &op->slot[i];

        if (s->counted != s->rows)
            free(s->counted);
        if (s->rows != NULL)
            op->backend->ops->free(op->backend, s->rows);
        if (s->in != NULL)
            op->backend->ops->free(op->backend, s->in);
    }
    free(op->slot);
    free(op->made);
    free(op->read);
    free(op->row);
    free(op);
}

static enum epa_status slot_alloc(struct op_allgather *op, struct slot *s, struct epa_error *err)
{
    struct epa_backend *b = op->backend;
    size_t counts = op->world.size * sizeof(*s->rows);
    void *rows = NULL;
    enum epa_status status = b->ops->alloc(b, input_bytes(op->x), &s->in);

    if (status == EPA_OK)
        status = b->ops->alloc(b, counts, &rows);
    s->rows = rows;
    if (status != EPA_OK) {
        b->ops->explain(b, err);
        return epa_fail(err, status, "no memory for rows: %llu bytes",
                        (unsigned long long)(input_bytes(op->x) + counts));
    }
    s->counted = is_host(op) ? s->rows : malloc(counts);
    return s->counted != NULL ? EPA_OK
                              : epa_fail(err, EPA_ERR_NOMEM, "no memory for counts of rows");
}

static enum epa_status create(const struct op_params *p, struct op_rank **out,
                              struct epa_error *err)
{
    struct op_allgather *op = calloc(1, sizeof(*op));
    enum epa_status status = EPA_OK;

    if (op == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the problem");
    op->base.operation = &op_allgather;
    op->x = p->x;
    op->world = *p->world;
    op->footprint = p->footprint->u.allgather;
    op->backend = p->backend;
    op->n_slots = p->slots;
    op->slot = calloc(p->slots, sizeof(*op->slot));
    op->row = malloc(p->x->allgather.row_bytes);
    op->made = is_host(op) ? NULL : malloc(input_bytes(p->x));
    if (op->slot == NULL || op->row == NULL || (!is_host(op) && op->made == NULL))
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory for rows: %llu bytes",
                          (unsigned long long)input_bytes(p->x));
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

static void make_row(const struct op_allgather *op, uint32_t rank, uint64_t iteration, uint32_t row,
                     char *out)
{
    uint64_t key = random_at(random_key(op->x->seed, RANDOM_X, rank, iteration), row);

    for (uint32_t i = 0; i < op->x->allgather.row_bytes / sizeof(key); i++) {
        uint64_t word = random_at(key, i);

        memcpy(out + i * sizeof(word), &word, sizeof(word));
    }
}

static enum epa_status inputs(struct op_rank *rank, uint32_t slot, uint64_t iteration)
{
    struct op_allgather *op = op_of(rank);
    struct epa_backend *b = op->backend;
    struct slot *s = &op->slot[slot];
    uint32_t me = op->world.rank, row_bytes = op->x->allgather.row_bytes, rows;
    char *made = is_host(op) ? s->in : op->made;
    enum epa_status status = EPA_OK;

    s->iteration = iteration;
    for (uint32_t r = 0; r < op->world.size; r++)
        s->counted[r] = op_tokens_of(op->x, op->x->allgather.max_rows, r, iteration);
    rows = s->counted[me];
    for (uint32_t i = 0; i < rows; i++)
        make_row(op, me, iteration, i, made + (size_t)i * row_bytes);
    if (!is_host(op)) {
        status = b->ops->write(b, s->rows, s->counted, op->world.size * sizeof(*s->rows));
        if (status == EPA_OK && rows != 0)
            status = b->ops->write(b, s->in, made, (size_t)rows * row_bytes);
    }
    if (status != EPA_OK)
        return status;
    shape(op->x, &s->problem);
    s->problem.u.allgather.rows = s->rows;
    s->problem.u.allgather.in = s->in;
    return EPA_OK;
}

static uint32_t rows_of(struct op_rank *rank, uint32_t slot)
{
    const struct op_allgather *op = op_of(rank);

    return op->slot[slot].counted[op->world.rank];
}

/* Every rank needs the rows of all others; its own leave once for each other, and at least
 * once (a ring, or a switch that copies them). */
static void traffic(const struct op_rank *rank, uint32_t slot, struct op_traffic *sum)
{
    const struct op_allgather *op = op_of(rank);
    const struct slot *s = &op->slot[slot];
    uint64_t row_bytes = op->x->allgather.row_bytes, others = op->world.size - 1;
    uint64_t own = s->counted[op->world.rank] * row_bytes, all = 0;
    uint64_t control = others * op->footprint.control_bytes;
    struct op_traffic t = {.flops = 0};

    for (uint32_t r = 0; r < op->world.size; r++)
        all += s->counted[r] * row_bytes;
    t.phase[0] = (struct op_bytes){.needed = all - own,
                                   .sent = own * others + control,
                                   .received = all - own + control,
                                   .least = others == 0       ? 0
                                            : own > all - own ? own
                                                              : all - own};
    op_traffic_add(sum, &t);
}

/* ---- the check ---- */

/* The output where the host can read it. */
static enum epa_status read_output(struct op_allgather *op, const struct slot *s, uint64_t n,
                                   const char **out, struct epa_error *err)
{
    const struct epa_allgather *g = &s->problem.u.allgather;
    struct epa_backend *b = op->backend;
    enum epa_status status;

    *out = g->out;
    if (is_host(op) || n == 0)
        return EPA_OK;
    if (op->read == NULL)
        op->read = malloc(op->world.size * input_bytes(op->x));
    if (op->read == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a copy of the output");
    *out = op->read;
    status = b->ops->read(b, op->read, g->out, n);
    if (status != EPA_OK)
        b->ops->explain(b, err);
    return status;
}

/* Compares a row; says what is wrong with the first byte that is. Returns how many are. */
static uint64_t compare_row(const struct op_allgather *op, const struct slot *s, uint32_t source,
                            uint32_t row, const char *have, struct epa_error *err)
{
    uint32_t row_bytes = op->x->allgather.row_bytes;
    uint64_t wrong = 0;

    make_row(op, source, s->iteration, row, op->row);
    if (memcmp(have, op->row, row_bytes) == 0)
        return 0;
    for (uint32_t i = 0; i < row_bytes; i++) {
        if (have[i] == op->row[i])
            continue;
        wrong++;
        if (err->status == EPA_OK)
            (void)epa_fail(err, EPA_ERR_MISMATCH,
                           "rank %u, iteration %llu, allgather: byte %u of row %u of rank "
                           "%u is 0x%02x, should be 0x%02x",
                           op->world.rank, (unsigned long long)s->iteration, i, row, source,
                           (unsigned char)have[i], (unsigned char)op->row[i]);
    }
    return wrong;
}

static enum epa_status check(struct op_rank *rank, enum epa_stage_kind kind, uint32_t slot,
                             uint64_t *compared, uint64_t *wrong, struct epa_error *err)
{
    struct op_allgather *op = op_of(rank);
    const struct slot *s = &op->slot[slot];
    uint64_t row_bytes = op->x->allgather.row_bytes, all = 0, n = 0;
    const char *have = NULL;
    enum epa_status status;

    if (kind != EPA_STAGE_WHOLE)
        return EPA_OK;
    for (uint32_t r = 0; r < op->world.size; r++)
        all += s->counted[r];
    if (s->problem.u.allgather.out == NULL)
        return epa_fail(err, EPA_ERR_MISMATCH,
                        "rank %u, iteration %llu, allgather: there is no output", op->world.rank,
                        (unsigned long long)s->iteration);
    status = read_output(op, s, all * row_bytes, &have, err);
    if (status != EPA_OK)
        return status;
    for (uint32_t r = 0; r < op->world.size; r++)
        for (uint32_t i = 0; i < s->counted[r]; i++, have += row_bytes)
            n += compare_row(op, s, r, i, have, err);
    *compared += all * row_bytes;
    *wrong += n;
    return n == 0 ? EPA_OK : EPA_ERR_MISMATCH;
}

static const char *const head[] = {"allgather", "tokens", NULL, NULL};

const struct operation op_allgather = {
    .op = EPA_OP_ALLGATHER,
    .name = "allgather",
    .size_key = "allgather.max_rows",
    .size_label = "rows of a rank",
    .size = max_rows,
    .head = head,
    .check_options = check_options,
    .shape = shape,
    .bytes = bytes,
    .create = create,
    .destroy = destroy,
    .problem = problem,
    .inputs = inputs,
    .unit = "rows",
    .units = rows_of,
    .check = check,
    .traffic = traffic,
    .n_phases = 1,
    .phase = {{"allgather", EPA_STAGE_WHOLE}},
};
