/* Copy of expert outputs in the order of row_order. */
#ifndef LL_V2_COPY_H
#define LL_V2_COPY_H

#include "ll_v2_device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ll_copy_args {
    const int64_t *range; /* [size]: see struct ll_order */
    const char *from;
    char *to;
    uint32_t size, max_tokens;
    uint32_t row_bytes; /* a multiple of 16 */
};

/* Loads the kernel. Returns a cudaError_t. */
int ll_copy_load(void);

/* Queues a copy of the valid rows. The range of each source is in device memory. Returns a
 * cudaError_t. */
int ll_copy_rows(const struct ll_copy_args *, uint32_t multiprocessors, void *stream);

#ifdef __cplusplus
}
#endif

#endif
