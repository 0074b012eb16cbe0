/* What Hopper does beside its threads: mbarriers, bulk copies between global and shared memory, and
 * the proxy by which those and wgmma see shared memory. Pointers are a kernel's own; addresses of
 * shared memory are those of PTX. */
#ifndef SIMT_ASYNC_H
#define SIMT_ASYNC_H

#include <cuda.h>

#include "simt.h"

enum { SIMT_SHARED_BASE = 1024 }; /* the address of the first byte of dynamic shared memory */

#ifdef __cplusplus
extern "C" {
#endif

/* For kernels: as the functions of epa2a/sm90.cuh. */
SIMT_EXPORT uint32_t simt_shared_address(const void *at);
SIMT_EXPORT void simt_mbar_init(uint64_t *bar, uint32_t arrivals);
SIMT_EXPORT void simt_mbar_init_done(void);
SIMT_EXPORT void simt_mbar_arrive(uint64_t *bar, uint32_t bytes); /* that it expects */
SIMT_EXPORT void simt_mbar_arrive_at(uint64_t *bar, uint32_t rank);
SIMT_EXPORT bool simt_mbar_try(uint64_t *bar, uint32_t parity);
SIMT_EXPORT bool simt_mbar_test(uint64_t *bar, uint32_t parity);
SIMT_EXPORT void simt_fence_async(void);
SIMT_EXPORT void simt_bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *bar);
SIMT_EXPORT void simt_bulk_store(void *to, const void *from, uint32_t bytes, bool adds_floats);
SIMT_EXPORT void simt_bulk_commit(void);
SIMT_EXPORT void simt_bulk_wait(uint32_t pending, bool read);
/* `at`: as many coordinates as the map has dimensions, which are `rank`. To `blocks` of the
 * cluster, as bits; 0: this one. */
SIMT_EXPORT void simt_tile_load(void *to, const CUtensorMap *, const int32_t *at, uint32_t rank,
                                uint64_t *bar, uint32_t blocks);
SIMT_EXPORT void simt_tile_store(const CUtensorMap *, const int32_t *at, uint32_t rank,
                                 const void *from);

#ifdef __cplusplus
}
#else

void simt_async_begin(struct worker *);
/* Copies of the block come to their end; it ends the program if it should have waited for some. */
void simt_async_end(struct worker *);
/* After a round: copies that are due. */
void simt_async_round(struct worker *);
/* One copy, if there is one. */
bool simt_async_next(struct worker *);
/* What threads have stored and fenced can be seen by the async proxy. */
void simt_async_publish(struct worker *);
/* Ends the program if there are bytes in `bytes` of shared memory from `at` on that a thread
 * stored without a fence, as `what` is about to read them. */
void simt_async_check(struct worker *, uint32_t at, uint32_t bytes, const char *what);
/* Threads whose mbarrier another block of the cluster has changed go on. */
uint32_t simt_mbar_news(struct worker *);
/* Says on standard error what is missing to end that phase. */
void simt_mbar_tell(const struct worker *, const uint64_t *bar, uint32_t parity);

#endif
#endif
