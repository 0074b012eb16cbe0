/* The kernel sets, and which of them this build has; shared by the files of this folder. */
#ifndef KERNELS_SETS_H
#define KERNELS_SETS_H

#include <stdbool.h>

#include "epa2a/gemm.h"
#include "epa2a/quant.h"
#include "epa2a/wait.h"
#include "kernels/gemm_rows.h"

/* For code that is written once for both types and has to know which one when compiled. */
#define INLINED static inline __attribute__((always_inline))

/* An instruction set, as EPA2A_ISA names it, and its sets, by type. One that has no kernels of some
 * kind for some type means the next one that has. */
struct kernels_isa {
    const char *name;
    const struct epa_kernels *kernels[2]; /* NULL: none, as are those below */
    const struct epa_gemm *gemm;          /* [n_gemm] */
    uint32_t n_gemm;
    const struct gemm_rows *rows;
    bool (*usable)(void); /* the CPU has it and the system saves its registers */
    /* Asked where no one has chosen: does it multiply quicker than the next? NULL: yes. */
    bool (*quicker)(void);
};

/* Best first; the scalar one, which any CPU can run, then one without a name, end it. */
extern const struct kernels_isa kernels_isas[];

extern const struct epa_kernels kernels_scalar, kernels_avx2, kernels_avx512;
extern const struct epa_kernels kernels_scalar_f16, kernels_avx2_f16, kernels_avx512_f16;

/* By the type of the weights. */
extern const struct epa_gemm kernels_gemm_scalar[3], kernels_gemm_avx2[3], kernels_gemm_avx512[3];
extern const struct epa_gemm kernels_gemm_avx512_bf16[2], kernels_gemm_amx[2]; /* bf16, FP8 */

extern const struct gemm_rows kernels_rows_scalar, kernels_rows_avx2, kernels_rows_avx512;

bool kernels_pairs_are_quicker(void); /* vdpbf16ps than two FMA */

void kernels_avx512_quantise(const uint16_t *x, uint32_t hidden, uint32_t group,
                             const uint16_t *next, uint8_t *q, float *scale);
void kernels_avx512_quantise_f16(const uint16_t *x, uint32_t hidden, uint32_t group,
                                 const uint16_t *next, uint8_t *q, float *scale);

/* ---- packing for the matrix kernels (gemm_scalar.c) ---- */

/* As in gemm.h. */
void kernels_pack_a(const void *x, uint32_t k, void *a, uint32_t row);
void kernels_pack_a_bf16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                         uint32_t row);
void kernels_pack_a_f16(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                        uint32_t row);
void kernels_pack_a_codes(const uint8_t *q, const float *scale, uint32_t group, uint32_t k, void *a,
                          uint32_t row);

/* Orders of a panel of B, which has 32 columns, as its instruction set reads it: */
/* [k][32] words, or codes of FP8 */
void kernels_pack_b_words(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
void kernels_pack_b_bytes(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
/* [k / 2][32][2] words: neighbours in k together, as instructions of bf16 take them */
void kernels_pack_b_pairs(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
/* [k / 2][32][2] codes, the same */
void kernels_pack_b_code_pairs(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);
/* [k / 2][64] codes, the pairs of columns 0-3, 16-19, 4-7, 20-23, ... of two values of k: once
 * decoded, bytes that are unpacked in each 16 of a register are pairs in the order of columns. */
void kernels_pack_b_codes(const void *w, size_t ld, uint32_t n, uint32_t k, void *b);

/* ---- what an instruction gives out of registers, in operations a nanosecond: nothing that uses it
 * is quicker. Chains in as many registers as cover any latency; one that is two cycles short of it
 * loses 7 %. In assembler: a compiler does not run what it can work out. ---- */

enum {
    PEAK_ROUNDS = 5000, /* some 15 us */
    PEAK_TURNS = 8,     /* the best counts: a core is interrupted, or wakes up */
};

/* round(): `flops` operations */
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

/* Zeros: the sums stay what they are, or NaN. */
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
