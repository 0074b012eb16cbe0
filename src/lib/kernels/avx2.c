/* The sets for AVX2 with FMA, and F16C for f16: float32 in vectors of eight, and a division where
 * the definition contains one. Even and odd bf16 channels are separate, as in avx512.c. Each
 * function serves both types; `f16` is a constant in each inlined copy. */
#include <immintrin.h>
#include <stdbool.h>

#include "base/dtype.h"
#include "kernels/sets.h"

/* 16 channels. bf16: even and odd channels; f16 and decoded codes: the first eight and the last
 * eight channels. */
struct floats16 {
    __m256 a, b;
};

enum { NEAREST_EVEN = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

static inline __m256i load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline __m128i load8(const uint16_t *x)
{
    return _mm_loadu_si128((const __m128i *)(const void *)x);
}

INLINED struct floats16 widen(const uint16_t *at, bool f16)
{
    __m256i x;

    if (f16)
        return (struct floats16){_mm256_cvtph_ps(load8(at)), _mm256_cvtph_ps(load8(at + 8))};
    x = load(at);
    return (struct floats16){
        _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
        _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000u))),
    };
}

/* Computes bf16_of_float() in the upper half of each lane. */
static inline __m256i round_up_there(__m256 f)
{
    __m256i u = _mm256_castps_si256(f);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(f, f, _CMP_UNORD_Q));

    return _mm256_blendv_epi8(r, quiet, nan);
}

INLINED __m256i narrow_f16(struct floats16 f)
{
    return _mm256_setr_m128i(_mm256_cvtps_ph(f.a, NEAREST_EVEN),
                             _mm256_cvtps_ph(f.b, NEAREST_EVEN));
}

INLINED __m256i narrow(struct floats16 f, bool f16)
{
    if (f16)
        return narrow_f16(f);
    return _mm256_blend_epi16(_mm256_srli_epi32(round_up_there(f.a), 16), round_up_there(f.b),
                              0xaa);
}

INLINED uint16_t largest_finite(const uint16_t *x, uint32_t n, uint16_t first_infinite)
{
    const __m256i infinity = _mm256_set1_epi16((short)first_infinite);
    __m256i top = _mm256_setzero_si256();
    uint16_t lane[16], amax = 0;
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m256i a = _mm256_and_si256(load(x + i), _mm256_set1_epi16(0x7fff));

        top = _mm256_max_epu16(top, _mm256_and_si256(a, _mm256_cmpgt_epi16(infinity, a)));
    }
    _mm256_storeu_si256((__m256i *)lane, top);
    for (uint32_t j = 0; j < 16; j++)
        amax = lane[j] > amax ? lane[j] : amax;
    for (; i < n; i++) {
        uint16_t a = x[i] & 0x7fffu;

        amax = a < first_infinite && a > amax ? a : amax;
    }
    return amax;
}

/* Returns the magnitudes of eight channels. */
INLINED __m256 magnitudes8(__m128i x, bool f16)
{
    __m128i a = _mm_and_si128(x, _mm_set1_epi16(0x7fff));

    if (f16)
        return _mm256_cvtph_ps(a);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16));
}

/* Returns e4m3_of_float(x / scale) of eight channels, one in each lane. */
INLINED __m256i encode8(__m128i x, __m256 scale, bool f16)
{
    __m256i sign =
        _mm256_and_si256(_mm256_srli_epi32(_mm256_cvtepu16_epi32(x), 8), _mm256_set1_epi32(0x80));
    __m256 quotient = _mm256_div_ps(magnitudes8(x, f16), scale);
    __m256i bits = _mm256_castps_si256(quotient);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7ffff)), odd);
    __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(120 << 3));
    __m256i small =
        _mm256_and_si256(_mm256_castps_si256(_mm256_add_ps(quotient, _mm256_set1_ps(16384.0f))),
                         _mm256_set1_epi32(0xff));
    __m256 is_small = _mm256_cmp_ps(quotient, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ);
    __m256 is_nan = _mm256_cmp_ps(quotient, quotient, _CMP_UNORD_Q);
    __m256i code = _mm256_min_epu32(normal, _mm256_set1_epi32(0x7e));

    code = _mm256_blendv_epi8(code, small, _mm256_castps_si256(is_small));
    code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), _mm256_castps_si256(is_nan));
    return _mm256_or_si256(code, sign);
}

INLINED float quantise_group(const uint16_t *x, uint32_t n, uint8_t *q, bool f16)
{
    uint16_t amax = largest_finite(x, n, f16 ? 0x7c00 : 0x7f80);
    float scale = amax != 0 ? float_of_word(f16, amax) * (1.0f / 448.0f) : 1.0f;
    const __m256 s = _mm256_set1_ps(scale);
    uint32_t i = 0;

    for (; i + 16 <= n; i += 16) {
        __m256i c0 = encode8(load8(x + i), s, f16), c1 = encode8(load8(x + i + 8), s, f16);
        __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(c0, c1), 0xd8);
        __m128i bytes =
            _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));

        _mm_storeu_si128((__m128i *)(q + i), bytes);
    }
    for (; i < n; i++)
        q[i] = e4m3_of_float(float_of_word(f16, x[i]) / scale);
    return scale;
}

INLINED void quantise_as(const uint16_t *x, uint32_t hidden, uint32_t group, const uint16_t *next,
                         uint8_t *q, float *scale, bool f16)
{
    for (uint32_t h = 0; h < hidden; h += group) {
        for (uint32_t i = 0; next != NULL && i < group; i += 32)
            _mm_prefetch((const char *)(next + h + i), _MM_HINT_T0);
        scale[h / group] = quantise_group(x + h, group, q + h, f16);
    }
}

enum {
    FETCH_AHEAD = 512, /* bytes; in each row, in each destination */
};

static inline void store_line(char *to, const char *from)
{
    _mm256_store_si256((__m256i *)to, load(from));
    _mm256_store_si256((__m256i *)(to + 32), load(from + 32));
}

/* See copy_cached() in avx512.c. */
static void copy_cached(char *to, char *next, const char *from, size_t bytes)
{
    size_t i = 0;

    for (; i + FETCH_AHEAD < bytes; i += 64) {
        _mm_prefetch(to + i + FETCH_AHEAD, _MM_HINT_ET0);
        store_line(to + i, from + i);
    }
    for (; i < bytes; i += 64, next += 64) {
        _mm_prefetch(next, _MM_HINT_ET0);
        store_line(to + i, from + i);
    }
}

static void copy_streaming(char *to, const char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 32)
        _mm256_stream_si256((__m256i *)(to + i), load(from + i));
}

static void spread(void *const *to, uint32_t n, const void *from, size_t bytes,
                   enum epa_store store)
{
    for (uint32_t i = 0; i < n; i++) {
        if (store == EPA_STORE_NONTEMPORAL)
            copy_streaming(to[i], from, bytes);
        else
            copy_cached(to[i], to[i + 1 < n ? i + 1 : i], from, bytes);
    }
}

static inline void store(uint16_t *out, __m256i v, bool stream)
{
    if (stream)
        _mm256_stream_si256((__m256i *)(void *)out, v);
    else
        _mm256_storeu_si256((__m256i *)(void *)out, v);
}

/* Reduces `vectors` times 16 channels of all rows. */
INLINED void reduce_block(const uint16_t *const *row, const float *weight, uint32_t n, uint32_t h,
                          uint32_t vectors, bool stream, bool f16, uint16_t *out)
{
    struct floats16 acc[4];

    for (uint32_t v = 0; v < vectors; v++)
        acc[v] = (struct floats16){_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t i = 0; i < n; i++) {
        __m256 w = _mm256_set1_ps(weight[i]);

        _mm_prefetch((const char *)(row[i] + h) + FETCH_AHEAD, _MM_HINT_T0);
        _mm_prefetch((const char *)(row[i] + h) + FETCH_AHEAD + 64, _MM_HINT_T0);
        for (uint32_t v = 0; v < vectors; v++) {
            struct floats16 f = widen(row[i] + h + 16 * v, f16);

            acc[v].a = _mm256_fmadd_ps(w, f.a, acc[v].a);
            acc[v].b = _mm256_fmadd_ps(w, f.b, acc[v].b);
        }
    }
    for (uint32_t v = 0; v < vectors; v++)
        store(out + h + 16 * v, narrow(acc[v], f16), stream);
}

INLINED void reduce_rows(const uint16_t *const *row, const float *weight, uint32_t n,
                         uint32_t hidden, bool stream, bool f16, uint16_t *out)
{
    uint32_t h = 0;

    for (; h + 64 <= hidden; h += 64)
        reduce_block(row, weight, n, h, 4, stream, f16, out);
    for (; h < hidden; h += 16)
        reduce_block(row, weight, n, h, 1, false, f16, out);
}

INLINED void reduce_as(const uint16_t *const *row, const float *weight, uint32_t n, uint32_t hidden,
                       enum epa_store how, bool f16, uint16_t *out)
{
    bool stream = how == EPA_STORE_NONTEMPORAL && (uintptr_t)out % 32 == 0;

    if (n == 8) /* common number, unrolled */
        reduce_rows(row, weight, 8, hidden, stream, f16, out);
    else
        reduce_rows(row, weight, n, hidden, stream, f16, out);
}

/* Decodes eight codes, one in each lane. */
static inline __m256 decode8(__m256i q)
{
    __m256i a = _mm256_and_si256(q, _mm256_set1_epi32(0x7f));
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(q, _mm256_set1_epi32(0x80)), 24);
    __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(a, 20), _mm256_set1_epi32(120 << 23));
    __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(a), _mm256_set1_ps(0x1p-9f));
    __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), a);
    __m256i is_nan = _mm256_cmpeq_epi32(a, _mm256_set1_epi32(0x7f));
    __m256i v = _mm256_blendv_epi8(normal, _mm256_castps_si256(small), is_small);

    v = _mm256_blendv_epi8(v, _mm256_set1_epi32(0x7fc00000), is_nan);
    return _mm256_castsi256_ps(_mm256_or_si256(v, sign));
}

static inline __m256 scaled8(const uint8_t *q, __m256 scale)
{
    __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)q));

    return _mm256_mul_ps(decode8(wide), scale);
}

/* Narrows 16 channels in order: the first eight and the last eight, in both types. */
INLINED __m256i narrow_in_order(struct floats16 f, bool f16)
{
    __m256i words;

    if (f16)
        return narrow_f16(f);
    words = _mm256_packus_epi32(_mm256_srli_epi32(round_up_there(f.a), 16),
                                _mm256_srli_epi32(round_up_there(f.b), 16));
    return _mm256_permute4x64_epi64(words, 0xd8);
}

/* Reduces 16 channels of all rows, of group g. */
INLINED void reduce_codes(const uint8_t *const *row, const float *const *scale, const float *weight,
                          uint32_t n, uint32_t h, uint32_t g, bool stream, bool f16, uint16_t *out)
{
    struct floats16 acc = {_mm256_setzero_ps(), _mm256_setzero_ps()};

    for (uint32_t i = 0; i < n; i++) {
        __m256 s = _mm256_set1_ps(scale[i][g]), w = _mm256_set1_ps(weight[i]);

        _mm_prefetch((const char *)(row[i] + h) + FETCH_AHEAD, _MM_HINT_T0);
        acc.a = _mm256_fmadd_ps(w, scaled8(row[i] + h, s), acc.a);
        acc.b = _mm256_fmadd_ps(w, scaled8(row[i] + h + 8, s), acc.b);
    }
    store(out + h, narrow_in_order(acc, f16), stream);
}

INLINED void reduce_fp8_as(const uint8_t *const *row, const float *const *scale,
                           const float *weight, uint32_t n, uint32_t hidden, uint32_t group,
                           enum epa_store how, bool f16, uint16_t *out)
{
    bool stream = how == EPA_STORE_NONTEMPORAL && group % 16 == 0 && (uintptr_t)out % 32 == 0;

    for (uint32_t start = 0, g = 0; start < hidden; start += group, g++) {
        uint32_t h = start;

        for (; h + 16 <= start + group; h += 16)
            reduce_codes(row, scale, weight, n, h, g, stream, f16, out);
        for (; h < start + group; h++) {
            float acc = 0.0f;

            for (uint32_t i = 0; i < n; i++)
                acc = fmaf(weight[i], float_of_e4m3(row[i][h]) * scale[i][g], acc);
            out[h] = word_of_float(f16, acc);
        }
    }
}

INLINED void output_fp8_as(const uint8_t *q, const float *scale, uint32_t hidden, uint32_t group,
                           float factor, bool f16, uint16_t *y)
{
    const __m256 by = _mm256_set1_ps(factor);

    for (uint32_t g = 0; g < hidden; g += group) {
        float of_group = scale[g / group];
        const __m256 s = _mm256_set1_ps(of_group);
        uint32_t h = g;

        for (; h + 16 <= g + group; h += 16) {
            struct floats16 f = {_mm256_mul_ps(scaled8(q + h, s), by),
                                 _mm256_mul_ps(scaled8(q + h + 8, s), by)};

            _mm256_storeu_si256((__m256i *)(y + h), narrow_in_order(f, f16));
        }
        for (; h < g + group; h++)
            y[h] = word_of_float(f16, float_of_e4m3(q[h]) * of_group * factor);
    }
}

INLINED void output_as(const uint16_t *x, uint32_t hidden, float factor, bool f16, uint16_t *y)
{
    const __m256 by = _mm256_set1_ps(factor);
    uint32_t h = 0;

    for (; h + 16 <= hidden; h += 16) {
        struct floats16 f = widen(x + h, f16);

        f = (struct floats16){_mm256_mul_ps(f.a, by), _mm256_mul_ps(f.b, by)};
        _mm256_storeu_si256((__m256i *)(y + h), narrow(f, f16));
    }
    for (; h < hidden; h++)
        y[h] = word_of_float(f16, float_of_word(f16, x[h]) * factor);
}

#define SET_ISA "avx2"
#define SET_BF16 kernels_avx2
#define SET_F16 kernels_avx2_f16
#include "kernels/of_both_types.h"
