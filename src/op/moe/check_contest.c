/* Combine against what GPU MODE's contest calls right ("all2all", AMD distributed
 * challenge): expert outputs in dtype, each times its weight added in float32 to a sum that is
 * rounded to dtype after each step, experts ascending, which is the order in which the
 * contest's reference receives them; and what is off by no more than atol + rtol * |ref| is
 * right. Good for telling whether an entry would have passed there; a bit that was lost may
 * pass as well: the exact reference finds more. */
#include <math.h>
#include <string.h>

#include "op/moe/check.h"

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
static uint32_t add_up(const struct op_moe *op, const int32_t *expert, const float *weight)
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

void check_allclose(const struct op_moe *op, uint32_t token, const int32_t *expert,
                   const float *weight, const uint16_t *out, struct finding *f)
{
    const struct verify_options *v = &op->x->verify;
    const float *want = op->check->total;
    uint32_t terms = add_up(op, expert, weight);

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
