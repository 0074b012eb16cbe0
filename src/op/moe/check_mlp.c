/* Combine of real experts against the oracle. What each expert gives is an interval
 * (reference.c); the sums of combine are made at both of its ends, which is monotone in all that
 * it does, rounding included. Where intervals are points, as with expert.values: integers without
 * SwiGLU, so is the result, and every bit is compared.
 *
 * All tokens are checked where that is cheap, and with integers; else as many as a budget of
 * multiply-adds allows, others with each iteration. Of those that are left out only whether
 * they were written is looked at, which counts for nothing. */
#include "op/moe/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Multiply-adds of a check in float64: a tenth of a second or so; and the memory of the
 * outputs that are worked out at a time. */
static const double budget = 0x1p26;
enum { ROOM_BYTES = 64 << 20, MOST_ROWS = 256 };

struct mlp_check {
    struct pool pool; /* all of the arrays */
    struct reference *reference;
    uint32_t tokens;           /* of a block, at most */
    uint32_t *token;           /* [tokens]; which they are */
    float *x;                  /* [tokens][hidden]; as the up projection reads them */
    float *scale;              /* [tokens][hidden / 128] */
    float *low, *high;         /* [tokens][topk][hidden]; expert outputs */
    struct reference_row *row; /* [MOST_ROWS]; rows of one expert */
    uint16_t *words;           /* [hidden] */
    uint8_t *codes;            /* [hidden] */
    /* [hidden]; sums in the order that is laid down, and exact ones, at both ends. */
    float *total_low, *total_high, *part_low, *part_high, *q_low, *q_high;
    double *sum_low, *sum_high, *size;
};

void check_mlp_destroy(struct mlp_check *c)
{
    if (c == NULL)
        return;
    reference_destroy(c->reference);
    pool_free(&c->pool);
    free(c);
}

/* Tokens of a block. */
static uint32_t block_tokens(const struct experiment *x)
{
    uint64_t token = (uint64_t)x->moe.topk * x->moe.hidden * 2 * sizeof(float);
    uint64_t n = ROOM_BYTES / token;

    n = n < 1 ? 1 : n < MOST_ROWS ? n : MOST_ROWS;
    return n < x->moe.max_tokens ? (uint32_t)n : x->moe.max_tokens;
}

static void lay_out(const struct experiment *x, struct mlp_check *c)
{
    size_t n = block_tokens(x), hidden = x->moe.hidden, outputs = n * x->moe.topk * hidden;
    struct pool *p = &c->pool;

    c->tokens = (uint32_t)n;
    c->token = pool_alloc(p, n, sizeof(*c->token));
    c->x = pool_alloc(p, n * hidden, sizeof(*c->x));
    c->scale = pool_alloc(p, n * hidden / WEIGHTS_BLOCK, sizeof(*c->scale));
    c->low = pool_alloc(p, outputs, sizeof(*c->low));
    c->high = pool_alloc(p, outputs, sizeof(*c->high));
    c->row = pool_alloc(p, n, sizeof(*c->row));
    c->words = pool_alloc(p, hidden, sizeof(*c->words));
    c->codes = pool_alloc(p, hidden, sizeof(*c->codes));
    c->total_low = pool_alloc(p, hidden, sizeof(float));
    c->total_high = pool_alloc(p, hidden, sizeof(float));
    c->part_low = pool_alloc(p, hidden, sizeof(float));
    c->part_high = pool_alloc(p, hidden, sizeof(float));
    c->q_low = pool_alloc(p, hidden, sizeof(float));
    c->q_high = pool_alloc(p, hidden, sizeof(float));
    c->sum_low = pool_alloc(p, hidden, sizeof(double));
    c->sum_high = pool_alloc(p, hidden, sizeof(double));
    c->size = pool_alloc(p, hidden, sizeof(double));
}

uint64_t check_mlp_bytes(const struct experiment *x)
{
    struct mlp_check c = {.pool = {.counting = true}};
    struct weights w;

    weights_init(x, &w);
    lay_out(x, &c);
    return c.pool.bytes + reference_bytes(&w, c.tokens);
}

static enum epa_status create(struct op_moe *op, struct epa_error *err)
{
    struct mlp_check *c = calloc(1, sizeof(*c));

    op->check->mlp = c;
    if (c != NULL) {
        lay_out(op->x, c);
        c->reference = reference_create(&(struct reference_params){
            .weights = &op->weights,
            .f16 = is_f16(op),
            .rounded = op->footprint.output_dtype != EPA_F32,
            .fp8_sum_bits =
                op->device_experts != NULL ? EPA_EXPERTS_FP8_SUM_BITS : op->footprint.fp8_sum_bits,
            .rows = c->tokens});
    }
    if (c != NULL && c->reference != NULL && !c->pool.failed)
        return EPA_OK;
    return epa_fail(err, EPA_ERR_NOMEM, "no memory for the checks: %llu bytes",
                    (unsigned long long)check_mlp_bytes(op->x));
}

/* ---- inputs of the experts ---- */

/* A token as the up projection reads it: problem.h, struct epa_mlp. */
static void load_token(struct op_moe *op, uint64_t iteration, uint32_t token, float *x,
                       float *scale)
{
    const struct check *c = op->check;
    struct mlp_check *m = c->mlp;
    uint32_t hidden = op->x->moe.hidden;
    bool f16 = is_f16(op), fp8 = op->weights.mlp.dtype == EPA_FP8_E4M3;
    bool quantised = op->footprint.recv_dtype == EPA_FP8_E4M3;

    check_load_row(op, op->world.rank, iteration, token);
    if (!fp8) {
        for (uint32_t h = 0; h < hidden; h++)
            x[h] = float_of_word(f16, word_of_float(f16, c->value[h]));
        return;
    }
    for (uint32_t g = 0; g < hidden; g += WEIGHTS_BLOCK) {
        const uint8_t *q = c->q + g;

        scale[g / WEIGHTS_BLOCK] = quantised
                                       ? c->scale[g / WEIGHTS_BLOCK]
                                       : e4m3_group_of(f16, c->x + g, WEIGHTS_BLOCK, m->codes);
        if (!quantised)
            q = m->codes;
        for (uint32_t i = 0; i < WEIGHTS_BLOCK; i++)
            x[g + i] = c->decode[q[i]];
    }
}

/* Outputs of all experts to the first n tokens of a block. */
static void work_out(struct op_moe *op, uint64_t iteration, uint32_t n)
{
    struct mlp_check *m = op->check->mlp;
    size_t hidden = op->x->moe.hidden, topk = op->x->moe.topk, groups = hidden / WEIGHTS_BLOCK;
    bool fp8 = op->weights.mlp.dtype == EPA_FP8_E4M3;

    for (uint32_t i = 0; i < n; i++)
        load_token(op, iteration, m->token[i], m->x + i * hidden, m->scale + i * groups);
    for (uint32_t e = 0; e < op->x->moe.experts; e++) {
        uint32_t rows = 0;

        for (uint32_t i = 0; i < n; i++)
            for (size_t k = 0; k < topk; k++) {
                size_t at = (i * topk + k) * hidden;

                if (op->expert[m->token[i] * topk + k] != (int32_t)e)
                    continue;
                m->row[rows++] = (struct reference_row){.x = m->x + i * hidden,
                                                        .scale = fp8 ? m->scale + i * groups : NULL,
                                                        .low = m->low + at,
                                                        .high = m->high + at};
            }
        if (rows != 0)
            reference_expert(m->reference, e, rows, m->row);
    }
}

/* ---- combine ---- */

/* Intervals quantised as they travel, in place. */
static void quantise(const struct op_moe *op, float *low, float *high)
{
    struct mlp_check *m = op->check->mlp;
    uint32_t hidden = op->x->moe.hidden, group = op->x->moe.fp8_group_size;

    for (uint32_t g = 0; g < hidden; g += group) {
        struct reference_scale s =
            reference_quantise(low + g, high + g, group, m->q_low + g, m->q_high + g);

        for (uint32_t h = g; h < g + group; h++) {
            low[h] = m->q_low[h] * (m->q_low[h] < 0 ? s.high : s.low);
            high[h] = m->q_high[h] * (m->q_high[h] < 0 ? s.low : s.high);
        }
    }
}

/* acc += weight * output at both ends. */
static void add_ordered(uint32_t hidden, float weight, const float *low, const float *high,
                        float *acc_low, float *acc_high)
{
    const float *first = weight < 0 ? high : low, *last = weight < 0 ? low : high;

    for (uint32_t h = 0; h < hidden; h++) {
        acc_low[h] = fmaf(weight, first[h], acc_low[h]);
        acc_high[h] = fmaf(weight, last[h], acc_high[h]);
    }
}

static void add_exactly(struct mlp_check *m, uint32_t hidden, float weight, const float *low,
                        const float *high)
{
    const float *first = weight < 0 ? high : low, *last = weight < 0 ? low : high;

    for (uint32_t h = 0; h < hidden; h++) {
        double a = (double)weight * (double)first[h], b = (double)weight * (double)last[h];

        m->sum_low[h] += a;
        m->sum_high[h] += b;
        m->size[h] += fabs(a) > fabs(b) ? fabs(a) : fabs(b);
    }
}

/* The outputs of a rank's experts, reduced, on their way; then the next rank's begin. */
static void add_part(const struct op_moe *op)
{
    struct mlp_check *m = op->check->mlp;
    uint32_t hidden = op->x->moe.hidden;
    bool f16 = is_f16(op);

    for (uint32_t h = 0; h < hidden; h++) {
        m->part_low[h] = float_of_word(f16, word_of_float(f16, m->part_low[h]));
        m->part_high[h] = float_of_word(f16, word_of_float(f16, m->part_high[h]));
    }
    if (op->footprint.output_dtype == EPA_FP8_E4M3)
        quantise(op, m->part_low, m->part_high);
    add_ordered(hidden, 1, m->part_low, m->part_high, m->total_low, m->total_high);
    add_exactly(m, hidden, 1, m->part_low, m->part_high);
    memset(m->part_low, 0, hidden * sizeof(float));
    memset(m->part_high, 0, hidden * sizeof(float));
}

/* The right output of a token, whose experts' outputs are low and high, [topk][hidden].
 * Returns the number of terms. */
static uint32_t add_up(const struct op_moe *op, const int32_t *expert, const float *weight,
                       float *low, float *high)
{
    const struct check *c = op->check;
    struct mlp_check *m = c->mlp;
    uint32_t hidden = op->x->moe.hidden, n = check_order(op, expert, c->order), terms = 0;
    bool by_rank = check_adds_by_rank(op);

    memset(m->total_low, 0, hidden * sizeof(float));
    memset(m->total_high, 0, hidden * sizeof(float));
    memset(m->part_low, 0, hidden * sizeof(float));
    memset(m->part_high, 0, hidden * sizeof(float));
    memset(m->sum_low, 0, hidden * sizeof(double));
    memset(m->sum_high, 0, hidden * sizeof(double));
    memset(m->size, 0, hidden * sizeof(double));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = c->order[i], rank = (uint32_t)expert[k] / op->local_experts;
        float *l = low + (size_t)k * hidden, *h = high + (size_t)k * hidden;

        if (by_rank) {
            add_ordered(hidden, weight[k], l, h, m->part_low, m->part_high);
            if (i + 1 < n && (uint32_t)expert[c->order[i + 1]] / op->local_experts == rank)
                continue;
            add_part(op);
        } else {
            if (op->footprint.output_dtype == EPA_FP8_E4M3)
                quantise(op, l, h);
            add_ordered(hidden, weight[k], l, h, m->total_low, m->total_high);
            add_exactly(m, hidden, weight[k], l, h);
        }
        terms++;
    }
    return terms;
}

static void compare(const struct op_moe *op, uint32_t token, const uint16_t *out, uint32_t terms,
                    struct finding *f)
{
    const struct mlp_check *m = op->check->mlp;
    bool ordered = op->footprint.sum != EPA_SUM_ANY, f16 = is_f16(op);
    bool units = op->weights.integers && op->mlp.activation == EPA_ACTIVATION_NONE &&
                 op->footprint.output_dtype != EPA_FP8_E4M3;
    double unit =
        WEIGHTS_UNIT_X * WEIGHTS_UNIT_UP * WEIGHTS_UNIT_DOWN * (double)WEIGHTS_UNIT_ROUTING;

    for (uint32_t h = 0; h < op->x->moe.hidden; h++) {
        /* As in check_combine.c; sums of units that fit a float32 are exact. */
        double slack = m->size[h] * (terms + 3) * 0x1p-24 + terms * 0x1p-149;
        float is = float_of_word(f16, out[h]), low, high;

        if (!isfinite(m->size[h]))
            continue; /* not known */
        f->compared++;
        if (units && m->size[h] < 0x1p24 * unit)
            slack = 0;
        low = ordered ? m->total_low[h] : (float)(m->sum_low[h] - slack);
        high = ordered ? m->total_high[h] : (float)(m->sum_high[h] + slack);
        low = float_of_word(f16, word_of_float(f16, low));
        high = float_of_word(f16, word_of_float(f16, high));
        if (!(is >= low && is <= high))
            check_wrong(f, token, h, out[h], low, high, terms);
    }
}

/* ---- which tokens ---- */

static uint32_t tokens_to_check(const struct op_moe *op, uint32_t tokens)
{
    double cost = reference_cost(&op->weights) * op->x->moe.topk;

    if (op->weights.integers || cost * tokens <= budget)
        return tokens;
    return cost < budget ? (uint32_t)(budget / cost) : 1;
}

/* The nth of those that are checked: spread out, from another one on in each iteration. */
static uint32_t nth_token(const struct slot *s, uint32_t tokens, uint32_t checked, uint32_t n)
{
    uint64_t at = (uint64_t)n * tokens / checked;

    return (uint32_t)((at + s->iteration * 7 + 3) % tokens);
}

static void check_written(const struct op_moe *op, uint32_t token, const uint16_t *out,
                          struct finding *f)
{
    for (uint32_t h = 0; h < op->x->moe.hidden; h++)
        if (out[h] == 0xffff)
            finding_wrong(f, "token %u, column %u was not written", token, h);
}

enum epa_status check_mlp_tokens(struct op_moe *op, const struct slot *s, uint32_t tokens,
                                 const uint16_t *out, struct finding *f)
{
    uint32_t checked = tokens_to_check(op, tokens), topk = op->x->moe.topk;
    size_t hidden = op->x->moe.hidden;
    enum epa_status status = op->check->mlp == NULL ? create(op, f->err) : EPA_OK;
    struct mlp_check *m = op->check->mlp;

    if (status != EPA_OK)
        return status;
    for (uint32_t t = 0; t < tokens; t++)
        check_written(op, t, out + t * hidden, f);
    for (uint32_t done = 0, n; done < checked && f->wrong == 0; done += n) {
        n = checked - done < m->tokens ? checked - done : m->tokens;
        for (uint32_t i = 0; i < n; i++)
            m->token[i] = nth_token(s, tokens, checked, done + i);
        work_out(op, s->iteration, n);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t t = m->token[i], terms;
            size_t choice = (size_t)t * topk, at = (size_t)i * topk * hidden;

            terms = add_up(op, op->expert + choice, op->weight + choice, m->low + at, m->high + at);
            compare(op, t, out + t * hidden, terms, f);
        }
    }
    return EPA_OK;
}
