#ifndef QUANTISE_KERNEL_H
#define QUANTISE_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C"
#endif
    /* A cudaError_t; 0: done. */
    int
    quantise_on_gpu(bool f16, const uint16_t *x, size_t n, uint32_t group, uint8_t *q,
                    float *scale);

#endif
