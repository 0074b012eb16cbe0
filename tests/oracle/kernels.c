/* The kernels of every set for kernels.py, which makes inputs and works out again what comes of
 * them: arrays as they stand in memory, from standard input to standard output.
 *     kernels                          the sets that this CPU has, ISA-TYPE each
 * kernels scalars                  float32 to bf16, f16 and e4m3; all of e4m3 and of f16 to float32
 * kernels ISA-TYPE rows GROUP      rows of WIDTH: quantised, an expert's output of that, sums of it
 *     kernels ISA-TYPE sum N           N rows and their weights to their sum */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "epa2a/quant.h"
#include "base/dtype.h"

static const char *const isas[] = {"scalar", "avx2", "avx512"}, *const types[] = {"bf16", "f16"};
static const uint32_t terms[] = {1, 2, 3, 8, 17, 32};

enum { WIDTH = 5120, MOST = 4 << 20, TERMS = sizeof(terms) / sizeof(terms[0]) };

static _Alignas(64) unsigned char in[MOST]; /* and what is read of it */
static size_t bytes;

static void *room(size_t n)
{
    void *p = aligned_alloc(64, (n + 63) / 64 * 64);

    if (p == NULL)
        abort();
    return p;
}

static void put(void *data, size_t n)
{
    if (fwrite(data, 1, n, stdout) != n)
        abort();
    free(data);
}

static void scalars(void)
{
    const float *x = (const float *)in;
    size_t n = bytes / sizeof(*x);
    uint16_t *bf16 = room(n * 2), *f16 = room(n * 2);
    float *decoded = room(256 * sizeof(*decoded)), *widened = room(65536 * sizeof(*widened));
    uint8_t *e4m3 = room(n);

    for (size_t i = 0; i < n; i++) {
        bf16[i] = bf16_of_float(x[i]);
        f16[i] = f16_of_float(x[i]);
        e4m3[i] = e4m3_of_float(x[i]);
    }
    for (uint32_t q = 0; q < 256; q++)
        decoded[q] = float_of_e4m3((uint8_t)q);
    for (uint32_t h = 0; h < 65536; h++)
        widened[h] = float_of_f16((uint16_t)h);
    put(bf16, n * 2);
    put(f16, n * 2);
    put(e4m3, n);
    put(decoded, 256 * sizeof(*decoded));
    put(widened, 65536 * sizeof(*widened));
}

/* Sums are of n rows that follow each other, from row n on, for each n of terms. */
static void rows(const struct epa_kernels *set, uint32_t group)
{
    const uint16_t *x = (const uint16_t *)in;
    uint32_t per_row = WIDTH / group, n = (uint32_t)(bytes / 2 / WIDTH);
    uint8_t *q = room((size_t)n * WIDTH);
    float *scale = room((size_t)n * per_row * sizeof(*scale));
    uint16_t *y = room((size_t)n * WIDTH * 2), *sums = room((size_t)TERMS * WIDTH * 2);

    for (uint32_t r = 0; r < n; r++) {
        set->quantise(x + r * WIDTH, WIDTH, group, NULL, q + r * WIDTH, scale + r * per_row);
        set->output_fp8(q + r * WIDTH, scale + r * per_row, WIDTH, group, expert_factor(r),
                        y + r * WIDTH);
    }
    for (uint32_t i = 0; i < TERMS; i++) {
        const uint8_t *row[32];
        const float *scales[32];
        float weight[32];

        for (uint32_t k = 0; k < terms[i]; k++) {
            row[k] = q + (size_t)(terms[i] + k) * WIDTH;
            scales[k] = scale + (size_t)(terms[i] + k) * per_row;
            weight[k] = 1.0f / (float)(k + 3);
        }
        set->reduce_fp8(row, scales, weight, terms[i], WIDTH, group, EPA_STORE_CACHED,
                        sums + (size_t)i * WIDTH);
    }
    put(q, (size_t)n * WIDTH);
    put(scale, (size_t)n * per_row * sizeof(*scale));
    put(y, (size_t)n * WIDTH * 2);
    put(sums, (size_t)TERMS * WIDTH * 2);
}

static void sum(const struct epa_kernels *set, uint32_t n)
{
    const uint16_t *row[32];
    uint16_t *out = room(WIDTH * 2);

    for (uint32_t i = 0; i < n; i++)
        row[i] = (const uint16_t *)in + (size_t)i * WIDTH;
    set->reduce(row, (const float *)(const void *)(in + (size_t)n * WIDTH * 2), n, WIDTH,
                EPA_STORE_CACHED, out);
    put(out, WIDTH * 2);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        bytes = fread(in, 1, sizeof(in), stdin);
    if (argc == 2)
        scalars();
    for (uint32_t i = 0; i < 6; i++) {
        const struct epa_kernels *set =
            epa_kernels_by_name(isas[i / 2], i % 2 == 0 ? EPA_BF16 : EPA_F16);
        char name[32];

        snprintf(name, sizeof(name), "%s-%s", isas[i / 2], types[i % 2]);
        if (argc == 1 && set != NULL)
            printf("%s\n", name);
        if (argc == 4 && set != NULL && strcmp(name, argv[1]) == 0)
            (strcmp(argv[2], "rows") == 0 ? rows : sum)(set, (uint32_t)atoi(argv[3]));
    }
    return 0;
}
