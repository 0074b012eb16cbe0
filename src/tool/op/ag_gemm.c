/* AllGather and GEMM as an operation. The ranks share gemm.m rows of A evenly, or `tokens` sets the rows
 * of each rank. A is new in each iteration; B is constant. ag_gemm_check.c makes the values of the
 * matrices and checks C. */
#include "op/ag_gemm.h"

#include "op/ag_gemm_check.h"
#include "op/gather.h"

enum { ARRAY_A = GATHER_ROWS + 1, ARRAY_A_SCALE, ARRAY_C, ARRAY_C_SCALE, GEMM_ARRAYS };

struct op_ag_gemm {
    struct op_rank r; /* first */
    struct gemm_values values;
    struct op_buffer b, b_scale, bias;
    struct gemm_reference *reference;
};

static struct op_ag_gemm *op_of(const struct op_rank *rank)
{
    return (struct op_ag_gemm *)(uintptr_t)rank; /* its first member */
}

/* ---- options ---- */

/* Returns a rank's share of the rows of A, divided evenly. */
static uint32_t even_share(const struct problem_params *x, uint32_t rank)
{
    uint64_t m = x->gemm.m;

    return (uint32_t)(m * (rank + 1) / x->ranks - m * rank / x->ranks);
}

uint32_t ag_gemm_max_rows(const struct problem_params *x)
{
    uint32_t most = 1;

    if (x->tokens.kind != TOKENS_LIST)
        return (x->gemm.m + x->ranks - 1) / x->ranks;
    for (uint32_t i = 0; i < x->tokens.per_rank.n; i++)
        most = x->tokens.per_rank.item[i] > most ? x->tokens.per_rank.item[i] : most;
    return most;
}

static uint32_t rows_of(const struct problem_params *x, uint32_t rank, uint64_t iteration)
{
    return op_tokens_of(x,
                        x->tokens.kind == TOKENS_FULL ? even_share(x, rank) : ag_gemm_max_rows(x),
                        rank, iteration);
}

/* Returns the maximum number of rows of all ranks together. */
static uint64_t all_rows(const struct problem_params *x)
{
    return (uint64_t)x->ranks * ag_gemm_max_rows(x);
}

static uint64_t ag_gemm_size(const struct problem_params *x)
{
    return x->gemm.m;
}

/* Returns the largest number of columns of a rank. */
static uint32_t max_columns(const struct problem_params *x)
{
    return (x->gemm.n + x->ranks - 1) / x->ranks;
}

/* Returns the number of columns of a rank. The ranks have max_columns() each until the columns end;
 * the last rank with columns may have fewer, and the ranks after it have none. */
static uint32_t columns_of(const struct problem_params *x, uint32_t rank)
{
    uint64_t first = (uint64_t)rank * max_columns(x);
    uint64_t left = first < x->gemm.n ? x->gemm.n - first : 0;

    return left < max_columns(x) ? (uint32_t)left : max_columns(x);
}

static void ag_gemm_shape(const struct problem_params *x, uint32_t rank, struct epa_problem *out)
{
    *out = (struct epa_problem){.op = EPA_OP_AG_GEMM,
                                .u.ag_gemm = {.max_rows = ag_gemm_max_rows(x),
                                              .n = columns_of(x, rank),
                                              .max_n = max_columns(x),
                                              .k = x->gemm.k,
                                              .dtype = x->gemm.dtype,
                                              .bias = x->gemm.bias,
                                              .out_fp8 = x->gemm.out_dtype == EPA_FP8_E4M3}};
}

static struct gemm_values gemm_values_of(const struct problem_params *x, uint32_t n)
{
    return (struct gemm_values){.seed = x->seed,
                                .n = n,
                                .k = x->gemm.k,
                                .dtype = x->gemm.dtype,
                                .integers = x->gemm.values == GEMM_INTEGERS,
                                .bias = x->gemm.bias,
                                .out_fp8 = x->gemm.out_dtype == EPA_FP8_E4M3};
}

/* ---- memory ---- */

/* Bytes of a row of A, of its scales, of C, and of scales of C; and bytes of B, its scales and the
 * bias: for a rank with n columns. */
struct sizes {
    size_t row, row_scale, c_row, c_row_scale, b, b_scale, bias;
};

static struct sizes sizes_of(const struct problem_params *x, size_t n)
{
    size_t k = x->gemm.k;
    bool fp8 = x->gemm.dtype == EPA_FP8_E4M3, out_fp8 = x->gemm.out_dtype == EPA_FP8_E4M3;
    size_t row = fp8 ? k : 2 * k, row_scale = fp8 ? epa_ag_gemm_groups(k) * sizeof(float) : 0;

    return (struct sizes){.row = row,
                          .row_scale = row_scale,
                          .c_row = n * (out_fp8 ? 1 : sizeof(uint16_t)),
                          .c_row_scale = out_fp8 ? epa_ag_gemm_groups(n) * sizeof(float) : 0,
                          .b = n * row,
                          .b_scale = epa_ag_gemm_groups(n) * row_scale,
                          .bias = n * sizeof(float)};
}

static uint64_t ag_gemm_most_units(const struct problem_params *x)
{
    return ag_gemm_max_rows(x);
}

/* C has one row more than the maximum; the algorithm must not write this row. */
static uint32_t ag_gemm_arrays(const struct problem_params *x, uint64_t rows, struct op_array *out)
{
    struct sizes size = sizes_of(x, max_columns(x));

    out[GATHER_ROWS] = op_gather_array(x);
    out[ARRAY_A] = (struct op_array){"a", rows * size.row};
    out[ARRAY_A_SCALE] = (struct op_array){"a_scale", rows * size.row_scale};
    out[ARRAY_C] = (struct op_array){"c", (all_rows(x) + 1) * size.c_row, .output = true};
    out[ARRAY_C_SCALE] =
        (struct op_array){"c_scale", (all_rows(x) + 1) * size.c_row_scale, .output = true};
    return GEMM_ARRAYS;
}

static uint64_t ag_gemm_bytes(const struct problem_params *x, const struct epa_footprint *footprint,
                              enum epa_memory memory, uint32_t slots, bool checks)
{
    const struct gemm_values v = gemm_values_of(x, max_columns(x));
    struct sizes size = sizes_of(x, max_columns(x));
    uint64_t all = size.b + size.b_scale + size.bias;

    (void)footprint;
    (void)memory;
    (void)slots;
    return checks ? all + gemm_reference_bytes(&v, all_rows(x)) : all;
}

static void ag_gemm_finish(struct op_rank *rank)
{
    struct op_ag_gemm *op = op_of(rank);

    op_buffer_free(rank->backend, &op->b);
    op_buffer_free(rank->backend, &op->b_scale);
    op_buffer_free(rank->backend, &op->bias);
    gemm_reference_destroy(op->reference);
}

/* Makes B, its scales and the bias, which are constant. */
static enum epa_status ag_gemm_init(struct op_rank *rank, const struct op_params *p,
                                    struct epa_error *err)
{
    struct op_ag_gemm *op = op_of(rank);
    const struct problem_params *x = p->problem;
    const struct gemm_values *v = &op->values;
    uint32_t columns = columns_of(x, rank->world.rank);
    struct sizes size = sizes_of(x, columns);
    struct op_buffer *const to[] = {&op->b, &op->b_scale, &op->bias};
    const uint64_t n[] = {size.b, size.b_scale, size.bias};
    enum epa_status status = EPA_OK;

    op->values = gemm_values_of(x, columns);
    for (uint32_t i = 0; i < 3 && status == EPA_OK; i++)
        status = op_buffer_alloc(p->backend, "B", n[i], to[i], err);
    if (status != EPA_OK)
        return status;
    for (uint32_t j = 0; j < v->n; j++)
        gemm_make_b(v, rank->world.rank, j, (char *)op->b.here + j * size.row);
    if (size.b_scale != 0)
        gemm_make_b_scale(v, rank->world.rank, op->b_scale.here);
    gemm_make_bias(v, rank->world.rank, op->bias.here);
    for (uint32_t i = 0; i < 3 && status == EPA_OK; i++)
        status = op_buffer_send(p->backend, to[i], n[i]);
    return op_backend_done(p->backend, status, err, "cannot write B");
}

static enum epa_status measure(struct op_rank *rank, struct op_peaks *out, struct epa_error *err)
{
    return op_measure_peaks(rank, (enum epa_dtype)rank->params->gemm.dtype, out, err);
}

/* ---- an iteration ---- */

static void ag_gemm_set_weights(const struct op_rank *rank, struct epa_problem *out)
{
    const struct op_ag_gemm *op = op_of(rank);

    out->u.ag_gemm.b = op->b.there;
    out->u.ag_gemm.b_scale = op->b_scale.there;
    out->u.ag_gemm.bias_of = op->bias.there;
}

static uint32_t ag_gemm_inputs(struct op_rank *rank, struct op_slot *s)
{
    struct op_ag_gemm *op = op_of(rank);
    struct epa_ag_gemm *gemm = &s->problem.u.ag_gemm;
    uint32_t me = rank->world.rank, *counted = s->array[GATHER_ROWS].here;
    struct sizes size = sizes_of(rank->params, op->values.n);
    char *a = s->array[ARRAY_A].here, *a_scale = s->array[ARRAY_A_SCALE].here;

    for (uint32_t r = 0; r < rank->world.size; r++)
        counted[r] = rows_of(rank->params, r, s->iteration);
    for (uint32_t i = 0; i < counted[me]; i++)
        gemm_make_a(&op->values, me, s->iteration, i, a + i * size.row,
                    size.row_scale == 0 ? NULL : (void *)(a_scale + i * size.row_scale));
    ag_gemm_set_weights(rank, &s->problem);
    gemm->rows = s->array[GATHER_ROWS].there;
    gemm->a = s->array[ARRAY_A].there;
    gemm->a_scale = s->array[ARRAY_A_SCALE].there;
    gemm->c = s->array[ARRAY_C].there;
    gemm->c_scale = s->array[ARRAY_C_SCALE].there;
    return counted[me];
}

static uint32_t node_of(const struct op_ag_gemm *op, uint32_t rank)
{
    return op->r.world.node == NULL ? 0 : op->r.world.node[rank];
}

/* Returns the position of a rank among the ranks of its node. */
static uint32_t position_in_node(const struct op_ag_gemm *op, uint32_t rank)
{
    uint32_t place = 0;

    for (uint32_t r = 0; r < rank; r++)
        place += node_of(op, r) == node_of(op, rank);
    return place;
}

static void ag_gemm_traffic(const struct op_rank *rank, uint32_t slot, struct op_traffic *sum)
{
    const struct op_ag_gemm *op = op_of(rank);
    const struct op_slot *s = &rank->slot[slot];
    const struct epa_ag_gemm_footprint *f = &rank->footprint.u.ag_gemm;
    uint32_t me = op->r.world.rank, size = op->r.world.size, local = 0;
    uint64_t own = s->units, sent = own * (size - 1);
    struct sizes bytes = sizes_of(op->r.params, op->values.n);
    struct op_traffic t = {.flops = 0};

    for (uint32_t r = 0; r < size; r++)
        local += node_of(op, r) == node_of(op, me);
    if (f->two_level) {
        sent = own * (size / local - 1); /* to other nodes; below: received rows to this node */
        for (uint32_t r = 0; r < size; r++)
            if (position_in_node(op, r) == position_in_node(op, me))
                sent += (uint64_t)op_gather_counts(s)[r] * (local - 1);
    }
    t.phase[0] =
        op_gather_bytes(rank, s, bytes.row + bytes.row_scale, f->row_bytes, sent, f->control_bytes);
    t.flops = rank->footprint.flops * (double)op_gather_rows(rank, s) /
              (double)all_rows(op->r.params) * op->values.n / max_columns(op->r.params);
    t.weights = bytes.b + bytes.b_scale;
    op_traffic_add(sum, &t);
}

/* ---- the check ---- */

/* Checks that the algorithm did not write the row after the last row: n elements of `bytes`. */
static void check_last_row(struct op_finding *f, const char *what, const unsigned char *row,
                           uint32_t n, size_t bytes, uint64_t rows)
{
    for (uint32_t j = 0; j < n; j++)
        for (size_t i = 0; i < bytes; i++)
            if (row[j * bytes + i] != OP_POISON) {
                op_wrong(f, "the algorithm wrote %s %u behind the last row (%llu rows)", what, j,
                         (unsigned long long)rows);
                break;
            }
}

static enum epa_status ag_gemm_check(struct op_rank *rank, enum epa_stage_kind kind, uint32_t slot,
                                     struct op_finding *f)
{
    struct op_ag_gemm *op = op_of(rank);
    const struct op_slot *s = &op->r.slot[slot];
    enum epa_status status;
    const unsigned char *c = s->array[ARRAY_C].here, *c_scale = s->array[ARRAY_C_SCALE].here;
    struct sizes size = sizes_of(op->r.params, op->values.n);
    bool all_room = op->r.footprint.u.ag_gemm.all_room;
    uint64_t at = 0, end = all_room ? all_rows(op->r.params) : op_gather_rows(&op->r, s);

    (void)kind;
    if (op->values.n == 0)
        return EPA_OK; /* this rank has no columns */
    status = op_buffer_read(op->r.backend, &s->array[ARRAY_C], (end + 1) * size.c_row);
    if (status == EPA_OK && size.c_row_scale != 0)
        status =
            op_buffer_read(op->r.backend, &s->array[ARRAY_C_SCALE], (end + 1) * size.c_row_scale);
    status = op_backend_done(op->r.backend, status, f->err, "cannot read C back");
    if (status == EPA_OK && op->reference == NULL)
        status = gemm_reference_create(&op->values, op->r.world.rank, all_rows(op->r.params),
                                       &op->reference, f->err);
    if (status != EPA_OK)
        return status;
    for (uint32_t r = 0; r < op->r.world.size; r++)
        for (uint32_t i = 0; i < op_gather_counts(s)[r]; i++, at++) {
            snprintf(f->where, sizeof(f->where), "row %llu (row %u of rank %u)",
                     (unsigned long long)at, i, r);
            gemm_check_row(op->reference, s->iteration, r, i, c + at * size.c_row,
                           c_scale == NULL ? NULL : c_scale + at * size.c_row_scale, f);
        }
    f->compared = at * op->values.n;
    f->where[0] = 0;
    check_last_row(f, "column", c + end * size.c_row, op->values.n, size.c_row / op->values.n, end);
    if (size.c_row_scale != 0)
        check_last_row(f, "the scale of group", c_scale + end * size.c_row_scale,
                       epa_ag_gemm_groups(op->values.n), sizeof(float), end);
    return EPA_OK;
}

static const char *const gemm_head[] = {"gemm", "tokens", NULL, NULL};

const struct operation op_ag_gemm = {
    .op = EPA_OP_AG_GEMM,
    .name = "ag_gemm",
    .size_key = "gemm.m",
    .size_label = "rows of all ranks",
    .size = ag_gemm_size,
    .head = gemm_head,
    .device_nodes = true,
    .shape = ag_gemm_shape,
    .state_bytes = sizeof(struct op_ag_gemm),
    .unit = "rows",
    .most_units = ag_gemm_most_units,
    .arrays = ag_gemm_arrays,
    .init = ag_gemm_init,
    .finish = ag_gemm_finish,
    .bytes = ag_gemm_bytes,
    .weights = ag_gemm_set_weights,
    .measure = measure,
    .inputs = ag_gemm_inputs,
    .check = ag_gemm_check,
    .traffic = ag_gemm_traffic,
    .n_phases = 1,
    .phase = {{"ag_gemm", EPA_STAGE_WHOLE}},
};
