/* The kernel sets, and the list of sets in this build; shared by the files of this folder. */
#ifndef KERNELS_SETS_H
#define KERNELS_SETS_H

#include <stdbool.h>

#include "epa2a/gemm.h"
#include "epa2a/quant.h"
#include "epa2a/wait.h"
#include "kernels/rows.h"

/* For functions that serve both types and need the type at compile time. */
#define INLINED static inline __attribute__((always_inline))

/* An instruction set of EPA2A_ISA, and its kernels, by type. If it has no kernels of some kind for
 * some type, the next set that has them is used. */
struct kernels_isa {
    const char *name;
    const struct epa_kernels *kernels[2]; /* NULL: none; lower sets have none, either */
    const struct epa_gemm *gemm;          /* [n_gemm] */
    uint32_t n_gemm;
    const struct epa_gemm *int8; /* NULL: none */
    const struct gemm_rows *rows;
    bool (*usable)(void); /* the CPU has it and the system saves its registers */
    /* Called if the user has not chosen a set: returns true if it multiplies faster than the next
     * set. NULL: always faster. */
    bool (*quicker)(void);
};

/* Best set first. The scalar set, which any CPU can run, and an entry without a name end the
 * list. */
extern const struct kernels_isa kernels_isas[];

extern const struct epa_kernels kernels_scalar, kernels_avx2, kernels_avx512;
extern const struct epa_kernels kernels_scalar_f16, kernels_avx2_f16, kernels_avx512_f16;

/* Matrix kernels by the type of the weights. */
extern const struct epa_gemm kernels_gemm_scalar[3], kernels_gemm_avx2[3], kernels_gemm_avx512[3];
extern const struct epa_gemm kernels_gemm_avx512_bf16[2], kernels_gemm_amx[2]; /* bf16, FP8 */
extern const struct epa_gemm kernels_gemm_int8_scalar, kernels_gemm_int8_avx2;
extern const struct epa_gemm kernels_gemm_int8_vnni, kernels_gemm_int8_amx;

extern const struct gemm_rows kernels_rows_scalar, kernels_rows_avx2, kernels_rows_avx512;

/* ---- peak rate of an instruction out of registers, in operations per nanosecond: an upper bound
 * for each function that uses it. The number of chains covers any latency; a number that is two
 * cycles too small loses 7 %. In assembler: a compiler removes computations with a known result.
 * ---- */

enum {
    PEAK_ROUNDS = 5000, /* about 15 us */
    PEAK_TURNS = 8,     /* the best counts, since interrupts and wake-ups slow a core */
};

/* Returns the rate of round(), which executes `flops` operations. */
static inline double peak_of(void (*round)(void), double flops)
{
    double best = 0;

    for (int turn = 0; turn < PEAK_TURNS; turn++) {
        uint64_t start = epa_now_ns();
        double rate;

        for (int i = 0; i < PEAK_ROUNDS; i++)
            round();
        rate = flops * PEAK_ROUNDS / (double)(epa_now_ns() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

/* Operands are zero: the sums keep their value, or NaN. */
#define PEAK_ZERO "vpxor %%xmm15, %%xmm15, %%xmm15\n"
#define PEAK_CHAIN(op, r, i) op " %%" r "15, %%" r "15, %%" r #i "\n"
#define PEAK_CHAINS_4(op, r, a, b, c, d) \
    PEAK_CHAIN(op, r, a) PEAK_CHAIN(op, r, b) PEAK_CHAIN(op, r, c) PEAK_CHAIN(op, r, d)
#define PEAK_CHAINS_12(op, r) \
    PEAK_CHAINS_4(op, r, 0, 1, 2, 3) \
    PEAK_CHAINS_4(op, r, 4, 5, 6, 7) PEAK_CHAINS_4(op, r, 8, 9, 10, 11)
#define PEAK_CHAINS_24(op, r) \
    PEAK_CHAINS_12(op, r) \
    PEAK_CHAINS_4(op, r, 16, 17, 18, 19) \
    PEAK_CHAINS_4(op, r, 20, 21, 22, 23) PEAK_CHAINS_4(op, r, 24, 25, 26, 27)
#define PEAK_CHANGED_12 \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
        "xmm11", "xmm15"
#define PEAK_CHANGED_24 \
    PEAK_CHANGED_12, "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", \
        "xmm24", "xmm25", "xmm26", "xmm27"

#endif
