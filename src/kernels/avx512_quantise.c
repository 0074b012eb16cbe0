/* bf16 to e4m3 by table, 64 channels at a time, without a division.
 *
 * amax is a bf16, so scale = amax * (1/448) has one of 128 mantissas, and what x / scale
 * rounds to depends on the mantissas of amax and x (tables.h) and on how many octaves x is
 * below amax:
 *     code = 8 * (16 - octaves) + 8 - table_below_top[mantissa of amax][mantissa of x]
 * A code under 8 is not a normal number; these few are rounded again, by shifts. Groups
 * whose amax is tiny, or that hold infinities or NaN, are divided in float32. */
#include "kernels/avx512_convert.h"
#include "kernels/sets.h"

enum {
    /* From this biased exponent of amax on, scale is normal and a denormal x gives 0. */
    TABLE_FROM = 20,
};

/* What is the same for all groups. */
struct constants {
    __m512i magnitude, low_byte, eight, sign, octave_code, order;
};

/* The tables for one amax, and its biased exponent. */
struct context {
    const struct constants *k;
    __m512i top0, top1;
    const uint8_t *halves;
    uint32_t exponent;
};

static __attribute__((noinline)) float divided(const uint16_t *x, uint32_t n, uint8_t *q)
{
    return group_divided(x, n, false, q);
}

/* The codes of channels that have none as normal numbers: see halves() in make_tables.c. A
 * shift count past 15, as of a denormal or (unused) of a large channel, leaves 0. */
static inline __m512i small_codes(__m512i codes, __mmask64 which, __m512i mantissas, __m512i a0,
                                  __m512i a1, const struct context *c)
{
    const __m512i zero = _mm512_setzero_si512();
    __m512i first = _mm512_set1_epi16((short)(c->exponent - 14u));
    __m512i halves = _mm512_permutex2var_epi8(_mm512_load_si512(c->halves), mantissas,
                                              _mm512_load_si512(c->halves + 64));
    /* Unpacking undoes the order in which packus left the channels. */
    __m512i h0 = _mm512_srlv_epi16(_mm512_unpacklo_epi8(halves, zero),
                                   _mm512_sub_epi16(first, _mm512_srli_epi16(a0, 7)));
    __m512i h1 = _mm512_srlv_epi16(_mm512_unpackhi_epi8(halves, zero),
                                   _mm512_sub_epi16(first, _mm512_srli_epi16(a1, 7)));

    /* The mean with 0, which rounds up, is the addition of a half. */
    return _mm512_mask_avg_epu8(codes, which, _mm512_packus_epi16(h0, h1), zero);
}

/* 64 channels, none above amax. */
INLINED __m512i encode64(__m512i x0, __m512i x1, const struct context *c)
{
    const struct constants *k = c->k;
    __m512i a0 = _mm512_and_si512(x0, k->magnitude);
    __m512i a1 = _mm512_and_si512(x1, k->magnitude);
    __m512i octaves = _mm512_packus_epi16(_mm512_srli_epi16(a0, 7), _mm512_srli_epi16(a1, 7));
    /* A bit of the exponent comes along; the look-up takes seven bits. */
    __m512i mantissas =
        _mm512_packus_epi16(_mm512_and_si512(a0, k->low_byte), _mm512_and_si512(a1, k->low_byte));
    __m512i place = _mm512_subs_epu8(octaves, _mm512_set1_epi8((char)(c->exponent - 15u)));
    __m512i codes = _mm512_subs_epu8(_mm512_shuffle_epi8(k->octave_code, place),
                                     _mm512_permutex2var_epi8(c->top0, mantissas, c->top1));
    __mmask64 low = _mm512_cmplt_epu8_mask(codes, k->eight);
    __m512i signs;

    if (__builtin_expect(low != 0, 0)) {
        __m512i any = _mm512_or_si512(octaves, mantissas);

        /* Zeros, common in some data, are right as they are. */
        if (_mm512_mask_test_epi8_mask(low, any, any) != 0)
            codes = small_codes(codes, low, mantissas, a0, a1, c);
    }
    signs = _mm512_packs_epi16(x0, x1);
    codes = _mm512_ternarylogic_epi64(codes, signs, k->sign, 0xf8);
    return _mm512_permutexvar_epi64(k->order, codes);
}

INLINED float group_looked_up(const uint16_t *x, uint32_t n, uint8_t *q, const struct constants *k)
{
    uint32_t whole = n & ~63u, amax;
    __m512i top = _mm512_setzero_si512();
    struct context c;

    for (uint32_t i = 0; i < whole; i += 32)
        top = _mm512_max_epu16(top, _mm512_and_si512(k->magnitude, _mm512_loadu_si512(x + i)));
    for (uint32_t i = whole; i < n; i += 32)
        top = _mm512_max_epu16(top, magnitude(load_some(x + i, n - i)));
    amax = largest(top);
    c.exponent = amax >> 7;
    if (__builtin_expect(c.exponent - TABLE_FROM >= 255u - TABLE_FROM, 0))
        return divided(x, n, q);

    c.k = k;
    c.top0 = _mm512_load_si512(table_below_top[amax & 127u]);
    c.top1 = _mm512_load_si512(table_below_top[amax & 127u] + 64);
    c.halves = table_halves[amax & 127u];
    for (uint32_t i = 0; i < whole; i += 64)
        _mm512_storeu_si512(
            q + i, encode64(_mm512_loadu_si512(x + i), _mm512_loadu_si512(x + i + 32), &c));
    if (whole < n) {
        uint32_t rest = n - whole;
        __m512i x0 = load_some(x + whole, rest);
        __m512i x1 = rest > 32 ? load_some(x + whole + 32, rest - 32) : _mm512_setzero_si512();

        _mm512_mask_storeu_epi8(q + whole, ((__mmask64)1 << rest) - 1u, encode64(x0, x1, &c));
    }
    return float_of_bf16((uint16_t)amax) * (1.0f / 448.0f);
}

INLINED void quantise_row(const uint16_t *x, uint32_t hidden, uint32_t group, const uint16_t *next,
                          uint8_t *q, float *scale)
{
    /* octave_code: 8 * (16 - octaves) + 8 for 15 (and more), 14, ... 0 octaves below amax;
     * the first is too low on purpose: with it codes come out under 8. */
    const struct constants k = {
        .magnitude = held(_mm512_set1_epi16(0x7fff)),
        .low_byte = held(_mm512_set1_epi16(0xff)),
        .eight = held(_mm512_set1_epi8(8)),
        .sign = held(_mm512_set1_epi8((char)0x80)),
        .octave_code = held(_mm512_broadcast_i32x4(
            _mm_setr_epi8(0, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, -128, -120))),
        .order = held(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7)),
    };

    for (uint32_t h = 0; h < hidden; h += group) {
        if (next != NULL)
            fetch(next + h, group);
        *scale++ = group_looked_up(x + h, group, q + h, &k);
    }
}

void kernels_avx512_quantise(const uint16_t *x, uint32_t hidden, uint32_t group,
                             const uint16_t *next, uint8_t *q, float *scale)
{
    if (group == 128) /* the common one, unrolled */
        quantise_row(x, hidden, 128, next, q, scale);
    else
        quantise_row(x, hidden, group, next, q, scale);
}
