/* Times the matrix kernels of every set this CPU has, on one core, beside oneDNN's matmul of bf16,
 * where the build found it, with the part of their instruction's peak.
 *
 *     bench-kernels matrices [M N K [WEIGHTS]]    one shape, so many matrices of weights in turn
 *
 * A machine drifts by tens of percent within seconds, so that only what ran in turn can be
 * compared: a table's rows take turns, ratios are of one round, and medians count. In its turn
 * each runs once before it is timed, so that the caches are as it left them itself. Time is the
 * thread's own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/dtype.h"
#include "epa2a/gemm.h"
#include "kernels/libraries.h"

enum {
    ROUNDS = 21,
    MOST_ROWS = 20, /* of one table */
    MOST_WEIGHTS = 16,
};

struct shape {
    uint32_t m, n, k, weights;
};

/* Everything a row of a table works on. */
struct work {
    struct shape s;
    uint16_t *x;
    uint8_t *q;
    void *a;
    float *c, *scale, *b_scale;
    struct onednn *peer; /* NULL: it is not there, or has nothing for this CPU */
};

struct row {
    char name[32];
    void (*run)(struct work *, const struct row *, uint32_t turn);
    const struct epa_gemm *gemm;
    const struct row *beside; /* what its time is compared with, or NULL */
    void *b[MOST_WEIGHTS];
    double us[ROUNDS], of_peak[ROUNDS], ratio[ROUNDS];
};

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
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

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Repeated for a millisecond, each time with the next matrix of weights. */
static double time_row(struct work *w, const struct row *row)
{
    uint32_t turns = 0, weights = w->s.weights;
    double start, took;

    row->run(w, row, weights - 1);
    start = now_us();
    do {
        row->run(w, row, turns++ % weights);
        took = now_us() - start;
    } while (took < 1000.0 || turns < weights);
    return took / turns;
}

static void measure(const char *title, struct row *row, uint32_t rows, struct work *w)
{
    const double kflop = 2e-3 * w->s.m * w->s.n * w->s.k;

    for (int round = -1; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < rows; i++) {
            double us = time_row(w, &row[i]);
            double peak = row[i].gemm->peak != NULL ? row[i].gemm->peak() : 0.0;

            if (round < 0)
                continue;
            row[i].us[round] = us;
            row[i].of_peak[round] = peak > 0.0 ? kflop / us / peak : 0.0;
            row[i].ratio[round] = row[i].beside != NULL ? row[i].beside->us[round] / us : 0.0;
        }
    }
    printf("%s\n", title);
    for (uint32_t i = 0; i < rows; i++) {
        struct row *r = &row[i];

        qsort(r->us, ROUNDS, sizeof(double), by_size);
        qsort(r->of_peak, ROUNDS, sizeof(double), by_size);
        qsort(r->ratio, ROUNDS, sizeof(double), by_size);
        printf("  %-22s %9.1f us  (%9.1f to %9.1f)  %8.1f GFLOP/s", r->name, r->us[ROUNDS / 2],
               r->us[0], r->us[ROUNDS - 1], kflop / r->us[ROUNDS / 2]);
        if (r->of_peak[0] > 0.0)
            printf(", %3.0f %% of peak", 100.0 * r->of_peak[ROUNDS / 2]);
        if (r->beside != NULL)
            printf(", %5.2f times the rate of %s (%.2f to %.2f)", r->ratio[ROUNDS / 2],
                   r->beside->name, r->ratio[ROUNDS / 10], r->ratio[ROUNDS - 1 - ROUNDS / 10]);
        printf("\n");
    }
}

/* Random words from 0.5 to 2 with a sign: zeros would flatter, as clocks go up. */
static void fill_values(void *to, size_t n, enum epa_dtype dtype)
{
    static uint64_t state = 88172645463325252u;

    for (size_t i = 0; i < n; i++) {
        float f = (float)((int32_t)(next_random(&state) >> 40 & 0xffffu) - 0x8000) / 16384.0f;

        if (dtype == EPA_FP8_E4M3)
            ((uint8_t *)to)[i] = e4m3_of_float(f * 200.0f);
        else if (dtype == EPA_INT8)
            ((int8_t *)to)[i] = (int8_t)(f * 63.5f);
        else
            ((uint16_t *)to)[i] = dtype == EPA_F16 ? f16_of_float(f) : bf16_of_float(f);
    }
}

static void run_peer(struct work *w, const struct row *row, uint32_t turn)
{
    if (onednn_multiply(w->peer, 0, 0, w->x, w->s.m, row->b[turn], w->c) != EPA_OK)
        exit(3);
}

/* Packing of A is in the time, as oneDNN takes plain rows; weights are packed before, for both. */
static void run_gemm(struct work *w, const struct row *row, uint32_t turn)
{
    const struct shape *s = &w->s;

    for (uint32_t i = 0; i < s->m; i++) {
        if (row->gemm->dtype == EPA_INT8)
            row->gemm->pack_a(w->q + (size_t)i * s->k, s->k, w->a, i);
        else if (row->gemm->dtype == EPA_FP8_E4M3)
            row->gemm->pack_a_fp8(w->q + (size_t)i * s->k, NULL, 128, s->k, w->a, i);
        else
            row->gemm->pack_a(w->x + (size_t)i * s->k, s->k, w->a, i);
    }
    row->gemm->multiply(&(struct epa_gemm_call){.a = w->a,
                                                .b = row->b[turn],
                                                .m = s->m,
                                                .n = s->n,
                                                .k = s->k,
                                                .c = w->c,
                                                .ldc = s->n,
                                                .a_scale = w->scale,
                                                .group = 128,
                                                .a_scale_stride = (s->k + 127) / 128,
                                                .b_scale = w->b_scale});
}

static uint32_t add_peer(struct work *w, struct row *row, uint16_t *words)
{
    const struct shape *s = &w->s;
    const struct onednn_product product = {
        .n = s->n, .k = s->k, .ldc = s->n, .rows = s->m, .step = 1, .f32 = true};

    if (onednn_create(&product, 1, 1, &w->peer, NULL) != EPA_OK)
        return 0;
    row[0] = (struct row){.run = run_peer, .gemm = epa_gemm_get(EPA_BF16, NULL)}; /* its peak */
    snprintf(row[0].name, sizeof(row[0].name), "%.20s, bf16", onednn_name(w->peer));
    for (uint32_t copy = 0; copy < s->weights; copy++) {
        fill_values(words, (size_t)s->n * s->k, EPA_BF16);
        row[0].b[copy] = pages(onednn_packed_bytes(w->peer, 0));
        if (onednn_pack(w->peer, 0, 0, words, row[0].b[copy]) != EPA_OK)
            exit(3);
    }
    return 1;
}

static void matrix_table(struct shape s)
{
    enum { TYPES = 4 };
    static const char *const isas[] = {"amx",    "avx512_bf16", "avx512_vnni",
                                       "avx512", "avx2",        "scalar"};
    static const enum epa_dtype dtypes[TYPES] = {EPA_BF16, EPA_F16, EPA_FP8_E4M3, EPA_INT8};
    static const char *const names[TYPES] = {"bf16", "f16", "fp8", "int8"};
    static struct row row[MOST_ROWS];
    struct work w = {
        .s = s,
        .x = pages((size_t)s.m * s.k * 2),
        .q = pages((size_t)s.m * s.k),
        .a = pages(epa_gemm_a_bytes(s.m, s.k)),
        .c = pages((size_t)s.m * s.n * sizeof(float)),
        .scale = pages((size_t)s.m * ((s.k + 127) / 128) * sizeof(float)),
        .b_scale = pages((size_t)s.n * ((s.k + 127) / 128) * sizeof(float)),
    };
    uint16_t *words = pages((size_t)s.n * s.k * 2);
    uint32_t rows = add_peer(&w, row, words);
    char title[96];

    fill_values(w.x, (size_t)s.m * s.k, EPA_BF16);
    fill_values(w.q, (size_t)s.m * s.k, EPA_FP8_E4M3);
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]) * TYPES; i++) {
        const struct epa_gemm *set = epa_gemm_by_name(isas[i / TYPES], dtypes[i % TYPES]);

        /* The portable set takes its time: for small shapes only. */
        if (set == NULL || (set->peak == NULL && (uint64_t)s.m * s.n * s.k > 1u << 26))
            continue;
        row[rows] =
            (struct row){.gemm = set, .run = run_gemm, .beside = w.peer != NULL ? &row[0] : NULL};
        snprintf(row[rows].name, sizeof(row[0].name), "%s, %s", isas[i / TYPES], names[i % TYPES]);
        for (uint32_t copy = 0; copy < s.weights; copy++) {
            fill_values(words, (size_t)s.n * s.k, set->dtype);
            row[rows].b[copy] = pages(epa_gemm_b_bytes(set->dtype, s.n, s.k));
            set->pack_b(words, s.k, s.n, s.k, row[rows].b[copy]);
        }
        rows++;
    }
    snprintf(title, sizeof(title), "%u x %u x %u (m, n, k), %u of weights", s.m, s.n, s.k,
             s.weights);
    measure(title, row, rows, &w);
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t copy = 0; copy < s.weights; copy++)
            free(row[i].b[copy]);
    onednn_destroy(w.peer);
    free(words), free(w.x), free(w.q), free(w.a), free(w.c), free(w.scale), free(w.b_scale);
}

int main(int argc, char **argv)
{
    static const struct shape shapes[] = {
        {1, 2048, 2048, 1},   {8, 2048, 2048, 1},   {8, 2048, 2048, 8},   {16, 2048, 2048, 8},
        {32, 2048, 2048, 1},  {33, 2048, 2048, 1},  {64, 256, 2048, 1},   {128, 2048, 2048, 1},
        {128, 4096, 2048, 1}, {200, 1024, 7168, 1}, {512, 2048, 2048, 1}, {512, 4096, 2048, 1},
    };
    uint32_t v[4] = {0, 0, 0, 1};

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 2; i < argc && i < 6; i++)
        v[i - 2] = (uint32_t)strtoul(argv[i], NULL, 10);
    if (argc == 2 && strcmp(argv[1], "matrices") == 0) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
            matrix_table(shapes[i]);
    } else if (argc > 4 && v[0] > 0 && v[1] > 0 && v[1] % 32 == 0 && v[2] > 0 && v[2] % 32 == 0 &&
               v[3] > 0 && v[3] <= MOST_WEIGHTS) {
        matrix_table((struct shape){v[0], v[1], v[2], v[3]});
    } else {
        fprintf(stderr, "bench-kernels matrices [M N K [WEIGHTS]]: N and K in 32s\n");
        return 2;
    }
    return 0;
}
