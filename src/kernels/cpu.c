/* The instruction sets of this CPU: on x86-64 several, elsewhere the portable one. The compiler's
 * cpuid check covers the system's side too: a set whose registers are not saved over a context
 * switch counts as absent. */
#include "kernels/sets.h"

static bool always(void)
{
    return true;
}

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

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

/* Linux (5.16 and later) saves the tiles of a process that asked for it, and of all its threads. */
static bool has_amx(void)
{
    enum {
        TILE = 1 << 24, /* of CPUID 7, edx */
        BF16 = 1 << 22,
        SAVED = 3 << 17,  /* of XCR0: tiles and their configuration */
        REQUEST = 0x1023, /* ARCH_REQ_XCOMP_PERM */
        TILE_DATA = 18,
    };
    unsigned int a, b, c, d, saved, high;

    if (!has_avx512() || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 ||
        (d & (TILE | BF16)) != (TILE | BF16))
        return false;
    /* AVX-512 was found, so that the system has enabled this instruction. */
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    return (saved & SAVED) == SAVED && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

/* The compilers' check does not know of F16C everywhere. Its registers are those of AVX. */
static bool has_avx2(void)
{
    unsigned int a, b, c = 0, d;

    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

void epa_store_drain(void)
{
    _mm_sfence();
}
#else
void epa_store_drain(void)
{
    /* The portable set streams nothing. */
}
#endif

const struct kernels_isa kernels_isas[] = {
#ifdef __x86_64__
    {"amx", {NULL}, kernels_gemm_amx, 2, has_amx, NULL},
    {"avx512_bf16",
     {NULL},
     kernels_gemm_avx512_bf16,
     2,
     has_avx512_bf16,
     kernels_pairs_are_quicker},
    {"avx512", {&kernels_avx512, &kernels_avx512_f16}, kernels_gemm_avx512, 3, has_avx512, NULL},
    {"avx2", {&kernels_avx2, &kernels_avx2_f16}, kernels_gemm_avx2, 3, has_avx2, NULL},
#endif
    {"scalar", {&kernels_scalar, &kernels_scalar_f16}, kernels_gemm_scalar, 3, always, NULL},
    {.name = NULL},
};
