/* f16 to e4m3 by table, 64 channels at a time, without a division.
 *
 * The bits of an f16, taken as a number, grow with its magnitude, 1024 to an octave, as those
 * of e4m3 do, 8 to an octave. So
 *     code = (bits of x + addend) >> 7
 * where the addend has the octave of amax, and what x / scale rounds to: from one code to the
 * next there are more than 64 mantissas of x, and an addend for each 32 of them (tables.h, by
 * the mantissa of amax) puts each step where it belongs. Codes under 8 are not normal
 * numbers; what is one bit further down tells which they are. Blocks with a denormal x, and
 * groups whose amax is one, or that hold infinities or NaN, are divided in float32. */
#include "kernels/avx512_convert.h"
#include "kernels/sets.h"

enum {
    EXPONENT = 20, /* of amax, biased, that the table was made for; any would do */
    DEEP = 16,     /* of amax: from 2 on a denormal x has a code under 8, with any table */
};

/* What is the same for all groups. */
struct constants {
    __m512i magnitude, sign, order, eight;
};

/* The same for all channels of a group. */
struct context {
    const struct constants *k;
    __m512i addend; /* for each of 32 parts of an octave */
    float scale;
};

static __attribute__((noinline)) float divided(const uint16_t *x, uint32_t n, uint8_t *q)
{
    return group_divided(x, n, true, q);
}

static __attribute__((noinline)) __m512i block_divided(__m512i x0, __m512i x1, float scale)
{
    __m512i codes = _mm512_setzero_si512();

    codes = _mm512_inserti32x4(
        codes, _mm512_cvtepi32_epi8(coded16(_mm512_castsi512_si256(x0), scale, true)), 0);
    codes = _mm512_inserti32x4(
        codes, _mm512_cvtepi32_epi8(coded16(_mm512_extracti64x4_epi64(x0, 1), scale, true)), 1);
    codes = _mm512_inserti32x4(
        codes, _mm512_cvtepi32_epi8(coded16(_mm512_castsi512_si256(x1), scale, true)), 2);
    return _mm512_inserti32x4(
        codes, _mm512_cvtepi32_epi8(coded16(_mm512_extracti64x4_epi64(x1, 1), scale, true)), 3);
}

/* The codes of 32 magnitudes from bit 7 on; none is above amax. shallow: so near to the least
 * normal f16 that a denormal x, or 0, would have what looks like a normal code. */
INLINED __m512i sums(__m512i a, const struct context *c, bool shallow)
{
    __m512i addend = _mm512_permutexvar_epi16(_mm512_srli_epi16(a, 5), c->addend);
    __mmask32 normal;

    if (!shallow)
        return _mm512_add_epi16(a, addend);
    normal = _mm512_cmpge_epi16_mask(a, _mm512_set1_epi16(0x400));
    return _mm512_maskz_add_epi16(normal, a, addend);
}

/* Puts codes under 8 in place, in the order that packus leaves. false: there is a denormal
 * x. */
INLINED bool encode_small(__m512i a0, __m512i a1, __m512i sum0, __m512i sum1, __mmask64 small,
                          __m512i *codes)
{
    const __m512i one = _mm512_set1_epi16(1), last = _mm512_set1_epi16(0x3ff);
    const __m512i from = _mm512_set1_epi16(48 * 64); /* the table starts 49 steps down */
    __m512i steps;

    if ((_mm512_cmplt_epu16_mask(_mm512_sub_epi16(a0, one), last) |
         _mm512_cmplt_epu16_mask(_mm512_sub_epi16(a1, one), last)) != 0)
        return false;
    steps = _mm512_packus_epi16(_mm512_srai_epi16(_mm512_add_epi16(sum0, from), 6),
                                _mm512_srai_epi16(_mm512_add_epi16(sum1, from), 6));
    *codes = _mm512_mask_permutexvar_epi8(*codes, small, steps, _mm512_load_si512(table_f16_small));
    return true;
}

/* 64 channels, none above amax. */
INLINED __m512i encode64(__m512i x0, __m512i x1, const struct context *c, bool shallow)
{
    const struct constants *k = c->k;
    __m512i a0 = _mm512_and_si512(x0, k->magnitude), sum0 = sums(a0, c, shallow);
    __m512i a1 = _mm512_and_si512(x1, k->magnitude), sum1 = sums(a1, c, shallow);
    __m512i codes = _mm512_packus_epi16(_mm512_srai_epi16(sum0, 7), _mm512_srai_epi16(sum1, 7));
    __mmask64 low = _mm512_cmplt_epu8_mask(codes, k->eight);

    if (__builtin_expect(low != 0, 0)) {
        __m512i any = _mm512_packus_epi16(a0, a1);
        __mmask64 small = _mm512_mask_test_epi8_mask(low, any, any);

        /* Zeros, common in some data, are right as they are. */
        if (small != 0 && !encode_small(a0, a1, sum0, sum1, small, &codes))
            return block_divided(x0, x1, c->scale);
    }
    codes = _mm512_ternarylogic_epi64(codes, _mm512_packs_epi16(x0, x1), k->sign, 0xf8);
    return _mm512_permutexvar_epi64(k->order, codes);
}

static inline uint32_t largest_of(const uint16_t *x, uint32_t n, const struct constants *k)
{
    uint32_t whole = n & ~31u;
    __m512i top = _mm512_setzero_si512();

    for (uint32_t i = 0; i < whole; i += 32)
        top = _mm512_max_epu16(top, _mm512_and_si512(k->magnitude, _mm512_loadu_si512(x + i)));
    if (whole < n)
        top = _mm512_max_epu16(top, magnitude(load_some(x + whole, n - whole)));
    return largest(top);
}

INLINED void encode_group(const uint16_t *x, uint32_t n, uint8_t *q, const struct context *c,
                          bool shallow)
{
    uint32_t whole = n & ~63u, rest = n - whole;

    for (uint32_t i = 0; i < whole; i += 64)
        _mm512_storeu_si512(
            q + i, encode64(_mm512_loadu_si512(x + i), _mm512_loadu_si512(x + i + 32), c, shallow));
    if (rest != 0) {
        __m512i x0 = load_some(x + whole, rest);
        __m512i x1 = rest > 32 ? load_some(x + whole + 32, rest - 32) : _mm512_setzero_si512();

        _mm512_mask_storeu_epi8(q + whole, ((__mmask64)1 << rest) - 1u,
                                encode64(x0, x1, c, shallow));
    }
}

INLINED float group_looked_up(const uint16_t *x, uint32_t n, uint8_t *q, const struct constants *k)
{
    uint32_t amax = largest_of(x, n, k), exponent = amax >> 10;
    struct context c = {.k = k};

    if (__builtin_expect(exponent - 1 >= 30, 0)) /* denormal; not finite */
        return divided(x, n, q);
    c.scale = float_of_f16((uint16_t)amax) * (1.0f / 448.0f);
    c.addend = _mm512_add_epi16(_mm512_load_si512(table_f16_addend[amax & 1023u]),
                                _mm512_set1_epi16((short)((EXPONENT - (int)exponent) * 1024)));
    if (exponent >= DEEP)
        encode_group(x, n, q, &c, false);
    else
        encode_group(x, n, q, &c, true);
    return c.scale;
}

INLINED void quantise_row(const uint16_t *x, uint32_t hidden, uint32_t group, const uint16_t *next,
                          uint8_t *q, float *scale)
{
    const struct constants k = {
        .magnitude = held(_mm512_set1_epi16(0x7fff)),
        .sign = held(_mm512_set1_epi8((char)0x80)),
        .eight = held(_mm512_set1_epi8(8)),
        .order = held(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7)),
    };

    for (uint32_t h = 0; h < hidden; h += group) {
        if (next != NULL)
            fetch(next + h, group);
        *scale++ = group_looked_up(x + h, group, q + h, &k);
    }
}

void kernels_avx512_quantise_f16(const uint16_t *x, uint32_t hidden, uint32_t group,
                                 const uint16_t *next, uint8_t *q, float *scale)
{
    if (group == 128) /* the common one, unrolled */
        quantise_row(x, hidden, 128, next, q, scale);
    else
        quantise_row(x, hidden, group, next, q, scale);
}
