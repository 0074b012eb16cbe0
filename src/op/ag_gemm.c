/* AllGather and GEMM as an operation. gemm.m rows of A are dealt to the ranks, or `tokens` says how
 * many each has; A is new in each iteration, B stays. What matrices hold, and how C is checked,
 * is in ag_gemm_check.c. */
#include "op/op.h"

#include <stdlib.h>

#include "op/ag_gemm_check.h"
#include "op/gather.h"

/* What a row of C that is not written holds: NaN in bf16 and f16. */
enum { POISON = 0xff };

struct op_ag_gemm {
    struct op_gather g; /* first; in: A, out: C */
    struct epa_ag_gemm_footprint footprint;
    double flops;
    struct gemm_values values;
    void *b, *b_scale, *bias; /* the backend's */
    char *read;               /* a device's: a row of C, for the host */
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
    uint64_t constant = b_bytes(x) + b_scale_bytes(x) + bias_bytes(x), all;

    (void)footprint;
    all = memory == EPA_MEMORY_HOST ? constant + slots * one
                                    : (constant > one ? constant : one) + c_row_bytes(x);
    return checks ? all + gemm_reference_bytes(&v, all_rows(x)) : all;
}

static void destroy(struct op_rank *rank)
{
    struct op_ag_gemm *op = op_of(rank);

    if (op == NULL)
        return;
    op_gather_free(&op->g, op->b);
    op_gather_free(&op->g, op->b_scale);
    op_gather_free(&op->g, op->bias);
    gemm_reference_destroy(op->reference);
    free(op->read);
    op_gather_destroy(&op->g);
}

static enum epa_status slot_alloc(struct op_gather *g, struct op_slot *s, struct epa_error *err)
{
    enum epa_status status = op_gather_alloc(g, a_bytes(g->x), &s->in, err);

    if (status == EPA_OK)
        status = op_gather_alloc(g, max_rows(g->x) * row_scale_bytes(g->x), &s->in_scale, err);
    if (status == EPA_OK)
        status = op_gather_alloc(g, c_bytes(g->x), &s->out, err);
    return status;
}

static enum epa_status make_weights(struct op_ag_gemm *op, struct epa_error *err)
{
    struct op_gather *g = &op->g;
    const struct experiment *x = g->x;
    const struct gemm_values *v = &op->values;
    enum epa_status status = op_gather_alloc(g, b_bytes(x), &op->b, err);

    if (status == EPA_OK)
        status = op_gather_alloc(g, b_scale_bytes(x), &op->b_scale, err);
    if (status == EPA_OK)
        status = op_gather_alloc(g, bias_bytes(x), &op->bias, err);
    if (status != EPA_OK)
        return status;
    for (uint32_t j = 0; j < v->n; j++)
        gemm_make_b(v, g->world.rank, j, (char *)op_gather_maker(g, op->b) + j * row_bytes(x));
    status = op_gather_deliver(g, op->b, b_bytes(x));
    if (status == EPA_OK && is_fp8(x)) {
        gemm_make_b_scale(v, g->world.rank, op_gather_maker(g, op->b_scale));
        status = op_gather_deliver(g, op->b_scale, b_scale_bytes(x));
    }
    if (status == EPA_OK) {
        gemm_make_bias(v, g->world.rank, op_gather_maker(g, op->bias));
        status = op_gather_deliver(g, op->bias, bias_bytes(x));
    }
    if (status != EPA_OK)
        g->backend->ops->explain(g->backend, err);
    return status;
}

static enum epa_status create(const struct op_params *p, struct op_rank **out,
                              struct epa_error *err)
{
    size_t made = b_bytes(p->x) > a_bytes(p->x) ? b_bytes(p->x) : a_bytes(p->x);
    struct op_gather *g = NULL;
    enum epa_status status =
        op_gather_create(p, &op_ag_gemm, sizeof(struct op_ag_gemm), made, &g, err);
    struct op_ag_gemm *op = (struct op_ag_gemm *)g; /* state_bytes */

    if (status != EPA_OK)
        return status;
    op->footprint = p->footprint->u.ag_gemm;
    op->flops = p->footprint->flops;
    op->values = values_of(p->x);
    op->read = op_gather_is_host(g) ? NULL : malloc(c_row_bytes(p->x));
    if (!op_gather_is_host(g) && op->read == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory for a row of C");
    if (status == EPA_OK)
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

    out->u.ag_gemm.b = op->b;
    out->u.ag_gemm.b_scale = op->b_scale;
    out->u.ag_gemm.bias_of = op->bias;
}

/* Scales go to a device by memory of their own, as rows have op->made. */
static enum epa_status make_a(struct op_ag_gemm *op, struct op_slot *s, uint32_t rows)
{
    struct op_gather *g = &op->g;
    uint32_t groups = is_fp8(g->x) ? epa_ag_gemm_groups(g->x->gemm.k) : 0;
    size_t scale_bytes = (size_t)rows * row_scale_bytes(g->x);
    char *a = op_gather_maker(g, s->in);
    float *scale = s->in_scale, *device = NULL;
    enum epa_status status;

    if (!op_gather_is_host(g) && scale_bytes > 0) {
        scale = device = malloc(scale_bytes);
        if (device == NULL)
            return EPA_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < rows; i++)
        gemm_make_a(&op->values, g->world.rank, s->iteration, i, a + i * row_bytes(g->x),
                    groups == 0 ? NULL : scale + (size_t)i * groups);
    status = op_gather_deliver(g, s->in, rows * row_bytes(g->x));
    if (status == EPA_OK && device != NULL)
        status = g->backend->ops->write(g->backend, s->in_scale, device, scale_bytes);
    free(device);
    return status;
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
        status = g->backend->ops->fill(g->backend, s->out, POISON, c_bytes(g->x));
    if (status != EPA_OK)
        return status;
    shape(g->x, &s->problem);
    set_weights(rank, &s->problem);
    gemm->rows = s->rows;
    gemm->a = s->in;
    gemm->a_scale = s->in_scale;
    gemm->c = s->out;
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

/* A row of C where the host can read it. */
static enum epa_status read_row(struct op_ag_gemm *op, const struct op_slot *s, uint64_t row,
                                const uint16_t **out, struct epa_error *err)
{
    const char *at = (const char *)s->out + row * c_row_bytes(op->g.x);
    enum epa_status status;

    *out = (const void *)(op_gather_is_host(&op->g) ? at : op->read);
    if (op_gather_is_host(&op->g))
        return EPA_OK;
    status = op->g.backend->ops->read(op->g.backend, op->read, at, c_row_bytes(op->g.x));
    if (status != EPA_OK)
        op->g.backend->ops->explain(op->g.backend, err);
    return status;
}

static enum epa_status check_end(struct op_ag_gemm *op, const struct op_slot *s, uint64_t rows,
                                 uint64_t *wrong, struct epa_error *err)
{
    const uint16_t *c;
    enum epa_status status = read_row(op, s, rows, &c, err);

    for (uint32_t j = 0; j < op->values.n && status == EPA_OK; j++)
        if (c[j] != (POISON | POISON << 8) && (*wrong)++ == 0)
            (void)epa_fail(err, EPA_ERR_MISMATCH,
                           "rank %u, iteration %llu, ag_gemm: column %u behind the last row "
                           "(%llu rows) was written",
                           op->g.world.rank, (unsigned long long)s->iteration, j,
                           (unsigned long long)rows);
    return status;
}

static enum epa_status check(struct op_rank *rank, enum epa_stage_kind kind, uint32_t slot,
                             uint64_t *compared, uint64_t *wrong, struct epa_error *err)
{
    struct op_ag_gemm *op = op_of(rank);
    const struct op_slot *s = &op->g.slot[slot];
    enum epa_status status = EPA_OK;
    uint64_t at = 0, n = 0;

    if (kind != EPA_STAGE_WHOLE)
        return EPA_OK;
    if (op->reference == NULL)
        status = gemm_reference_create(&op->values, op->g.world.rank, all_rows(op->g.x),
                                       &op->reference, err);
    for (uint32_t r = 0; r < op->g.world.size; r++)
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
                               "rank %u, iteration %llu, ag_gemm: row %llu (row %u of rank %u): "
                               "%s",
                               op->g.world.rank, (unsigned long long)s->iteration,
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
