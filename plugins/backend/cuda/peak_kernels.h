/* Kernels of cuda_peaks(). */
#ifndef CUDA_PEAK_KERNELS_H
#define CUDA_PEAK_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include <epa2a/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

struct peak_run {
    enum epa_dtype dtype; /* EPA_BF16, EPA_F16 or EPA_FP8_E4M3 */
    uint32_t blocks;      /* one per multiprocessor */
    uint32_t rounds;      /* number of products per warpgroup */
    void *memory;         /* zeroed memory for the reading kernel */
    uint64_t bytes;
};

double peak_flops(const struct peak_run *);
cudaError_t peak_queue_multiply(const struct peak_run *, cudaStream_t);
cudaError_t peak_queue_read(const struct peak_run *, cudaStream_t);

#ifdef __cplusplus
}
#endif

#endif
