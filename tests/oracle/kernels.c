/* Reference of unit/kernels.c as a program, for kernels.py, which makes inputs and recomputes the
 * results. Standard input and output contain arrays in the layout of memory.
 *       kernels scalars         float32 to bf16, f16 and e4m3; all e4m3 and f16 to float32;
 *                               the factors of the synthetic experts
 *       kernels TYPE GROUP      groups of 16-bit values to codes and scales */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

enum { MOST = 4 << 20, FACTORS = 251 };

static _Alignas(64) unsigned char in[MOST]; /* input; converted arrays in place */
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
    float *factor = room(FACTORS * sizeof(*factor));
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
    for (uint32_t e = 0; e < FACTORS; e++)
        factor[e] = expert_factor(e);
    put(bf16, n * 2);
    put(f16, n * 2);
    put(e4m3, n);
    put(decoded, 256 * sizeof(*decoded));
    put(widened, 65536 * sizeof(*widened));
    put(factor, FACTORS * sizeof(*factor));
}

static void groups(bool f16, uint32_t size)
{
    const uint16_t *x = (const uint16_t *)in;
    size_t n = bytes / 2;
    uint8_t *q = room(n);
    float *scale = room(n / size * sizeof(*scale));

    for (size_t g = 0; g < n / size; g++)
        scale[g] = e4m3_group_of(f16, x + g * size, size, q + g * size);
    put(q, n);
    put(scale, n / size * sizeof(*scale));
}

int main(int argc, char **argv)
{
    bytes = fread(in, 1, sizeof(in), stdin);
    if (argc == 2)
        scalars();
    else
        groups(strcmp(argv[1], "f16") == 0, (uint32_t)atoi(argv[2]));
    return 0;
}
