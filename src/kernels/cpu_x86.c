/* The instruction sets on x86-64. The compiler's cpuid check covers the system's side too: a set
 * whose registers are not saved over a context switch counts as absent. */
#include <cpuid.h>
#include <immintrin.h>

#include "kernels/sets.h"

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi");
}

static bool has_avx512_bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

/* The compilers' check does not know of F16C everywhere. Its registers are those of AVX. */
static bool has_avx2(void)
{
    unsigned int a, b, c = 0, d;

    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool always(void)
{
    return true;
}

void epa_store_drain(void)
{
    _mm_sfence();
}

const struct kernels_isa kernels_isas[] = {
    {"avx512_bf16", has_avx512_bf16, kernels_pairs_are_quicker},
    {"avx512", has_avx512, NULL},
    {"avx2", has_avx2, NULL},
    {"scalar", always, NULL},
    {NULL, NULL, NULL},
};

const struct epa_kernels *const kernels_all[] = {
    &kernels_avx512, &kernels_avx512_f16, &kernels_avx2, &kernels_avx2_f16,
    &kernels_scalar, &kernels_scalar_f16, NULL,
};

const struct epa_gemm *const kernels_all_gemms[] = {
    &kernels_gemm_avx512_bf16[0], &kernels_gemm_avx512_bf16[1], &kernels_gemm_avx512[0],
    &kernels_gemm_avx512[1],      &kernels_gemm_avx512[2],      &kernels_gemm_avx2[0],
    &kernels_gemm_avx2[1],        &kernels_gemm_avx2[2],        &kernels_gemm_scalar[0],
    &kernels_gemm_scalar[1],      &kernels_gemm_scalar[2],      NULL,
};
