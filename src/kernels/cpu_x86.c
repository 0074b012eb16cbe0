/* The candidates on x86-64. The compiler's cpuid check covers the system's side too: a set
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

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* The compilers' check does not know of F16C everywhere. Its registers are those of AVX. */
static bool has_avx2_f16c(void)
{
    unsigned int a, b, c = 0, d;

    return has_avx2() && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool always(void)
{
    return true;
}

void epa_store_drain(void)
{
    _mm_sfence();
}

const struct kernels_candidate kernels_candidates[] = {
    {&kernels_avx512, has_avx512},
    {&kernels_avx512_f16, has_avx512},
    {&kernels_avx2, has_avx2},
    {&kernels_avx2_f16, has_avx2_f16c},
    {&kernels_scalar, always},
    {&kernels_scalar_f16, always},
    {NULL, NULL},
};
