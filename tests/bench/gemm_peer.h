/* oneDNN's matmul of bf16 with weights in its own order, float32 out, for gemm.c. */
#ifndef GEMM_PEER_H
#define GEMM_PEER_H

#include <stdint.h>

struct peer;

/* NULL: the build has no oneDNN, or oneDNN has nothing for this CPU. The weights are made up. */
struct peer *peer_create(uint32_t m, uint32_t n, uint32_t k, uint32_t weights);
void peer_multiply(struct peer *, const void *a, uint32_t which, float *c);
void peer_destroy(struct peer *);
const char *peer_version(void);

#endif
