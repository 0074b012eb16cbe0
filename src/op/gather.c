/* What gather.h declares. */
#include "op/gather.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "op/op.h"

void op_gather_destroy(struct op_gather *g)
{
    for (uint32_t i = 0; i < g->n_slots; i++) {
        op_buffer_free(g->backend, &g->slot[i].rows);
        op_buffer_free(g->backend, &g->slot[i].in);
        op_buffer_free(g->backend, &g->slot[i].in_scale);
        op_buffer_free(g->backend, &g->slot[i].out);
    }
    free(g->slot);
    free(g);
}

enum epa_status op_gather_create(const struct op_params *p, const struct operation *operation,
                                 size_t state_bytes, struct op_gather **out, struct epa_error *err)
{
    struct op_gather *g = memory_alloc(1, state_bytes);
    enum epa_status status = EPA_OK;

    g->base.operation = operation;
    g->x = p->x;
    g->world = *p->world;
    g->backend = p->backend;
    g->n_slots = p->slots;
    g->slot = memory_alloc(p->slots, sizeof(*g->slot));
    for (uint32_t i = 0; i < p->slots && status == EPA_OK; i++) {
        status = op_buffer_alloc(g->backend, "counts of rows", g->world.size * sizeof(uint32_t),
                                 &g->slot[i].rows, err);
        g->slot[i].counted = g->slot[i].rows.here;
    }
    if (status != EPA_OK) {
        op_gather_destroy(g);
        return status;
    }
    *out = g;
    return EPA_OK;
}

enum epa_status op_gather_count(struct op_gather *g, uint32_t slot, uint64_t iteration,
                                uint32_t (*rows_of)(const struct experiment *, uint32_t rank,
                                                    uint64_t iteration))
{
    struct op_slot *s = &g->slot[slot];
    uint32_t *counted = s->rows.here;

    s->iteration = iteration;
    for (uint32_t r = 0; r < g->world.size; r++)
        counted[r] = rows_of(g->x, r, iteration);
    return op_buffer_send(g->backend, &s->rows, g->world.size * sizeof(*counted));
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
    all += slots * (input_bytes(x) + counts);
    return memory != EPA_MEMORY_HOST && checks ? all + x->ranks * input_bytes(x) : all;
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
        op_gather_create(p, &op_allgather, sizeof(struct op_allgather), &g, err);
    struct op_allgather *op = (struct op_allgather *)g; /* state_bytes */

    if (status != EPA_OK)
        return status;
    op->footprint = p->footprint->u.allgather;
    op->row = memory_alloc(1, p->x->allgather.row_bytes);
    for (uint32_t i = 0; i < p->slots && status == EPA_OK; i++)
        status = op_buffer_alloc(g->backend, "inputs", input_bytes(p->x), &g->slot[i].in, err);
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
    enum epa_status status = op_gather_count(g, slot, iteration, rows_of);

    for (uint32_t i = 0; i < s->counted[me]; i++)
        make_row(op_of(rank), me, iteration, i, (char *)s->in.here + (size_t)i * row_bytes);
    if (status == EPA_OK)
        status = op_buffer_send(g->backend, &s->in, (size_t)s->counted[me] * row_bytes);
    if (status != EPA_OK)
        return status;
    shape(g->x, &s->problem);
    s->problem.u.allgather.rows = s->rows.there;
    s->problem.u.allgather.in = s->in.there;
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

/* Each rank's rows to all others. */
static void load(const struct experiment *x, const struct op_source *source, uint64_t iteration,
                 struct op_load out[OP_PHASES])
{
    uint32_t node = x->ranks_per_node != 0 ? x->ranks_per_node : x->ranks, far = x->ranks - node;
    double row = x->allgather.row_bytes, all = 0, most = 0, most_in_node = 0, fewest = INFINITY;
    double control = (double)x->footprint.u.allgather.control_bytes * far;
    struct op_load l = {0};

    (void)source;
    for (uint32_t first = 0; first < x->ranks; first += node) {
        double in_node = 0;

        for (uint32_t r = first; r < first + node; r++) {
            double rows = rows_of(x, r, iteration);

            in_node += rows;
            most = fmax(most, rows);
        }
        all += in_node;
        most_in_node = fmax(most_in_node, in_node);
        fewest = fmin(fewest, in_node);
    }
    l.rows = l.entries = most * x->ranks + all;
    l.rank_bytes = fmax(most * far, all - fewest) * row + control;
    l.node_bytes = fmax(most_in_node * far, (all - fewest) * node) * row + control * node;
    l.messages = most * far;
    out[0] = l;
}

static uint32_t given(struct op_rank *rank, uint32_t slot, struct op_given *out)
{
    const struct op_gather *g = op_gather_of(rank);
    const struct op_slot *s = &g->slot[slot];
    uint64_t own = (uint64_t)s->counted[g->world.rank] * g->x->allgather.row_bytes;
    uint64_t counts = g->world.size * sizeof(uint32_t);

    out[0] =
        (struct op_given){.name = "rows", .at = s->rows.there, .used = counts, .bytes = counts};
    out[1] =
        (struct op_given){.name = "in", .at = s->in.there, .used = own, .bytes = input_bytes(g->x)};
    return s->in.there != NULL ? 2 : 1;
}

/* ---- the check ---- */

/* The output where the host can read it. */
static enum epa_status read_output(struct op_allgather *op, const struct op_slot *s, uint64_t n,
                                   const char **out, struct epa_error *err)
{
    const struct epa_allgather *g = &s->problem.u.allgather;
    struct epa_backend *b = op->g.backend;

    *out = g->out;
    if (b->memory == EPA_MEMORY_HOST || n == 0)
        return EPA_OK;
    if (op->read == NULL)
        op->read = malloc(op->g.world.size * input_bytes(op->g.x));
    if (op->read == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a copy of the output");
    *out = op->read;
    return op_backend_done(b, b->ops->read(b, op->read, g->out, n), err,
                           "the output could not be read back");
}

static enum epa_status check(struct op_rank *rank, enum epa_stage_kind kind, uint32_t slot,
                             uint64_t *compared, uint64_t *wrong, struct epa_error *err)
{
    struct op_allgather *op = op_of(rank);
    const struct op_slot *s = &op->g.slot[slot];
    struct op_finding f = {
        .stage = "allgather", .rank = op->g.world.rank, .iteration = s->iteration, .err = err};
    uint32_t row_bytes = op->g.x->allgather.row_bytes;
    const char *have = NULL;
    enum epa_status status;

    if (kind != EPA_STAGE_WHOLE)
        return EPA_OK;
    if (s->problem.u.allgather.out == NULL) {
        op_wrong(&f, "there is no output");
        return EPA_ERR_MISMATCH;
    }
    status = read_output(op, s, op_gather_rows(&op->g, s) * row_bytes, &have, err);
    if (status != EPA_OK)
        return status;
    for (uint32_t r = 0; r < op->g.world.size; r++)
        for (uint32_t row = 0; row < s->counted[r]; row++, have += row_bytes) {
            f.compared += row_bytes;
            make_row(op, r, s->iteration, row, op->row);
            if (memcmp(have, op->row, row_bytes) == 0)
                continue;
            for (uint32_t i = 0; i < row_bytes; i++)
                if (have[i] != op->row[i])
                    op_wrong(&f, "byte %u of row %u of rank %u is 0x%02x, should be 0x%02x", i, row,
                             r, (unsigned char)have[i], (unsigned char)op->row[i]);
        }
    return op_finding_end(&f, compared, wrong);
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
    .given = given,
    .unit = "rows",
    .units = op_gather_units,
    .check = check,
    .traffic = traffic,
    .load = load,
    .n_phases = 1,
    .phase = {{"allgather", EPA_STAGE_WHOLE}},
};
