/* Tests of the matrix kernels of all instruction sets that this CPU has. Each set must match the
 * order of additions documented in its file, to the bit, and all sets must match each other where
 * sums are exact. tests/cli/limits.py checks that no kernel exceeds its peak. */
#include "kernel_rows.h"

#include "gemm_reference.h"
#include "epa2a/gemm.h"

enum { SCALE_STRIDE = 3 }; /* stride of the scales of A, larger than the number of groups */

static const char *const isas[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};
static const enum epa_dtype dtypes[] = {EPA_BF16, EPA_F16, EPA_FP8_E4M3};

#if EMULATED_AMX
extern const struct epa_gemm emulated_gemm_amx[2]; /* defined in gemm_amx.c */

static const struct epa_gemm *set_of(const char *isa, enum epa_dtype dtype)
{
    if (strcmp(isa, "amx") != 0 || epa_gemm_by_name("avx512", dtype) == NULL || dtype == EPA_F16)
        return epa_gemm_by_name(isa, dtype);
    return &emulated_gemm_amx[dtype == EPA_FP8_E4M3];
}
#else
static const struct epa_gemm *set_of(const char *isa, enum epa_dtype dtype)
{
    return epa_gemm_by_name(isa, dtype);
}
#endif

/* The arrays have the sizes that gemm.h states, so that a sanitizer detects accesses outside them.
 * Elements are stored twice: packed, and as float32 for the reference. */
struct product {
    const struct epa_gemm *set;
    struct epa_gemm_call call;
    float *a;    /* [m][k] */
    float *b;    /* [n / EPA_GEMM_COLS][k][EPA_GEMM_COLS] */
    float *want; /* [m][n] */
};

static void *exactly(size_t bytes)
{
    void *p = NULL;

    assert_int_equal(posix_memalign(&p, 64, bytes), 0);
    /* 0x3c is finite in each type; bytes behind the last row of A keep it. */
    memset(p, 0x3c, bytes);
    return p;
}

static float float_of(enum epa_dtype dtype, uint16_t word)
{
    return dtype == EPA_FP8_E4M3 ? float_of_e4m3((uint8_t)word)
                                 : float_of_word(dtype == EPA_F16, word);
}

/* kind: see random_value() */
static uint16_t element(enum epa_dtype dtype, uint64_t *seed, uint32_t kind)
{
    if (dtype != EPA_FP8_E4M3)
        return random_value(dtype == EPA_F16, seed, kind);
    if (kind == 0)
        return (uint16_t)(next_random(seed) >> 56);
    return e4m3_of_float(100.0f * float_of_bf16(random_value(false, seed, kind)));
}

static void pack_random_a(struct product *p, uint64_t *seed, uint32_t kind)
{
    const uint32_t k = p->call.k;
    uint16_t *words = malloc((size_t)k * 2 + 2);
    uint8_t *codes = malloc(k);
    void *a = exactly(epa_gemm_a_bytes(p->call.m, k));

    for (uint32_t i = 0; i < p->call.m; i++) {
        uint16_t *row = (uint16_t *)((char *)words + i % 2); /* any alignment */

        for (uint32_t h = 0; h < k; h++) {
            uint16_t word = element(p->set->dtype, seed, kind);

            codes[h] = (uint8_t)word;
            memcpy((char *)row + (size_t)h * 2, &word, 2);
            p->a[(size_t)i * k + h] = float_of(p->set->dtype, word);
        }
        if (p->set->dtype == EPA_FP8_E4M3)
            p->set->pack_a_fp8(codes, NULL, 128, k, a, i);
        else
            p->set->pack_a(row, k, a, i);
    }
    p->call.a = a;
    free(codes);
    free(words);
}

static void pack_random_b(struct product *p, uint64_t *seed, uint32_t kind)
{
    const uint32_t n = p->call.n, k = p->call.k;
    const size_t size = p->set->dtype == EPA_FP8_E4M3 ? 1 : 2, ld = k + 5;
    char *w = malloc(n * ld * size);
    void *b = exactly(epa_gemm_b_bytes(p->set->dtype, n, k));

    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t h = 0; h < k; h++) {
            uint16_t word = element(p->set->dtype, seed, kind);

            /* little-endian; codes use the first byte */
            memcpy(w + (i * ld + h) * size, &word, size);
            p->b[((size_t)i / EPA_GEMM_COLS * k + h) * EPA_GEMM_COLS + i % EPA_GEMM_COLS] =
                float_of(p->set->dtype, word);
        }
    }
    p->set->pack_b(w, ld, n, k, b);
    p->call.b = b;
    free(w);
}

static float *random_scales(size_t n, uint64_t *seed)
{
    float *scale = exactly(n * sizeof(*scale));

    for (size_t i = 0; i < n; i++)
        scale[i] = (1.0f + (float)((next_random(seed) >> 40) % 997)) * 0x1p-12f;
    return scale;
}

static struct product *product_create(const struct epa_gemm *set, uint32_t m, uint32_t n,
                                      uint32_t k, uint32_t kind, uint64_t seed)
{
    struct product *p = calloc(1, sizeof(*p));
    uint32_t column = m % 4 * EPA_GEMM_COLS, groups;

    assert_non_null(p);
    p->set = set;
    p->a = malloc((size_t)m * k * sizeof(float));
    p->b = malloc((size_t)n * k * sizeof(float));
    p->want = malloc((size_t)m * n * sizeof(float));
    p->call = (struct epa_gemm_call){.m = m, .n = n, .k = k, .ldc = n + 16 * (m % 3)};
    p->call.stream_c = m % 2 == 0;
    p->call.c = exactly(((m - 1) * p->call.ldc + n) * sizeof(float));
    pack_random_a(p, &seed, kind);
    pack_random_b(p, &seed, kind);
    p->call.next_a = m % 4 < 2 ? p->call.a : NULL;
    p->call.next_b = m % 4 < 2 ? p->call.b : NULL;
    p->call.block_k = (m + k / 32) % 3 * 128;
    if (set->dtype == EPA_FP8_E4M3) {
        p->call.group = (m + k / 32) % 2 == 0 ? 128 : 64;
        groups = (k + p->call.group - 1) / p->call.group;
        p->call.a_scale_stride = groups + SCALE_STRIDE;
        p->call.a_scale = random_scales((m - 1) * p->call.a_scale_stride + groups, &seed);
        p->call.b_column = column;
        p->call.b_scale =
            random_scales((size_t)((column + n + 127) / 128) * ((k + 127) / 128), &seed);
    }
    return p;
}

static void product_destroy(struct product *p)
{
    free((void *)p->call.a);
    free((void *)p->call.b);
    free((void *)p->call.a_scale);
    free((void *)p->call.b_scale);
    free(p->call.c);
    free(p->want);
    free(p->a);
    free(p->b);
    free(p);
}

static void reference(const struct product *p)
{
    const struct gemm_reference r = {.call = &p->call,
                                     .isa = p->set->isa,
                                     .fp8 = p->set->dtype == EPA_FP8_E4M3,
                                     .a = p->a,
                                     .b = p->b,
                                     .want = p->want};

#if GEMM_REFERENCE_AVX2
    if (epa_gemm_by_name("avx2", EPA_BF16) != NULL) {
        gemm_reference_avx2(&r);
        return;
    }
#endif
    gemm_reference(&r);
}

/* Checks that C equals the reference, that a NaN is a NaN of any payload, and that the gaps between
 * rows are untouched. */
static void assert_product(const struct product *p)
{
    const struct epa_gemm_call *g = &p->call;

    for (uint32_t i = 0; i < g->m; i++) {
        for (uint32_t j = 0; j < g->n; j++) {
            float got = g->c[i * g->ldc + j], want = p->want[(size_t)i * g->n + j];

            if (bits_of_float(got) != bits_of_float(want) && !(isnan(got) && isnan(want)))
                fail_msg("%s, dtype %d, %u x %u x %u: c[%u][%u] is %a, not %a", p->set->isa,
                         p->set->dtype, g->m, g->n, g->k, i, j, (double)got, (double)want);
        }
        for (size_t j = g->n; i + 1 < g->m && j < g->ldc; j++)
            assert_int_equal(bits_of_float(g->c[i * g->ldc + j]), 0x3c3c3c3c);
    }
}

static const struct {
    uint32_t m, n, k;
} shapes[] = {
    {1, 32, 128},   {2, 64, 256},  {3, 32, 1024}, {5, 96, 384},   {6, 32, 128},    {8, 128, 256},
    {11, 32, 256},  {12, 32, 384}, {13, 64, 128}, {16, 32, 640},  {17, 96, 256},   {23, 32, 128},
    {24, 32, 128},  {28, 32, 128}, {31, 64, 512}, {32, 32, 896},  {33, 160, 128},  {50, 32, 128},
    {64, 32, 640},  {65, 32, 384}, {97, 32, 256}, {129, 32, 256}, {525, 32, 128},  {14, 32, 2304},
    {33, 64, 2176}, {1, 32, 32},   {4, 64, 96},   {13, 32, 160},  {32, 96, 288},   {35, 32, 64},
    {6, 32, 2080},  {80, 64, 192}, {3, 32, 2880}, {257, 32, 544}, {66, 160, 1024}, {161, 544, 256},
    {64, 96, 544},
};

static const struct epa_gemm *nth_set(size_t i)
{
    return set_of(isas[i / LENGTH(dtypes)], dtypes[i % LENGTH(dtypes)]);
}

enum { SETS = LENGTH(isas) * LENGTH(dtypes) };

/* The inputs include infinities, NaN and denormals. */
TEST(each_set_adds_in_the_order_it_documents)
{
    static const uint32_t kinds[] = {0, 1, 3, 4};

    for (size_t s = 0; s < LENGTH(shapes) * LENGTH(kinds); s++) {
        const uint32_t kind = kinds[s % LENGTH(kinds)], m = shapes[s / LENGTH(kinds)].m;

        for (size_t i = 0; i < SETS; i++) {
            const struct epa_gemm *set = nth_set(i);
            struct product *p;

            if (set == NULL)
                continue;
            p = product_create(set, m, shapes[s / LENGTH(kinds)].n, shapes[s / LENGTH(kinds)].k,
                               kind, 77 + s);
            reference(p);
            set->multiply(&p->call);
            assert_product(p);
            product_destroy(p);
        }
    }
}

static void assert_fp8_row(const struct epa_gemm *set, uint32_t k, uint32_t group, uint32_t row)
{
    uint8_t *q = malloc(k);
    float *scale = malloc(k / group * sizeof(*scale));
    char *a = exactly(epa_gemm_a_bytes(row + 1, k));
    uint64_t seed = k + group;

    for (uint32_t h = 0; h < k; h++)
        q[h] = (uint8_t)(h < 256 ? h : next_random(&seed) >> 48);
    for (uint32_t g = 0; g < k / group; g++)
        scale[g] = ldexpf((float)(next_random(&seed) >> 40), -(int)(24 + g % 120));
    set->pack_a_fp8(q, scale, group, k, a, row);
    for (uint32_t h = 0; h < k; h++) {
        float x = float_of_e4m3(q[h]);
        uint16_t got, want;

        if (set->dtype != EPA_FP8_E4M3)
            x *= scale[h / group];
        want = word_of_float(set->dtype == EPA_F16, x);
        memcpy(&got, a + epa_gemm_a_at(row, h / 32 * 32, k) + (size_t)(h % 32) * 2, 2);
        if (isnan(x))
            assert_true(isnan(float_of_word(set->dtype == EPA_F16, got)));
        else if (got != want)
            fail_msg("%s, dtype %d: %02x * %a: 0x%04x, not 0x%04x", set->isa, set->dtype, q[h],
                     (double)scale[h / group], got, want);
    }
    free(a);
    free(scale);
    free(q);
}

TEST(rows_of_fp8_are_packed_as_the_products_rounded_to_the_type)
{
    static const uint32_t groups[] = {8, 16, 32, 64, 128, 256};

    for (size_t i = 0; i < SETS; i++) {
        const struct epa_gemm *set = nth_set(i);

        for (size_t g = 0; set != NULL && g < LENGTH(groups); g++) {
            assert_fp8_row(set, 512, groups[g], 0);
            assert_fp8_row(set, 256, groups[g], 37);
            if (groups[g] <= 32)
                assert_fp8_row(set, 288, groups[g], 5);
        }
        if (set != NULL) /* m = 0: the call must not touch any array */
            set->multiply(&(struct epa_gemm_call){.m = 0, .n = 64, .k = 256, .ldc = 64});
    }
}
