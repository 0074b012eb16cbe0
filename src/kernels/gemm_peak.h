/* What an instruction gives out of registers, in operations a nanosecond: nothing that uses it is
 * quicker. Chains in as many registers as cover any latency; one that is two cycles short of it loses
 * 7 %. In assembler: a compiler does not run what it can work out. */
#ifndef KERNELS_GEMM_PEAK_H
#define KERNELS_GEMM_PEAK_H

#include <time.h>

enum {
    PEAK_ROUNDS = 5000, /* some 15 us */
    PEAK_TURNS = 8,     /* the best counts: a core is interrupted, or wakes up */
};

static inline double peak_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* round(): `flops` operations */
static inline double peak_of(void (*round)(void), double flops)
{
    double best = 0;

    for (int turn = 0; turn < PEAK_TURNS; turn++) {
        double start = peak_now_ns(), rate;

        for (int i = 0; i < PEAK_ROUNDS; i++)
            round();
        rate = flops * PEAK_ROUNDS / (peak_now_ns() - start);
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
