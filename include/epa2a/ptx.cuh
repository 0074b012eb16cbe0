/* For kernels: instructions that CUDA C++ does not offer. Kernels use assembler through this file
 * and sm90.cuh where possible, so that they run on each platform that implements these
 * functions. */
#ifndef EPA2A_PTX_CUH
#define EPA2A_PTX_CUH

#include <stdint.h>

/* A device function with internal linkage. */
#define EPA_DEV static __device__ __forceinline__

EPA_DEV uint64_t epa_dev_time(void)
{
    uint64_t ns;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

/* Returns a thread's number in its warp, for one-dimensional blocks. Without a spare register, the
 * compiler computes threadIdx.x % 32 at each use, which takes time. A file of kernels that defines
 * EPA_DEV_KEEP_LANE before the include reserves a register instead. A measurement has to show the
 * faster variant. */
#ifdef EPA_DEV_KEEP_LANE
EPA_DEV uint32_t epa_dev_lane(void)
{
    uint32_t lane;

    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
#else
EPA_DEV uint32_t epa_dev_lane(void)
{
    return threadIdx.x % 32;
}
#endif

/* ---- words shared by ranks ---- */

EPA_DEV uint64_t epa_dev_load_acquire(const uint64_t *word)
{
    uint64_t value;

    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

EPA_DEV uint64_t epa_dev_load_relaxed(const uint64_t *word)
{
    uint64_t value;

    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

/* Plain store to memory of any rank; the release of a later flag orders it. An emulator counts the
 * stores to other ranks. */
template <class T> EPA_DEV void epa_dev_store(T *to, T value)
{
    *to = value;
}

/* Counts bytes that a descriptor of ring.cuh sends to another node. Only an emulator counts. */
EPA_DEV void epa_dev_count_far(uint64_t bytes)
{
    (void)bytes;
}

EPA_DEV void epa_dev_store_relaxed(uint64_t *word, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

/* Release: all stores and observations of this thread are visible before the value. */
EPA_DEV void epa_dev_store_release(uint64_t *word, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

/* Counters to which several ranks add. Load: acquire. Add: release, as above. */
EPA_DEV uint32_t epa_dev_load_acquire32(const uint32_t *word)
{
    uint32_t value;

    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

EPA_DEV void epa_dev_add_release32(uint32_t *word, uint32_t by)
{
    asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(word), "r"(by) : "memory");
}

/* Fence: all stores and observations of this thread are visible before its later stores. */
EPA_DEV void epa_dev_fence(void)
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* Store and load of 16 bytes as one unit; `to` and `from` are multiples of 16. */
EPA_DEV void epa_dev_store_pair(char *to, uint64_t first, uint64_t second)
{
    asm volatile(
        "{ .reg .b128 t; mov.b128 t, {%1, %2}; st.relaxed.sys.global.b128 [%0], t; }" ::"l"(to),
        "l"(first), "l"(second)
        : "memory");
}

EPA_DEV void epa_dev_load_pair(const char *from, uint64_t *first, uint64_t *second)
{
    asm volatile("{ .reg .b128 t; ld.relaxed.sys.global.b128 t, [%2]; mov.b128 {%0, %1}, t; }"
                 : "=l"(*first), "=l"(*second)
                 : "l"(from)
                 : "memory");
}

/* ---- kernels of one stream ---- */

/* Waits until the previous kernel has ended and its stores are visible. */
EPA_DEV void epa_dev_after_kernel(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* Permits the set-up of the next kernel from here on. */
EPA_DEV void epa_dev_next_kernel(void)
{
    asm volatile("griddepcontrol.launch_dependents;");
}

/* ---- numbers ---- */

/* Converts four e4m3 codes into two pairs of float16. */
EPA_DEV void epa_dev_fp8_to_f16(uint32_t codes, uint32_t pair[2])
{
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; "
        "cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high; }"
        : "=r"(pair[0]), "=r"(pair[1])
        : "r"(codes));
}

#endif
