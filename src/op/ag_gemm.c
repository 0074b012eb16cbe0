/* AllGather and GEMM as an operation. gemm.m rows of A are dealt to the ranks, or `tokens` says how
 * many each has; A is new in each iteration, B stays. What matrices hold, and how C is checked,
 * is in ag_gemm_check.c. */
#include "op/op.h"

#include "op/gather.h"

/* What a row of C that is not written holds: NaN in bf16 and f16. */
enum { POISON = 0xff };

struct op_ag_gemm {
    struct op_gather g; /* first; in: A, out: C */
    struct epa_ag_gemm_footprint footprint;
    double flops;
    struct gemm_values values;
    struct op_buffer b, b_scale, bias;
    struct gemm_reference *reference;
};

static struct op_ag_gemm *op_of(const struct op_rank *rank)
{
    return (struct op_ag_gemm *)(uintptr_t)rank; /* the first member of the first member */
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
    uint64_t all = b_bytes(x) + b_scale_bytes(x) + bias_bytes(x) + slots * one;

    (void)footprint;
    if (memory != EPA_MEMORY_HOST && !checks) /* which alone read C */
        all -= slots * c_bytes(x);
    return checks ? all + gemm_reference_bytes(&v, all_rows(x)) : all;
}

static void destroy(struct op_rank *rank)
{
    struct op_ag_gemm *op = op_of(rank);

    if (op == NULL)
        return;
    op_buffer_free(op->g.backend, &op->b);
    op_buffer_free(op->g.backend, &op->b_scale);
    op_buffer_free(op->g.backend, &op->bias);
    gemm_reference_destroy(op->reference);
    op_gather_destroy(&op->g);
}

static enum epa_status slot_alloc(struct op_gather *g, struct op_slot *s, struct epa_error *err)
{
    const struct op_array array[] = {
        {"rows of A", a_bytes(g->x), &s->in},
        {"scales of A", max_rows(g->x) * row_scale_bytes(g->x), &s->in_scale},
        {"C", c_bytes(g->x), &s->out}};

    return op_arrays_alloc(g->backend, array, 3, err);
}

static enum epa_status make_weights(struct op_ag_gemm *op, struct epa_error *err)
{
    struct epa_backend *b = op->g.backend;
    const struct experiment *x = op->g.x;
    const struct gemm_values *v = &op->values;
    uint32_t me = op->g.world.rank;
    const struct op_array array[] = {{"B", b_bytes(x), &op->b},
                                     {"scales of B", b_scale_bytes(x), &op->b_scale},
                                     {"the bias", bias_bytes(x), &op->bias}};
    enum epa_status status = op_arrays_alloc(b, array, 3, err);

    if (status != EPA_OK)
        return status;
    for (uint32_t j = 0; j < v->n; j++)
        gemm_make_b(v, me, j, (char *)op->b.here + j * row_bytes(x));
    if (is_fp8(x))
        gemm_make_b_scale(v, me, op->b_scale.here);
    gemm_make_bias(v, me, op->bias.here);
    return op_backend_done(b, op_arrays_send(b, array, 3), err, "B could not be written");
}

static enum epa_status create(const struct op_params *p, struct op_rank **out,
                              struct epa_error *err)
{
    struct op_gather *g = NULL;
    enum epa_status status = op_gather_create(p, &op_ag_gemm, sizeof(struct op_ag_gemm), &g, err);
    struct op_ag_gemm *op = (struct op_ag_gemm *)g; /* state_bytes */

    if (status != EPA_OK)
        return status;
    op->footprint = p->footprint->u.ag_gemm;
    op->flops = p->footprint->flops;
    op->values = values_of(p->x);
    status = make_weights(op, err);
    for (uint32_t i = 0; i < p->slots && status == EPA_OK; i++)
        status = slot_alloc(g, &g->slot[i], err);
    if (status != EPA_OK) {
        destroy(&g->base);
        return status;
    }
    *out = &g->base;
    return EPA_OK;
}

/* ---- an iteration ---- */

static void set_weights(const struct op_rank *rank, struct epa_problem *out)
{
    const struct op_ag_gemm *op = op_of(rank);

    out->u.ag_gemm.b = op->b.there;
    out->u.ag_gemm.b_scale = op->b_scale.there;
    out->u.ag_gemm.bias_of = op->bias.there;
}

static enum epa_status make_a(struct op_ag_gemm *op, struct op_slot *s, uint32_t rows)
{
    struct op_gather *g = &op->g;
    size_t row = row_bytes(g->x), scales = row_scale_bytes(g->x);
    enum epa_status status;

    for (uint32_t i = 0; i < rows; i++)
        gemm_make_a(&op->values, g->world.rank, s->iteration, i, (char *)s->in.here + i * row,
                    scales == 0 ? NULL : (void *)((char *)s->in_scale.here + i * scales));
    status = op_buffer_send(g->backend, &s->in, rows * row);
    return status == EPA_OK ? op_buffer_send(g->backend, &s->in_scale, rows * scales) : status;
}

static enum epa_status inputs(struct op_rank *rank, uint32_t slot, uint64_t iteration)
{
    struct op_ag_gemm *op = op_of(rank);
    struct op_gather *g = &op->g;
    struct op_slot *s = &g->slot[slot];
    struct epa_ag_gemm *gemm = &s->problem.u.ag_gemm;
    enum epa_status status = op_gather_count(g, slot, iteration, rows_of);

    if (status == EPA_OK)
        status = make_a(op, s, s->counted[g->world.rank]);
    if (status == EPA_OK)
        status = g->backend->ops->fill(g->backend, s->out.there, POISON, c_bytes(g->x));
    if (status != EPA_OK)
        return status;
    shape(g->x, &s->problem);
    set_weights(rank, &s->problem);
    gemm->rows = s->rows.there;
    gemm->a = s->in.there;
    gemm->a_scale = s->in_scale.there;
    gemm->c = s->out.there;
    return EPA_OK;
}

static uint32_t node_of(const struct op_ag_gemm *op, uint32_t rank)
{
    return op->g.world.node == NULL ? 0 : op->g.world.node[rank];
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
    const struct op_slot *s = &op->g.slot[slot];
    uint32_t me = op->g.world.rank, size = op->g.world.size, others = size - 1, local = 0;
    uint64_t rows = op_gather_rows(&op->g, s), own = s->counted[me], sent = own * others;
    uint64_t payload, control;
    struct op_traffic t = {.flops = 0};

    for (uint32_t r = 0; r < size; r++)
        local += node_of(op, r) == node_of(op, me);
    if (op->footprint.two_level) {
        sent = own * (size / local - 1); /* to other nodes; and each row that came, to this one */
        for (uint32_t r = 0; r < size; r++)
            if (place_of(op, r) == place_of(op, me))
                sent += (uint64_t)s->counted[r] * (local - 1);
    }
    payload = row_bytes(op->g.x) + row_scale_bytes(op->g.x);
    control = others * op->footprint.control_bytes;
    t.phase[0] = (struct op_bytes){
        .needed = (rows - own) * payload,
        .sent = sent * op->footprint.row_bytes + control,
        .received = (rows - own) * op->footprint.row_bytes + control,
        .least = others == 0 ? 0 : (own > rows - own ? own : rows - own) * payload};
    t.flops = op->flops * (double)rows / (double)all_rows(op->g.x);
    op_traffic_add(sum, &t);
}

/* ---- the check ---- */

static enum epa_status check(struct op_rank *rank, enum epa_stage_kind kind, uint32_t slot,
                             uint64_t *compared, uint64_t *wrong, struct epa_error *err)
{
    struct op_ag_gemm *op = op_of(rank);
    const struct op_slot *s = &op->g.slot[slot];
    struct op_finding f = {
        .stage = "ag_gemm", .rank = op->g.world.rank, .iteration = s->iteration, .err = err};
    enum epa_status status;
    const uint16_t *c = s->out.here;
    uint64_t at = 0;

    if (kind != EPA_STAGE_WHOLE)
        return EPA_OK;
    status = op_backend_done(op->g.backend,
                             op_buffer_read(op->g.backend, &s->out,
                                            (op_gather_rows(&op->g, s) + 1) * c_row_bytes(op->g.x)),
                             err, "C could not be read back");
    if (status == EPA_OK && op->reference == NULL)
        status = gemm_reference_create(&op->values, op->g.world.rank, all_rows(op->g.x),
                                       &op->reference, err);
    if (status != EPA_OK)
        return status;
    for (uint32_t r = 0; r < op->g.world.size; r++)
        for (uint32_t i = 0; i < s->counted[r]; i++, at++, c += op->values.n) {
            snprintf(f.where, sizeof(f.where), "row %llu (row %u of rank %u)",
                     (unsigned long long)at, i, r);
            gemm_check_row(op->reference, s->iteration, r, i, c, &f);
        }
    f.compared = at * op->values.n;
    f.where[0] = 0;
    for (uint32_t j = 0; j < op->values.n; j++)
        if (c[j] != (POISON | POISON << 8))
            op_wrong(&f, "column %u behind the last row (%llu rows) was written", j,
                     (unsigned long long)at);
    return op_finding_end(&f, compared, wrong);
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
    .problem = op_gather_problem,
    .weights = set_weights,
    .inputs = inputs,
    .unit = "rows",
    .units = op_gather_units,
    .check = check,
    .traffic = traffic,
    .n_phases = 1,
    .phase = {{"ag_gemm", EPA_STAGE_WHOLE}},
};
