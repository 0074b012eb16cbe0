/* bf16 and f16 to e4m3 by table, 64 channels at a time, without a division. Groups with a tiny
 * amax, an infinity or a NaN are divided in float32.
 *
 * amax is a bf16, so scale = amax * (1/448) has one of 128 mantissas. The rounded value of x /
 * scale depends on the mantissas of amax and x (tables.h) and on the number of octaves between x
 * and amax:
 *     code = 8 * (16 - octaves) + 8 - table_below_top[mantissa of amax][mantissa of x]
 * A code under 8 is not a normal number; these few codes are rounded again, by shifts.
 *
 * The bits of an f16, taken as a number, grow with its magnitude, 1024 to an octave; the bits of an
 * e4m3 grow likewise, 8 to an octave. So
 *     code = (bits of x + addend) >> 7
 * The addend contains the octave of amax and the rounding of x / scale: from one code to the next
 * there are more than 64 mantissas of x, and one addend for each 32 of them (tables.h, by the
 * mantissa of amax) puts each step at its place. For codes under 8, the next lower bit selects the
 * code. Blocks with a denormal x are divided in float32. */
#include "kernels/avx512_convert.h"
#include "kernels/avx512_quantise.h"

#include "kernels/sets.h"

enum {
    /* From this biased exponent of a bf16 amax on, scale is normal and a denormal x gives 0. */
    TABLE_FROM = 20,
    EXPONENT = 20, /* biased exponent of the f16 amax of the table; the value is arbitrary */
    DEEP = 16,     /* exponent of amax: from 2 on a denormal x has a code under 8, with any table */
};

/* Constants of all groups. */
struct constants {
    __m512i magnitude, low_byte, eight, sign, octave_code, order;
};

/* Constants of all channels of a group: the tables for its amax and its biased exponent. */
struct context {
    const struct constants *k;
    uint32_t exponent;
    float scale;
    __m512i top0, top1; /* bf16 */
    const uint8_t *halves;
    __m512i addend; /* f16, for each of 32 parts of an octave */
};

static __attribute__((noinline)) float divided(const uint16_t *x, uint32_t n, bool f16, uint8_t *q)
{
    return group_divided(x, n, f16, q);
}

/* ---- bf16 ---- */

/* Returns the codes of channels whose codes are not normal numbers: see halves() in make_tables.c.
 * A shift count past 15, from a denormal or (unused) from a large channel, leaves 0. */
static inline __m512i small_codes(__m512i codes, __mmask64 which, __m512i mantissas, __m512i a0,
                                  __m512i a1, const struct context *c)
{
    const __m512i zero = _mm512_setzero_si512();
    __m512i first = _mm512_set1_epi16((short)(c->exponent - 14u));
    __m512i halves = _mm512_permutex2var_epi8(_mm512_load_si512(c->halves), mantissas,
                                              _mm512_load_si512(c->halves + 64));
    /* Unpacking reverts the order of channels that packus produced. */
    __m512i h0 = _mm512_srlv_epi16(_mm512_unpacklo_epi8(halves, zero),
                                   _mm512_sub_epi16(first, _mm512_srli_epi16(a0, 7)));
    __m512i h1 = _mm512_srlv_epi16(_mm512_unpackhi_epi8(halves, zero),
                                   _mm512_sub_epi16(first, _mm512_srli_epi16(a1, 7)));

    /* The rounded-up mean with 0 adds the half. */
    return _mm512_mask_avg_epu8(codes, which, _mm512_packus_epi16(h0, h1), zero);
}

/* Encodes 64 channels, none above amax. */
INLINED __m512i encode64_bf16(__m512i x0, __m512i x1, const struct context *c)
{
    const struct constants *k = c->k;
    __m512i a0 = _mm512_and_si512(x0, k->magnitude);
    __m512i a1 = _mm512_and_si512(x1, k->magnitude);
    __m512i octaves = _mm512_packus_epi16(_mm512_srli_epi16(a0, 7), _mm512_srli_epi16(a1, 7));
    /* The shift includes one bit of the exponent; the look-up uses seven bits only. */
    __m512i mantissas =
        _mm512_packus_epi16(_mm512_and_si512(a0, k->low_byte), _mm512_and_si512(a1, k->low_byte));
    __m512i place = _mm512_subs_epu8(octaves, _mm512_set1_epi8((char)(c->exponent - 15u)));
    __m512i codes = _mm512_subs_epu8(_mm512_shuffle_epi8(k->octave_code, place),
                                     _mm512_permutex2var_epi8(c->top0, mantissas, c->top1));
    __mmask64 low = _mm512_cmplt_epu8_mask(codes, k->eight);
    __m512i signs;

    if (__builtin_expect(low != 0, 0)) {
        __m512i any = _mm512_or_si512(octaves, mantissas);

        /* Zeros are common in some data, and their codes are already correct. */
        if (_mm512_mask_test_epi8_mask(low, any, any) != 0)
            codes = small_codes(codes, low, mantissas, a0, a1, c);
    }
    signs = _mm512_packs_epi16(x0, x1);
    codes = _mm512_ternarylogic_epi64(codes, signs, k->sign, 0xf8);
    return _mm512_permutexvar_epi64(k->order, codes);
}

/* ---- f16 ---- */

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

/* Returns the codes of 32 magnitudes from bit 7 on; none is above amax. shallow: amax is so close
 * to the smallest normal f16 that a denormal x, or 0, would receive a normal code. */
INLINED __m512i sums(__m512i a, const struct context *c, bool shallow)
{
    __m512i addend = _mm512_permutexvar_epi16(_mm512_srli_epi16(a, 5), c->addend);
    __mmask32 normal;

    if (!shallow)
        return _mm512_add_epi16(a, addend);
    normal = _mm512_cmpge_epi16_mask(a, _mm512_set1_epi16(0x400));
    return _mm512_maskz_add_epi16(normal, a, addend);
}

/* Inserts the codes under 8, in the order of packus. Returns false if a channel is denormal. */
INLINED bool encode_small(__m512i a0, __m512i a1, __m512i sum0, __m512i sum1, __mmask64 small,
                          __m512i *codes)
{
    const __m512i one = _mm512_set1_epi16(1), last = _mm512_set1_epi16(0x3ff);
    const __m512i from = _mm512_set1_epi16(48 * 64); /* the table starts 49 steps below */
    __m512i steps;

    if ((_mm512_cmplt_epu16_mask(_mm512_sub_epi16(a0, one), last) |
         _mm512_cmplt_epu16_mask(_mm512_sub_epi16(a1, one), last)) != 0)
        return false;
    steps = _mm512_packus_epi16(_mm512_srai_epi16(_mm512_add_epi16(sum0, from), 6),
                                _mm512_srai_epi16(_mm512_add_epi16(sum1, from), 6));
    *codes = _mm512_mask_permutexvar_epi8(*codes, small, steps, _mm512_load_si512(table_f16_small));
    return true;
}

INLINED __m512i encode64_f16(__m512i x0, __m512i x1, const struct context *c, bool shallow)
{
    const struct constants *k = c->k;
    __m512i a0 = _mm512_and_si512(x0, k->magnitude), sum0 = sums(a0, c, shallow);
    __m512i a1 = _mm512_and_si512(x1, k->magnitude), sum1 = sums(a1, c, shallow);
    __m512i codes = _mm512_packus_epi16(_mm512_srai_epi16(sum0, 7), _mm512_srai_epi16(sum1, 7));
    __mmask64 low = _mm512_cmplt_epu8_mask(codes, k->eight);

    if (__builtin_expect(low != 0, 0)) {
        __m512i any = _mm512_packus_epi16(a0, a1);
        __mmask64 small = _mm512_mask_test_epi8_mask(low, any, any);

        /* Zeros are common in some data, and their codes are already correct. */
        if (small != 0 && !encode_small(a0, a1, sum0, sum1, small, &codes))
            return block_divided(x0, x1, c->scale);
    }
    codes = _mm512_ternarylogic_epi64(codes, _mm512_packs_epi16(x0, x1), k->sign, 0xf8);
    return _mm512_permutexvar_epi64(k->order, codes);
}

/* ---- rows of both types ---- */

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

INLINED __m512i encode64(__m512i x0, __m512i x1, const struct context *c, bool f16, bool shallow)
{
    return f16 ? encode64_f16(x0, x1, c, shallow) : encode64_bf16(x0, x1, c);
}

INLINED void encode_group(const uint16_t *x, uint32_t n, uint8_t *q, const struct context *c,
                          bool f16, bool shallow)
{
    uint32_t whole = n & ~63u, rest = n - whole;

    for (uint32_t i = 0; i < whole; i += 64)
        _mm512_storeu_si512(q + i, encode64(_mm512_loadu_si512(x + i),
                                            _mm512_loadu_si512(x + i + 32), c, f16, shallow));
    if (rest != 0) {
        __m512i x0 = load_some(x + whole, rest);
        __m512i x1 = rest > 32 ? load_some(x + whole + 32, rest - 32) : _mm512_setzero_si512();

        _mm512_mask_storeu_epi8(q + whole, ((__mmask64)1 << rest) - 1u,
                                encode64(x0, x1, c, f16, shallow));
    }
}

INLINED float group_looked_up(const uint16_t *x, uint32_t n, uint8_t *q, const struct constants *k,
                              bool f16)
{
    uint32_t amax = largest_of(x, n, k), exponent = f16 ? amax >> 10 : amax >> 7;
    struct context c = {.k = k, .exponent = exponent};

    /* f16: denormal, or not finite */
    if (__builtin_expect(f16 ? exponent - 1 >= 30 : exponent - TABLE_FROM >= 255u - TABLE_FROM, 0))
        return divided(x, n, f16, q);
    c.scale = float_of_word(f16, (uint16_t)amax) * (1.0f / 448.0f);
    if (!f16) {
        c.top0 = _mm512_load_si512(table_below_top[amax & 127u]);
        c.top1 = _mm512_load_si512(table_below_top[amax & 127u] + 64);
        c.halves = table_halves[amax & 127u];
        encode_group(x, n, q, &c, false, false);
        return c.scale;
    }
    c.addend = _mm512_add_epi16(_mm512_load_si512(table_f16_addend[amax & 1023u]),
                                _mm512_set1_epi16((short)((EXPONENT - (int)exponent) * 1024)));
    if (exponent >= DEEP)
        encode_group(x, n, q, &c, true, false);
    else
        encode_group(x, n, q, &c, true, true);
    return c.scale;
}

INLINED void quantise_row(const uint16_t *x, uint32_t hidden, uint32_t group, const uint16_t *next,
                          uint8_t *q, float *scale, bool f16)
{
    /* octave_code: 8 * (16 - octaves) + 8 for 15 (and more), 14, ... 0 octaves below amax; the
     * first is too low on purpose: it produces codes under 8. */
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
        *scale++ = group_looked_up(x + h, group, q + h, &k, f16);
    }
}

/* Groups of 128 are common, and unrolled. */
void kernels_avx512_quantise(const uint16_t *x, uint32_t hidden, uint32_t group,
                             const uint16_t *next, uint8_t *q, float *scale)
{
    if (group == 128)
        quantise_row(x, hidden, 128, next, q, scale, false);
    else
        quantise_row(x, hidden, group, next, q, scale, false);
}

void kernels_avx512_quantise_f16(const uint16_t *x, uint32_t hidden, uint32_t group,
                                 const uint16_t *next, uint8_t *q, float *scale)
{
    if (group == 128)
        quantise_row(x, hidden, 128, next, q, scale, true);
    else
        quantise_row(x, hidden, group, next, q, scale, true);
}
