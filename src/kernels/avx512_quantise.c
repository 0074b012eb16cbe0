/* bf16 to e4m3 by table, 64 channels at a time, without a division.
 *
 * amax is a bf16, so scale = amax * (1/448) has one of 128 mantissas, and what x / scale
 * rounds to depends on the mantissas of amax and x (tables.h) and on how many octaves x is
 * below amax:
 *     code = 8 * (16 - octaves) + 8 - table_below_top[mantissa of amax][mantissa of x]
 * A code under 8 is not a normal number; these few are rounded again, by shifts. Groups
 * whose amax is tiny, or that hold infinities or NaN, are divided in float32. */
#include <immintrin.h>

#include "base/dtype.h"
#include "kernels/sets.h"
#include "tables.h"

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

/* Holds a constant in its register. Some compilers would rather make it anew each time, on
 * the port that the look-ups need. */
static inline __m512i held(__m512i v)
{
    __asm__("" : "+v"(v));
    return v;
}

static inline __m512i magnitude(__m512i x)
{
    return _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
}

/* The first n channels, or all 32; zeros after them. */
static inline __m512i load_some(const uint16_t *x, uint32_t n)
{
    return _mm512_maskz_loadu_epi16(n < 32 ? (1u << n) - 1u : ~0u, x);
}

static inline uint32_t largest(__m512i v)
{
    __m256i half =
        _mm256_max_epu16(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i eight =
        _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    __m128i inverted = _mm_xor_si128(eight, _mm_set1_epi16(-1));

    return 0xffffu & ~(uint32_t)_mm_extract_epi16(_mm_minpos_epu16(inverted), 0);
}

/* Codes of 16 magnitudes by division, as e4m3_of_float has them. */
static inline __m512i divide16(__m512i x, __m512 scale)
{
    __m512 quotient = _mm512_div_ps(_mm512_castsi512_ps(x), scale);
    __m512i bits = _mm512_castps_si512(quotient);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
    __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7ffff)), odd);
    __m512i normal =
        _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), _mm512_set1_epi32(120 << 3));
    __m512i small = _mm512_and_si512(
        _mm512_castps_si512(_mm512_add_ps(quotient, _mm512_set1_ps(16384.0f))),
        _mm512_set1_epi32(0xff));
    __mmask16 is_small = _mm512_cmp_ps_mask(quotient, _mm512_set1_ps(0x1p-6f), _CMP_LT_OQ);
    __mmask16 is_nan = _mm512_cmp_ps_mask(quotient, quotient, _CMP_UNORD_Q);
    __m512i code = _mm512_min_epu32(normal, _mm512_set1_epi32(0x7e));

    code = _mm512_mask_mov_epi32(code, is_small, small);
    return _mm512_mask_mov_epi32(code, is_nan, _mm512_set1_epi32(0x7f));
}

static __attribute__((noinline)) float group_divided(const uint16_t *x, uint32_t n,
                                                     uint8_t *q)
{
    const __m512i infinity = _mm512_set1_epi16(0x7f80);
    __m512i top = _mm512_setzero_si512();
    uint32_t amax;
    float scale;

    for (uint32_t i = 0; i < n; i += 32) {
        __m512i a = magnitude(load_some(x + i, n - i));

        top = _mm512_mask_max_epu16(top, _mm512_cmplt_epu16_mask(a, infinity), top, a);
    }
    amax = largest(top);
    scale = amax != 0 ? float_of_bf16((uint16_t)amax) * (1.0f / 448.0f) : 1.0f;
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 some = (__mmask16)(n - i < 16 ? (1u << (n - i)) - 1u : 0xffffu);
        __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, x + i));
        __m512i a =
            _mm512_slli_epi32(_mm512_and_si512(wide, _mm512_set1_epi32(0x7fff)), 16);
        __m512i sign =
            _mm512_and_si512(_mm512_srli_epi32(wide, 8), _mm512_set1_epi32(0x80));
        __m512i code = _mm512_or_si512(divide16(a, _mm512_set1_ps(scale)), sign);

        _mm512_mask_cvtepi32_storeu_epi8(q + i, some, code);
    }
    return scale;
}

/* The codes of channels that have none as normal numbers: see halves() in make_tables.c. A
 * shift count past 15, as of a denormal or (unused) of a large channel, leaves 0. */
static inline __m512i small_codes(__m512i codes, __mmask64 which, __m512i mantissas,
                                  __m512i a0, __m512i a1, const struct context *c)
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
static inline __attribute__((always_inline)) __m512i encode64(__m512i x0, __m512i x1,
                                                              const struct context *c)
{
    const struct constants *k = c->k;
    __m512i a0 = _mm512_and_si512(x0, k->magnitude);
    __m512i a1 = _mm512_and_si512(x1, k->magnitude);
    __m512i octaves =
        _mm512_packus_epi16(_mm512_srli_epi16(a0, 7), _mm512_srli_epi16(a1, 7));
    /* A bit of the exponent comes along; the look-up takes seven bits. */
    __m512i mantissas = _mm512_packus_epi16(_mm512_and_si512(a0, k->low_byte),
                                            _mm512_and_si512(a1, k->low_byte));
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

static inline __attribute__((always_inline)) float
group_looked_up(const uint16_t *x, uint32_t n, uint8_t *q, const struct constants *k)
{
    uint32_t whole = n & ~63u, amax;
    __m512i top = _mm512_setzero_si512();
    struct context c;

    for (uint32_t i = 0; i < whole; i += 32)
        top = _mm512_max_epu16(top,
                               _mm512_and_si512(k->magnitude, _mm512_loadu_si512(x + i)));
    for (uint32_t i = whole; i < n; i += 32)
        top = _mm512_max_epu16(top, magnitude(load_some(x + i, n - i)));
    amax = largest(top);
    c.exponent = amax >> 7;
    if (__builtin_expect(c.exponent - TABLE_FROM >= 255u - TABLE_FROM, 0))
        return group_divided(x, n, q);

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
        __m512i x1 =
            rest > 32 ? load_some(x + whole + 32, rest - 32) : _mm512_setzero_si512();

        _mm512_mask_storeu_epi8(q + whole, ((__mmask64)1 << rest) - 1u,
                                encode64(x0, x1, &c));
    }
    return float_of_bf16((uint16_t)amax) * (1.0f / 448.0f);
}

static inline void fetch(const uint16_t *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 32)
        _mm_prefetch((const char *)(x + i), _MM_HINT_T0);
}

static inline __attribute__((always_inline)) void
quantise_row(const uint16_t *x, uint32_t hidden, uint32_t group, const uint16_t *next,
             uint8_t *q, float *scale)
{
    /* octave_code: 8 * (16 - octaves) + 8 for 15 (and more), 14, ... 0 octaves below amax;
     * the first is too low on purpose: with it codes come out under 8. */
    const struct constants k = {
        .magnitude = held(_mm512_set1_epi16(0x7fff)),
        .low_byte = held(_mm512_set1_epi16(0xff)),
        .eight = held(_mm512_set1_epi8(8)),
        .sign = held(_mm512_set1_epi8((char)0x80)),
        .octave_code = held(_mm512_broadcast_i32x4(_mm_setr_epi8(
            0, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, -128, -120))),
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
