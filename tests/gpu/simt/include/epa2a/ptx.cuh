/* In place of src/epa2a/ptx.cuh: the same functions, made up (../../README.md). */
#ifndef EPA2A_PTX_CUH
#define EPA2A_PTX_CUH

#include "../../simt.h"

#include <cuda_fp8.h>
#include <stdint.h>

#define EPA_DEV static inline __attribute__((always_inline))

EPA_DEV uint64_t epa_dev_time(void)
{
    return simt_time();
}

EPA_DEV uint64_t epa_dev_load_acquire(const uint64_t *word)
{
    return simt_load(word);
}

EPA_DEV uint64_t epa_dev_load_relaxed(const uint64_t *word)
{
    return simt_load(word);
}

EPA_DEV void epa_dev_store_relaxed(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

EPA_DEV void epa_dev_store_release(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

EPA_DEV uint32_t epa_dev_load_acquire32(const uint32_t *word)
{
    uint32_t value = __atomic_load_n(word, __ATOMIC_ACQUIRE);

    simt_polled();
    return value;
}

EPA_DEV void epa_dev_add_release32(uint32_t *word, uint32_t by)
{
    (void)__atomic_fetch_add(word, by, __ATOMIC_RELEASE);
}

EPA_DEV void epa_dev_fence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

EPA_DEV void epa_dev_store_pair(char *to, uint64_t first, uint64_t second)
{
    simt_store_pair(to, first, second);
}

EPA_DEV void epa_dev_load_pair(const char *from, uint64_t *first, uint64_t *second)
{
    simt_load_pair(from, first, second);
}

/* Kernels of a stream run one after the other. */
EPA_DEV void epa_dev_after_kernel(void)
{
}

EPA_DEV void epa_dev_next_kernel(void)
{
}

EPA_DEV void epa_dev_fp8_to_f16(uint32_t codes, uint32_t pair[2])
{
    for (int i = 0; i < 2; i++) {
        __half2_raw both =
            __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(codes >> 16 * i), __NV_E4M3);

        pair[i] = (uint32_t)both.y << 16 | both.x;
    }
}

#endif
