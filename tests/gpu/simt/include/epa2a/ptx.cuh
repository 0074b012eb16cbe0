/* Replaces include/epa2a/ptx.cuh: the same functions, emulated (../../README.md). */
#ifndef EPA2A_PTX_CUH
#define EPA2A_PTX_CUH

#include "../../simt.h"

#include <cuda_fp8.h>
#include <stdint.h>

#define EPA_DEV static inline __attribute__((always_inline))

/* Functions that the emulator implements directly. */
#define epa_dev_time simt_time
#define epa_dev_load_acquire simt_load
#define epa_dev_load_relaxed simt_load
#define epa_dev_store_pair simt_store_pair
#define epa_dev_load_pair simt_load_pair

EPA_DEV uint32_t epa_dev_lane(void)
{
    return threadIdx.x % 32;
}

template <class T> EPA_DEV void epa_dev_store(T *to, T value)
{
    simt_accessed(to, sizeof(value), FAKE_STORE);
    *to = value;
}

EPA_DEV void epa_dev_count_far(uint64_t bytes)
{
    simt_accessed(NULL, bytes, FAKE_FAR);
}

EPA_DEV void epa_dev_store_relaxed(uint64_t *word, uint64_t value)
{
    simt_accessed(word, sizeof(value), FAKE_STORE);
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

EPA_DEV void epa_dev_store_release(uint64_t *word, uint64_t value)
{
    simt_accessed(word, sizeof(value), FAKE_STORE);
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
    simt_accessed(word, sizeof(by), FAKE_ADD);
    (void)__atomic_fetch_add(word, by, __ATOMIC_RELEASE);
}

EPA_DEV void epa_dev_fence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
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
