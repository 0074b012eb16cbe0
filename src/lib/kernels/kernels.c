/* Selection of the kernel set: the best instruction set of this CPU, or the set that EPA2A_ISA
 * names. */
#include <stdlib.h>
#include <string.h>

#include "kernels/sets.h"
#include "kernels/gemm_avx512_bf16.h"
#include "kernels/kernels.h"

static const struct epa_kernels *kernels_of(const struct kernels_isa *isa, enum epa_dtype dtype)
{
    for (uint32_t i = 0; i < 2 && isa->kernels[i] != NULL; i++)
        if (isa->kernels[i]->dtype == dtype)
            return isa->kernels[i];
    return NULL;
}

static const struct epa_gemm *gemm_of(const struct kernels_isa *isa, enum epa_dtype dtype)
{
    if (dtype == EPA_INT8)
        return isa->int8;
    for (uint32_t i = 0; i < isa->n_gemm; i++)
        if (isa->gemm[i].dtype == dtype)
            return &isa->gemm[i];
    return NULL;
}

static const struct kernels_isa *usable_isa(const char *name)
{
    for (const struct kernels_isa *isa = kernels_isas; isa->name != NULL; isa++)
        if (strcmp(isa->name, name) == 0 && isa->usable())
            return isa;
    return NULL;
}

/* Returns the set that EPA2A_ISA names. NULL: the variable is not set, or the set is not available;
 * then *refused is its name. */
static const struct kernels_isa *requested_isa(const char **refused)
{
    const char *wanted = getenv("EPA2A_ISA");
    const struct kernels_isa *isa;

    if (refused != NULL)
        *refused = NULL;
    if (wanted == NULL || wanted[0] == '\0')
        return NULL;
    isa = usable_isa(wanted);
    if (isa == NULL && refused != NULL)
        *refused = wanted;
    return isa;
}

const struct epa_kernels *epa_kernels_by_name(const char *isa, enum epa_dtype dtype)
{
    const struct kernels_isa *usable = usable_isa(isa);

    return usable != NULL ? kernels_of(usable, dtype) : NULL;
}

const struct epa_gemm *epa_gemm_by_name(const char *isa, enum epa_dtype dtype)
{
    const struct kernels_isa *usable = usable_isa(isa);

    return usable != NULL ? gemm_of(usable, dtype) : NULL;
}

const struct epa_kernels *epa_kernels_get(enum epa_dtype dtype, const char **refused)
{
    const struct kernels_isa *wanted = requested_isa(refused);
    const struct kernels_isa *isa = wanted != NULL ? wanted : kernels_isas;

    while (kernels_of(isa, dtype) == NULL ||
           !isa->usable()) /* the last set, scalar, is always usable */
        isa++;
    return kernels_of(isa, dtype);
}

const struct epa_gemm *epa_gemm_get(enum epa_dtype dtype, const char **refused)
{
    const struct kernels_isa *wanted = requested_isa(refused);
    const struct kernels_isa *isa = wanted != NULL ? wanted : kernels_isas;

    while (gemm_of(isa, dtype) == NULL || !isa->usable() ||
           (isa != wanted && isa->quicker != NULL && !isa->quicker()))
        isa++;
    return gemm_of(isa, dtype);
}

const struct gemm_rows *gemm_rows_get(void)
{
    const struct kernels_isa *wanted = requested_isa(NULL);
    const struct kernels_isa *isa = wanted != NULL ? wanted : kernels_isas;

    while (isa->rows == NULL || !isa->usable())
        isa++;
    return isa->rows;
}

bool kernels_use_avx2(void)
{
    return gemm_rows_get() != &kernels_rows_scalar;
}

/* The instruction sets of this CPU: on x86-64 several, elsewhere the portable one. The compiler's
 * cpuid check includes the operating system: a set whose registers are not saved over a context
 * switch counts as absent. */

static bool always(void)
{
    return true;
}

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Features of the CPU: registers of CPUID leaf 1, leaf 7, and subleaf 1 of leaf 7. XCR0 names the
 * registers that the system saves. __builtin_cpu_supports() of zig returns 0 for each feature. */
struct cpu {
    unsigned int ecx1, ebx7, ecx7, edx7, eax71, saved;
};

static struct cpu cpu;

static void read_cpu(void)
{
    unsigned int a, b, c, d, high;

    if (__get_cpuid(1, &a, &b, &cpu.ecx1, &d) == 0 || (cpu.ecx1 & bit_OSXSAVE) == 0)
        return;
    __asm__ volatile("xgetbv" : "=a"(cpu.saved), "=d"(high) : "c"(0));
    if (__get_cpuid_count(7, 0, &a, &cpu.ebx7, &cpu.ecx7, &cpu.edx7) != 0 && a >= 1)
        (void)__get_cpuid_count(7, 1, &cpu.eax71, &b, &c, &d);
}

/* A virtual machine traps each CPUID, and sets are selected within measured loops. */
static const struct cpu *this_cpu(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, read_cpu);
    return &cpu;
}

static bool has_all(unsigned int features, unsigned int wanted)
{
    return (features & wanted) == wanted;
}

static bool has_avx2(void)
{
    enum { SAVED = 3 << 1 }; /* of XCR0: registers of SSE and AVX */
    const struct cpu *c = this_cpu();

    return has_all(c->saved, SAVED) && has_all(c->ecx1, bit_AVX | bit_FMA | bit_F16C) &&
           has_all(c->ebx7, bit_AVX2);
}

static bool has_avx512(void)
{
    enum { SAVED = 7 << 5 }; /* of XCR0: masks, and both halves of the registers */
    const struct cpu *c = this_cpu();

    return has_avx2() && has_all(c->saved, SAVED) &&
           has_all(c->ebx7, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) &&
           has_all(c->ecx7, bit_AVX512VBMI);
}

static bool has_avx512_vnni(void)
{
    return has_avx512() && has_all(this_cpu()->ecx7, bit_AVX512VNNI);
}

static bool has_avx512_bf16(void)
{
    return has_avx512() && has_all(this_cpu()->eax71, bit_AVX512BF16);
}

/* Requests permission for tiles. Linux (5.16 and later) then saves the tiles of all threads of this
 * process. */
static bool has_amx(void)
{
    enum {
        TILE = 1 << 24, /* of edx of leaf 7 */
        BF16 = 1 << 22,
        INT8 = 1 << 25,
        SAVED = 3 << 17,  /* of XCR0: tiles and their configuration */
        REQUEST = 0x1023, /* ARCH_REQ_XCOMP_PERM */
        TILE_DATA = 18,
    };
    const struct cpu *c = this_cpu();

    return has_avx512() && has_all(c->edx7, TILE | BF16 | INT8) && has_all(c->saved, SAVED) &&
           syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}

void epa_store_drain(void)
{
    _mm_sfence();
}
#else
void epa_store_drain(void)
{
    /* The portable set has no non-temporal stores. */
}
#endif

const struct kernels_isa kernels_isas[] = {
#ifdef __x86_64__
    {.name = "amx",
     .gemm = kernels_gemm_amx,
     .n_gemm = 2,
     .int8 = &kernels_gemm_int8_amx,
     .usable = has_amx},
    {.name = "avx512_bf16",
     .gemm = kernels_gemm_avx512_bf16,
     .n_gemm = 2,
     .usable = has_avx512_bf16,
     .quicker = kernels_pairs_are_quicker},
    {.name = "avx512_vnni", .int8 = &kernels_gemm_int8_vnni, .usable = has_avx512_vnni},
    {.name = "avx512",
     .kernels = {&kernels_avx512, &kernels_avx512_f16},
     .gemm = kernels_gemm_avx512,
     .n_gemm = 3,
     .rows = &kernels_rows_avx512,
     .usable = has_avx512},
    {.name = "avx2",
     .kernels = {&kernels_avx2, &kernels_avx2_f16},
     .gemm = kernels_gemm_avx2,
     .n_gemm = 3,
     .int8 = &kernels_gemm_int8_avx2,
     .rows = &kernels_rows_avx2,
     .usable = has_avx2},
#endif
    {.name = "scalar",
     .kernels = {&kernels_scalar, &kernels_scalar_f16},
     .gemm = kernels_gemm_scalar,
     .n_gemm = 3,
     .int8 = &kernels_gemm_int8_scalar,
     .rows = &kernels_rows_scalar,
     .usable = always},
    {.name = NULL},
};
