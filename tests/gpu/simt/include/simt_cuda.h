/* Included before each .cu file: CUDA C++ for a host compiler. Defines the names of CUDA with their
 * meaning on a host. Names that no kernel uses are missing. */
#ifndef SIMT_CUDA_H
#define SIMT_CUDA_H

#include <cuda_runtime.h>
#include <math.h>
#include <string.h>

#include <tuple>
#include <type_traits>

#include "../simt.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#define __global__
#define __device__
#define __host__
#define __shared__ thread_local /* a block runs on a thread of its own */
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

/* `compile` rewrites config.gridDim, which must not become the variable gridDim, as
 * config.*simt_gridDim. */
static constexpr dim3 cudaLaunchConfig_t::*simt_gridDim = &cudaLaunchConfig_t::gridDim;
static constexpr dim3 cudaLaunchConfig_t::*simt_blockDim = &cudaLaunchConfig_t::blockDim;
#define threadIdx (simt_place()->thread)
#define blockIdx (simt_place()->block)
#define blockDim (simt_place()->threads)
#define gridDim (simt_place()->blocks)

/* Defines a function that consists of one expression. */
#define SIMT_IS(type, name, parameters, expression) \
    static inline type name parameters \
    { \
        return expression; \
    }

/* ---- operations of several threads ---- */

static inline void __syncthreads(void)
{
    (void)simt_block(SIMT_SYNCTHREADS, 0);
}

SIMT_IS(int, __syncthreads_and, (int value), simt_block(SIMT_SYNC_AND, value))
SIMT_IS(int, __syncthreads_or, (int value), simt_block(SIMT_SYNC_OR, value))

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    (void)simt_warp(SIMT_SYNCWARP, mask, 0, 0);
}

SIMT_IS(unsigned, __ballot_sync, (unsigned mask, int value),
        (unsigned)simt_warp(SIMT_BALLOT, mask, value != 0, 0))
SIMT_IS(int, __all_sync, (unsigned mask, int value), __ballot_sync(mask, value) == mask)
SIMT_IS(int, __any_sync, (unsigned mask, int value), __ballot_sync(mask, value) != 0)
SIMT_IS(unsigned, __reduce_or_sync, (unsigned mask, unsigned value),
        (unsigned)simt_warp(SIMT_OR, mask, value, 0))

template <class T> static inline T simt_shuffle(unsigned mask, T value, int from)
{
    uint64_t word = 0;

    static_assert(sizeof(T) <= 8, "lanes pass words");
    memcpy(&word, &value, sizeof(value));
    word = simt_warp(SIMT_SHFL, mask, word, (uint32_t)from);
    memcpy(&value, &word, sizeof(value));
    return value;
}

SIMT_IS(int, simt_lane, (void), (int)(simt_place()->number % SIMT_WARP))

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = SIMT_WARP)
{
    return simt_shuffle(mask, value, (simt_lane() & ~(width - 1)) + (lane & (width - 1)));
}

/* A source lane outside the segment yields the value of the lane itself. */
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = SIMT_WARP)
{
    int lane = simt_lane(), from = lane - (int)by;

    return simt_shuffle(mask, value, from < (lane & ~(width - 1)) ? lane : from);
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = SIMT_WARP)
{
    int lane = simt_lane(), from = lane ^ with;

    return simt_shuffle(mask, value, from > (lane | (width - 1)) ? lane : from);
}

/* ---- memory ---- */

static inline void __threadfence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __threadfence_system(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

#define SIMT_LOAD(name) \
    template <class T> static inline T name(const T *from) \
    { \
        simt_accessed(from, sizeof(*from), FAKE_LOAD); \
        return *from; \
    }
SIMT_LOAD(__ldg)
SIMT_LOAD(__ldcg)

/* Replaces *at by with(*at) and returns the old value. A call without a change may wait for another
 * thread, so it counts as a poll. */
template <class T, class F> static inline T simt_atomic(T *at, F with)
{
    T was;

    simt_accessed(at, sizeof(*at), FAKE_ADD);
    __atomic_load(at, &was, __ATOMIC_RELAXED);
    for (;;) {
        T then = with(was);

        if (__atomic_compare_exchange(at, &was, &then, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            if (memcmp(&was, &then, sizeof(was)) == 0)
                simt_polled();
            return was;
        }
    }
}

/* Takes T from the pointer: a literal may have another type. */
template <class T> struct simt_same {
    typedef T type;
};
#define SIMT_ATOMIC(name, expression) \
    template <class T> static inline T name(T *at, typename simt_same<T>::type value) \
    { \
        return simt_atomic(at, [value](T was) { return (T)(expression); }); \
    }
SIMT_ATOMIC(atomicAdd, was + value)
SIMT_ATOMIC(atomicAdd_system, was + value)
SIMT_ATOMIC(atomicSub, was - value)
SIMT_ATOMIC(atomicMax, value > was ? value : was)
SIMT_ATOMIC(atomicOr, was | value)
SIMT_ATOMIC(atomicInc, was >= value ? 0 : was + 1)

template <class T>
static inline T atomicCAS(T *at, typename simt_same<T>::type expected,
                          typename simt_same<T>::type value)
{
    return simt_atomic(at, [expected, value](T was) { return was == expected ? value : was; });
}

/* ---- numbers ---- */

/* For types that differ in sign the result is unsigned, as in CUDA. */
template <class A, class B> static inline typename std::common_type<A, B>::type min(A a, B b)
{
    typename std::common_type<A, B>::type x = a, y = b;

    return y < x ? y : x;
}

template <class A, class B> static inline typename std::common_type<A, B>::type max(A a, B b)
{
    typename std::common_type<A, B>::type x = a, y = b;

    return y > x ? y : x;
}

SIMT_IS(int, __popc, (unsigned v), __builtin_popcount(v))
SIMT_IS(int, __ffs, (int v), __builtin_ffs(v))
SIMT_IS(int, __clz, (int v), v == 0 ? 32 : __builtin_clz((unsigned)v))

static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which)
{
    uint64_t both = (uint64_t)high << 32 | low;
    unsigned out = 0;

    for (int i = 0; i < 4; i++) {
        unsigned pick = which >> 4 * i, byte = (unsigned)(both >> 8 * (pick & 7)) & 0xff;

        out |= ((pick & 8) == 0 ? byte : (byte & 0x80) != 0 ? 0xffu : 0u) << 8 * i;
    }
    return out;
}

SIMT_IS(unsigned, __vmaxu2, (unsigned a, unsigned b),
        max(a >> 16, b >> 16) << 16 | max(a & 0xffff, b & 0xffff))
SIMT_IS(unsigned, __vcmpltu2, (unsigned a, unsigned b),
        (a >> 16 < b >> 16 ? 0xffff0000u : 0u) | ((a & 0xffff) < (b & 0xffff) ? 0xffffu : 0u))

template <class To, class From> static inline To simt_bits(From from)
{
    To to;

    static_assert(sizeof(to) == sizeof(from), "the same bits");
    memcpy(&to, &from, sizeof(to));
    return to;
}

SIMT_IS(float, __uint_as_float, (unsigned v), simt_bits<float>(v))
SIMT_IS(unsigned, __float_as_uint, (float v), simt_bits<unsigned>(v))
SIMT_IS(float, __fmul_rn, (float a, float b), a *b)
SIMT_IS(float, __fmaf_rn, (float a, float b, float c), fmaf(a, b, c))
SIMT_IS(float, __fdiv_rn, (float a, float b), a / b)
SIMT_IS(float, __frcp_rn, (float a), 1.0f / a)
SIMT_IS(float, __fdividef, (float a, float b), a / b)

#define __expf(a) expf(a) /* CUDA intrinsics that map to functions of the C library */

/* ---- launches ---- */

/* kernel<<<blocks, threads, bytes, stream>>>(args...), as rewritten by `compile`. */
struct simt_where {
    struct simt_grid grid;
    cudaStream_t stream;

    simt_where(dim3 blocks, dim3 threads, size_t bytes = 0, cudaStream_t in = nullptr)
        : grid{blocks, threads, bytes}, stream(in)
    {
    }
};

template <class... P, class... A>
static inline cudaError_t simt_queue_call(void (*kernel)(P...), const struct simt_grid &grid,
                                          cudaStream_t stream, A... args)
{
    typedef std::tuple<typename std::decay<P>::type...> params;
    struct both {
        void (*kernel)(P...);
        params args;
    } what = {kernel, params(args...)};
    struct simt_kernel k = {[](const void *, const void *at) {
                                const both *b = static_cast<const both *>(at);

                                std::apply(b->kernel, b->args);
                            },
                            nullptr, sizeof(what)};

    return simt_queue(&grid, &k, &what, stream);
}

template <class... P, class... A>
static inline void simt_launch(void (*kernel)(P...), const simt_where &where, A... args)
{
    (void)simt_queue_call(kernel, where.grid, where.stream, args...);
}

template <class... P, class... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...),
                                             const A &...args)
{
    const struct simt_grid grid = {config->*simt_gridDim, config->*simt_blockDim,
                                   config->dynamicSmemBytes, 1};

    return simt_queue_call(kernel, grid, config->stream, args...);
}

template <class T>
static inline cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, T *kernel)
{
    return cudaFuncGetAttributes(out, reinterpret_cast<const void *>(kernel));
}

template <class T>
static inline cudaError_t cudaFuncSetAttribute(T *kernel, enum cudaFuncAttribute which, int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), which, value);
}

#endif
