/* Tests that kernels quantise like the scalar reference, bit by bit: every bf16 and f16 value as
 * the largest of its group, beside larger values of every magnitude, and beside NaN and
 * infinity. */
#include "../unit/test.h"

#include "base/dtype.h"
#include "gpu.h"

#ifndef CALLS_PART
#define CALLS_PART 1 /* divisor of the repetitions; larger if kernels run on CPUs */
#endif

enum { VALUES = 65536 };

/* Defined in quantise_kernels.cu: quantises [n] bf16 or f16, n a multiple of 512, to [n] codes and
 * [n / group] scales. */
cudaError_t quantise_queue(bool f16, const void *x, uint32_t n, uint32_t group, void *q,
                           float *scale);

static void ok(cudaError_t code)
{
    if (code != cudaSuccess)
        fail_msg("%s", cudaGetErrorString(code));
}

static void compare(bool f16, const uint16_t *x, uint32_t n, uint32_t group)
{
    uint8_t *is = malloc(n), *right = malloc(n);
    float *scale = malloc(n / group * sizeof(*scale));
    void *from, *to, *by;

    assert_true(is != NULL && right != NULL && scale != NULL);
    ok(cudaMalloc(&from, 2 * n));
    ok(cudaMalloc(&to, n));
    ok(cudaMalloc(&by, n / group * sizeof(*scale)));
    ok(cudaMemcpy(from, x, 2 * n, cudaMemcpyHostToDevice));
    ok(quantise_queue(f16, from, n, group, to, by));
    ok(cudaDeviceSynchronize());
    ok(cudaMemcpy(is, to, n, cudaMemcpyDeviceToHost));
    ok(cudaMemcpy(scale, by, n / group * sizeof(*scale), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i += group) {
        float right_by = e4m3_group_of(f16, x + i, group, right + i);

        if (bits_of_float(right_by) != bits_of_float(scale[i / group]))
            fail_msg("group %zu of %u: scale %a, not %a", i / group, group,
                     (double)scale[i / group], (double)right_by);
        for (size_t k = i; k < i + group; k++)
            if (is[k] != right[k])
                fail_msg("x 0x%04x, scale %a: 0x%02x, not 0x%02x", x[k], (double)right_by, is[k],
                         right[k]);
    }
    ok(cudaFree(from));
    ok(cudaFree(to));
    ok(cudaFree(by));
    free(is);
    free(right);
    free(scale);
}

TEST(all_values_in_groups_of_every_size)
{
    uint16_t *x = malloc(VALUES * sizeof(*x));

    assert_non_null(x);
    for (uint32_t i = 0; i < VALUES; i++)
        x[i] = (uint16_t)i;
    for (uint32_t group = 16; group <= 256; group *= 2) {
        compare(false, x, VALUES, group);
        compare(true, x, VALUES, group);
    }
    free(x);
}

/* Gives each group another binade of the maximum; the other values are any finite values below
 * it. */
static void beside_larger_ones(bool f16)
{
    enum { GROUP = 128, ROUNDS = 64 / CALLS_PART + 1 };
    uint16_t infinity = f16 ? 0x7c00 : 0x7f80;
    uint32_t n = VALUES * ROUNDS;
    uint16_t *x = malloc(n * sizeof(*x));
    uint64_t random = 88172645463325252u;

    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        uint64_t r = next_random(&random);
        uint16_t amax = (uint16_t)((i / GROUP * 37) % infinity);

        x[i] = (uint16_t)((amax != 0 ? (r & 0x7fff) % amax : 0) | (r >> 20 & 0x8000));
        if (r >> 40 == 7) /* a non-finite value now and then */
            x[i] = (uint16_t)(infinity | (r >> 30 & (0xffff ^ infinity)));
    }
    compare(f16, x, n, GROUP);
    free(x);
}

TEST(all_values_beside_larger_ones)
{
    beside_larger_ones(false);
    beside_larger_ones(true);
}

TEST_GROUP(want_gpu, NULL)
