/* What the kernels of every set make of many inputs, for kernels.py to work out again:
 * arrays as they stand in memory, one a file, NAME in the folder that is given. Prints the
 * sets that this CPU has, ISA-TYPE each. Inputs are the same for all of a type. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "epa2a/quant.h"
#include "base/dtype.h"

static const char *const isas[] = {"scalar", "avx2", "avx512"};
static const struct {
    enum epa_dtype dtype;
    const char *name;
} types[] = {{EPA_BF16, "bf16"}, {EPA_F16, "f16"}};
static const uint32_t groups[] = {16, 40, 64, 128, 256, 512};
static const uint32_t terms[] = {1, 2, 3, 8, 17, 32};

enum { FLOATS = 1 << 19, ROWS = 96, WIDTH = 5120 }; /* each of groups divides WIDTH */

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void *room(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (p == NULL)
        abort();
    return p;
}

/* FOLDER/NAME-NUMBER.part */
static void keep(const char *folder, const char *name, uint32_t number, const char *part,
                 const void *data, size_t bytes)
{
    char path[4096];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s-%u.%s", folder, name, number, part);
    file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
}

/* A group of each kind in turn: around 1, any bits at all, zeros, one outlier, denormals,
 * about equal, huge, with what is not finite. */
static void make_group(uint32_t kind, uint32_t n, bool f16, uint64_t *state, uint16_t *x)
{
    uint16_t infinity = f16 ? 0x7c00 : 0x7f80, denormal = f16 ? 0x83ff : 0x807f;
    uint16_t octaves = f16 ? 0x8fff : 0x83ff; /* sign, mantissa, 4 or 8 octaves */
    uint32_t near = f16 ? 12u << 10 : 0x78u << 7, huge = f16 ? 27u << 10 : 0xf8u << 7;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t r = next_random(state);
        uint16_t any = (uint16_t)(r >> 20);

        if (kind == 1 || kind == 7)
            x[i] = any;
        else if (kind == 2)
            x[i] = any & 0x8000;
        else if (kind == 4)
            x[i] = any & denormal;
        else if (kind == 5)
            x[i] = (uint16_t)((any & 0x8000) | (0x4000 + (r >> 40 & 7)));
        else
            x[i] = (uint16_t)((any & octaves) + (kind == 6 ? huge : near));
        if (kind != 7 && (x[i] & infinity) == infinity)
            x[i] &= 0xbfff;
    }
    if (kind == 3)
        x[next_random(state) % n] = f16 ? 0x7ab1 : 0x4eb1;
}

static void keep_scalars(const char *folder)
{
    uint64_t state = 88172645463325252u;
    uint32_t *bits = room(FLOATS * sizeof(*bits));
    uint16_t *bf16 = room(FLOATS * sizeof(*bf16)), *f16 = room(FLOATS * sizeof(*f16));
    float *widened = room(65536 * sizeof(*widened));
    uint8_t *e4m3 = room(FLOATS);
    float decoded[256];

    for (uint32_t i = 0; i < FLOATS; i++) {
        uint64_t r = next_random(&state) >> 13;

        bits[i] = (uint32_t)r;
        if (i % 2 == 0) /* where e4m3 has its numbers */
            bits[i] = (bits[i] & 0x83ffffff) + (112u << 23);
        else if (i % 3 == 0) /* and f16, whose ties are below */
            bits[i] = (bits[i] & 0x8ffff000) + (100u << 23);
        if (i % 4 == 0) /* and at ties */
            bits[i] &= 0xfff80000;
        bf16[i] = bf16_of_float(float_of_bits(bits[i]));
        f16[i] = f16_of_float(float_of_bits(bits[i]));
        e4m3[i] = e4m3_of_float(float_of_bits(bits[i]));
    }
    for (uint32_t q = 0; q < 256; q++)
        decoded[q] = float_of_e4m3((uint8_t)q);
    for (uint32_t h = 0; h < 65536; h++)
        widened[h] = float_of_f16((uint16_t)h);
    keep(folder, "scalars", 0, "float", bits, FLOATS * sizeof(*bits));
    keep(folder, "scalars", 0, "bf16", bf16, FLOATS * sizeof(*bf16));
    keep(folder, "scalars", 0, "f16", f16, FLOATS * sizeof(*f16));
    keep(folder, "scalars", 0, "widened", widened, 65536 * sizeof(*widened));
    keep(folder, "scalars", 0, "e4m3", e4m3, FLOATS);
    keep(folder, "scalars", 0, "decoded", decoded, sizeof(decoded));
    free(bits);
    free(bf16);
    free(f16);
    free(widened);
    free(e4m3);
}

/* Sums of n quantised rows that follow each other, from row n on in turn. */
static void keep_sums_fp8(const char *folder, const char *name, const struct epa_kernels *set,
                          uint32_t group, const uint8_t *q, const float *scale)
{
    uint32_t number = sizeof(terms) / sizeof(terms[0]);
    uint16_t *out = room((size_t)number * WIDTH * sizeof(*out));

    for (uint32_t i = 0; i < number; i++) {
        const uint8_t *row[32];
        const float *scales[32];
        float weight[32];

        for (uint32_t k = 0; k < terms[i]; k++) {
            row[k] = q + (size_t)(terms[i] + k) * WIDTH;
            scales[k] = scale + (size_t)(terms[i] + k) * (WIDTH / group);
            weight[k] = 1.0f / (float)(k + 3);
        }
        set->reduce_fp8(row, scales, weight, terms[i], WIDTH, group, EPA_STORE_CACHED,
                        out + (size_t)i * WIDTH);
    }
    keep(folder, name, group, "sums", out, (size_t)number * WIDTH * sizeof(*out));
    free(out);
}

/* Quantised, the answer of an expert to that, and sums of it. */
static void keep_rows(const char *folder, const char *name, const struct epa_kernels *set,
                      uint32_t group)
{
    uint64_t state = 2463534242u + group;
    uint32_t per_row = WIDTH / group, elements = ROWS * WIDTH;
    uint16_t *x = room(elements * sizeof(*x)), *y = room(elements * sizeof(*y));
    uint8_t *q = room(elements);
    float *scale = room((size_t)ROWS * per_row * sizeof(*scale));

    for (uint32_t g = 0; g < ROWS * per_row; g++)
        make_group(g % 8, group, set->dtype == EPA_F16, &state, x + g * group);
    for (uint32_t r = 0; r < ROWS; r++) {
        set->quantise(x + r * WIDTH, WIDTH, group, NULL, q + r * WIDTH, scale + r * per_row);
        set->output_fp8(q + r * WIDTH, scale + r * per_row, WIDTH, group, expert_factor(r),
                        y + r * WIDTH);
    }
    keep(folder, name, group, "x", x, elements * sizeof(*x));
    keep(folder, name, group, "q", q, elements);
    keep(folder, name, group, "scale", scale, (size_t)ROWS * per_row * sizeof(*scale));
    keep(folder, name, group, "y", y, elements * sizeof(*y));
    keep_sums_fp8(folder, name, set, group, q, scale);
    free(x);
    free(y);
    free(q);
    free(scale);
}

static void keep_sum(const char *folder, const char *name, const struct epa_kernels *set,
                     uint32_t n)
{
    uint64_t state = 362436069u + n;
    uint16_t *rows = room((size_t)n * WIDTH * sizeof(*rows)), *out = room(WIDTH * 2);
    float *weight = room(n * sizeof(*weight));
    const uint16_t *row[32];

    for (uint32_t i = 0; i < n; i++) {
        row[i] = rows + (size_t)i * WIDTH;
        /* Columns are of one kind in all rows, so that like meets like. */
        for (uint32_t h = 0; h < WIDTH; h += 16)
            make_group(h / 16 % 7, 16, set->dtype == EPA_F16, &state, rows + (size_t)i * WIDTH + h);
        weight[i] = (float)((double)(next_random(&state) >> 11) * 0x1p-53);
    }
    set->reduce(row, weight, n, WIDTH, EPA_STORE_CACHED, out);
    keep(folder, name, n, "rows", rows, (size_t)n * WIDTH * sizeof(*rows));
    keep(folder, name, n, "weight", weight, n * sizeof(*weight));
    keep(folder, name, n, "sum", out, WIDTH * 2);
    free(rows);
    free(out);
    free(weight);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    keep_scalars(argv[1]);
    for (uint32_t i = 0; i < 2 * sizeof(isas) / sizeof(isas[0]); i++) {
        const struct epa_kernels *set = epa_kernels_by_name(isas[i / 2], types[i % 2].dtype);
        char name[32];

        if (set == NULL)
            continue;
        snprintf(name, sizeof(name), "%s-%s", isas[i / 2], types[i % 2].name);
        for (uint32_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++)
            keep_rows(argv[1], name, set, groups[g]);
        for (uint32_t n = 0; n < sizeof(terms) / sizeof(terms[0]); n++)
            keep_sum(argv[1], name, set, terms[n]);
        printf("%s\n", name);
    }
    return 0;
}
