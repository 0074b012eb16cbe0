/* The set for AVX-512 with VBMI. Arithmetic on bf16 is done on even and odd channels apart:
 * a pair of bf16 is one 32-bit lane, whose upper half with zeros behind it already is the
 * odd channel in float32, and shifted up, the even one. */
#include <immintrin.h>
#include <stdbool.h>

#include "kernels/sets.h"
#include "tables.h"

struct floats32 {
    __m512 even, odd;
};

static inline __mmask32 first(uint32_t n)
{
    return n < 32 ? (1u << n) - 1u : ~0u;
}

static inline struct floats32 widen(__m512i x)
{
    return (struct floats32){
        _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
        _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u))),
    };
}

/* bf16_of_float, in the upper half of each lane. Not the instruction made for it: that one
 * takes denormals for zeros. */
static inline __m512i round_up_there(__m512 f)
{
    __m512i u = _mm512_castps_si512(f);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(f, f, _CMP_UNORD_Q);

    return _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
}

static inline __m512i narrow(struct floats32 f)
{
    return _mm512_mask_blend_epi16(
        0xaaaaaaaau, _mm512_srli_epi32(round_up_there(f.even), 16), round_up_there(f.odd));
}

static inline struct floats32 times(struct floats32 f, __m512 by)
{
    return (struct floats32){_mm512_mul_ps(f.even, by), _mm512_mul_ps(f.odd, by)};
}

enum {
    FETCH_AHEAD = 512, /* bytes; in each row, in each destination */
};

/* To two places in turn: one is often another core's and slow, one the own and quick, and
 * the slow one's lines come while the quick one's are written. Lines are fetched for
 * writing ahead of the stores; past the end, the first of next_a and next_b. */
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

/* An odd one at the end is copied to twice, which costs what is in L1 by then. */
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

static void spread(void *const *to, uint32_t n, const void *from, size_t bytes,
                   enum kernels_store how)
{
    if (how == KERNELS_STORE_CACHED) {
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

/* `vectors` times 32 channels of all rows; the last vector has `last` of its lanes. */
static inline __attribute__((always_inline)) void
reduce_block(const uint16_t *const *row, const float *weight, uint32_t n, uint32_t h,
             uint32_t vectors, __mmask32 last, bool stream, uint16_t *out)
{
    struct floats32 acc[4];

    for (uint32_t v = 0; v < vectors; v++)
        acc[v] = (struct floats32){_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (uint32_t i = 0; i < n; i++) {
        __m512 w = _mm512_set1_ps(weight[i]);

        for (uint32_t v = 0; v < vectors; v++) {
            const uint16_t *at = row[i] + h + 32 * v;
            struct floats32 f = widen(_mm512_maskz_loadu_epi16(last, at));

            _mm_prefetch((const char *)at + FETCH_AHEAD, _MM_HINT_T0);
            acc[v].even = _mm512_fmadd_ps(w, f.even, acc[v].even);
            acc[v].odd = _mm512_fmadd_ps(w, f.odd, acc[v].odd);
        }
    }
    for (uint32_t v = 0; v < vectors; v++)
        store(out + h + 32 * v, last, narrow(acc[v]), stream);
}

static inline __attribute__((always_inline)) void reduce_rows(const uint16_t *const *row,
                                                              const float *weight,
                                                              uint32_t n, uint32_t hidden,
                                                              bool stream, uint16_t *out)
{
    uint32_t h = 0;

    for (; h + 128 <= hidden; h += 128)
        reduce_block(row, weight, n, h, 4, ~0u, stream, out);
    for (; h < hidden; h += 32)
        reduce_block(row, weight, n, h, 1, first(hidden - h), false, out);
}

/* The usual numbers of rows are constants to the compiler: it unrolls them and keeps
 * pointers and weights in registers. */
static void reduce(const uint16_t *const *row, const float *weight, uint32_t n,
                   uint32_t hidden, enum kernels_store how, uint16_t *out)
{
    bool stream = how == KERNELS_STORE_STREAM && (uintptr_t)out % 64 == 0;

    switch (n) {
    case 1:
        reduce_rows(row, weight, 1, hidden, stream, out);
        break;
    case 2:
        reduce_rows(row, weight, 2, hidden, stream, out);
        break;
    case 3:
        reduce_rows(row, weight, 3, hidden, stream, out);
        break;
    case 4:
        reduce_rows(row, weight, 4, hidden, stream, out);
        break;
    case 5:
        reduce_rows(row, weight, 5, hidden, stream, out);
        break;
    case 6:
        reduce_rows(row, weight, 6, hidden, stream, out);
        break;
    case 7:
        reduce_rows(row, weight, 7, hidden, stream, out);
        break;
    case 8:
        reduce_rows(row, weight, 8, hidden, stream, out);
        break;
    default:
        reduce_rows(row, weight, n, hidden, stream, out);
    }
}

/* 64 codes, in this order: eights 0 4 1 5 2 6 3 7, so that unpacking gives 0 1 2 3 and
 * 4 5 6 7. */
static inline void decode64(__m512i q, __m512i *x0, __m512i *x1)
{
    __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(table_bf16_low), q,
                                           _mm512_load_si512(table_bf16_low + 64));
    __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(table_bf16_high), q,
                                            _mm512_load_si512(table_bf16_high + 64));

    high = _mm512_ternarylogic_epi64(high, q, _mm512_set1_epi8((char)0x80), 0xf8);
    *x0 = _mm512_unpacklo_epi8(low, high);
    *x1 = _mm512_unpackhi_epi8(low, high);
}

/* `blocks` times 64 channels of all rows, of group g; the last block has `last` of them.
 * Unpacking leaves even eights of channels in one vector and odd ones in the other, and so
 * they are added up. */
static inline __attribute__((always_inline)) void
reduce_codes(const uint8_t *const *row, const float *const *scale, const float *weight,
             uint32_t n, uint32_t h, uint32_t g, uint32_t blocks, __mmask64 last,
             bool stream, uint16_t *out)
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
            struct floats32 f = times(widen(x[v]), s);

            acc[v].even = _mm512_fmadd_ps(w, f.even, acc[v].even);
            acc[v].odd = _mm512_fmadd_ps(w, f.odd, acc[v].odd);
        }
    }
    for (uint32_t v = 0; v < 2 * blocks; v++)
        x[v] = narrow(acc[v]);
    for (uint32_t b = 0; b < blocks; b++) {
        uint16_t *to = out + h + 64 * b;
        __m512i even = x[2 * b], odd = x[2 * b + 1];

        store(to, (__mmask32)last, _mm512_permutex2var_epi64(even, lower, odd), stream);
        store(to + 32, (__mmask32)(last >> 32), _mm512_permutex2var_epi64(even, upper, odd),
              stream);
    }
}

static inline __attribute__((always_inline)) void
reduce_groups(const uint8_t *const *row, const float *const *scale, const float *weight,
              uint32_t n, uint32_t hidden, uint32_t group, bool stream, uint16_t *out)
{
    for (uint32_t start = 0, g = 0; start < hidden; start += group, g++) {
        uint32_t end = start + group, h = start;

        for (; h + 128 <= end; h += 128)
            reduce_codes(row, scale, weight, n, h, g, 2, ~0ull, stream, out);
        for (; h + 64 <= end; h += 64)
            reduce_codes(row, scale, weight, n, h, g, 1, ~0ull, stream, out);
        if (h < end)
            reduce_codes(row, scale, weight, n, h, g, 1, (1ull << (end - h)) - 1u, false,
                         out);
    }
}

static void reduce_fp8(const uint8_t *const *row, const float *const *scale,
                       const float *weight, uint32_t n, uint32_t hidden, uint32_t group,
                       enum kernels_store how, uint16_t *out)
{
    bool stream =
        how == KERNELS_STORE_STREAM && group % 64 == 0 && (uintptr_t)out % 64 == 0;

    if (group == 128) /* the common one */
        reduce_groups(row, scale, weight, n, hidden, 128, stream, out);
    else
        reduce_groups(row, scale, weight, n, hidden, group, stream, out);
}

static void answer_fp8(const uint8_t *q, const float *scale, uint32_t hidden,
                       uint32_t group, float factor, uint16_t *y)
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
            x0 = narrow(times(times(widen(x0), s), by));
            x1 = narrow(times(times(widen(x1), s), by));
            _mm512_mask_storeu_epi16(y + h, m0, x0);
            _mm512_mask_storeu_epi16(y + h + 32, m1, x1);
        }
    }
}

static void answer_bf16(const uint16_t *x, uint32_t hidden, float factor, uint16_t *y)
{
    const __m512 by = _mm512_set1_ps(factor);

    for (uint32_t h = 0; h < hidden; h += 32) {
        __mmask32 some = first(hidden - h);
        __m512i v = _mm512_maskz_loadu_epi16(some, x + h);

        _mm512_mask_storeu_epi16(y + h, some, narrow(times(widen(v), by)));
    }
}

const struct kernels kernels_avx512 = {
    .isa = "avx512",
    .quantise = kernels_avx512_quantise,
    .spread = spread,
    .reduce = reduce,
    .reduce_fp8 = reduce_fp8,
    .answer_fp8 = answer_fp8,
    .answer_bf16 = answer_bf16,
};
