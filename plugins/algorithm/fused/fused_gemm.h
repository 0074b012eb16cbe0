/* fused on hosts: GEMMs and combine. */
#ifndef FUSED_GEMM_H
#define FUSED_GEMM_H

#include "fused_state.h"

/* Allocates the memory of the GEMMs. */
void fused_make_gemms(struct fused_host *);
/* Packs weights, once; each worker packs the weights of some experts, so that they are near its
 * core. */
void fused_pack_weights(void *arg, uint32_t worker, uint32_t workers);
void fused_pack(struct fused_host *, uint32_t worker, uint32_t block);
void fused_up(struct fused_host *, uint32_t worker, uint32_t block, uint32_t part);
void fused_down(struct fused_host *, uint32_t worker, uint32_t block, uint32_t part);
void fused_finish(struct fused_host *, uint32_t worker, uint32_t chunk);
void fused_combine(struct fused_host *, uint32_t worker, uint32_t item, uint32_t part);

#endif
