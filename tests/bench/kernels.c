/* Times the kernels of every set this CPU has, on one core: those for rows, of hidden 7168,
 * beside what bounds them (reading, copying) and what a compiler makes of plain C (this file is
 * built at -Ofast for the machine at hand); and matrix kernels beside oneDNN's matmul of bf16,
 * where the build found it, with the part of their instruction's peak.
 *
 *     bench-kernels rows
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
#include "epa2a/quant.h"
#include "kernels/libraries.h"

enum {
    HIDDEN = 7168,
    GROUP = 128,
    TOPK = 8,
    MESSAGE = 7424, /* of ll_v2: head, token, scales, to whole lines */
    ROUNDS = 21,
    MOST_ROWS = 20, /* of one table */
    MOST_WEIGHTS = 16,
};

struct shape {
    uint32_t m, n, k, weights;
};

/* Everything a row of a table works on. */
struct work {
    uint32_t tokens, n; /* n: destinations of one message */
    uint16_t *x[2];     /* [0] bf16, [1] the same in f16 */
    uint16_t *out;
    uint8_t *q;
    float *scale;
    char *slots;
    uint32_t *order; /* of rows or slots, shuffled */
    enum epa_store store;
    uint64_t seen; /* what was read goes here, so that it is read */
    struct shape s;
    void *a;
    float *c, *b_scale;
    struct onednn *peer; /* NULL: it is not there, or has nothing for this CPU */
};

struct row {
    char name[32];
    void (*run)(struct work *, const struct row *, uint32_t turn);
    const struct epa_kernels *set;
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
    uint32_t turns = 0, weights = row->gemm != NULL || row->b[0] != NULL ? w->s.weights : 1;
    double start, took;

    row->run(w, row, weights - 1);
    start = now_us();
    do {
        row->run(w, row, turns++ % weights);
        took = now_us() - start;
    } while (took < 1000.0 || turns < weights);
    return took / turns;
}

/* `amount`: bytes, or operations of a matrix product, in thousands a second of which `unit`
 * counts. */
static void measure(const char *title, struct row *row, uint32_t rows, struct work *w,
                    double amount, const char *unit)
{
    for (int round = -1; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < rows; i++) {
            double us = time_row(w, &row[i]);
            double peak =
                row[i].gemm != NULL && row[i].gemm->peak != NULL ? row[i].gemm->peak() : 0.0;

            if (round < 0)
                continue;
            row[i].us[round] = us;
            row[i].of_peak[round] = peak > 0.0 ? 1e-3 * amount / us / peak : 0.0;
            row[i].ratio[round] = row[i].beside != NULL ? row[i].beside->us[round] / us : 0.0;
        }
    }
    printf("%s\n", title);
    for (uint32_t i = 0; i < rows; i++) {
        struct row *r = &row[i];

        qsort(r->us, ROUNDS, sizeof(double), by_size);
        qsort(r->of_peak, ROUNDS, sizeof(double), by_size);
        qsort(r->ratio, ROUNDS, sizeof(double), by_size);
        printf("  %-22s %9.1f us  (%9.1f to %9.1f)  %8.1f %s", r->name, r->us[ROUNDS / 2], r->us[0],
               r->us[ROUNDS - 1], 1e-3 * amount / r->us[ROUNDS / 2], unit);
        if (r->of_peak[0] > 0.0)
            printf(", %3.0f %% of peak", 100.0 * r->of_peak[ROUNDS / 2]);
        if (r->beside != NULL)
            printf(", %5.2f times the rate of %s (%.2f to %.2f)", r->ratio[ROUNDS / 2],
                   r->beside->name, r->ratio[ROUNDS / 10], r->ratio[ROUNDS - 1 - ROUNDS / 10]);
        printf("\n");
    }
}

/* ---- rows ---- */

static uint32_t add_vector_sets(struct row *row, uint32_t rows, bool f16,
                                void (*run)(struct work *, const struct row *, uint32_t))
{
    for (int i = 0; i < 4; i++) {
        const char *isa = i < 2 ? "avx512" : "avx2";
        const struct epa_kernels *set = epa_kernels_by_name(isa, i % 2 == 0 ? EPA_BF16 : EPA_F16);

        if (set == NULL || (i % 2 != 0 && !f16))
            continue;
        row[rows] =
            (struct row){.set = set, .run = run, .beside = i % 2 != 0 ? &row[rows - 1] : NULL};
        snprintf(row[rows++].name, sizeof(row[0].name), "%s%s", isa, i % 2 != 0 ? ", f16" : "");
    }
    return rows;
}

static const uint16_t *rows_of(const struct work *w, const struct row *row)
{
    return w->x[row->set->dtype == EPA_F16];
}

static void run_quantise(struct work *w, const struct row *row, uint32_t turn)
{
    for (uint32_t t = 0; t < w->tokens; t++) {
        const uint16_t *x = rows_of(w, row) + (size_t)t * HIDDEN;

        row->set->quantise(x, HIDDEN, GROUP, t + 1 < w->tokens ? x + HIDDEN : NULL,
                           w->q + (size_t)t * HIDDEN, w->scale + (size_t)t * (HIDDEN / GROUP));
    }
}

/* What one writes without intrinsics, and the bar for the quantiser. It multiplies by a
 * reciprocal, so some codes differ from the definition. */
static void plain_quantise(const uint16_t *restrict x, uint8_t *restrict q, float *restrict scale)
{
    float f[GROUP], amax = 0.0f, inverse;

    for (int i = 0; i < GROUP; i++) {
        uint32_t u = (uint32_t)x[i] << 16;

        memcpy(&f[i], &u, sizeof(u));
    }
    for (int i = 0; i < GROUP; i++) {
        float a = f[i] < 0.0f ? -f[i] : f[i];

        amax = a > amax ? a : amax;
    }
    *scale = amax * (1.0f / 448.0f);
    inverse = *scale > 0.0f ? 1.0f / *scale : 0.0f;
    for (int i = 0; i < GROUP; i++) {
        float v = f[i] * inverse, a, t;
        uint32_t u, sign, magnitude, normal, small, code;

        memcpy(&u, &v, sizeof(u));
        sign = u >> 24 & 0x80u;
        magnitude = u & 0x7fffffffu;
        normal = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
        memcpy(&a, &magnitude, sizeof(a));
        t = a + 16384.0f;
        memcpy(&small, &t, sizeof(small));
        code = magnitude < 0x3c800000u ? small & 0xffu : normal;
        code = code > 0x7eu ? 0x7eu : code;
        q[i] = (uint8_t)(code | sign);
    }
}

static void run_plain(struct work *w, const struct row *row, uint32_t turn)
{
    for (size_t at = 0; at < (size_t)w->tokens * HIDDEN; at += GROUP)
        plain_quantise(w->x[0] + at, w->q + at, w->scale + at / GROUP);
}

/* Reads and does nothing with it: the limit for what reads. */
static void run_read(struct work *w, const struct row *row, uint32_t turn)
{
    const uint64_t *word = (const uint64_t *)(const void *)w->x[0];

    for (uint64_t i = 0; i < (uint64_t)w->tokens * HIDDEN * 2 / 8; i++)
        w->seen |= word[i];
}

/* Near normal distribution. */
static void fill(struct work *w)
{
    uint64_t seed = 88172645463325252u;

    for (size_t i = 0; i < (size_t)w->tokens * HIDDEN; i++) {
        uint64_t r = next_random(&seed);
        float sum = (float)(r & 0xffff) + (float)(r >> 16 & 0xffff) + (float)(r >> 32 & 0xffff) +
                    (float)(r >> 48);
        float near = sum / 65536.0f - 2.0f;

        w->x[0][i] = bf16_of_float(near);
        w->x[1][i] = f16_of_float(near);
    }
}

static void shuffle(uint32_t *order, uint32_t n)
{
    uint64_t seed = 6;

    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n - 1; i > 0; i--) {
        uint32_t j = (uint32_t)(next_random(&seed) % (i + 1)), was = order[i];

        order[i] = order[j];
        order[j] = was;
    }
}

static const float weight[TOPK] = {.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f};

static void run_reduce(struct work *w, const struct row *row, uint32_t turn)
{
    const uint16_t *from[TOPK];

    for (uint32_t t = 0; t < w->tokens; t++) {
        for (uint32_t k = 0; k < TOPK; k++)
            from[k] = rows_of(w, row) + (size_t)w->order[t * TOPK + k] * HIDDEN;
        row->set->reduce(from, weight, TOPK, HIDDEN, w->store, w->out + (size_t)t * HIDDEN);
    }
}

static void run_reduce_fp8(struct work *w, const struct row *row, uint32_t turn)
{
    const uint8_t *from[TOPK];
    const float *scale[TOPK];

    for (uint32_t t = 0; t < w->tokens; t++) {
        for (uint32_t k = 0; k < TOPK; k++) {
            uint32_t at = w->order[t * TOPK + k] % 2048;

            from[k] = w->q + (size_t)at * HIDDEN;
            scale[k] = w->scale + (size_t)at * (HIDDEN / GROUP);
        }
        row->set->reduce_fp8(from, scale, weight, TOPK, HIDDEN, GROUP, w->store,
                             w->out + (size_t)t * HIDDEN);
    }
}

static void run_spread(struct work *w, const struct row *row, uint32_t turn)
{
    void *to[TOPK];

    for (uint32_t t = 0; t < w->tokens; t++) {
        for (uint32_t k = 0; k < w->n; k++)
            to[k] = w->slots + (size_t)w->order[t * w->n + k] * MESSAGE;
        row->set->spread(to, w->n, w->q, MESSAGE, w->store);
    }
    epa_store_drain();
}

static void run_memcpy(struct work *w, const struct row *row, uint32_t turn)
{
    for (uint32_t i = 0; i < w->tokens * w->n; i++)
        memcpy(w->slots + (size_t)w->order[i] * MESSAGE, w->q, MESSAGE);
}

static void rows_tables(void)
{
    static struct row row[MOST_ROWS];
    struct work w = {
        .x = {pages((size_t)4096 * HIDDEN * 2), pages((size_t)4096 * HIDDEN * 2)},
        .out = pages((size_t)512 * HIDDEN * 2),
        .q = pages((size_t)2048 * HIDDEN),
        .scale = pages((size_t)2048 * (HIDDEN / GROUP) * sizeof(float)),
        .slots = pages((size_t)8192 * MESSAGE),
        .order = pages((size_t)8192 * sizeof(uint32_t)),
    };
    char title[96];
    uint32_t rows;

    for (w.tokens = 128; w.tokens <= 2048; w.tokens *= 16) {
        row[0] = (struct row){.name = "read only", .run = run_read};
        row[1] = (struct row){.name = "plain C, -Ofast", .run = run_plain};
        rows = add_vector_sets(row, 2, true, run_quantise);
        fill(&w);
        snprintf(title, sizeof(title), "quantise, %u tokens", w.tokens);
        measure(title, row, rows, &w, (double)w.tokens * HIDDEN * 2, "GB/s");
    }
    for (w.tokens = 128; w.tokens <= 512; w.tokens *= 4) {
        rows = add_vector_sets(row, 0, true, run_reduce);
        shuffle(w.order, w.tokens * TOPK);
        snprintf(title, sizeof(title), "reduce, %u tokens of %u rows each", w.tokens, TOPK);
        measure(title, row, rows, &w, (double)w.tokens * TOPK * HIDDEN * 2, "GB/s");
        rows = add_vector_sets(row, 0, true, run_reduce_fp8);
        snprintf(title, sizeof(title), "reduce FP8, %u tokens of %u rows each", w.tokens, TOPK);
        measure(title, row, rows, &w, (double)w.tokens * TOPK * HIDDEN, "GB/s");
    }
    for (int i = 0; i < 8; i++) {
        uint32_t slots = i < 4 ? 1024 : 8192;

        row[0] = (struct row){.name = "memcpy", .run = run_memcpy};
        rows = add_vector_sets(row, 1, false, run_spread);
        w.n = i % 4 < 2 ? 2 : TOPK;
        w.tokens = slots / w.n;
        w.store = i % 2 == 0 ? EPA_STORE_CACHED : EPA_STORE_NONTEMPORAL;
        shuffle(w.order, slots);
        snprintf(title, sizeof(title), "spread to %u, %s, over %u MiB", w.n,
                 i % 2 == 0 ? "cached" : "streaming", slots * MESSAGE >> 20);
        measure(title, row, rows, &w, (double)slots * MESSAGE, "GB/s");
    }
    if (w.seen == 1) /* never; keeps the reading alive */
        printf("\n");
}

/* ---- matrices ---- */

/* Random words from 0.5 to 2 with a sign: zeros would flatter, as clocks go up. */
static void fill_values(void *to, size_t n, enum epa_dtype dtype)
{
    static uint64_t state = 88172645463325252u;

    for (size_t i = 0; i < n; i++) {
        float f = (float)((int32_t)(next_random(&state) >> 40 & 0xffffu) - 0x8000) / 16384.0f;

        if (dtype == EPA_FP8_E4M3)
            ((uint8_t *)to)[i] = e4m3_of_float(f * 200.0f);
        else
            ((uint16_t *)to)[i] = dtype == EPA_F16 ? f16_of_float(f) : bf16_of_float(f);
    }
}

static void run_peer(struct work *w, const struct row *row, uint32_t turn)
{
    if (onednn_multiply(w->peer, 0, 0, w->x[0], w->s.m, row->b[turn], w->c) != EPA_OK)
        exit(3);
}

/* Packing of A is in the time, as oneDNN takes plain rows; weights are packed before, for both. */
static void run_gemm(struct work *w, const struct row *row, uint32_t turn)
{
    const struct shape *s = &w->s;

    for (uint32_t i = 0; i < s->m; i++) {
        if (row->gemm->dtype == EPA_FP8_E4M3)
            row->gemm->pack_a_fp8(w->q + (size_t)i * s->k, NULL, 128, s->k, w->a, i);
        else
            row->gemm->pack_a(w->x[0] + (size_t)i * s->k, s->k, w->a, i);
    }
    row->gemm->multiply(&(struct epa_gemm_call){.a = w->a,
                                                .b = row->b[turn],
                                                .m = s->m,
                                                .n = s->n,
                                                .k = s->k,
                                                .c = w->c,
                                                .ldc = s->n,
                                                .a_scale = w->scale,
                                                .a_scale_stride = s->k / 128,
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
    static const char *const isas[] = {"amx", "avx512_bf16", "avx512", "avx2", "scalar"};
    static const enum epa_dtype dtypes[] = {EPA_BF16, EPA_F16, EPA_FP8_E4M3};
    static const char *const names[] = {"bf16", "f16", "fp8"};
    static struct row row[MOST_ROWS];
    struct work w = {
        .s = s,
        .x = {pages((size_t)s.m * s.k * 2)},
        .q = pages((size_t)s.m * s.k),
        .a = pages(epa_gemm_a_bytes(s.m, s.k)),
        .c = pages((size_t)s.m * s.n * sizeof(float)),
        .scale = pages((size_t)s.m * s.k / 128 * sizeof(float)),
        .b_scale = pages(((size_t)s.n + 127) / 128 * (s.k / 128) * sizeof(float)),
    };
    uint16_t *words = pages((size_t)s.n * s.k * 2);
    uint32_t rows = add_peer(&w, row, words);
    char title[96];

    fill_values(w.x[0], (size_t)s.m * s.k, EPA_BF16);
    fill_values(w.q, (size_t)s.m * s.k, EPA_FP8_E4M3);
    for (size_t i = 0; i < 15; i++) {
        const struct epa_gemm *set = epa_gemm_by_name(isas[i / 3], dtypes[i % 3]);

        /* The portable set takes its time: for small shapes only. */
        if (set == NULL || (i / 3 == 4 && (uint64_t)s.m * s.n * s.k > 1u << 26))
            continue;
        row[rows] =
            (struct row){.gemm = set, .run = run_gemm, .beside = w.peer != NULL ? &row[0] : NULL};
        snprintf(row[rows].name, sizeof(row[0].name), "%s, %s", isas[i / 3], names[i % 3]);
        for (uint32_t copy = 0; copy < s.weights; copy++) {
            fill_values(words, (size_t)s.n * s.k, set->dtype);
            row[rows].b[copy] = pages(epa_gemm_b_bytes(set->dtype, s.n, s.k));
            set->pack_b(words, s.k, s.n, s.k, row[rows].b[copy]);
        }
        rows++;
    }
    snprintf(title, sizeof(title), "%u x %u x %u (m, n, k), %u of weights", s.m, s.n, s.k,
             s.weights);
    measure(title, row, rows, &w, 2.0 * s.m * s.n * s.k, "GFLOP/s");
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t copy = 0; copy < s.weights; copy++)
            free(row[i].b[copy]);
    onednn_destroy(w.peer);
    free(words), free(w.x[0]), free(w.q), free(w.a), free(w.c), free(w.scale), free(w.b_scale);
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
    if (argc == 2 && strcmp(argv[1], "rows") == 0) {
        rows_tables();
        return 0;
    }
    for (int i = 2; i < argc && i < 6; i++)
        v[i - 2] = (uint32_t)strtoul(argv[i], NULL, 10);
    if (argc == 2 && strcmp(argv[1], "matrices") == 0) {
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
            matrix_table(shapes[i]);
    } else if (argc > 4 && v[0] > 0 && v[1] > 0 && v[1] % 32 == 0 && v[2] > 0 && v[2] % 128 == 0 &&
               v[3] > 0 && v[3] <= MOST_WEIGHTS) {
        matrix_table((struct shape){v[0], v[1], v[2], v[3]});
    } else {
        fprintf(stderr, "bench-kernels rows|matrices [M N K [WEIGHTS]]: N in 32s, K in 128s\n");
        return 2;
    }
    return 0;
}
