/* AllGather as an operation, and functions that ag_gemm shares. Rows are random bytes; `tokens` sets the
 * rows of each rank. The check compares every byte of the output with the rows of all ranks, which it
 * makes again from the seed. */
#include "op/gather.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

uint64_t op_gather_rows(const struct op_rank *rank, const struct op_slot *s)
{
    uint64_t sum = 0;

    for (uint32_t r = 0; r < rank->world.size; r++)
        sum += op_gather_counts(s)[r];
    return sum;
}

struct op_bytes op_gather_bytes(const struct op_rank *rank, const struct op_slot *s,
                                uint64_t payload, uint64_t row_bytes, uint64_t sent,
                                uint64_t control_bytes)
{
    uint64_t others = rank->world.size - 1, own = s->units, rest = op_gather_rows(rank, s) - own;
    uint64_t control = others * control_bytes;

    return (struct op_bytes){.needed = rest * payload,
                             .sent = sent * row_bytes + control,
                             .received = rest * row_bytes + control,
                             .least = others == 0 ? 0 : (own > rest ? own : rest) * payload};
}

enum { ARRAY_IN = GATHER_ROWS + 1, GATHER_ARRAYS };

struct op_allgather {
    struct op_rank r; /* first */
    char *read;       /* host copy of a device's output; allocated by the first check */
    char *row;        /* expected row */
};

static struct op_allgather *gather_of(const struct op_rank *rank)
{
    return (struct op_allgather *)(uintptr_t)rank; /* its first member */
}

/* ---- options ---- */

static uint64_t allgather_max_rows(const struct problem_params *x)
{
    return x->allgather.max_rows;
}

static void allgather_shape(const struct problem_params *x, uint32_t rank, struct epa_problem *out)
{
    (void)rank;
    *out = (struct epa_problem){
        .op = EPA_OP_ALLGATHER,
        .u.allgather = {.max_rows = x->allgather.max_rows, .row_bytes = x->allgather.row_bytes}};
}

/* ---- memory ---- */

static uint32_t allgather_arrays(const struct problem_params *x, uint64_t rows,
                                 struct op_array *out)
{
    out[GATHER_ROWS] = op_gather_array(x);
    out[ARRAY_IN] = (struct op_array){"in", rows * x->allgather.row_bytes};
    return GATHER_ARRAYS;
}

static size_t output_bytes(const struct problem_params *x)
{
    return (size_t)x->ranks * x->allgather.max_rows * x->allgather.row_bytes;
}

static uint64_t allgather_bytes(const struct problem_params *x,
                                const struct epa_footprint *footprint, enum epa_memory memory,
                                uint32_t slots, bool checks)
{
    (void)footprint;
    (void)slots;
    return x->allgather.row_bytes + (memory != EPA_MEMORY_HOST && checks ? output_bytes(x) : 0);
}

static void allgather_finish(struct op_rank *rank)
{
    free(gather_of(rank)->read);
    free(gather_of(rank)->row);
}

static enum epa_status allgather_init(struct op_rank *rank, const struct op_params *p,
                                      struct epa_error *err)
{
    (void)err;
    gather_of(rank)->row = memory_alloc(1, p->problem->allgather.row_bytes);
    return EPA_OK;
}

/* ---- an iteration ---- */

static void make_row(const struct op_allgather *op, uint32_t rank, uint64_t iteration, uint32_t row,
                     char *out)
{
    uint64_t key = random_at(random_key(op->r.params->seed, RANDOM_X, rank, iteration), row);

    for (uint32_t i = 0; i < op->r.params->allgather.row_bytes / sizeof(key); i++) {
        uint64_t word = random_at(key, i);

        memcpy(out + i * sizeof(word), &word, sizeof(word));
    }
}

static uint32_t rows_of_rank(const struct problem_params *x, uint32_t rank, uint64_t iteration)
{
    return op_tokens_of(x, x->allgather.max_rows, rank, iteration);
}

static uint32_t allgather_inputs(struct op_rank *rank, struct op_slot *s)
{
    uint32_t me = rank->world.rank, *counted = s->array[GATHER_ROWS].here;
    char *in = s->array[ARRAY_IN].here;

    for (uint32_t r = 0; r < rank->world.size; r++)
        counted[r] = rows_of_rank(rank->params, r, s->iteration);
    for (uint32_t i = 0; i < counted[me]; i++)
        make_row(gather_of(rank), me, s->iteration, i,
                 in + (size_t)i * rank->params->allgather.row_bytes);
    s->problem.u.allgather.rows = s->array[GATHER_ROWS].there;
    s->problem.u.allgather.in = s->array[ARRAY_IN].there;
    return counted[me];
}

/* A rank sends its rows once to each other rank (or through a ring, or a switch that copies them). */
static void allgather_traffic(const struct op_rank *rank, uint32_t slot, struct op_traffic *sum)
{
    const struct op_slot *s = &rank->slot[slot];
    uint64_t row_bytes = rank->params->allgather.row_bytes, others = rank->world.size - 1;
    struct op_traffic t = {.flops = 0};

    t.phase[0] = op_gather_bytes(rank, s, row_bytes, row_bytes, s->units * others,
                                 rank->footprint.u.allgather.control_bytes);
    op_traffic_add(sum, &t);
}

/* Counts the rows that each rank sends to all others. */
static void allgather_load(const struct problem_params *x, const struct epa_footprint *footprint,
                           const struct op_source *source, uint64_t iteration,
                           struct op_load out[OP_PHASES])
{
    uint32_t node = x->ranks_per_node != 0 ? x->ranks_per_node : x->ranks, far = x->ranks - node;
    double row = x->allgather.row_bytes, all = 0, most = 0, most_in_node = 0, fewest = INFINITY;
    double control = (double)footprint->u.allgather.control_bytes * far;
    struct op_load l = {0};

    (void)source;
    for (uint32_t first = 0; first < x->ranks; first += node) {
        double in_node = 0;

        for (uint32_t r = first; r < first + node; r++) {
            double rows = rows_of_rank(x, r, iteration);

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

/* ---- the check ---- */

/* Copies the output of a device to host memory. */
static enum epa_status read_output(struct op_allgather *op, const struct op_slot *s, uint64_t n,
                                   const char **out, struct epa_error *err)
{
    const struct epa_allgather *g = &s->problem.u.allgather;
    struct epa_backend *b = op->r.backend;

    *out = g->out;
    if (b->memory == EPA_MEMORY_HOST || n == 0)
        return EPA_OK;
    if (op->read == NULL)
        op->read = malloc(output_bytes(op->r.params));
    if (op->read == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a copy of the output");
    *out = op->read;
    return op_backend_done(b, b->ops->read(b, op->read, g->out, n), err,
                           "cannot read the output back");
}

static enum epa_status allgather_check(struct op_rank *rank, enum epa_stage_kind kind,
                                       uint32_t slot, struct op_finding *f)
{
    struct op_allgather *op = gather_of(rank);
    const struct op_slot *s = &op->r.slot[slot];
    uint32_t row_bytes = op->r.params->allgather.row_bytes;
    const char *have = NULL;
    enum epa_status status;

    (void)kind;
    if (s->problem.u.allgather.out == NULL) {
        op_wrong(f, "there is no output");
        return EPA_OK;
    }
    status = read_output(op, s, op_gather_rows(&op->r, s) * row_bytes, &have, f->err);
    if (status != EPA_OK)
        return status;
    for (uint32_t r = 0; r < op->r.world.size; r++)
        for (uint32_t row = 0; row < op_gather_counts(s)[r]; row++, have += row_bytes) {
            f->compared += row_bytes;
            make_row(op, r, s->iteration, row, op->row);
            if (memcmp(have, op->row, row_bytes) == 0)
                continue;
            for (uint32_t i = 0; i < row_bytes; i++)
                if (have[i] != op->row[i])
                    op_wrong(f, "byte %u of row %u of rank %u is 0x%02x, should be 0x%02x", i, row,
                             r, (unsigned char)have[i], (unsigned char)op->row[i]);
        }
    return EPA_OK;
}

static const char *const gather_head[] = {"allgather", "tokens", NULL, NULL};

const struct operation op_allgather = {
    .op = EPA_OP_ALLGATHER,
    .name = "allgather",
    .size_key = "allgather.max_rows",
    .size_label = "rows of a rank",
    .size = allgather_max_rows,
    .head = gather_head,
    .shape = allgather_shape,
    .state_bytes = sizeof(struct op_allgather),
    .unit = "rows",
    .most_units = allgather_max_rows,
    .arrays = allgather_arrays,
    .init = allgather_init,
    .finish = allgather_finish,
    .bytes = allgather_bytes,
    .inputs = allgather_inputs,
    .check = allgather_check,
    .traffic = allgather_traffic,
    .load = allgather_load,
    .n_phases = 1,
    .phase = {{"allgather", EPA_STAGE_WHOLE}},
};
