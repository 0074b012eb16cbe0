/* Replaces include/epa2a/sm90.cuh: the same functions, emulated (../../README.md). */
#ifndef EPA2A_SM90_CUH
#define EPA2A_SM90_CUH

#include <epa2a/ptx.cuh>

enum { EPA_TILE_ROW = 128, EPA_TILE_ALIGN = 1024 };

/* Functions that the emulator implements directly. */
#define epa_dev_shared_address simt_shared_address
#define epa_dev_named_sync simt_named
#define epa_dev_mbar_init simt_mbar_init
#define epa_dev_mbar_init_done simt_mbar_init_done
#define epa_dev_mbar_expect simt_mbar_arrive
#define epa_dev_mbar_try simt_mbar_try
#define epa_dev_mbar_test simt_mbar_try
#define epa_dev_cluster_rank simt_cluster_rank
#define epa_dev_cluster_sync simt_cluster_sync
#define epa_dev_cluster_arrive simt_cluster_arrive
#define epa_dev_cluster_store simt_cluster_store
#define epa_dev_fence_async_shared simt_fence_async
#define epa_dev_bulk_store simt_bulk_store
#define epa_dev_bulk_commit simt_bulk_commit
#define epa_dev_copy16 simt_copy16
#define epa_dev_copy_commit simt_copy_commit
#define epa_dev_add_release_gpu epa_dev_add_release32
#define epa_dev_fence_async_global epa_dev_fence /* there is a single global memory */
#define epa_dev_wgmma_begin simt_wgmma_begin
#define epa_dev_wgmma_commit simt_wgmma_commit

#define EPA_L2_NORMAL 0x1000000000000000ull
#define EPA_L2_EVICT_FIRST 0x12f0000000000000ull
#define EPA_L2_EVICT_LAST 0x14f0000000000000ull

template <int REGISTERS> EPA_DEV void epa_dev_registers_more(void)
{
    simt_registers(REGISTERS, true);
}

template <int REGISTERS> EPA_DEV void epa_dev_registers_less(void)
{
    simt_registers(REGISTERS, false);
}

EPA_DEV void epa_dev_mbar_arrive(uint64_t *bar)
{
    simt_mbar_arrive(bar, 0);
}

EPA_DEV void epa_dev_mbar_wait(uint64_t *bar, uint32_t parity)
{
    while (!epa_dev_mbar_try(bar, parity))
        ;
}

EPA_DEV void epa_dev_bulk_load(void *shared, const void *from, uint32_t bytes, uint64_t *bar,
                               uint64_t)
{
    simt_bulk_load(shared, from, bytes, bar);
}

/* There is no cache; the read detects invalid addresses. */
EPA_DEV void epa_dev_prefetch(const void *from)
{
    (void)*static_cast<const volatile char *>(from);
}

template <int PENDING> EPA_DEV void epa_dev_bulk_wait(void)
{
    simt_bulk_wait(PENDING, false);
}

template <int PENDING> EPA_DEV void epa_dev_bulk_wait_read(void)
{
    simt_bulk_wait(PENDING, true);
}

template <int PENDING> EPA_DEV void epa_dev_copy_wait(void)
{
    simt_copy_wait(PENDING);
}

EPA_DEV void epa_dev_map_prefetch(const CUtensorMap *)
{
}

EPA_DEV void epa_dev_tile_load(void *shared, const CUtensorMap *map, int32_t x, int32_t y,
                               uint64_t *bar, uint64_t)
{
    simt_tile_load(shared, map, x, y, bar);
}

EPA_DEV void epa_dev_tile_multicast(void *shared, const CUtensorMap *map, int32_t x, int32_t y,
                                    uint64_t *bar, uint32_t blocks, uint64_t)
{
    simt_tile_multicast(shared, map, x, y, bar, blocks);
}

/* Element (r, c) is in lane r * 4 + c / 2, in its half c % 2. */
EPA_DEV uint32_t epa_dev_transpose(uint32_t word)
{
    int lane = simt_lane(), from = lane % 4 * 8 + lane / 8, half = lane / 4 % 2 * 16;
    uint32_t low = __shfl_sync(0xffffffffu, word, from);
    uint32_t high = __shfl_sync(0xffffffffu, word, from + 4);

    return (low >> half & 0xffff) | (high >> half) << 16;
}

EPA_DEV uint64_t epa_dev_tile_descriptor(const void *shared)
{
    return (uint64_t)(epa_dev_shared_address(shared) >> 4 & 0x3fff) | 1ull << 16 |
           (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

EPA_DEV uint64_t epa_dev_descriptor_add(uint64_t descriptor, uint32_t bytes)
{
    return descriptor + (bytes >> 4);
}

template <int PENDING> EPA_DEV void epa_dev_wgmma_wait(void)
{
    simt_wgmma_wait(PENDING);
}

enum epa_dev_type {
    EPA_DEV_BF16 = SIMT_BF16,
    EPA_DEV_F16 = SIMT_F16,
    EPA_DEV_E4M3 = SIMT_E4M3,
};

template <epa_dev_type TYPE, int N>
EPA_DEV void epa_dev_wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, bool sum)
{
    static_assert(N == 8 || N == 16 || N == 32 || N == 64 || N == 96 || N == 128 || N == 256,
                  "columns");
    const struct simt_product what = {a, b, N, static_cast<enum simt_type>(TYPE), sum};

    simt_wgmma(d, &what);
}

#endif
