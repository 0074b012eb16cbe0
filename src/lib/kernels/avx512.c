/* The sets for AVX-512 with VBMI. Arithmetic on bf16 treats even and odd channels separately: a
 * pair of bf16 is one 32-bit lane. The upper half of the lane, followed by zeros, is the odd
 * channel in float32; the lane shifted up is the even channel. f16 has instructions that convert
 * sixteen consecutive channels. Each function serves both types; `f16` is a constant in each
 * inlined copy. */
#include "kernels/avx512_convert.h"
#include "kernels/avx512_quantise.h"

static inline __mmask32 first(uint32_t n)
{
    return n < 32 ? (1u << n) - 1u : ~0u;
}

/* Loads the channels of `lanes` as float32. */
INLINED struct floats32 widen(const uint16_t *at, __mmask32 lanes, bool f16)
{
    if (!f16)
        return widen_apart(_mm512_maskz_loadu_epi16(lanes, at));
    return (struct floats32){
        _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((__mmask16)lanes, at)),
        _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((__mmask16)(lanes >> 16), at + 16)),
    };
}

INLINED void quantise_as(const uint16_t *x, uint32_t hidden, uint32_t group, const uint16_t *next,
                         uint8_t *q, float *scale, bool f16)
{
    (f16 ? kernels_avx512_quantise_f16 : kernels_avx512_quantise)(x, hidden, group, next, q, scale);
}

enum {
    FETCH_AHEAD = 512, /* bytes; in each row of codes, in each destination */
    ROWS_AHEAD = 1024, /* the same in each row of two bytes a channel */
};

/* Copies to two destinations in turn. Often one destination is slow, since another core owns its
 * lines, and the other is fast: lines of the slow one arrive during the writes to the fast one.
 * Lines are prefetched for writing ahead of the stores; past the end, the first lines of next_a and
 * next_b. */
static void copy_cached(char *a, char *b, char *next_a, char *next_b, const char *from,
                        size_t bytes)
{
    size_t i = 0;

    for (; i + FETCH_AHEAD < bytes; i += 64) {
        __m512i line = _mm512_load_si512(from + i);

        _mm_prefetch(a + i + FETCH_AHEAD, _MM_HINT_ET0);
        _mm_prefetch(b + i + FETCH_AHEAD, _MM_HINT_ET0);
        _mm512_store_si512(a + i, line);
        _mm512_store_si512(b + i, line);
    }
    for (; i < bytes; i += 64, next_a += 64, next_b += 64) {
        __m512i line = _mm512_load_si512(from + i);

        _mm_prefetch(next_a, _MM_HINT_ET0);
        _mm_prefetch(next_b, _MM_HINT_ET0);
        _mm512_store_si512(a + i, line);
        _mm512_store_si512(b + i, line);
    }
}

/* Copies an odd last destination twice; the second copy hits L1. */
static void spread_cached(void *const *to, uint32_t n, const char *from, size_t bytes)
{
    for (uint32_t i = 0; i < n; i += 2) {
        uint32_t other = i + 1 < n ? i + 1 : i;
        uint32_t next = i + 2 < n ? i + 2 : i, after = i + 3 < n ? i + 3 : next;

        copy_cached(to[i], to[other], to[next], to[after], from, bytes);
    }
}

static void copy_streaming(char *to, const char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        _mm512_stream_si512((void *)(to + i), _mm512_load_si512(from + i));
}

static void spread(void *const *to, uint32_t n, const void *from, size_t bytes, enum epa_store how)
{
    if (how == EPA_STORE_CACHED) {
        spread_cached(to, n, from, bytes);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        copy_streaming(to[i], from, bytes);
}

static inline void store(uint16_t *out, __mmask32 lanes, __m512i v, bool stream)
{
    if (stream)
        _mm512_stream_si512((void *)out, v);
    else
        _mm512_mask_storeu_epi16(out, lanes, v);
}

/* Reduces `vectors` times 32 channels of all rows; the last vector has `last` of its lanes. */
INLINED void reduce_block(const uint16_t *const *row, const float *weight, uint32_t n, uint32_t h,
                          uint32_t vectors, __mmask32 last, bool fetch, bool stream, bool f16,
                          uint16_t *out)
{
    struct floats32 acc[4];

    for (uint32_t v = 0; v < vectors; v++)
        acc[v] = (struct floats32){_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (uint32_t i = 0; i < n; i++) {
        __m512 w = _mm512_set1_ps(weight[i]);

        for (uint32_t v = 0; v < vectors; v++) {
            const uint16_t *at = row[i] + h + 32 * v;
            struct floats32 f = widen(at, last, f16);

            if (fetch)
                _mm_prefetch((const char *)at + ROWS_AHEAD, _MM_HINT_T0);
            acc[v].a = _mm512_fmadd_ps(w, f.a, acc[v].a);
            acc[v].b = _mm512_fmadd_ps(w, f.b, acc[v].b);
        }
    }
    for (uint32_t v = 0; v < vectors; v++)
        store(out + h + 32 * v, last, narrow(acc[v], f16), stream);
}

/* Masks the loads at the end of a row: bytes behind the row may belong to another core, and a fetch
 * of such a line is slow. */
INLINED void reduce_rows(const uint16_t *const *row, const float *weight, uint32_t n,
                         uint32_t hidden, bool stream, bool f16, uint16_t *out)
{
    uint32_t h = 0;

    for (; h + 128 + ROWS_AHEAD / sizeof(**row) <= hidden; h += 128)
        reduce_block(row, weight, n, h, 4, ~0u, true, stream, f16, out);
    for (; h + 128 <= hidden; h += 128)
        reduce_block(row, weight, n, h, 4, ~0u, false, stream, f16, out);
    for (; h < hidden; h += 32)
        reduce_block(row, weight, n, h, 1, first(hidden - h), false, false, f16, out);
}

/* Makes the usual numbers of rows constants of the compiler, which unrolls them and keeps pointers
 * and weights in registers. */
INLINED void reduce_as(const uint16_t *const *row, const float *weight, uint32_t n, uint32_t hidden,
                       enum epa_store how, bool f16, uint16_t *out)
{
    bool stream = how == EPA_STORE_NONTEMPORAL && (uintptr_t)out % 64 == 0;

    switch (n) {
#define ROWS(n) \
    case n: \
        reduce_rows(row, weight, n, hidden, stream, f16, out); \
        break
        ROWS(1);
        ROWS(2);
        ROWS(3);
        ROWS(4);
        ROWS(5);
        ROWS(6);
        ROWS(7);
        ROWS(8);
#undef ROWS
    default:
        reduce_rows(row, weight, n, hidden, stream, f16, out);
    }
}

/* Reduces `blocks` times 64 channels of all rows, of group g; the last block has `last` of them.
 * Unpacking puts even groups of eight channels into one vector and odd groups into the other. The
 * sums keep this order. */
INLINED void reduce_codes(const uint8_t *const *row, const float *const *scale, const float *weight,
                          uint32_t n, uint32_t h, uint32_t g, uint32_t blocks, __mmask64 last,
                          bool stream, bool f16, uint16_t *out)
{
    const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i upper = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    struct floats32 acc[4];
    __m512i x[4];

    for (uint32_t v = 0; v < 2 * blocks; v++)
        acc[v] = (struct floats32){_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (uint32_t i = 0; i < n; i++) {
        __m512 s = _mm512_set1_ps(scale[i][g]), w = _mm512_set1_ps(weight[i]);

        for (uint32_t b = 0; b < blocks; b++) {
            const uint8_t *at = row[i] + h + 64 * b;

            decode64(_mm512_maskz_loadu_epi8(last, at), &x[2 * b], &x[2 * b + 1]);
            _mm_prefetch((const char *)at + FETCH_AHEAD, _MM_HINT_T0);
        }
        for (uint32_t v = 0; v < 2 * blocks; v++) {
            struct floats32 f = times(widen_apart(x[v]), s);

            acc[v].a = _mm512_fmadd_ps(w, f.a, acc[v].a);
            acc[v].b = _mm512_fmadd_ps(w, f.b, acc[v].b);
        }
    }
    for (uint32_t v = 0; v < 2 * blocks; v++)
        x[v] = narrow_apart(acc[v], f16);
    for (uint32_t b = 0; b < blocks; b++) {
        uint16_t *to = out + h + 64 * b;
        __m512i even = x[2 * b], odd = x[2 * b + 1];

        store(to, (__mmask32)last, _mm512_permutex2var_epi64(even, lower, odd), stream);
        store(to + 32, (__mmask32)(last >> 32), _mm512_permutex2var_epi64(even, upper, odd),
              stream);
    }
}

INLINED void reduce_groups(const uint8_t *const *row, const float *const *scale,
                           const float *weight, uint32_t n, uint32_t hidden, uint32_t group,
                           bool stream, bool f16, uint16_t *out)
{
    for (uint32_t start = 0, g = 0; start < hidden; start += group, g++) {
        uint32_t end = start + group, h = start;

        for (; h + 128 <= end; h += 128)
            reduce_codes(row, scale, weight, n, h, g, 2, ~0ull, stream, f16, out);
        for (; h + 64 <= end; h += 64)
            reduce_codes(row, scale, weight, n, h, g, 1, ~0ull, stream, f16, out);
        if (h < end)
            reduce_codes(row, scale, weight, n, h, g, 1, (1ull << (end - h)) - 1u, false, f16, out);
    }
}

INLINED void reduce_fp8_as(const uint8_t *const *row, const float *const *scale,
                           const float *weight, uint32_t n, uint32_t hidden, uint32_t group,
                           enum epa_store how, bool f16, uint16_t *out)
{
    bool stream = how == EPA_STORE_NONTEMPORAL && group % 64 == 0 && (uintptr_t)out % 64 == 0;

    if (group == 128) /* common group */
        reduce_groups(row, scale, weight, n, hidden, 128, stream, f16, out);
    else
        reduce_groups(row, scale, weight, n, hidden, group, stream, f16, out);
}

INLINED void output_fp8_as(const uint8_t *q, const float *scale, uint32_t hidden, uint32_t group,
                           float factor, bool f16, uint16_t *y)
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512 by = _mm512_set1_ps(factor);

    for (uint32_t g = 0; g < hidden; g += group) {
        __m512 s = _mm512_set1_ps(scale[g / group]);

        for (uint32_t h = g; h < g + group; h += 64) {
            uint32_t left = g + group - h;
            __mmask32 m0 = first(left), m1 = left > 32 ? first(left - 32) : 0;
            __mmask64 both = (__mmask64)m1 << 32 | m0;
            __m512i codes = _mm512_maskz_loadu_epi8(both, q + h), x0, x1;

            decode64(_mm512_permutexvar_epi64(order, codes), &x0, &x1);
            x0 = narrow_apart(times(times(widen_apart(x0), s), by), f16);
            x1 = narrow_apart(times(times(widen_apart(x1), s), by), f16);
            _mm512_mask_storeu_epi16(y + h, m0, x0);
            _mm512_mask_storeu_epi16(y + h + 32, m1, x1);
        }
    }
}

INLINED void output_as(const uint16_t *x, uint32_t hidden, float factor, bool f16, uint16_t *y)
{
    const __m512 by = _mm512_set1_ps(factor);

    for (uint32_t h = 0; h < hidden; h += 32) {
        __mmask32 some = first(hidden - h);

        _mm512_mask_storeu_epi16(y + h, some, narrow(times(widen(x + h, some, f16), by), f16));
    }
}

#define SET_ISA "avx512"
#define SET_BF16 kernels_avx512
#define SET_F16 kernels_avx512_f16
#include "kernels/of_both_types.h"
