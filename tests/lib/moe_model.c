#include "moe_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <epa2a/logfmt.h>

#include "base/dtype.h"

enum { TOPK = 32, RANKS = 8 };

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t draw(const struct setting *s, uint64_t use, uint64_t rank, uint64_t iteration,
                     uint64_t at)
{
    return mix(mix(mix(mix(s->seed + use) + rank) + iteration) + at);
}

static bool is_f16(const struct setting *s)
{
    return s->shape.dtype == EPA2A_F16;
}

/* ---- inputs ---- */

enum { USE_TOKENS = 1, USE_CHOICES, USE_WEIGHT, USE_X, USE_BIAS };

uint32_t model_tokens(const struct setting *s, uint32_t rank, uint64_t iteration)
{
    uint32_t most = s->shape.max_tokens;

    switch (iteration % 4) {
    case 0:
        return most;
    case 1:
        return rank % 2 == 0 ? 0 : most;
    case 2:
        return iteration % 8 == 2 ? 0 : 1;
    default:
        return (uint32_t)(draw(s, USE_TOKENS, rank, iteration, 0) % (most + 1));
    }
}

void model_choices(const struct setting *s, uint32_t rank, uint64_t route, uint32_t token,
                   int32_t *expert, float *weight)
{
    uint32_t topk = s->shape.topk;

    for (uint32_t k = 0; k < topk; k++) {
        uint64_t r = draw(s, USE_CHOICES, rank, route, (uint64_t)token * topk + k);
        int32_t e = (int32_t)(r % s->shape.experts);

        for (uint32_t i = 0; i < k; i++)
            if (expert[i] == e) { /* the next expert that is free */
                e = (e + 1) % (int32_t)s->shape.experts;
                i = UINT32_MAX;
            }
        expert[k] = e;
        r = draw(s, USE_WEIGHT, rank, route, (uint64_t)token * topk + k);
        weight[k] = (float)(r % 1000) / 1024.0f - 0.25f;
    }
    for (uint32_t k = 0; k < topk; k++)
        if (draw(s, USE_CHOICES, rank, route, (uint64_t)token * topk + k) >> 60 < 3)
            expert[k] = -1;
}

static void fill_row(const struct setting *s, uint64_t use, uint32_t rank, uint64_t iteration,
                     uint64_t at, uint16_t *out)
{
    for (uint32_t h = 0; h < s->shape.hidden; h++) {
        uint64_t r = draw(s, use, rank, iteration, at * s->shape.hidden + h);

        out[h] = word_of_float(is_f16(s), (float)(int32_t)(r % 4096 - 2048) / 512.0f);
    }
}

void model_x(const struct setting *s, uint32_t rank, uint64_t iteration, uint32_t token,
             uint16_t *x)
{
    fill_row(s, USE_X, rank, iteration, token, x);
    if (token % 5 == 4) /* a group of zeros */
        memset(x, 0, 16 * sizeof(*x));
    for (uint32_t h = 0; s->logfmt && token % 3 != 2 && h < s->shape.hidden; h++)
        x[h] = word_of_float(is_f16(s), float_of_word(is_f16(s), x[h]) / 64);
    if (s->logfmt && token % 3 == 1) /* one group of the last part has a large value */
        x[s->shape.hidden - 1] = word_of_float(is_f16(s), 4);
}

void model_bias(const struct setting *s, uint32_t rank, uint64_t iteration, uint32_t token,
                uint32_t which, uint16_t *out)
{
    fill_row(s, USE_BIAS + which, rank, iteration, token, out);
}

/* ---- delivered rows ---- */

bool model_is_fp8(const struct setting *s)
{
    if ((s->flags & EPA2A_RECV_NATIVE) != 0)
        return false;
    return (s->flags & EPA2A_RECV_FP8) != 0 || s->shape.recv_dtype == EPA2A_FP8_E4M3;
}

static float power_above(float v)
{
    int exponent;

    return frexpf(v, &exponent) == 0.5f ? v : ldexpf(1, exponent);
}

void model_row(const struct setting *s, const uint16_t *x, void *row, float *scale)
{
    uint32_t group = s->shape.fp8_group;
    uint8_t *q = row;

    if (!model_is_fp8(s)) {
        memcpy(row, x, s->shape.hidden * sizeof(*x));
        return;
    }
    for (uint32_t g = 0; g < s->shape.hidden / group; g++) {
        float most = 0;

        for (uint32_t i = 0; i < group; i++)
            most = fmaxf(most, fabsf(float_of_word(is_f16(s), x[g * group + i])));
        scale[g] = most == 0 ? 1 : most * (1.0f / 448.0f);
        if ((s->flags & (EPA2A_SCALE_POW2 | EPA2A_SCALE_UE8M0)) != 0)
            scale[g] = power_above(scale[g]);
        for (uint32_t i = g * group; i < (g + 1) * group; i++)
            q[i] = e4m3_of_float(float_of_word(is_f16(s), x[i]) / scale[g]);
    }
}

/* ---- outputs ---- */

void model_output(const struct setting *s, uint32_t expert, const void *row, const float *scale,
                  uint16_t *y)
{
    for (uint32_t h = 0; h < s->shape.hidden; h++) {
        float v = model_is_fp8(s)
                      ? float_of_e4m3(((const uint8_t *)row)[h]) * scale[h / s->shape.fp8_group]
                      : float_of_word(is_f16(s), ((const uint16_t *)row)[h]);

        y[h] = word_of_float(is_f16(s), v * expert_factor(expert));
    }
}

/* Rounds the n channels of a part. */
static void round_part(uint16_t *y, uint32_t n)
{
    struct epa_logfmt f[EPA_LOGFMT_PART / EPA_LOGFMT_GROUP];

    for (uint32_t g = 0; g < n / EPA_LOGFMT_GROUP; g++) {
        uint32_t least = UINT32_MAX, most = 0;

        for (uint32_t i = 0; i < EPA_LOGFMT_GROUP; i++) {
            uint32_t size = y[g * EPA_LOGFMT_GROUP + i] & 0x7fff;

            least = size < least ? size : least;
            most = size > most ? size : most;
        }
        if (!epa_logfmt_has_codes(least, most))
            return;
        f[g] = epa_logfmt_of(least, most);
    }
    for (uint32_t h = 0; h < n; h++) {
        float value = epa_logfmt_round(f[h / EPA_LOGFMT_GROUP], y[h] & 0x7fff);

        y[h] = word_of_float(false, copysignf(value, float_of_word(false, y[h])));
    }
}

void model_sum(const struct setting *s, uint32_t n, const uint16_t *const *y, const float *weight,
               uint16_t *out)
{
    for (uint32_t h = 0; h < s->shape.hidden; h++) {
        float sum = 0;

        for (uint32_t i = 0; i < n; i++)
            sum = fmaf(weight[i], float_of_word(is_f16(s), y[i][h]), sum);
        out[h] = word_of_float(is_f16(s), sum);
    }
}

void model_combined(const struct setting *s, uint32_t rank, uint64_t route, uint64_t iteration,
                    uint32_t token, const int32_t *masked, uint16_t *out)
{
    static _Thread_local uint16_t x[MODEL_HIDDEN], row[MODEL_HIDDEN], y[TOPK][MODEL_HIDDEN],
        part[RANKS][MODEL_HIDDEN];
    const uint16_t *of[TOPK], *of_rank[RANKS];
    float scale[MODEL_HIDDEN / 16], weight[TOPK], by[TOPK];
    const float ones[RANKS] = {1, 1, 1, 1, 1, 1, 1, 1};
    bool two_steps = s->by_rank || is_rank_layout(s);
    int32_t expert[TOPK];
    uint32_t n = 0, ranks = 0;

    model_x(s, rank, iteration, token, x);
    model_row(s, x, row, scale);
    model_choices(s, rank, route, token, expert, weight);
    for (uint32_t r = 0; r < (two_steps ? s->ranks : 1); r++) {
        for (uint32_t k = n = 0; k < s->shape.topk; k++) {
            int32_t e = masked != NULL ? masked[k] : expert[k];

            if (e < 0 || (two_steps && (uint32_t)e / local_of(s) != r))
                continue;
            model_output(s, (uint32_t)e, row, scale, y[n]);
            for (uint32_t h = 0; s->logfmt && h < s->shape.hidden;
                 h += epa_logfmt_part(s->shape.hidden))
                round_part(y[n] + h, epa_logfmt_part(s->shape.hidden));
            by[n] = weight[k];
            of[n] = y[n];
            n++;
        }
        if (!two_steps || n == 0)
            continue;
        model_sum(s, n, of, by, part[ranks]);
        of_rank[ranks] = part[ranks];
        ranks++;
    }
    if (two_steps)
        model_sum(s, ranks, of_rank, ones, out);
    else
        model_sum(s, n, of, by, out);
}
