/* For kernels of GPUs of compute capability 9.0: instructions that move and multiply tiles. ptx.cuh
 * has the other instructions. NVIDIA's "Parallel Thread Execution ISA" describes each instruction;
 * the comments here state the obligations of the caller.
 *
 * - Tiles lie in shared memory in rows of 128 bytes, swizzled: 16-byte piece p of row r
 *   is at r * 128 + (p ^ r % 8) * 16, and a tile begins at a multiple of 1024 bytes. Tensor loads
 *   write this layout, epa_dev_wgmma() reads it. A row holds 64 values of 16 bits or 128 of FP8.
 * - The phase of an mbarrier ends when its initial number of arrivals and the expected number of
 *   bytes have arrived. A waiting thread passes the parity of the phase: 0 for the first.
 * - "One thread": its instruction works for the whole block. "Warpgroup": all threads of four
 *   consecutive warps of which the first is a multiple of 4.
 * - Bulk copies and wgmma access memory through a separate proxy. Data that threads have stored in
 *   shared memory need epa_dev_fence_async_shared() by each of these threads before the barrier
 *   after which a thread copies or multiplies the data. A load that completes on an mbarrier needs
 *   no fence.
 *
 * Compile with -gencode arch=compute_90a,code=sm_90a. */
#ifndef EPA2A_SM90_CUH
#define EPA2A_SM90_CUH

#include <cuda.h>

#include <epa2a/ptx.cuh>

enum { EPA_TILE_ROW = 128, EPA_TILE_ALIGN = 1024 };

/* Hints to the L2 cache for loaded lines. */
#define EPA_L2_NORMAL 0x1000000000000000ull
#define EPA_L2_EVICT_FIRST 0x12f0000000000000ull
#define EPA_L2_EVICT_LAST 0x14f0000000000000ull

EPA_DEV uint32_t epa_dev_shared_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* Sets the number of registers of each thread of this warpgroup; a multiple of 8. The kernel has
 * __launch_bounds__(threads, 1). All threads of the warpgroup call. */
template <int REGISTERS> EPA_DEV void epa_dev_registers_more(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> EPA_DEV void epa_dev_registers_less(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* ---- barriers of some warps of a block: `threads` is a multiple of 32; id 1 to 15 ---- */

EPA_DEV void epa_dev_named_sync(uint32_t id, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- mbarriers ---- */

/* One thread calls it, before any use. */
EPA_DEV void epa_dev_mbar_init(uint64_t *bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(epa_dev_shared_address(bar)),
                 "r"(arrivals)
                 : "memory");
}

/* Called after the last init, before the barrier of the block. */
EPA_DEV void epa_dev_mbar_init_done(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Release: a thread that waits for the phase sees all earlier stores of this thread. */
EPA_DEV void epa_dev_mbar_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(epa_dev_shared_address(bar))
                 : "memory");
}

/* Arrives, and adds `bytes` to the expected bytes of this phase; < 2^20 in total. */
EPA_DEV void epa_dev_mbar_expect(uint64_t *bar, uint32_t bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(epa_dev_shared_address(bar)),
        "r"(bytes)
        : "memory");
}

/* Returns true if the phase of that parity has ended. May wait for a while before it returns false.
 * Acquire. */
EPA_DEV bool epa_dev_mbar_try(uint64_t *bar, uint32_t parity)
{
    uint32_t ended;

    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                 "selp.b32 %0, 1, 0, p; }"
                 : "=r"(ended)
                 : "r"(epa_dev_shared_address(bar)), "r"(parity)
                 : "memory");
    return ended != 0;
}

/* The same without a wait. */
EPA_DEV bool epa_dev_mbar_test(uint64_t *bar, uint32_t parity)
{
    uint32_t ended;

    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; "
                 "selp.b32 %0, 1, 0, p; }"
                 : "=r"(ended)
                 : "r"(epa_dev_shared_address(bar)), "r"(parity)
                 : "memory");
    return ended != 0;
}

EPA_DEV void epa_dev_mbar_wait(uint64_t *bar, uint32_t parity)
{
    while (!epa_dev_mbar_try(bar, parity))
        ;
}

/* ---- fences between the proxies ---- */

EPA_DEV void epa_dev_fence_async_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Writer: called between its stores to global memory and the release that signals them. Reader:
 * called between the acquire and its bulk loads of the stored data. */
EPA_DEV void epa_dev_fence_async_global(void)
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* ---- bulk copies: one thread; addresses and bytes are multiples of 16 ---- */

EPA_DEV void epa_dev_bulk_load(void *shared, const void *from, uint32_t bytes, uint64_t *bar,
                               uint64_t l2)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(epa_dev_shared_address(shared)),
                 "l"(from), "r"(bytes), "r"(epa_dev_shared_address(bar)), "l"(l2)
                 : "memory");
}

/* Prefetches 32 bytes of global memory into the L2 cache. No completion is signalled. */
EPA_DEV void epa_dev_prefetch(const void *from)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

EPA_DEV void epa_dev_bulk_store(void *to, const void *shared, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(epa_dev_shared_address(shared)), "r"(bytes)
                 : "memory");
}

/* Makes a group of the stores of this thread since the last commit. */
EPA_DEV void epa_dev_bulk_commit(void)
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until at most PENDING groups of this thread are incomplete. The stores of complete groups
 * are visible to this thread, and by its release to other threads. */
template <int PENDING> EPA_DEV void epa_dev_bulk_wait(void)
{
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Waits until the shared memory of all but PENDING groups may be written again. */
template <int PENDING> EPA_DEV void epa_dev_bulk_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

/* ---- copies of 16 bytes to shared memory: each thread its own; no other proxy, so no fences
 * ---- */

EPA_DEV void epa_dev_copy16(void *shared, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(epa_dev_shared_address(shared)),
                 "l"(from)
                 : "memory");
}

/* Makes a group of the copies of this thread since the last commit. */
EPA_DEV void epa_dev_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most PENDING groups of this thread are incomplete. This thread can read the data
 * of complete groups, and after a barrier other threads can. */
template <int PENDING> EPA_DEV void epa_dev_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* ---- copies of tiles: one thread; `map` is a __grid_constant__ argument of the kernel ---- */

EPA_DEV void epa_dev_map_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Loads the box whose first element is `x` in row `y`. Elements beyond the tensor are 0, and count
 * as arrived bytes. */
EPA_DEV void epa_dev_tile_load(void *shared, const CUtensorMap *map, int32_t x, int32_t y,
                               uint64_t *bar, uint64_t l2)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
        "L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(epa_dev_shared_address(shared)),
        "l"(map), "r"(x), "r"(y), "r"(epa_dev_shared_address(bar)), "l"(l2)
        : "memory");
}

/* ---- clusters: blocks on neighbouring multiprocessors, which reach each other's shared memory. A
 * variable has the same shared address in each block. ---- */

/* Returns the rank of this block in its cluster. */
EPA_DEV uint32_t epa_dev_cluster_rank(void)
{
    uint32_t rank;

    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Synchronizes all threads of all blocks of the cluster. Required before the first access to
 * another block, and before the end of a block that other blocks access. */
EPA_DEV void epa_dev_cluster_sync(void)
{
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Arrives at block `rank`'s mbarrier. */
EPA_DEV void epa_dev_cluster_arrive(uint64_t *bar, uint32_t rank)
{
    asm volatile(
        "{ .reg .b32 at; mapa.shared::cluster.u32 at, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [at]; }" ::"r"(epa_dev_shared_address(bar)),
        "r"(rank)
        : "memory");
}

/* Stores to block `rank`'s shared memory; 8 bytes arrive at its mbarrier. */
EPA_DEV void epa_dev_cluster_store(uint64_t *shared, uint64_t value, uint64_t *bar, uint32_t rank)
{
    asm volatile(
        "{ .reg .b32 to, at; mapa.shared::cluster.u32 to, %0, %3; mapa.shared::cluster.u32 at, %2, "
        "%3; st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [to], %1, [at]; }" ::
            "r"(epa_dev_shared_address(shared)),
        "l"(value), "r"(epa_dev_shared_address(bar)), "r"(rank)
        : "memory");
}

/* Runs epa_dev_tile_load() into all blocks whose bit is in `blocks`, each with its mbarrier. */
EPA_DEV void epa_dev_tile_multicast(void *shared, const CUtensorMap *map, int32_t x, int32_t y,
                                    uint64_t *bar, uint32_t blocks, uint64_t l2)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
                 "multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(
                     epa_dev_shared_address(shared)),
                 "l"(map), "r"(x), "r"(y), "r"(epa_dev_shared_address(bar)), "h"((uint16_t)blocks),
                 "l"(l2)
                 : "memory");
}

/* ---- counters of one GPU ---- */

/* Release: pairs with epa_dev_load_acquire32(). */
EPA_DEV void epa_dev_add_release_gpu(uint32_t *word, uint32_t by)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(word), "r"(by) : "memory");
}

/* ---- matrices: warpgroups ---- */

/* Transposes an 8 x 8 matrix of 16-bit elements: lane i has elements 2 * (i % 4) and the next of
 * row i / 4. One warp. */
EPA_DEV uint32_t epa_dev_transpose(uint32_t word)
{
    uint32_t out;

    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(word));
    return out;
}

/* Describes a tile of rows of 128 bytes for epa_dev_wgmma(): its 32 bytes of each row from `shared`
 * on. `shared` is the tile's beginning (or the beginning of any eighth row) plus 0, 32, 64 or 96
 * bytes. */
EPA_DEV uint64_t epa_dev_tile_descriptor(const void *shared)
{
    /* Address; distance of 8 rows, 1024 bytes; swizzle of 128 bytes. The first two in units of
     * 16. */
    return (uint64_t)(epa_dev_shared_address(shared) >> 4 & 0x3fff) | 1ull << 16 |
           (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

/* Advances a descriptor by `bytes`, within the same 256 KiB: a multiple of 16. */
EPA_DEV uint64_t epa_dev_descriptor_add(uint64_t descriptor, uint32_t bytes)
{
    return descriptor + (bytes >> 4);
}

/* Required before the first wgmma, and after other instructions accessed registers of a sum. */
EPA_DEV void epa_dev_wgmma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Makes a group of the wgmma since the last commit. */
EPA_DEV void epa_dev_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most PENDING groups are incomplete. Other instructions must not access the sums
 * earlier. */
template <int PENDING> EPA_DEV void epa_dev_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

enum epa_dev_type { EPA_DEV_BF16, EPA_DEV_F16, EPA_DEV_E4M3 };

#define EPA_WGMMA_R4 "%0, %1, %2, %3"
#define EPA_WGMMA_R8 EPA_WGMMA_R4 ", %4, %5, %6, %7"
#define EPA_WGMMA_R16 EPA_WGMMA_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define EPA_WGMMA_R32 \
    EPA_WGMMA_R16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define EPA_WGMMA_R48 \
    EPA_WGMMA_R32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define EPA_WGMMA_R64 \
    EPA_WGMMA_R48 \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define EPA_WGMMA_R128 \
    EPA_WGMMA_R64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119" \
    ", %120, %121, %122, %123, %124, %125, %126, %127"
#define EPA_WGMMA_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define EPA_WGMMA_D8(d, i) EPA_WGMMA_D4(d, i), EPA_WGMMA_D4(d, i + 4)
#define EPA_WGMMA_D16(d, i) EPA_WGMMA_D8(d, i), EPA_WGMMA_D8(d, i + 8)
#define EPA_WGMMA_D32(d, i) EPA_WGMMA_D16(d, i), EPA_WGMMA_D16(d, i + 16)
#define EPA_WGMMA_D48(d, i) EPA_WGMMA_D32(d, i), EPA_WGMMA_D16(d, i + 32)
#define EPA_WGMMA_D64(d, i) EPA_WGMMA_D32(d, i), EPA_WGMMA_D32(d, i + 32)
#define EPA_WGMMA_D128(d, i) EPA_WGMMA_D64(d, i), EPA_WGMMA_D64(d, i + 64)
#define EPA_WGMMA(N, C, IN, AT_A, AT_B, AT_SUM, END) \
    asm volatile("{ .reg .pred sum; setp.ne.b32 sum, %" AT_SUM ", 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #N IN " {" EPA_WGMMA_R##C \
                 "}, %" AT_A ", %" AT_B ", sum, 1, 1" END "; }" \
                 : EPA_WGMMA_D##C(d, 0) \
                 : "l"(a), "l"(b), "r"((uint32_t)sum))
#define EPA_WGMMA_TYPES(N, C, AT_A, AT_B, AT_SUM) \
    do { \
        if constexpr (TYPE == EPA_DEV_BF16) \
            EPA_WGMMA(N, C, "k16.f32.bf16.bf16", AT_A, AT_B, AT_SUM, ", 0, 0"); \
        else if constexpr (TYPE == EPA_DEV_F16) \
            EPA_WGMMA(N, C, "k16.f32.f16.f16", AT_A, AT_B, AT_SUM, ", 0, 0"); \
        else \
            EPA_WGMMA(N, C, "k32.f32.e4m3.e4m3", AT_A, AT_B, AT_SUM, ""); \
    } while (0)

/* D = A * B^T (+ D if `sum`), over 32 bytes of K: A has 64 rows, B has N. Thread t of the
 * warpgroup gets of row t / 32 * 16 + t % 32 / 4 (+ 8 where i / 2 is odd) column
 * i / 4 * 8 + t % 4 * 2 + i % 2 in d[i]. */
template <epa_dev_type TYPE, int N>
EPA_DEV void epa_dev_wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, bool sum)
{
    static_assert(N == 8 || N == 16 || N == 32 || N == 64 || N == 96 || N == 128 || N == 256,
                  "columns");
    if constexpr (N == 8)
        EPA_WGMMA_TYPES(8, 4, "4", "5", "6");
    else if constexpr (N == 16)
        EPA_WGMMA_TYPES(16, 8, "8", "9", "10");
    else if constexpr (N == 32)
        EPA_WGMMA_TYPES(32, 16, "16", "17", "18");
    else if constexpr (N == 64)
        EPA_WGMMA_TYPES(64, 32, "32", "33", "34");
    else if constexpr (N == 96)
        EPA_WGMMA_TYPES(96, 48, "48", "49", "50");
    else if constexpr (N == 128)
        EPA_WGMMA_TYPES(128, 64, "64", "65", "66");
    else
        EPA_WGMMA_TYPES(256, 128, "128", "129", "130");
}

#undef EPA_WGMMA_TYPES
#undef EPA_WGMMA

#endif
