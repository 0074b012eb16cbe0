/* Roundings of the reference, in loops without branches: compilers vectorise them. */
#include "op/moe/reference_round.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"

/* Round the ends of an interval outwards to float32. A value is rounded to a zero only of its own sign, so
 * the next float32 has the next word. */
static inline float float_below(double v)
{
    float f = (float)v;
    uint32_t u = bits_of_float(f), step = (u >> 31) * 2 - 1, beyond = 0u - ((double)f > v);

    return float_of_bits(u + (step & beyond));
}

static inline float float_above(double v)
{
    float f = (float)v;
    uint32_t u = bits_of_float(f), step = 1 - (u >> 31) * 2, beyond = 0u - ((double)f < v);

    return float_of_bits(u + (step & beyond));
}

/* Returns exp(x) with a relative error below 2^-50, for x beyond +-708 the value there. NaN stays NaN. */
static inline double exponential(double x)
{
    /* ln 2 = high + low; multiples k < 2^11 of `high` are exact. The sum with `integer` rounds to an
     * integer, which is then in the low bits. */
    const double high = 0x1.62e42feep-1, low = 0x1.a39ef35793c76p-33, integer = 0x1.8p52;
    double limited = x > 708 ? 708 : x, k, r, p = 1.0 / 479001600;
    uint64_t bits;
    double power;

    limited = limited < -708 ? -708 : limited;
    k = limited * 0x1.71547652b82fep0 + integer;
    memcpy(&bits, &k, sizeof(bits));
    bits = (bits + 1023) << 52;
    memcpy(&power, &bits, sizeof(power));
    k -= integer;
    r = limited - k * high - k * low;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    return p * power;
}

static inline double silu(double g)
{
    return g / (1 + exponential(-g));
}

static void activate(uint32_t n, const double *restrict gate, const double *restrict gate_radius,
                     const double *restrict up, const double *restrict up_radius,
                     float *restrict low, float *restrict high)
{
    const double turn = -1.2784645427610738, least = -0.2784645427610738;

    for (uint32_t i = 0; up == NULL && i < n; i++) {
        low[i] = float_below(gate[i] - gate_radius[i]);
        high[i] = float_above(gate[i] + gate_radius[i]);
    }
    for (uint32_t i = 0; up != NULL && i < n; i++) {
        double g_low = gate[i] - gate_radius[i], g_high = gate[i] + gate_radius[i];
        double u_low = up[i] - up_radius[i], u_high = up[i] + up_radius[i];
        double a = silu(g_low), b = silu(g_high), s_low = a < b ? a : b, s_high = a < b ? b : a;
        double size = fabs(g_low) > fabs(g_high) ? fabs(g_low) : fabs(g_high);
        double part = 0x1p-20 + size * 0x1p-22, p, l, h;

        s_low = ((g_low < turn) & (g_high > turn)) ? least : s_low;
        /* Some implementations return 0 if exp overflows; 2^-100 covers the difference. */
        s_low -= part * fabs(s_low) + 0x1p-100;
        s_high += part * fabs(s_high) + 0x1p-100;
        l = h = s_high * u_high;
        p = s_low * u_high;
        l = p < l ? p : l;
        h = p > h ? p : h;
        p = s_high * u_low;
        l = p < l ? p : l;
        h = p > h ? p : h;
        p = s_low * u_low;
        l = p < l ? p : l;
        h = p > h ? p : h;
        low[i] = float_below(l);
        high[i] = float_above(h);
    }
}

static inline __attribute__((always_inline)) void native_of(bool f16, uint32_t n,
                                                            const float *restrict low,
                                                            const float *restrict high,
                                                            float *restrict c, float *restrict r)
{
    for (uint32_t i = 0; i < n; i++) {
        float l = float_of_word(f16, word_of_float(f16, low[i]));
        float h = float_of_word(f16, word_of_float(f16, high[i]));

        c[i] = l == h ? l : l / 2 + h / 2;
        r[i] = l == h ? 0 : (h - l) * 0.500001f;
    }
}

/* Two loops, here and below: no compiler hoists the choice out of one. */
static void native(bool f16, uint32_t n, const float *low, const float *high, float *c, float *r)
{
    if (f16)
        native_of(true, n, low, high, c, r);
    else
        native_of(false, n, low, high, c, r);
}

/* The scale follows from the largest magnitude of the group, which is between the maximum of the smallest
 * and the maximum of the largest magnitudes of the intervals. */
static struct reference_scale find_amax(const float *low, const float *high, uint32_t n)
{
    struct reference_scale s = {0, 0};

    for (uint32_t i = 0; i < n; i++) {
        float a = fabsf(low[i]), b = fabsf(high[i]), most = a > b ? a : b;
        float fewest = ((low[i] <= 0) & (high[i] >= 0)) ? 0 : a < b ? a : b;

        s.low = fewest > s.low ? fewest : s.low;
        s.high = most > s.high ? most : s.high;
    }
    return s;
}

static struct reference_scale quantise(const float *restrict low, const float *restrict high,
                                       uint32_t n, float *restrict q_low, float *restrict q_high)
{
    struct reference_scale s = find_amax(low, high, n);

    s.low = s.high == 0 ? 1 : s.low * (1.0f / 448.0f);
    s.high = s.high == 0 ? 1 : s.high * (1.0f / 448.0f);
    for (uint32_t i = 0; i < n; i++) {
        /* The larger scale gives the end towards 0; x / 0 saturates. The code of 0 is 0. */
        float l = low[i] / (low[i] > 0 ? s.high : s.low);
        float h = high[i] / (high[i] > 0 ? s.low : s.high);

        q_low[i] = float_of_e4m3(e4m3_of_float(low[i] == 0 ? 0 : l));
        q_high[i] = float_of_e4m3(e4m3_of_float(high[i] == 0 ? 0 : h));
    }
    return s;
}

/* Returns the INT8 code of x with this scale; 1 / 0 saturates. The sum with `integer` rounds to an
 * integer. */
static inline float int8_code(float x, float scale)
{
    const float integer = 0x1.8p23f;
    float v = x * (1.0f / scale);

    v = v > 127 ? 127 : v;
    v = v < -127 ? -127 : v;
    v = isnan(v) ? 0 : v;
    return v + integer - integer;
}

static float int8_scale(float amax)
{
    amax *= 1.0f / 127.0f;
    return amax >= 0x1p-126f ? amax : 1;
}

/* The outputs may be the inputs. */
static struct reference_scale quantise_int8(const float *low, const float *high, uint32_t n,
                                            float *q_low, float *q_high)
{
    struct reference_scale s = find_amax(low, high, n);

    /* Between an unknown scale of 1 with codes of 0 and a tiny scale, any code is possible. */
    s.high = int8_scale(s.high);
    s.low = s.high == 1 && s.low < 0x1p-119f ? 1 : s.low * (1.0f / 127.0f);
    for (uint32_t i = 0; i < n; i++) {
        float l = low[i], h = high[i];

        /* The larger scale gives the end towards 0. */
        q_low[i] = int8_code(l, l > 0 ? s.high : s.low);
        q_high[i] = int8_code(h, h > 0 ? s.low : s.high);
    }
    return s;
}

/* Converts the codes of n channels, whose scale is in an interval, to c +- r in units of one scale, which
 * is the result. */
static float round_codes(struct reference_scale s, uint32_t n, const float *restrict q_low,
                         const float *restrict q_high, float *restrict c, float *restrict r)
{
    float mid = (float)(((double)s.low + (double)s.high) / 2), part;
    double below, above;

    /* A group of zeros or tiny values: its scale may be 0, and its codes are then arbitrary. */
    mid = mid == 0 ? 0x1p-149f : mid;
    below = (double)mid - (double)s.low;
    above = (double)s.high - (double)mid;
    part = (float)((below > above ? below : above) / (double)mid) * 1.00001f;
    for (uint32_t i = 0; i < n; i++) {
        float a = fabsf(q_low[i]), b = fabsf(q_high[i]);

        c[i] = q_low[i] / 2 + q_high[i] / 2;
        r[i] = (q_high[i] - q_low[i]) / 2;
        if (part != 0)
            r[i] += part * (a > b ? a : b) + 0x1p-22f * fabsf(c[i]);
    }
    return mid;
}

static float fp8(uint32_t n, const float *low, const float *high, float *q, float *c, float *r)
{
    return round_codes(quantise(low, high, n, q, q + n), n, q, q + n, c, r);
}

static float int8(bool f16, uint32_t n, const float *low, const float *high, float *q, float *c,
                  float *r)
{
    for (uint32_t i = 0; i < n; i++) {
        q[i] = float_of_word(f16, word_of_float(f16, low[i]));
        q[n + i] = float_of_word(f16, word_of_float(f16, high[i]));
    }
    return round_codes(quantise_int8(q, q + n, n, q, q + n), n, q, q + n, c, r);
}

static inline __attribute__((always_inline)) void
outputs_of(bool rounded, bool f16, uint32_t n, const double *restrict center,
           const double *restrict radius, float *restrict low, float *restrict high)
{
    for (uint32_t i = 0; i < n; i++) {
        float l = float_below(center[i] - radius[i]), h = float_above(center[i] + radius[i]);
        uint32_t known;

        if (rounded) {
            l = float_of_word(f16, word_of_float(f16, l));
            h = float_of_word(f16, word_of_float(f16, h));
        }
        /* A possible overflow makes the output unknown. */
        known = (fabsf(l) < INFINITY) & (fabsf(h) < INFINITY);
        low[i] = known ? l : -INFINITY;
        high[i] = known ? h : INFINITY;
    }
}

static void outputs(bool rounded, bool f16, uint32_t n, const double *center, const double *radius,
                    float *low, float *high)
{
    if (!rounded)
        outputs_of(false, false, n, center, radius, low, high);
    else if (f16)
        outputs_of(true, true, n, center, radius, low, high);
    else
        outputs_of(true, false, n, center, radius, low, high);
}

const struct reference_round REFERENCE_ROUND = {
    .activate = activate,
    .native = native,
    .fp8 = fp8,
    .int8 = int8,
    .quantise = quantise,
    .quantise_int8 = quantise_int8,
    .outputs = outputs,
};
