/* Combine against the oracle. The check computes the sum of a token twice: in the specified order of
 * combine, and exactly in float64. The terms are expert outputs after rounding and quantisation, so their
 * loss is no error; any further deviation is.
 *
 *   synthetic experts  All bits of the outputs are known. The sum must equal the sum in the specified
 *                      order bit by bit. It must always equal the exact sum within the error of float32
 *                      additions in any order, rounded to dtype.
 *   real experts       Outputs are intervals (reference.c), so all sums are intervals; combine is
 *                      monotone, including rounding. If intervals are points, as with expert.values:
 *                      integers without SwiGLU, the sum is a point. All tokens are checked with integers
 *                      or if the check is cheap. Otherwise a budget of multiply-adds limits the checked
 *                      tokens, different ones in each iteration; other tokens must have been written,
 *                      which does not count as a check. */
#include "op/moe/check_combine.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "op/moe/check_state.h"

/* Limit of a check: multiply-adds in float64 (about 0.1 s). */
static const double budget = 0x1p26;

static bool is_real(const struct op_moe *op)
{
    return op->weights.shape.mlp.ffn != 0;
}

/* Returns 2 for intervals and 1 for points. */
static uint32_t ends_of(const struct op_moe *op)
{
    return is_real(op) ? 2 : 1;
}

static enum epa_status reference_make(struct op_moe *op, struct epa_error *err)
{
    struct moe_check *c = op->check;

    if (!is_real(op) || c->reference != NULL)
        return EPA_OK;
    c->reference = reference_create(&(struct reference_params){
        .weights = &op->weights,
        .f16 = is_f16(op),
        .rounded = op->footprint.output_dtype != EPA_F32,
        .fp8_sum_bits =
            op->device_experts != NULL ? EPA_EXPERTS_FP8_SUM_BITS : op->footprint.fp8_sum_bits,
        .rows = c->block_tokens});
    return c->reference != NULL ? EPA_OK : epa_fail(err, EPA_ERR_NOMEM, "no memory for the checks");
}

/* ---- expert outputs ---- */

static float round_to_dtype(bool f16, float value)
{
    return float_of_word(f16, word_of_float(f16, value));
}

/* Loads a token in the input format of the up projection (problem.h, struct epa_mlp). */
static void load_token(struct op_moe *op, uint64_t iteration, uint32_t token, float *x,
                       float *scale)
{
    const struct moe_check *c = op->check;
    uint32_t hidden = op->r.params->moe.hidden, group = op->weights.x_group;
    bool f16 = is_f16(op), quantised = op->footprint.recv_dtype == EPA_FP8_E4M3;

    check_load_row(op, op->r.world.rank, iteration, token);
    for (uint32_t h = 0; op->weights.shape.mlp.dtype != EPA_FP8_E4M3 && h < hidden; h++)
        x[h] = round_to_dtype(f16, c->value[h]);
    for (uint32_t g = 0; op->weights.shape.mlp.dtype == EPA_FP8_E4M3 && g < hidden; g += group) {
        scale[g / group] =
            quantised ? c->scale[g / group] : e4m3_group_of(f16, c->x + g, group, c->sent_q);
        for (uint32_t i = 0; i < group; i++)
            x[g + i] = c->decode[quantised ? c->q[g + i] : c->sent_q[i]];
    }
}

/* Computes the outputs of all experts for the first n tokens of a block. */
static void compute_outputs(struct op_moe *op, uint64_t iteration, uint32_t n)
{
    struct moe_check *c = op->check;
    size_t hidden = op->r.params->moe.hidden, topk = op->r.params->moe.topk,
           groups = hidden / op->weights.x_group;
    bool fp8 = op->weights.shape.mlp.dtype == EPA_FP8_E4M3;

    for (uint32_t i = 0; i < n; i++)
        load_token(op, iteration, c->token[i], c->block_x + i * hidden,
                   c->block_scale + i * groups);
    for (uint32_t e = 0; e < op->r.params->moe.experts; e++) {
        uint32_t rows = 0;

        for (uint32_t i = 0; i < n; i++)
            for (size_t k = 0; k < topk; k++) {
                size_t at = (i * topk + k) * hidden;

                if (c->expert[check_choice(op, op->r.world.rank, c->token[i]) + k] == (int32_t)e)
                    c->row[rows++] =
                        (struct reference_row){.x = c->block_x + i * hidden,
                                               .scale = fp8 ? c->block_scale + i * groups : NULL,
                                               .low = c->output[0] + at,
                                               .high = c->output[1] + at};
            }
        if (rows != 0)
            reference_expert(c->reference, e, rows, c->row);
    }
}

/* Loads the output of choice k of token i of the block, whose reference row is loaded. */
static void load_output(const struct op_moe *op, int32_t expert, uint32_t i, uint32_t k,
                        float *out[2])
{
    const struct moe_check *c = op->check;
    uint32_t hidden = op->r.params->moe.hidden;
    size_t at = is_real(op) ? ((size_t)i * op->r.params->moe.topk + k) * hidden : 0;
    float factor;

    out[0] = c->output[0] + at;
    if (is_real(op)) {
        out[1] = c->output[1] + at;
        return;
    }
    factor = op_moe_factor(op, c->iteration, (uint32_t)expert);
    for (uint32_t h = 0; h < hidden; h++)
        out[0][h] = round_to_dtype(is_f16(op), c->value[h] * factor);
}

/* ---- sums ---- */

/* Returns true if the outputs of a rank's experts are reduced to one, and these are added up rank by
 * rank. */
static bool adds_by_rank(const struct op_moe *op)
{
    return op->footprint.layout == EPA_LAYOUT_RANK || op->footprint.sum == EPA_SUM_BY_RANK;
}

/* Returns the key of the stable sort of choices. Layout rank and the contest: experts ascending, and thus
 * ranks ascending, which is the order of op_moe_experts(). */
static uint32_t order_of(const struct op_moe *op, int32_t expert)
{
    if (op->footprint.layout == EPA_LAYOUT_RANK || op->r.oracle.allclose)
        return (uint32_t)expert;
    return adds_by_rank(op) ? (uint32_t)expert / op->local_experts : 0;
}

/* Sorts the kept choices of a token into c->order, the order of addition. Returns their number. */
static uint32_t sort_choices(const struct op_moe *op, const int32_t *expert)
{
    uint32_t n = 0, *order = op->check->order;

    for (uint32_t k = 0; k < op->r.params->moe.topk; k++) {
        uint32_t at = n;

        if (expert[k] < 0)
            continue;
        for (; at > 0 && order_of(op, expert[order[at - 1]]) > order_of(op, expert[k]); at--)
            order[at] = order[at - 1];
        order[at] = k;
        n++;
    }
    return n;
}

/* Replaces outputs in dtype by their values after transit. */
static void quantise_outputs(const struct op_moe *op, float *const v[2])
{
    const struct moe_check *c = op->check;
    uint32_t hidden = op->r.params->moe.hidden, group = op->r.params->moe.fp8_group_size;
    bool f16 = is_f16(op);

    for (uint32_t g = 0; g < hidden; g += group) {
        float *low = v[0] + g, *high = v[1] + g, *const *q = c->quantised;

        if (is_real(op)) {
            struct reference_scale s = reference_quantise(low, high, group, q[0], q[1]);

            for (uint32_t i = 0; i < group; i++) {
                low[i] = q[0][i] * (q[0][i] < 0 ? s.high : s.low);
                high[i] = q[1][i] * (q[1][i] < 0 ? s.low : s.high);
            }
        } else {
            float scale;

            for (uint32_t i = 0; i < group; i++)
                c->sent[i] = word_of_float(f16, low[i]);
            scale = e4m3_group_of(f16, c->sent, group, c->sent_q);
            for (uint32_t i = 0; i < group; i++)
                low[i] = c->decode[c->sent_q[i]] * scale;
        }
    }
}

/* acc += weight * output with the specified rounding, at all ends. */
static void add_ordered(const struct op_moe *op, float weight, float *const output[2],
                        float *const acc[2])
{
    for (uint32_t end = 0, ends = ends_of(op); end < ends; end++) {
        const float *restrict from = output[weight < 0 ? ends - 1 - end : end];
        float *restrict to = acc[end];

        for (uint32_t h = 0; h < op->r.params->moe.hidden; h++)
            to[h] = fmaf(weight, from[h], to[h]);
    }
}

/* Adds a term to the exact sum and to the sum of magnitudes. */
static void add_exactly(const struct op_moe *op, float weight, float *const output[2])
{
    const struct moe_check *c = op->check;
    uint32_t last = ends_of(op) - 1;
    const float *restrict low = output[weight < 0 ? last : 0];
    const float *restrict high = output[weight < 0 ? 0 : last];

    for (uint32_t h = 0; h < op->r.params->moe.hidden; h++) {
        double a = (double)weight * (double)low[h], b = (double)weight * (double)high[h];

        c->sum[0][h] += a;
        if (last == 1)
            c->sum[1][h] += b;
        c->size[h] += fabs(a) > fabs(b) ? fabs(a) : fabs(b);
    }
}

/* Adds the reduced outputs of a rank's experts after transit to the sums; starts the next rank. */
static void add_part(const struct op_moe *op)
{
    const struct moe_check *c = op->check;
    uint32_t hidden = op->r.params->moe.hidden;
    bool fp8 = op->footprint.output_dtype == EPA_FP8_E4M3;

    for (uint32_t end = 0; end < ends_of(op); end++)
        for (uint32_t h = 0; h < hidden; h++)
            c->part[end][h] = round_to_dtype(is_f16(op), c->part[end][h]);
    if (fp8)
        quantise_outputs(op, c->part);
    add_ordered(op, 1, c->part, c->total);
    add_exactly(op, 1, c->part);
    for (uint32_t end = 0; end < ends_of(op); end++)
        memset(c->part[end], 0, hidden * sizeof(float));
}

/* Computes the right output of token i of the block, whose reference row is loaded. Returns the number of
 * terms. */
static uint32_t add_up_choices(const struct op_moe *op, uint32_t i, const int32_t *expert,
                               const float *weight)
{
    const struct moe_check *c = op->check;
    uint32_t hidden = op->r.params->moe.hidden, n = sort_choices(op, expert), terms = 0;

    for (uint32_t end = 0; end < ends_of(op); end++) {
        memset(c->total[end], 0, hidden * sizeof(float));
        memset(c->part[end], 0, hidden * sizeof(float));
        memset(c->sum[end], 0, hidden * sizeof(double));
    }
    memset(c->size, 0, hidden * sizeof(double));
    for (uint32_t j = 0; j < n; j++) {
        uint32_t k = c->order[j], rank = (uint32_t)expert[k] / op->local_experts;
        float *output[2];

        load_output(op, expert[k], i, k, output);
        if (adds_by_rank(op)) {
            add_ordered(op, weight[k], output, c->part);
            if (j + 1 < n && (uint32_t)expert[c->order[j + 1]] / op->local_experts == rank)
                continue;
            add_part(op);
        } else {
            if (op->footprint.output_dtype == EPA_FP8_E4M3)
                quantise_outputs(op, output);
            add_ordered(op, weight[k], output, c->total);
            add_exactly(op, weight[k], output);
        }
        terms++;
    }
    return terms;
}

/* The reference of GPU MODE's contest ("all2all", AMD distributed challenge): expert outputs in dtype,
 * each times its weight, added in float32 in order of experts to a sum that is rounded to dtype after each
 * step. It tells if an entry would have passed the contest. A lost bit can pass as well: the exact
 * reference detects more. */
static uint32_t add_up_as_contest(const struct op_moe *op, const int32_t *expert,
                                  const float *weight)
{
    float *total = op->check->total[0], *output[2];
    uint32_t n = sort_choices(op, expert);
    bool f16 = is_f16(op);

    memset(total, 0, op->r.params->moe.hidden * sizeof(*total));
    for (uint32_t j = 0; j < n; j++) {
        uint32_t k = op->check->order[j];

        load_output(op, expert[k], 0, k, output);
        for (uint32_t h = 0; h < op->r.params->moe.hidden; h++) {
            float term = output[0][h] * weight[k];

            total[h] = round_to_dtype(f16, total[h] + term);
        }
    }
    return n;
}

/* ---- comparisons ---- */

static void is_wrong(struct op_finding *f, bool f16, uint32_t token, uint32_t h, uint16_t is,
                     double low, double high, uint32_t terms)
{
    double value = (double)float_of_word(f16, is);

    if (is == 0xffff)
        op_wrong(f, "token %u, column %u was not written; should be %.9g (%u expert outputs)",
                 token, h, low, terms);
    else if (low == high || isnan(low))
        op_wrong(f,
                 "token %u, column %u is %.9g (0x%04x), should be %.9g (0x%04x; %u "
                 "expert outputs)",
                 token, h, value, is, low, word_of_float(f16, (float)low), terms);
    else
        op_wrong(f,
                 "token %u, column %u is %.9g (0x%04x), should be %.9g to %.9g (%u expert outputs)",
                 token, h, value, is, low, high, terms);
}

/* Returns true for the same number with the same sign, or two NaNs. */
static bool is_same(float is, float should)
{
    return bits_of_float(is) == bits_of_float(should) || (isnan(is) && isnan(should));
}

static void add_width(struct op_share *share, double width)
{
    share->widths += width;
    share->widest = fmax(share->widest, width);
}

static void compare_output(const struct op_moe *op, uint32_t token, const uint16_t *out,
                           uint32_t terms, struct op_finding *f)
{
    const struct moe_check *c = op->check;
    bool ordered = op->footprint.sum != EPA_SUM_ANY, f16 = is_f16(op), real = is_real(op);
    bool units = real && op->weights.integers && op->mlp.activation == EPA_ACTIVATION_NONE &&
                 op->footprint.output_dtype != EPA_FP8_E4M3;
    double unit =
        WEIGHTS_UNIT_X * WEIGHTS_UNIT_UP * WEIGHTS_UNIT_DOWN * (double)WEIGHTS_UNIT_ROUTING;
    uint32_t last = ends_of(op) - 1;

    for (uint32_t h = 0; h < op->r.params->moe.hidden; h++) {
        /* Each product and each addition has an error of at most 2^-24 of the sum of magnitudes, or half
         * of the least denormal; so does the conversion from float64 to float32 below. Sums of units
         * that fit a float32 are exact. */
        double slack = c->size[h] * ((terms + 3) * 0x1p-24) + terms * 0x1p-149;
        float is = float_of_word(f16, out[h]), low, high;

        if (real && !isfinite(c->size[h])) {
            f->share.overflowed++;
            continue;
        }
        /* An output in f16 may be infinite; then the sum is infinite in any order, since all terms of a
         * channel have the same sign. */
        if (!isfinite(c->size[h]) || (units && c->size[h] < 0x1p24 * unit))
            slack = 0;
        f->compared++;
        f->share.compared++;
        low = round_to_dtype(f16, c->total[0][h]);
        /* The poison of an unwritten output is a NaN and would otherwise pass as one. */
        if (out[h] == 0xffff || (ordered && !real && !is_same(is, low))) {
            is_wrong(f, is_f16(op), token, h, out[h], low, low, terms);
            continue;
        }
        high = round_to_dtype(f16, c->total[last][h]);
        if (!ordered || !real) {
            low = round_to_dtype(f16, (float)(c->sum[0][h] - slack));
            high = round_to_dtype(f16, (float)(c->sum[last][h] + slack));
        }
        if (low < high && !(ordered && !real))
            add_width(&f->share, ((double)high - (double)low) / c->size[h]);
        if (!(is >= low && is <= high) && !(isnan(is) && isnan(low)))
            is_wrong(f, is_f16(op), token, h, out[h], low, high, terms);
    }
}

/* If the contest's reference is infinite or NaN, the output must be the same; otherwise it may deviate by
 * atol + rtol * |ref|. */
static void compare_close(const struct op_moe *op, uint32_t token, const uint16_t *out,
                          uint32_t terms, struct op_finding *f)
{
    const struct op_oracle *v = &op->r.oracle;

    f->compared += op->r.params->moe.hidden;
    f->share.compared += op->r.params->moe.hidden;
    for (uint32_t h = 0; h < op->r.params->moe.hidden; h++) {
        double want = (double)op->check->total[0][h],
               is = (double)float_of_word(is_f16(op), out[h]);
        double slack = v->atol + v->rtol * fabs(want);

        if (out[h] != 0xffff && (isnan(want)   ? isnan(is)
                                 : isinf(want) ? is == want
                                               : fabs(is - want) <= slack))
            continue;
        is_wrong(f, is_f16(op), token, h, out[h], want - slack, want + slack, terms);
    }
}

/* ---- out ---- */

/* Returns how many of the tokens are checked. */
static uint32_t tokens_to_check(const struct op_moe *op, uint32_t tokens)
{
    double cost = is_real(op) ? reference_cost(&op->weights) * op->r.params->moe.topk : 0;

    if (op->weights.integers || cost * tokens <= budget)
        return tokens;
    return cost < budget ? (uint32_t)(budget / cost) : 1;
}

/* Returns the nth checked token. The checked tokens are spread out and begin at another token in each
 * iteration. */
static uint32_t nth_token(const struct op_slot *s, uint32_t tokens, uint32_t checked, uint32_t n)
{
    uint64_t at = (uint64_t)n * tokens / checked;

    return (uint32_t)((at + s->iteration * 7 + 3) % tokens);
}

static void check_real(struct op_moe *op, const struct op_slot *s, uint32_t tokens,
                       const uint16_t *out, struct op_finding *f)
{
    uint32_t checked = tokens_to_check(op, tokens);
    size_t hidden = op->r.params->moe.hidden;
    struct moe_check *c = op->check;

    for (size_t i = 0; i < tokens * hidden; i++)
        if (out[i] == 0xffff)
            op_wrong(f, "token %zu, column %zu was not written", i / hidden, i % hidden);
    for (uint32_t done = 0, n; done < checked && f->wrong == 0; done += n) {
        n = checked - done < c->block_tokens ? checked - done : c->block_tokens;
        for (uint32_t i = 0; i < n; i++)
            c->token[i] = nth_token(s, tokens, checked, done + i);
        compute_outputs(op, s->iteration, n);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t t = c->token[i];
            size_t choice = check_choice(op, op->r.world.rank, t);

            compare_output(op, t, out + t * hidden,
                           add_up_choices(op, i, c->expert + choice, c->weight + choice), f);
        }
    }
}

static void check_synthetic(struct op_moe *op, const struct op_slot *s, uint32_t tokens,
                            const uint16_t *out, struct op_finding *f)
{
    bool close = op->r.oracle.allclose;

    for (uint32_t t = 0; t < tokens; t++, out += op->r.params->moe.hidden) {
        size_t choice = check_choice(op, op->r.world.rank, t);
        const int32_t *expert = op->check->expert + choice;
        const float *weight = op->check->weight + choice;

        check_load_row(op, op->r.world.rank, s->iteration, t);
        if (close)
            compare_close(op, t, out, add_up_as_contest(op, expert, weight), f);
        else
            compare_output(op, t, out, add_up_choices(op, 0, expert, weight), f);
    }
}

enum epa_status op_moe_check_out(struct op_rank *side, uint32_t slot, struct op_finding *f)
{
    struct op_moe *op = op_moe_of(side);
    struct op_slot *s = &op->r.slot[slot];
    size_t hidden = op->r.params->moe.hidden, end = op->r.params->moe.max_tokens * hidden;
    enum epa_status status = check_begin(op, s->iteration, f->err);
    const uint16_t *out = s->array[ARRAY_OUT].here;
    uint32_t tokens;

    if (status == EPA_OK)
        status = reference_make(op, f->err);
    if (status == EPA_OK)
        status = op_backend_done(
            op->r.backend, op_buffer_read(op->r.backend, &s->array[ARRAY_OUT], end * sizeof(*out)),
            f->err, "cannot read outputs back");
    if (status != EPA_OK)
        return status;
    tokens = op->check->tokens[op->r.world.rank];
    f->share.outputs += tokens * hidden;
    if (is_real(op))
        check_real(op, s, tokens, out, f);
    else
        check_synthetic(op, s, tokens, out, f);
    /* Rows behind the last token of this rank must not change. */
    for (size_t i = tokens * hidden; i < end; i++) {
        f->compared++;
        if (out[i] != 0xffff)
            op_wrong(f, "token %zu, column %zu was written, and there is no such token", i / hidden,
                     i % hidden);
    }
    return EPA_OK;
}
