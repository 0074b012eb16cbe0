/* Times the kernels of every set this CPU has, one core, hidden 7168: microseconds and GB/s
 * beside what bounds them (reading, copying) and what a compiler makes of plain C; and how
 * long those for f16 take, as a part of what those for bf16 do.
 *
 * A machine drifts by tens of percent within seconds, so that only what ran in turn can be
 * compared: a table's rows take turns and show the median round (least and most behind).
 * In its turn each runs twice and the second time counts, so that the caches are as it left
 * them itself. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/dtype.h"
#include "epa2a/quant.h"
#include "plain.h"

enum {
    HIDDEN = 7168,
    GROUP = 128,
    TOPK = 8,
    MESSAGE = 7424, /* of ll_v2: head, token, scales, to whole lines */
    ROUNDS = 41,
    MOST_ROWS = 16, /* of one table */
};

/* Everything a row of a table works on. */
struct work {
    uint32_t tokens;
    uint16_t *x[2]; /* [0] bf16, [1] the same in f16 */
    uint16_t *out;
    uint8_t *q;
    float *scale;
    char *slots;
    uint32_t *order; /* of rows or slots, shuffled */
    uint32_t n;      /* destinations of one message */
    enum epa_store store;
    uint64_t seen; /* what was read goes here, so that it is read */
};

struct row {
    char name[24];
    const struct epa_kernels *set;
    void (*run)(struct work *, const struct epa_kernels *);
    double us[ROUNDS];
};

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
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

/* Of two rows of one set, round by round, the median; us are still in the order of time. */
static void print_ratio(const struct row *bf16, const struct row *f16)
{
    double ratio[ROUNDS];

    for (int i = 0; i < ROUNDS; i++)
        ratio[i] = f16->us[i] / bf16->us[i];
    qsort(ratio, ROUNDS, sizeof(*ratio), by_size);
    printf("  %-22s %9.2f times bf16  (%.2f to %.2f)\n", f16->name, ratio[ROUNDS / 2],
           ratio[ROUNDS / 10], ratio[ROUNDS - 1 - ROUNDS / 10]);
}

static void measure(const char *title, struct row *row, uint32_t rows, struct work *work,
                    double bytes)
{
    for (int round = -2; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < rows; i++) {
            double start;

            row[i].run(work, row[i].set);
            start = now_us();
            row[i].run(work, row[i].set);
            if (round >= 0)
                row[i].us[round] = now_us() - start;
        }
    }
    printf("%s\n", title);
    for (uint32_t i = 1; i < rows; i++)
        if (row[i].set != NULL && row[i].set->dtype == EPA_F16)
            print_ratio(&row[i - 1], &row[i]); /* add_sets() put them there */
    for (uint32_t i = 0; i < rows; i++) {
        double *us = row[i].us;

        qsort(us, ROUNDS, sizeof(*us), by_size);
        printf("  %-22s %9.1f us  (%9.1f to %9.1f)  %6.1f GB/s\n", row[i].name, us[ROUNDS / 2],
               us[0], us[ROUNDS - 1], bytes / us[ROUNDS / 2] * 1e-3);
    }
}

static uint32_t add_set(struct row *row, uint32_t rows, const char *isa, enum epa_dtype dtype,
                        void (*run)(struct work *, const struct epa_kernels *))
{
    const struct epa_kernels *set = epa_kernels_by_name(isa, dtype);

    if (set == NULL)
        return rows;
    row[rows] = (struct row){.set = set, .run = run};
    snprintf(row[rows].name, sizeof(row[rows].name), "%s%s", isa, dtype == EPA_F16 ? ", f16" : "");
    return rows + 1;
}

static uint32_t add_sets(struct row *row, uint32_t rows, const char *isa,
                         void (*run)(struct work *, const struct epa_kernels *))
{
    return add_set(row, add_set(row, rows, isa, EPA_BF16, run), isa, EPA_F16, run);
}

static uint32_t add_vector_sets(struct row *row, uint32_t rows,
                                void (*run)(struct work *, const struct epa_kernels *))
{
    return add_sets(row, add_sets(row, rows, "avx512", run), "avx2", run);
}

static const uint16_t *rows_of(const struct work *w, const struct epa_kernels *set)
{
    return w->x[set->dtype == EPA_F16];
}

static void run_quantise(struct work *w, const struct epa_kernels *set)
{
    for (uint32_t t = 0; t < w->tokens; t++) {
        const uint16_t *x = rows_of(w, set) + (size_t)t * HIDDEN;

        set->quantise(x, HIDDEN, GROUP, t + 1 < w->tokens ? x + HIDDEN : NULL,
                      w->q + (size_t)t * HIDDEN, w->scale + (size_t)t * (HIDDEN / GROUP));
    }
}

static void run_plain(struct work *w, const struct epa_kernels *set)
{
    (void)set;
    for (uint32_t t = 0; t < w->tokens; t++)
        plain_quantise(w->x[0] + (size_t)t * HIDDEN, HIDDEN, w->q + (size_t)t * HIDDEN,
                       w->scale + (size_t)t * (HIDDEN / GROUP));
}

static void run_read(struct work *w, const struct epa_kernels *set)
{
    (void)set;
    w->seen |= plain_read(w->x[0], (uint64_t)w->tokens * HIDDEN * 2);
}

enum data { GAUSSIAN, HALF_ZEROS, OUTLIER, NAN_IN_ALL };

static void fill(struct work *w, enum data data)
{
    uint64_t seed = 88172645463325252u;

    for (size_t i = 0; i < (size_t)w->tokens * HIDDEN; i++) {
        uint64_t r = next_random(&seed);
        float sum = (float)(r & 0xffff) + (float)(r >> 16 & 0xffff) + (float)(r >> 32 & 0xffff) +
                    (float)(r >> 48);
        float near = sum / 65536.0f - 2.0f;

        if (data == HALF_ZEROS && (r * 0x9e3779b97f4a7c15u) >> 63 != 0)
            near = 0.0f;
        if (data == OUTLIER && i % GROUP == 77)
            near = 1000.0f;
        if (data == NAN_IN_ALL && i % GROUP == 77)
            near = NAN;
        w->x[0][i] = bf16_of_float(near);
        w->x[1][i] = f16_of_float(near);
    }
}

static void quantise_tables(struct work *w)
{
    static const char *const titles[] = {
        [GAUSSIAN] = "near normal distribution",
        [HALF_ZEROS] = "half of it zeros",
        [OUTLIER] = "an outlier in every group",
        [NAN_IN_ALL] = "a NaN in every group: divides in float32",
    };
    static const uint32_t tokens[] = {128, 2048};

    for (int data = GAUSSIAN; data <= NAN_IN_ALL; data++) {
        for (size_t t = 0; t < 2; t++) {
            struct row row[MOST_ROWS] = {
                {.name = "read only", .run = run_read},
                {.name = "plain C, -Ofast", .run = run_plain},
            };
            uint32_t rows = add_vector_sets(row, 2, run_quantise);
            char title[96];

            w->tokens = tokens[t];
            if (tokens[t] == 128)
                rows = add_sets(row, rows, "scalar", run_quantise);
            fill(w, (enum data)data);
            snprintf(title, sizeof(title), "quantise, %u tokens, %s", w->tokens, titles[data]);
            measure(title, row, rows, w, (double)w->tokens * HIDDEN * 2);
        }
    }
}

static void run_reduce(struct work *w, const struct epa_kernels *set)
{
    static const float weight[TOPK] = {.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f};
    const uint16_t *row[TOPK];

    for (uint32_t t = 0; t < w->tokens; t++) {
        for (uint32_t k = 0; k < TOPK; k++)
            row[k] = rows_of(w, set) + (size_t)w->order[t * TOPK + k] * HIDDEN;
        set->reduce(row, weight, TOPK, HIDDEN, w->store, w->out + (size_t)t * HIDDEN);
    }
}

static void run_reduce_fp8(struct work *w, const struct epa_kernels *set)
{
    static const float weight[TOPK] = {.1f, .2f, .3f, .4f, .5f, .6f, .7f, .8f};
    const uint8_t *row[TOPK];
    const float *scale[TOPK];

    for (uint32_t t = 0; t < w->tokens; t++) {
        for (uint32_t k = 0; k < TOPK; k++) {
            uint32_t at = w->order[t * TOPK + k] % 2048;

            row[k] = w->q + (size_t)at * HIDDEN;
            scale[k] = w->scale + (size_t)at * (HIDDEN / GROUP);
        }
        set->reduce_fp8(row, scale, weight, TOPK, HIDDEN, GROUP, w->store,
                        w->out + (size_t)t * HIDDEN);
    }
}

/* The same rows together, fetched ahead as reduce does it. */
static void run_read_rows(struct work *w, const struct epa_kernels *set)
{
    enum { PIECE = 128, AHEAD = 512 };

    (void)set;
    for (uint32_t t = 0; t < w->tokens; t++) {
        for (uint32_t at = 0; at < HIDDEN * 2; at += PIECE) {
            for (uint32_t k = 0; k < TOPK; k++) {
                const char *row = (const char *)(w->x[0] + (size_t)w->order[t * TOPK + k] * HIDDEN);

                __builtin_prefetch(row + at + AHEAD);
                __builtin_prefetch(row + at + AHEAD + 64);
                w->seen |= plain_read(row + at, PIECE);
            }
        }
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

static void reduce_tables(struct work *w)
{
    static const uint32_t tokens[] = {128, 512};

    for (size_t t = 0; t < 2; t++) {
        struct row row[MOST_ROWS] = {{.name = "read only", .run = run_read_rows}};
        uint32_t rows = add_vector_sets(row, 1, run_reduce);
        char title[96];

        w->tokens = tokens[t];
        shuffle(w->order, w->tokens * TOPK);
        snprintf(title, sizeof(title), "reduce, %u tokens of %u rows each", w->tokens, TOPK);
        measure(title, row, rows, w, (double)w->tokens * TOPK * HIDDEN * 2);
        rows = add_vector_sets(row, 0, run_reduce_fp8);
        snprintf(title, sizeof(title), "reduce FP8, %u tokens of %u rows each", w->tokens, TOPK);
        measure(title, row, rows, w, (double)w->tokens * TOPK * HIDDEN);
    }
}

static void run_spread(struct work *w, const struct epa_kernels *set)
{
    void *to[TOPK];

    for (uint32_t t = 0; t < w->tokens; t++) {
        for (uint32_t k = 0; k < w->n; k++)
            to[k] = w->slots + (size_t)w->order[t * w->n + k] * MESSAGE;
        set->spread(to, w->n, w->q, MESSAGE, w->store);
    }
    epa_store_drain();
}

static void run_memcpy(struct work *w, const struct epa_kernels *set)
{
    (void)set;
    for (uint32_t i = 0; i < w->tokens * w->n; i++)
        memcpy(w->slots + (size_t)w->order[i] * MESSAGE, w->q, MESSAGE);
}

static void spread_tables(struct work *w)
{
    static const uint32_t slots[] = {1024, 8192};

    for (size_t s = 0; s < 2; s++) {
        for (uint32_t n = 2; n <= TOPK; n += 6) {
            for (int store = EPA_STORE_CACHED; store <= EPA_STORE_NONTEMPORAL; store++) {
                struct row row[MOST_ROWS] = {{.name = "memcpy", .run = run_memcpy}};
                uint32_t rows = add_set(row, 1, "avx512", EPA_BF16, run_spread);
                double bytes = (double)slots[s] * MESSAGE;
                char title[96];

                rows = add_set(row, rows, "avx2", EPA_BF16, run_spread);
                w->n = n;
                w->tokens = slots[s] / n;
                w->store = (enum epa_store)store;
                shuffle(w->order, slots[s]);
                snprintf(title, sizeof(title), "spread to %u, %s, over %.0f MiB", n,
                         store == EPA_STORE_NONTEMPORAL ? "streaming" : "cached",
                         bytes / 1048576.0);
                measure(title, row, rows, w, bytes);
            }
        }
    }
}

static void run_output_fp8(struct work *w, const struct epa_kernels *set)
{
    for (uint32_t t = 0; t < w->tokens; t++)
        set->output_fp8(w->q + (size_t)t * HIDDEN, w->scale + (size_t)t * (HIDDEN / GROUP), HIDDEN,
                        GROUP, 1.25f, w->out + (size_t)t * HIDDEN);
}

static void run_output(struct work *w, const struct epa_kernels *set)
{
    for (uint32_t t = 0; t < w->tokens; t++)
        set->output(rows_of(w, set) + (size_t)t * HIDDEN, HIDDEN, 1.25f,
                    w->out + (size_t)t * HIDDEN);
}

static void output_tables(struct work *w)
{
    struct row fp8[MOST_ROWS], words[MOST_ROWS];
    uint32_t rows = add_vector_sets(fp8, 0, run_output_fp8);

    add_vector_sets(words, 0, run_output);
    w->tokens = 512;
    fill(w, GAUSSIAN);
    run_quantise(w, epa_kernels_get(EPA_BF16, NULL));
    measure("answer from fp8, 512 rows (GB/s of expert outputs)", fp8, rows, w,
            (double)w->tokens * HIDDEN * 2);
    measure("answer from rows as they are, 512 rows (GB/s of expert outputs)", words, rows, w,
            (double)w->tokens * HIDDEN * 2);
}

int main(void)
{
    struct work w = {
        .x = {pages((size_t)4096 * HIDDEN * 2), pages((size_t)4096 * HIDDEN * 2)},
        .out = pages((size_t)512 * HIDDEN * 2),
        .q = pages((size_t)2048 * HIDDEN),
        .scale = pages((size_t)2048 * (HIDDEN / GROUP) * sizeof(float)),
        .slots = pages((size_t)8192 * MESSAGE),
        .order = pages((size_t)8192 * sizeof(uint32_t)),
    };

    quantise_tables(&w);
    reduce_tables(&w);
    spread_tables(&w);
    output_tables(&w);
    free(w.x[0]);
    free(w.x[1]);
    free(w.out);
    free(w.q);
    free(w.scale);
    free(w.slots);
    free(w.order);
    return w.seen == 1; /* never; keeps the reading alive */
}
