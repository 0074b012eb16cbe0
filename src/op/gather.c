/* What gather.h declares. */
#include "op/gather.h"

#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "op/op.h"

enum epa_status op_gather_alloc(struct op_gather *g, size_t n, void **out, struct epa_error *err)
{
    enum epa_status status;

    if (n == 0)
        return EPA_OK;
    status = g->backend->ops->alloc(g->backend, n, out);
    if (status == EPA_OK)
        return EPA_OK;
    g->backend->ops->explain(g->backend, err);
    return epa_fail(err, status, "no memory for the problem: %zu bytes", n);
}

void op_gather_free(struct op_gather *g, void *memory)
{
    if (memory != NULL)
        g->backend->ops->free(g->backend, memory);
}

void op_gather_destroy(struct op_gather *g)
{
    for (uint32_t i = 0; g->slot != NULL && i < g->n_slots; i++) {
        struct op_slot *s = &g->slot[i];

        if (s->counted != s->rows)
            free(s->counted);
        op_gather_free(g, s->rows);
        op_gather_free(g, s->in);
        op_gather_free(g, s->in_scale);
        op_gather_free(g, s->out);
    }
    free(g->slot);
    free(g->made);
    free(g);
}

enum epa_status op_gather_create(const struct op_params *p, const struct operation *operation,
                                 size_t state_bytes, size_t made_bytes, struct op_gather **out,
                                 struct epa_error *err)
{
    struct op_gather *g = calloc(1, state_bytes);
    size_t counts = p->world->size * sizeof(uint32_t);
    enum epa_status status = EPA_OK;

    if (g == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the problem");
    g->base.operation = operation;
    g->x = p->x;
    g->world = *p->world;
    g->backend = p->backend;
    g->n_slots = p->slots;
    g->slot = calloc(p->slots, sizeof(*g->slot));
    g->made = op_gather_is_host(g) ? NULL : malloc(made_bytes);
    if (g->slot == NULL || (!op_gather_is_host(g) && g->made == NULL))
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory for the problem: %zu bytes", made_bytes);
    for (uint32_t i = 0; i < p->slots && status == EPA_OK; i++) {
        struct op_slot *s = &g->slot[i];
        void *rows = NULL;

        status = op_gather_alloc(g, counts, &rows, err);
        s->rows = rows;
        s->counted = op_gather_is_host(g) ? s->rows : malloc(counts);
        if (status == EPA_OK && s->counted == NULL)
            status = epa_fail(err, EPA_ERR_NOMEM, "no memory for counts of rows");
    }
    if (status != EPA_OK) {
        op_gather_destroy(g);
        return status;
    }
    *out = g;
    return EPA_OK;
}

enum epa_status op_gather_deliver(struct op_gather *g, void *there, size_t n)
{
    return op_gather_is_host(g) || n == 0 ? EPA_OK
                                          : g->backend->ops->write(g->backend, there, g->made, n);
}

enum epa_status op_gather_count(struct op_gather *g, uint32_t slot, uint64_t iteration,
                                uint32_t (*rows_of)(const struct experiment *, uint32_t rank,
                                                    uint64_t iteration))
{
    struct op_slot *s = &g->slot[slot];

    s->iteration = iteration;
    for (uint32_t r = 0; r < g->world.size; r++)
        s->counted[r] = rows_of(g->x, r, iteration);
    return op_gather_is_host(g) ? EPA_OK
                                : g->backend->ops->write(g->backend, s->rows, s->counted,
                                                         g->world.size * sizeof(*s->rows));
}

uint64_t op_gather_rows(const struct op_gather *g, const struct op_slot *s)
{
    uint64_t sum = 0;

    for (uint32_t r = 0; r < g->world.size; r++)
        sum += s->counted[r];
    return sum;
}

struct epa_problem *op_gather_problem(struct op_rank *rank, uint32_t slot)
{
    return &op_gather_of(rank)->slot[slot].problem;
}

uint32_t op_gather_units(struct op_rank *rank, uint32_t slot)
{
    const struct op_gather *g = op_gather_of(rank);

    return g->slot[slot].counted[g->world.rank];
}

/* ---- the operation allgather ---- */

/* AllGather as an operation. Rows are random bytes; `tokens` says how many each rank has. The
 * output is compared byte by byte with the rows of all ranks, made again from the seed. */

struct op_allgather {
    struct op_gather g; /* first */
    struct epa_allgather_footprint footprint;
    char *read; /* a device's: its output, for the host; made by the first check */
    char *row;  /* as it should be */
};

static struct op_allgather *op_of(const struct op_rank *rank)
{
    return (struct op_allgather *)(uintptr_t)rank; /* the first member of the first member */
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
    free(op->read);
    free(op->row);
    op_gather_destroy(&op->g);
}

static enum epa_status create(const struct op_params *p, struct op_rank **out,
                              struct epa_error *err)
{
    struct op_gather *g = NULL;
    enum epa_status status =
        op_gather_create(p, &op_allgather, sizeof(struct op_allgather), input_bytes(p->x), &g, err);
    struct op_allgather *op = (struct op_allgather *)g; /* state_bytes */

    if (status != EPA_OK)
        return status;
    op->footprint = p->footprint->u.allgather;
    op->row = malloc(p->x->allgather.row_bytes);
    if (op->row == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory for a row");
    for (uint32_t i = 0; i < p->slots && status == EPA_OK; i++)
        status = op_gather_alloc(g, input_bytes(p->x), &g->slot[i].in, err);
    if (status != EPA_OK) {
        destroy(&g->base);
        return status;
    }
    *out = &g->base;
    return EPA_OK;
}

/* ---- an iteration ---- */

static void make_row(const struct op_allgather *op, uint32_t rank, uint64_t iteration, uint32_t row,
                     char *out)
{
    uint64_t key = random_at(random_key(op->g.x->seed, RANDOM_X, rank, iteration), row);

    for (uint32_t i = 0; i < op->g.x->allgather.row_bytes / sizeof(key); i++) {
        uint64_t word = random_at(key, i);

        memcpy(out + i * sizeof(word), &word, sizeof(word));
    }
}

static uint32_t rows_of(const struct experiment *x, uint32_t rank, uint64_t iteration)
{
    return op_tokens_of(x, x->allgather.max_rows, rank, iteration);
}

static enum epa_status inputs(struct op_rank *rank, uint32_t slot, uint64_t iteration)
{
    struct op_gather *g = op_gather_of(rank);
    struct op_slot *s = &g->slot[slot];
    uint32_t me = g->world.rank, row_bytes = g->x->allgather.row_bytes;
    char *made = op_gather_maker(g, s->in);
    enum epa_status status = op_gather_count(g, slot, iteration, rows_of);

    for (uint32_t i = 0; i < s->counted[me]; i++)
        make_row(op_of(rank), me, iteration, i, made + (size_t)i * row_bytes);
    if (status == EPA_OK)
        status = op_gather_deliver(g, s->in, (size_t)s->counted[me] * row_bytes);
    if (status != EPA_OK)
        return status;
    shape(g->x, &s->problem);
    s->problem.u.allgather.rows = s->rows;
    s->problem.u.allgather.in = s->in;
    return EPA_OK;
}

/* Every rank needs the rows of all others; its own leave once for each other, and at least
 * once (a ring, or a switch that copies them). */
static void traffic(const struct op_rank *rank, uint32_t slot, struct op_traffic *sum)
{
    const struct op_allgather *op = op_of(rank);
    const struct op_slot *s = &op->g.slot[slot];
    uint64_t row_bytes = op->g.x->allgather.row_bytes, others = op->g.world.size - 1;
    uint64_t own = s->counted[op->g.world.rank] * row_bytes;
    uint64_t all = op_gather_rows(&op->g, s) * row_bytes;
    uint64_t control = others * op->footprint.control_bytes;
    struct op_traffic t = {.flops = 0};

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
static enum epa_status read_output(struct op_allgather *op, const struct op_slot *s, uint64_t n,
                                   const char **out, struct epa_error *err)
{
    const struct epa_allgather *g = &s->problem.u.allgather;
    struct epa_backend *b = op->g.backend;
    enum epa_status status;

    *out = g->out;
    if (op_gather_is_host(&op->g) || n == 0)
        return EPA_OK;
    if (op->read == NULL)
        op->read = malloc(op->g.world.size * input_bytes(op->g.x));
    if (op->read == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a copy of the output");
    *out = op->read;
    status = b->ops->read(b, op->read, g->out, n);
    if (status != EPA_OK)
        b->ops->explain(b, err);
    return status;
}

/* Compares a row; says what is wrong with the first byte that is. Returns how many are. */
static uint64_t compare_row(const struct op_allgather *op, const struct op_slot *s, uint32_t source,
                            uint32_t row, const char *have, struct epa_error *err)
{
    uint32_t row_bytes = op->g.x->allgather.row_bytes;
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
                           op->g.world.rank, (unsigned long long)s->iteration, i, row, source,
                           (unsigned char)have[i], (unsigned char)op->row[i]);
    }
    return wrong;
}

static enum epa_status check(struct op_rank *rank, enum epa_stage_kind kind, uint32_t slot,
                             uint64_t *compared, uint64_t *wrong, struct epa_error *err)
{
    struct op_allgather *op = op_of(rank);
    const struct op_slot *s = &op->g.slot[slot];
    uint64_t row_bytes = op->g.x->allgather.row_bytes, n = 0;
    uint64_t all = op_gather_rows(&op->g, s);
    const char *have = NULL;
    enum epa_status status;

    if (kind != EPA_STAGE_WHOLE)
        return EPA_OK;
    if (s->problem.u.allgather.out == NULL)
        return epa_fail(err, EPA_ERR_MISMATCH,
                        "rank %u, iteration %llu, allgather: there is no output", op->g.world.rank,
                        (unsigned long long)s->iteration);
    status = read_output(op, s, all * row_bytes, &have, err);
    if (status != EPA_OK)
        return status;
    for (uint32_t r = 0; r < op->g.world.size; r++)
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
    .problem = op_gather_problem,
    .inputs = inputs,
    .unit = "rows",
    .units = op_gather_units,
    .check = check,
    .traffic = traffic,
    .n_phases = 1,
    .phase = {{"allgather", EPA_STAGE_WHOLE}},
};
