/* Combine against the oracle, in two opinions: to the bit where the order of additions is
 * laid down, and always against the exact sum in float64, give or take what float32
 * additions in any order can lose, rounded to dtype. The terms of that sum are expert outputs as
 * they arrive, rounded and quantised: what that costs is no fault of the transport, and
 * anything beyond it is. */
#include "op/moe/check.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"

bool check_adds_by_rank(const struct op_moe *op)
{
    return op->footprint.layout == EPA_LAYOUT_RANK || op->footprint.sum == EPA_SUM_BY_RANK;
}

/* What a choice is sorted by, stably. Layout rank: experts ascending, which has their ranks
 * ascending, as op_moe_experts() adds them up. */
static uint32_t order_of(const struct op_moe *op, int32_t expert)
{
    if (op->footprint.layout == EPA_LAYOUT_RANK)
        return (uint32_t)expert;
    return check_adds_by_rank(op) ? (uint32_t)expert / op->local_experts : 0;
}

uint32_t check_order(const struct op_moe *op, const int32_t *expert, uint32_t *order)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < op->x->moe.topk; k++) {
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

/* The output of this expert for the reference row. */
static void load_output(const struct op_moe *op, int32_t expert)
{
    const struct check *c = op->check;
    uint32_t hidden = op->x->moe.hidden;
    const float *restrict value = c->value;
    float *restrict output = c->output;
    float factor = op_moe_factor(op, (uint32_t)expert);
    bool f16 = is_f16(op);

    for (uint32_t h = 0; h < hidden; h++)
        output[h] = float_of_word(f16, word_of_float(f16, value[h] * factor));
}

/* Makes of an expert output in dtype what it counts as where it arrives. */
static void quantise_output(const struct op_moe *op, float *restrict output)
{
    const struct check *c = op->check;
    uint32_t hidden = op->x->moe.hidden, group = op->x->moe.fp8_group_size;
    bool f16 = is_f16(op);

    for (uint32_t h = 0; h < hidden; h++)
        c->sent[h] = word_of_float(f16, output[h]);
    for (uint32_t h = 0; h < hidden; h += group) {
        float scale = e4m3_group_of(f16, c->sent + h, group, c->sent_q + h);

        for (uint32_t i = h; i < h + group; i++)
            output[i] = c->decode[c->sent_q[i]] * scale;
    }
}

/* acc += weight * answer, as the order lays down. */
static void add_output(const struct check *c, uint32_t hidden, float weight, float *acc)
{
    for (uint32_t h = 0; h < hidden; h++)
        acc[h] = fmaf(weight, c->output[h], acc[h]);
}

/* The same into the exact sum and that of magnitudes. */
static void add_exactly(const struct check *c, uint32_t hidden, float weight)
{
    const float *restrict output = c->output;
    double *restrict sum = c->sum, *restrict size = c->size;

    for (uint32_t h = 0; h < hidden; h++) {
        double term = (double)weight * (double)output[h];

        sum[h] += term;
        size[h] += fabs(term);
    }
}

/* A rank's answer, rounded as it travels, into the sums; starts the next one's. */
static void add_part(const struct op_moe *op, bool fp8)
{
    const struct check *c = op->check;
    uint32_t hidden = op->x->moe.hidden;
    bool f16 = is_f16(op);

    if (fp8)
        quantise_output(op, c->part);
    for (uint32_t h = 0; h < hidden; h++) {
        float output = fp8 ? c->part[h] : float_of_word(f16, word_of_float(f16, c->part[h]));

        c->total[h] += output; /* as fma(1, answer, total) */
        c->sum[h] += (double)output;
        c->size[h] += fabs((double)output);
        c->part[h] = 0;
    }
}

/* The right output of a token, whose reference row is loaded. Returns the number of
 * terms. */
static uint32_t add_up(const struct op_moe *op, const int32_t *expert, const float *weight)
{
    const struct check *c = op->check;
    uint32_t hidden = op->x->moe.hidden, n = check_order(op, expert, c->order), terms = 0;
    bool fp8 = op->footprint.output_dtype == EPA_FP8_E4M3;

    memset(c->total, 0, hidden * sizeof(*c->total));
    memset(c->part, 0, hidden * sizeof(*c->part));
    memset(c->sum, 0, hidden * sizeof(*c->sum));
    memset(c->size, 0, hidden * sizeof(*c->size));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = c->order[i], rank = (uint32_t)expert[k] / op->local_experts;

        load_output(op, expert[k]);
        if (!check_adds_by_rank(op)) {
            if (fp8)
                quantise_output(op, c->output);
            add_output(c, hidden, weight[k], c->total);
            add_exactly(c, hidden, weight[k]);
            terms++;
            continue;
        }
        add_output(c, hidden, weight[k], c->part);
        if (i + 1 == n || (uint32_t)expert[c->order[i + 1]] / op->local_experts != rank) {
            add_part(op, fp8);
            terms++;
        }
    }
    return terms;
}

void check_wrong(struct finding *f, uint32_t token, uint32_t h, uint16_t is, float low, float high,
                 uint32_t terms)
{
    bool f16 = is_f16(f->op);
    double value = (double)float_of_word(f16, is);

    if (is == 0xffff)
        finding_wrong(f, "token %u, column %u was not written; should be %.9g (%u expert outputs)",
                      token, h, (double)low, terms);
    else if (bits_of_float(low) == bits_of_float(high))
        finding_wrong(f,
                      "token %u, column %u is %.9g (0x%04x), should be %.9g (0x%04x; %u "
                      "expert outputs)",
                      token, h, value, is, (double)low, word_of_float(f16, low), terms);
    else
        finding_wrong(
            f, "token %u, column %u is %.9g (0x%04x), should be %.9g to %.9g (%u expert outputs)",
            token, h, value, is, (double)low, (double)high, terms);
}

/* The same number with the same sign; which NaN it is counts for nothing. */
static bool same(float is, float should)
{
    return bits_of_float(is) == bits_of_float(should) || (isnan(is) && isnan(should));
}

static void check_token(const struct op_moe *op, uint32_t token, const uint16_t *out,
                        uint32_t terms, struct finding *f)
{
    const struct check *c = op->check;
    bool ordered = op->footprint.sum != EPA_SUM_ANY, f16 = is_f16(op);
    /* Each product and each addition loses at most 2^-24 of what is summed, or half of the
     * least denormal; and going from float64 to float32 below loses as much again. */
    double part = (terms + 3) * 0x1p-24, least = terms * 0x1p-149;

    f->compared += op->x->moe.hidden;
    for (uint32_t h = 0; h < op->x->moe.hidden; h++) {
        /* An expert output in f16 may be infinite, and then so is the sum, however it is made; the
         * terms of a channel all have one sign. */
        double slack = isfinite(c->size[h]) ? c->size[h] * part + least : 0.0;
        float low = float_of_word(f16, word_of_float(f16, (float)(c->sum[h] - slack)));
        float high = float_of_word(f16, word_of_float(f16, (float)(c->sum[h] + slack)));
        float exact = float_of_word(f16, word_of_float(f16, c->total[h]));
        float is = float_of_word(f16, out[h]);

        if (ordered && !same(is, exact))
            check_wrong(f, token, h, out[h], exact, exact, terms);
        else if (!(is >= low && is <= high) && !(isnan(is) && isnan(low)))
            check_wrong(f, token, h, out[h], low, high, terms);
    }
}

/* ---- the contest ----
 *
 * Combine against what GPU MODE's contest calls right ("all2all", AMD distributed
 * challenge): expert outputs in dtype, each times its weight added in float32 to a sum that is
 * rounded to dtype after each step, experts ascending, which is the order in which the
 * contest's reference receives them; and what is off by no more than atol + rtol * |ref| is
 * right. Good for telling whether an entry would have passed there; a bit that was lost may
 * pass as well: the exact reference finds more. */

/* The kept choices of a token, experts ascending. Returns how many. */
static uint32_t order_experts(uint32_t topk, const int32_t *expert, uint32_t *order)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < topk; k++) {
        uint32_t at = n;

        if (expert[k] < 0)
            continue;
        for (; at > 0 && expert[order[at - 1]] > expert[k]; at--)
            order[at] = order[at - 1];
        order[at] = k;
        n++;
    }
    return n;
}

static float rounded(bool f16, float value)
{
    return float_of_word(f16, word_of_float(f16, value));
}

/* `total` becomes the reference of a token whose row is loaded. */
static uint32_t add_up_as_contest(const struct op_moe *op, const int32_t *expert,
                                  const float *weight)
{
    const struct check *c = op->check;
    uint32_t hidden = op->x->moe.hidden;
    uint32_t n = order_experts(op->x->moe.topk, expert, c->order);
    bool f16 = is_f16(op);

    memset(c->total, 0, hidden * sizeof(*c->total));
    for (uint32_t i = 0; i < n; i++) {
        float factor = op_moe_factor(op, (uint32_t)expert[c->order[i]]);
        float w = weight[c->order[i]];

        for (uint32_t h = 0; h < hidden; h++) {
            float term = rounded(f16, c->value[h] * factor) * w;

            c->total[h] = rounded(f16, c->total[h] + term);
        }
    }
    return n;
}

/* Where the reference is infinite, that infinity alone is right; where it is NaN, NaN;
 * elsewhere neither is. */
static bool is_close(const struct verify_options *v, float is, float want)
{
    if (isnan(want))
        return isnan(is);
    if (isinf(want))
        return is == want;
    return fabs((double)is - (double)want) <= v->atol + v->rtol * fabs((double)want);
}

static void check_allclose(const struct op_moe *op, uint32_t token, const int32_t *expert,
                           const float *weight, const uint16_t *out, struct finding *f)
{
    const struct verify_options *v = &op->x->verify;
    const float *want = op->check->total;
    uint32_t terms = add_up_as_contest(op, expert, weight);

    f->compared += op->x->moe.hidden;
    for (uint32_t h = 0; h < op->x->moe.hidden; h++) {
        float is = float_of_word(is_f16(op), out[h]);

        if (out[h] == 0xffff)
            finding_wrong(f,
                          "token %u, column %u was not written; should be about %.9g (%u "
                          "expert outputs)",
                          token, h, (double)want[h], terms);
        else if (!is_close(v, is, want[h]))
            finding_wrong(f,
                          "token %u, column %u is %.9g (0x%04x), should be %.9g, give or "
                          "take %.3g (%u expert outputs)",
                          token, h, (double)is, out[h], (double)want[h],
                          v->atol + v->rtol * fabs((double)want[h]), terms);
    }
}

/* ---- out ---- */

/* Rows of tokens that this rank does not have must be as they were. */
static void check_unused(const struct op_moe *op, uint32_t token, const uint16_t *out,
                         struct finding *f)
{
    f->compared += op->x->moe.hidden;
    for (uint32_t h = 0; h < op->x->moe.hidden; h++)
        if (out[h] != 0xffff)
            finding_wrong(f, "token %u, column %u was written, and there is no such token", token,
                          h);
}

enum epa_status op_moe_check_out(struct op_rank *side, const char *stage, uint32_t slot,
                                 uint64_t *compared, uint64_t *wrong, struct epa_error *err)
{
    struct op_moe *op = op_moe_of(side);
    struct slot *s = &op->slot[slot];
    struct finding f = {.op = op, .stage = stage, .iteration = s->iteration, .err = err};
    uint32_t rank = op->world.rank, topk = op->x->moe.topk;
    uint32_t tokens = routing_tokens_of(op->x, rank, s->iteration);
    enum epa_status status = check_create(op, err);
    const uint16_t *out = NULL;

    if (status == EPA_OK)
        status = op_moe_out(op, s, &out, err);
    if (status != EPA_OK)
        return status;
    routing_fill(op->x, op->source, rank, s->iteration, tokens, op->expert, op->weight);
    if (op->weights.mlp.ffn != 0) {
        status = check_mlp_tokens(op, s, tokens, out, &f);
        if (status != EPA_OK)
            return status;
    }
    for (uint32_t t = 0; t < op->x->moe.max_tokens; t++, out += op->x->moe.hidden) {
        size_t choice = (size_t)t * topk;
        uint32_t terms;

        if (t >= tokens) {
            check_unused(op, t, out, &f);
            continue;
        }
        if (op->weights.mlp.ffn != 0)
            continue;
        check_load_row(op, rank, s->iteration, t);
        if (op->x->verify.tolerance == TOLERANCE_ALLCLOSE) {
            check_allclose(op, t, op->expert + choice, op->weight + choice, out, &f);
            continue;
        }
        terms = add_up(op, op->expert + choice, op->weight + choice);
        check_token(op, t, out, terms, &f);
    }
    return finding_end(&f, compared, wrong);
}
