/* Times the matrix kernels of every set this CPU has, on one core, beside oneDNN's matmul of bf16
 * with packed weights where the build found it: GFLOP/s, the part of the peak of the set's
 * instruction (in registers), and the ratio to oneDNN. Packing of A is in the time, as oneDNN
 * takes plain rows; weights are packed before, for both. Outputs are float32.
 *
 *     bench-gemm [M N K [WEIGHTS]]    one shape, taking turns among so many matrices of weights
 *
 * Rows of a table take turns, and ratios are of one round (see kernels.c): medians. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/dtype.h"
#include "epa2a/gemm.h"
#include "kernels/onednn.h"

enum { ROUNDS = 15, MOST_ROWS = 16, MOST_WEIGHTS = 16 };

struct shape {
    uint32_t m, n, k, weights;
};

struct row {
    char name[32];
    const struct epa_gemm *set; /* NULL: oneDNN */
    void *b[MOST_WEIGHTS];
    double us[ROUNDS], of_peak[ROUNDS], of_peer[ROUNDS];
};

struct work {
    struct shape shape;
    uint16_t *x; /* [m][k], bf16 and f16 (small numbers in both) */
    uint8_t *q;  /* [m][k] */
    void *a;
    float *c, *a_scale, *b_scale;
    struct onednn *peer; /* NULL: it is not there, or has nothing for this CPU */
};

/* Time of this thread: where others run on the machine, it is their caches and clocks alone that
 * count. */
static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void *pages(size_t bytes)
{
    const size_t huge = (size_t)2 << 20;
    size_t whole = (bytes + huge - 1) / huge * huge;
    void *p = aligned_alloc(huge, whole);

    if (p == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", whole);
        exit(3);
    }
    madvise(p, whole, MADV_HUGEPAGE);
    memset(p, 0, whole);
    return p;
}

/* Random words from 0.5 to 2 with a sign: zeros would flatter, as clocks go up. */
static void fill_words(uint16_t *x, size_t n, enum epa_dtype dtype)
{
    static uint64_t state = 88172645463325252u;

    for (size_t i = 0; i < n; i++) {
        float f;

        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        f = (float)((int32_t)(state >> 40 & 0xffffu) - 0x8000) / 16384.0f;
        x[i] = dtype == EPA_F16 ? f16_of_float(f) : bf16_of_float(f);
    }
}

static void fill_codes(uint8_t *q, size_t n)
{
    uint16_t word;

    for (size_t i = 0; i < n; i++) {
        fill_words(&word, 1, EPA_BF16);
        q[i] = e4m3_of_float(float_of_bf16(word) * 200.0f);
    }
}

#if defined(__x86_64__)
/* GFLOP/s of 12 chains of an instruction in registers: enough for any latency. */
#define CHAIN(instruction, r, i) instruction " %%" r "15, %%" r "15, %%" r #i "\n"
#define RATE(instruction, r, flops) \
    double start = now_us(); \
\
    for (int round = 0; round < 20000; round++) \
        __asm__ volatile( \
            "vpxor %%xmm15, %%xmm15, %%xmm15\n" /* all of it, and no NaN */ \
            CHAIN(instruction, r, 0) CHAIN(instruction, r, 1) CHAIN(instruction, r, 2) \
                CHAIN(instruction, r, 3) CHAIN(instruction, r, 4) CHAIN(instruction, r, 5) \
                    CHAIN(instruction, r, 6) CHAIN(instruction, r, 7) CHAIN(instruction, r, 8) \
                        CHAIN(instruction, r, 9) CHAIN(instruction, r, 10) \
                            CHAIN(instruction, r, 11):: \
                                : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", \
                                  "xmm8", "xmm9", "xmm10", "xmm11", "xmm15"); \
    return 20000.0 * 12 * (flops)*1e-3 / (now_us() - start)

static double rate_of_fma8(void)
{
    RATE("vfmadd231ps", "ymm", 16);
}

static double rate_of_fma16(void)
{
    RATE("vfmadd231ps", "zmm", 32);
}

static double rate_of_pairs(void)
{
    RATE("vdpbf16ps", "zmm", 64);
}

/* The set runs here, so its instruction does. */
static double peak_of(const char *isa)
{
    if (strcmp(isa, "avx512_bf16") == 0)
        return rate_of_pairs();
    if (strcmp(isa, "avx512") == 0)
        return rate_of_fma16();
    return strcmp(isa, "avx2") == 0 ? rate_of_fma8() : 0.0;
}
#else
static double peak_of(const char *isa)
{
    (void)isa;
    return 0.0;
}
#endif

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static double median(double *v)
{
    qsort(v, ROUNDS, sizeof(*v), by_size);
    return v[ROUNDS / 2];
}

static void run(struct work *w, const struct row *row, uint32_t which)
{
    const struct shape *s = &w->shape;
    const uint32_t groups = s->k / 128;

    if (row->set == NULL) {
        if (onednn_multiply(w->peer, 0, 0, w->x, s->m, row->b[which], w->c) != EPA_OK)
            exit(3);
        return;
    }
    for (uint32_t i = 0; i < s->m; i++) {
        if (row->set->dtype == EPA_FP8_E4M3)
            row->set->pack_a_fp8(w->q + (size_t)i * s->k, NULL, 128, s->k, w->a, i);
        else
            row->set->pack_a(w->x + (size_t)i * s->k, s->k, w->a, i);
    }
    row->set->multiply(&(struct epa_gemm_call){.a = w->a,
                                               .b = row->b[which],
                                               .m = s->m,
                                               .n = s->n,
                                               .k = s->k,
                                               .c = w->c,
                                               .ldc = s->n,
                                               .a_scale = w->a_scale,
                                               .a_scale_stride = groups,
                                               .b_scale = w->b_scale});
}

static uint32_t add_peer(struct work *w, struct row *row, uint32_t rows)
{
    const struct shape *s = &w->shape;
    const struct onednn_product product = {
        .n = s->n, .k = s->k, .ldc = s->n, .rows = s->m, .step = 1, .f32 = true};
    uint16_t *words;

    if (onednn_create(&product, 1, 1, &w->peer, NULL) != EPA_OK)
        return rows;
    row[rows] = (struct row){.set = NULL};
    snprintf(row[rows].name, sizeof(row[rows].name), "%.20s, bf16", onednn_name(w->peer));
    words = pages((size_t)s->n * s->k * 2);
    for (uint32_t copy = 0; copy < s->weights; copy++) {
        fill_words(words, (size_t)s->n * s->k, EPA_BF16);
        row[rows].b[copy] = pages(onednn_packed_bytes(w->peer, 0));
        if (onednn_pack(w->peer, 0, 0, words, row[rows].b[copy]) != EPA_OK)
            exit(3);
    }
    free(words);
    return rows + 1;
}

static uint32_t add_sets(struct work *w, struct row *row, uint32_t rows)
{
    static const char *const isas[] = {"amx", "avx512_bf16", "avx512", "avx2", "scalar"};
    static const enum epa_dtype dtypes[] = {EPA_BF16, EPA_F16, EPA_FP8_E4M3};
    static const char *const names[] = {"bf16", "f16", "fp8"};
    const struct shape *s = &w->shape;
    uint16_t *words = malloc((size_t)s->n * s->k * 2);

    for (size_t i = 0; i < 15; i++) {
        const struct epa_gemm *set = epa_gemm_by_name(isas[i / 3], dtypes[i % 3]);

        /* The portable set takes its time: for small shapes only. */
        if (set == NULL || (i / 3 == 4 && (uint64_t)s->m * s->n * s->k > 1u << 26))
            continue;
        row[rows] = (struct row){.set = set};
        snprintf(row[rows].name, sizeof(row[rows].name), "%s, %s", isas[i / 3], names[i % 3]);
        for (uint32_t copy = 0; copy < s->weights; copy++) {
            if (set->dtype == EPA_FP8_E4M3)
                fill_codes((uint8_t *)words, (size_t)s->n * s->k);
            else
                fill_words(words, (size_t)s->n * s->k, set->dtype);
            row[rows].b[copy] = pages(epa_gemm_b_bytes(set->dtype, s->n, s->k));
            set->pack_b(words, s->k, s->n, s->k, row[rows].b[copy]);
        }
        rows++;
    }
    free(words);
    return rows;
}

/* Enough repetitions for a millisecond; each with the next matrix of weights. One before that, so
 * that the caches are as this row leaves them. */
static double time_row(struct work *w, const struct row *row)
{
    uint32_t times = 0;
    double start, took;

    run(w, row, w->shape.weights - 1);
    start = now_us();
    do {
        run(w, row, times % w->shape.weights);
        took = now_us() - start;
        times++;
    } while (took < 1000.0 || times < w->shape.weights);
    return took / times;
}

static void print_rows(const struct shape *s, struct row *row, uint32_t rows)
{
    printf("%u x %u x %u (m, n, k), %u of weights\n", s->m, s->n, s->k, s->weights);
    for (uint32_t i = 0; i < rows; i++) {
        double us = median(row[i].us), peak = median(row[i].of_peak);
        double peer = median(row[i].of_peer);

        printf("  %-22s %9.1f us %8.1f GFLOP/s", row[i].name, us, 2e-3 * s->m * s->n * s->k / us);
        if (peak > 0.0)
            printf(", %3.0f %% of peak", 100.0 * peak);
        if (peer > 0.0)
            printf(", %5.2f times oneDNN (%.2f to %.2f)", peer, row[i].of_peer[ROUNDS / 10],
                   row[i].of_peer[ROUNDS - 1 - ROUNDS / 10]);
        printf("\n");
    }
}

static void measure(struct shape s)
{
    static struct row row[MOST_ROWS];
    struct work w = {.shape = s};
    uint32_t rows;

    w.x = pages((size_t)s.m * s.k * 2);
    w.q = pages((size_t)s.m * s.k);
    w.a = pages(epa_gemm_a_bytes(s.m, s.k));
    w.c = pages((size_t)s.m * s.n * sizeof(float));
    w.a_scale = pages((size_t)s.m * s.k / 128 * sizeof(float));
    w.b_scale = pages(((size_t)s.n + 127) / 128 * (s.k / 128) * sizeof(float));
    fill_words(w.x, (size_t)s.m * s.k, EPA_BF16);
    fill_codes(w.q, (size_t)s.m * s.k);
    rows = add_sets(&w, row, add_peer(&w, row, 0));
    for (int round = -1; round < ROUNDS; round++) {
        double peer = 0.0;

        for (uint32_t i = 0; i < rows; i++) {
            double us = time_row(&w, &row[i]);
            double peak = row[i].set != NULL ? peak_of(row[i].set->isa) : 0.0;

            peer = row[i].set == NULL ? us : peer;
            if (round < 0)
                continue;
            row[i].us[round] = us;
            row[i].of_peak[round] = peak > 0.0 ? 2e-3 * s.m * s.n * s.k / us / peak : 0.0;
            row[i].of_peer[round] = row[i].set != NULL ? peer / us : 0.0;
        }
    }
    print_rows(&s, row, rows);
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t copy = 0; copy < s.weights; copy++)
            free(row[i].b[copy]);
    onednn_destroy(w.peer);
    free(w.x);
    free(w.q);
    free(w.a);
    free(w.c);
    free(w.a_scale);
    free(w.b_scale);
}

int main(int argc, char **argv)
{
    static const struct shape shapes[] = {
        {1, 2048, 2048, 1},   {8, 2048, 2048, 1},   {8, 2048, 2048, 8},   {16, 2048, 2048, 8},
        {32, 2048, 2048, 1},  {33, 2048, 2048, 1},  {64, 256, 2048, 1},   {128, 2048, 2048, 1},
        {128, 4096, 2048, 1}, {200, 1024, 7168, 1}, {512, 2048, 2048, 1}, {512, 4096, 2048, 1},
    };
    struct shape s = {0, 0, 0, 1};

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc >= 4) {
        s.m = (uint32_t)strtoul(argv[1], NULL, 10);
        s.n = (uint32_t)strtoul(argv[2], NULL, 10);
        s.k = (uint32_t)strtoul(argv[3], NULL, 10);
        s.weights = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 1;
        if (s.m == 0 || s.n == 0 || s.n % 32 != 0 || s.k == 0 || s.k % 128 != 0 || s.weights == 0 ||
            s.weights > MOST_WEIGHTS) {
            fprintf(stderr, "bench-gemm [M N K [WEIGHTS]]: N in 32s, K in 128s, WEIGHTS to %d\n",
                    MOST_WEIGHTS);
            return 2;
        }
        measure(s);
        return 0;
    }
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        measure(shapes[i]);
    return 0;
}
