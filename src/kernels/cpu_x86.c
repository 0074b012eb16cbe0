/* The candidates on x86-64. The compiler's cpuid check covers the system's side too: a set
 * whose registers are not saved over a context switch counts as absent. */
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

static bool always(void)
{
    return true;
}

void kernels_drain(void)
{
    _mm_sfence();
}

const struct kernels_candidate kernels_candidates[] = {
    {&kernels_avx512, has_avx512},
    {&kernels_avx2, has_avx2},
    {&kernels_scalar, always},
    {NULL, NULL},
};
