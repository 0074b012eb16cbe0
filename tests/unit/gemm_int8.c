/* Tests of the INT8 matrix kernels of all instruction sets that this CPU has, and of the quantisation of
 * their rows. All sets must return the bits that problem.h and gemm.h define. */
#include "kernel_rows.h"

#include <math.h>

#include "epa2a/gemm.h"
#include "kernels/sets.h"

enum { SCALE_STRIDE = 3, LD_GAP = 5 };

static const char *const isas[] = {"scalar", "avx2", "avx512_vnni", "amx"};

#if EMULATED_AMX
extern const struct epa_gemm emulated_gemm_int8_amx; /* defined in gemm_int8_amx.c */

static const struct epa_gemm *set_of(const char *isa)
{
    return strcmp(isa, "amx") == 0 && epa_gemm_by_name("avx512", EPA_BF16) != NULL
               ? &emulated_gemm_int8_amx
               : epa_gemm_by_name(isa, EPA_INT8);
}
#else
static const struct epa_gemm *set_of(const char *isa)
{
    return epa_gemm_by_name(isa, EPA_INT8);
}
#endif

static void *exactly(size_t bytes)
{
    void *p = NULL;

    assert_int_equal(posix_memalign(&p, 64, bytes), 0);
    memset(p, 0x3c, bytes); /* rows behind the last row of A keep it */
    return p;
}

enum codes { RANDOM, LOWEST, HIGHEST, OPPOSITE, CODES };

static int8_t code(enum codes kind, bool weight, uint64_t *seed)
{
    switch (kind) {
    case LOWEST:
        return -128;
    case HIGHEST:
        return 127;
    case OPPOSITE:
        return weight ? -128 : 127;
    default:
        return (int8_t)(next_random(seed) >> 56);
    }
}

static int8_t *make_codes(size_t n, enum codes kind, bool weight, uint64_t *seed)
{
    int8_t *q = malloc(n);

    for (size_t i = 0; i < n; i++)
        q[i] = code(kind, weight, seed);
    return q;
}

static float *make_scales(size_t n, uint64_t *seed)
{
    float *scale = exactly(n * sizeof(*scale));

    for (size_t i = 0; i < n; i++)
        scale[i] = (1.0f + (float)((next_random(seed) >> 40) % 997)) * 0x1.23p-12f;
    return scale;
}

static void assert_product(const struct epa_gemm *set, uint32_t m, uint32_t n, uint32_t k,
                           enum codes kind)
{
    const size_t ld = k + LD_GAP, ldc = n + 16 * (m % 3);
    uint64_t seed = ((uint64_t)m << 40) + ((uint64_t)n << 20) + k;
    int8_t *x = make_codes((size_t)m * k, kind, false, &seed);
    int8_t *w = make_codes(n * ld, kind, true, &seed);
    float *a_scale = make_scales((size_t)m * SCALE_STRIDE, &seed), *b_scale = make_scales(n, &seed);
    void *a = exactly(epa_gemm_panel_at(EPA_INT8, (m + 31) / 32 * 32, k));
    void *b = exactly(epa_gemm_b_bytes(EPA_INT8, n, k));
    float *c = exactly(((m - 1) * ldc + n) * sizeof(*c));

    for (uint32_t i = 0; i < m; i++)
        set->pack_a(x + (size_t)i * k, k, a, i);
    set->pack_b(w, ld, n, k, b);
    set->multiply(&(struct epa_gemm_call){.a = a,
                                          .b = b,
                                          .m = m,
                                          .n = n,
                                          .k = k,
                                          .c = c,
                                          .ldc = ldc,
                                          .a_scale = a_scale,
                                          .a_scale_stride = SCALE_STRIDE,
                                          .b_scale = b_scale,
                                          .stream_c = m % 2 == 0,
                                          .block_k = (m + k / 32) % 3 * 128,
                                          .next_b = m % 4 < 2 ? b : NULL});
    for (uint32_t i = 0; i < m; i++) {
        for (uint32_t j = 0; j < n; j++) {
            float scale = a_scale[(size_t)i * SCALE_STRIDE] * b_scale[j], want;
            int64_t sum = 0;

            for (uint32_t h = 0; h < k; h++)
                sum += x[(size_t)i * k + h] * w[j * ld + h];
            assert_true(sum >= INT32_MIN && sum <= INT32_MAX);
            want = (float)sum * scale;
            if (c[i * ldc + j] != want)
                fail_msg("%s, %u x %u x %u, codes %d: c[%u][%u] is %a, not %a", set->isa, m, n, k,
                         (int)kind, i, j, (double)c[i * ldc + j], (double)want);
        }
        for (size_t j = n; i + 1 < m && j < ldc; j++)
            assert_int_equal(bits_of_float(c[i * ldc + j]), 0x3c3c3c3c);
    }
    free(x), free(w), free(a_scale), free(b_scale), free(a), free(b), free(c);
}

TEST(products_of_int8_are_exact_sums_times_both_scales)
{
    static const struct {
        uint32_t m, n, k;
    } shapes[] = {
        {1, 32, 32},   {2, 64, 64},    {3, 32, 96},    {7, 96, 1024},  {8, 128, 2048},
        {12, 32, 160}, {13, 64, 128},  {16, 32, 640},  {17, 96, 256},  {25, 32, 1056},
        {32, 32, 896}, {33, 160, 128}, {65, 64, 288},  {97, 32, 256},  {129, 32, 1184},
        {257, 64, 96}, {14, 32, 8224}, {40, 64, 9280}, {525, 32, 128},
    };

    for (size_t i = 0; i < LENGTH(isas); i++) {
        const struct epa_gemm *set = set_of(isas[i]);

        for (size_t s = 0; set != NULL && s < LENGTH(shapes); s++)
            for (enum codes kind = RANDOM; kind < CODES; kind++)
                if (kind == RANDOM || shapes[s].m < 40)
                    assert_product(set, shapes[s].m, shapes[s].n, shapes[s].k, kind);
        if (set != NULL) /* m = 0: the call must not touch any array */
            set->multiply(&(struct epa_gemm_call){.m = 0, .n = 64, .k = 256, .ldc = 64});
    }
}

/* The largest k of an experiment: sums of 127 * 127 fit into int32. */
TEST(products_of_int8_are_exact_for_the_largest_hidden)
{
    enum { K = 131072 };
    int8_t *q = malloc(K * 32);
    float one = 1, scale[32], *c = exactly(sizeof(scale));

    memset(q, 127, K * 32);
    for (size_t i = 0; i < 32; i++)
        scale[i] = i % 2 == 0 ? 1 : -1;
    for (size_t i = 0; i < LENGTH(isas); i++) {
        const struct epa_gemm *set = set_of(isas[i]);
        void *a, *b;

        if (set == NULL)
            continue;
        a = exactly(epa_gemm_panel_at(EPA_INT8, 32, K));
        b = exactly(epa_gemm_b_bytes(EPA_INT8, 32, K));
        set->pack_a(q, K, a, 0);
        set->pack_b(q, K, 32, K, b);
        set->multiply(&(struct epa_gemm_call){.a = a,
                                              .b = b,
                                              .m = 1,
                                              .n = 32,
                                              .k = K,
                                              .c = c,
                                              .ldc = 32,
                                              .a_scale = &one,
                                              .a_scale_stride = 1,
                                              .b_scale = scale});
        for (size_t j = 0; j < 32; j++)
            assert_true(c[j] == 127.0f * 127.0f * K * scale[j]);
        free(a), free(b);
    }
    free(q), free(c);
}

/* problem.h */
static int8_t code_of(float x, float scale)
{
    float v = x * (1.0f / scale);

    return isnan(v) ? 0 : (int8_t)nearbyintf(v > 127 ? 127 : v < -127 ? -127 : v);
}

static void assert_row(const struct gemm_rows *rows, bool f16, const uint16_t *x, uint32_t n)
{
    int8_t *q = malloc(n);
    float got = rows->quantise_int8(x, f16 ? EPA_F16 : EPA_BF16, n, q), amax = 0, scale;

    for (uint32_t i = 0; i < n; i++) {
        float magnitude = fabsf(float_of_word(f16, x[i]));

        amax = isfinite(magnitude) && magnitude > amax ? magnitude : amax;
    }
    scale = amax * (1.0f / 127.0f) >= 0x1p-126f ? amax * (1.0f / 127.0f) : 1;
    assert_true(got == scale);
    for (uint32_t i = 0; i < n; i++)
        if (q[i] != code_of(float_of_word(f16, x[i]), scale))
            fail_msg("code of %a with scale %a is %d, not %d", (double)float_of_word(f16, x[i]),
                     (double)scale, q[i], code_of(float_of_word(f16, x[i]), scale));
    free(q);
}

TEST(rows_are_quantised_to_int8_as_documented)
{
    const struct gemm_rows *const sets[] = {
        &kernels_rows_scalar,
#ifdef __x86_64__
        epa_kernels_by_name("avx2", EPA_BF16) != NULL ? &kernels_rows_avx2 : NULL,
        epa_kernels_by_name("avx512", EPA_BF16) != NULL ? &kernels_rows_avx512 : NULL,
#endif
    };
    uint16_t x[544];
    uint64_t seed = 47;

    for (size_t s = 0; s < LENGTH(sets); s++)
        for (uint32_t f16 = 0; sets[s] != NULL && f16 < 2; f16++)
            for (uint32_t n = 32; n <= LENGTH(x); n += n == 32 ? 64 : 448) {
                for (uint32_t kind = 0; kind < 5; kind++)
                    for (uint32_t turn = 0; turn < 50; turn++) {
                        for (uint32_t i = 0; i < n; i++)
                            x[i] = random_value(f16 != 0, &seed, kind);
                        assert_row(sets[s], f16 != 0, x, n);
                    }
                memset(x, 0, sizeof(x));
                assert_row(sets[s], f16 != 0, x, n);
                x[n - 1] = 1; /* a denormal alone */
                assert_row(sets[s], f16 != 0, x, n);
            }
}
