/* See tiles.h. Of a block's three warpgroups one loads, one multiplies, and one does nothing. */
#include "tiles.h"

#include <epa2a/sm90.cuh>

#include <cuda_runtime.h>

#include <stdlib.h>
#include <string.h>

enum {
    THREADS = 384,
    MATH_END = 256,
    STAGES = 3,
    ROWS = 64,
    BLOCK = 128, /* bytes of K in a stage */
    LESS = 40,
    MORE = 216,
    MOST = 256,
    BARRIER = 1,
};

struct product_args {
    CUtensorMap a, b, c;
    uint32_t k_blocks, block_values, cluster;
    enum tiles_fault fault;
};

template <int N> struct product_shared {
    enum { PARTS = N == 8 ? 1 : 2, COLUMNS = N / PARTS }; /* that are stored at a time */
    char a[STAGES][ROWS * BLOCK], b[STAGES][N * BLOCK];
    float out[ROWS][COLUMNS];
    uint64_t full[STAGES], empty[STAGES];
};

/* ---- a product ---- */

/* Each block of a cluster loads its part of the rows of B for all. */
template <int N> EPA_DEV void load(struct product_shared<N> &s, const struct product_args &g)
{
    const uint32_t rank = epa_dev_cluster_rank(), part = N / g.cluster;
    uint32_t phase = g.fault == TILES_PARITY ? 0 : 1;

    for (uint32_t i = 0; i < g.k_blocks; i++) {
        uint32_t stage = i % STAGES;
        int32_t x = (int32_t)(i * g.block_values);
        int32_t row = (int32_t)(blockIdx.y * N + rank * part);

        while (!epa_dev_mbar_try_cluster(&s.empty[stage], phase))
            ;
        epa_dev_mbar_expect(&s.full[stage], (ROWS + N) * BLOCK + (g.fault == TILES_BYTES ? 16 : 0));
        epa_dev_tile_load(s.a[stage], &g.a, x, (int32_t)blockIdx.x * ROWS, &s.full[stage],
                          EPA_L2_NORMAL);
        if (g.cluster == 1)
            epa_dev_tile_load(s.b[stage], &g.b, x, row, &s.full[stage], EPA_L2_EVICT_FIRST);
        else
            epa_dev_tile_load_to(s.b[stage] + rank * part * BLOCK, &g.b, x, row, &s.full[stage],
                                 EPA_L2_NORMAL, (uint16_t)((1u << g.cluster) - 1));
        phase ^= stage == STAGES - 1;
    }
}

template <int N>
EPA_DEV void release(struct product_shared<N> &s, const struct product_args &g, uint32_t stage)
{
    __syncwarp();
    if (threadIdx.x % 32 < g.cluster)
        epa_dev_mbar_arrive_at(&s.empty[stage], threadIdx.x % 32);
}

template <epa_dev_type TYPE, int N>
EPA_DEV void multiply(struct product_shared<N> &s, const struct product_args &g,
                      float (&sum)[N / 2])
{
    uint32_t phase = 0;

    for (uint32_t i = 0; i < g.k_blocks; i++) {
        uint32_t stage = i % STAGES;
        uint64_t a, b;

        if (g.fault != TILES_NO_FULL)
            epa_dev_mbar_wait(&s.full[stage], phase);
        phase ^= stage == STAGES - 1;
        if (g.fault != TILES_NO_WGMMA_FENCE)
            epa_dev_wgmma_begin();
        a = epa_dev_tile_descriptor(s.a[stage] + (g.fault == TILES_CROOKED ? BLOCK : 0));
        b = epa_dev_tile_descriptor(s.b[stage]);
        if (g.fault == TILES_OTHER_DESCRIPTOR && threadIdx.x == MATH_END - 1)
            a = b;
        if (g.fault == TILES_ODD_LANE && threadIdx.x == MATH_END - 1)
            continue;
        for (uint32_t j = 0; j < BLOCK; j += 32)
            epa_dev_wgmma<TYPE, N>(sum, epa_dev_descriptor_add(a, j), epa_dev_descriptor_add(b, j),
                                   i + j > 0);
        epa_dev_wgmma_commit();
        if (g.fault == TILES_EARLY_RELEASE)
            release(s, g, stage);
        epa_dev_wgmma_wait<1>();
        if (i > 0 && g.fault != TILES_EARLY_RELEASE)
            release(s, g, (i - 1) % STAGES);
    }
    if (g.fault != TILES_EARLY_SUM)
        epa_dev_wgmma_wait<0>();
}

template <int N>
EPA_DEV void store(struct product_shared<N> &s, const struct product_args &g,
                   const float (&sum)[N / 2])
{
    enum { PARTS = product_shared<N>::PARTS, COLUMNS = product_shared<N>::COLUMNS };
    const uint32_t t = threadIdx.x % 128, row = t / 32 * 16 + t % 32 / 4;

    for (int part = 0; part < PARTS; part++) {
        if (part > 0 && t == 0 && g.fault != TILES_NO_READ_WAIT)
            epa_dev_bulk_wait_read<0>();
        epa_dev_named_sync(BARRIER, g.fault == TILES_NAMED && t == 127 ? 96 : 128);
        if (g.fault == TILES_EARLY_FENCE)
            epa_dev_fence_async_shared();
        for (int i = 0; i < COLUMNS / 2; i++)
            s.out[row + i / 2 % 2 * 8][i / 4 * 8 + t % 4 * 2 + i % 2] = sum[part * COLUMNS / 2 + i];
        if (g.fault != TILES_NO_FENCE && g.fault != TILES_EARLY_FENCE)
            epa_dev_fence_async_shared();
        epa_dev_named_sync(BARRIER, 128);
        if (t == 0) {
            epa_dev_tile_store(&g.c, (int32_t)(blockIdx.y * N + part * COLUMNS),
                               (int32_t)blockIdx.x * ROWS, s.out);
            epa_dev_bulk_commit();
        }
    }
    if (t == 0 && g.fault != TILES_NO_STORE_WAIT)
        epa_dev_bulk_wait<0>();
    if (g.fault == TILES_EARLY_SUM)
        epa_dev_wgmma_wait<0>();
}

template <epa_dev_type TYPE, int N>
static __global__ void __launch_bounds__(THREADS, 1)
    product(const __grid_constant__ struct product_args g)
{
    extern __shared__ __align__(1024) char shared[];
    struct product_shared<N> &s = *reinterpret_cast<struct product_shared<N> *>(shared);

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            epa_dev_mbar_init(&s.full[i], 1);
            epa_dev_mbar_init(&s.empty[i], 4 * g.cluster);
        }
        if (g.fault != TILES_NO_INIT_FENCE)
            epa_dev_mbar_init_done();
    }
    __syncthreads();
    epa_dev_cluster_arrive();
    epa_dev_cluster_wait();
    if (threadIdx.x < 128) {
        if (g.fault != TILES_REGISTERS && (g.fault != TILES_ODD_REGISTERS || threadIdx.x < 96))
            epa_dev_registers_less<LESS>();
        if (threadIdx.x / 32 == 0 && epa_dev_elect())
            load(s, g);
    } else if (threadIdx.x < MATH_END) {
        float sum[N / 2];

        if (g.fault == TILES_REGISTERS)
            epa_dev_registers_more<MOST>();
        else
            epa_dev_registers_more<MORE>();
        multiply<TYPE>(s, g, sum);
        store(s, g, sum);
    }
    __syncwarp();
    epa_dev_cluster_arrive();
    epa_dev_cluster_wait();
}

/* ---- hosts ---- */

static bool encode(CUtensorMap *out, CUtensorMapDataType type, uint32_t rank, const void *at,
                   const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                   CUtensorMapSwizzle swizzle)
{
    static const uint32_t steps[] = {1, 1, 1};
    enum cudaDriverEntryPointQueryResult found;
    decltype(&cuTensorMapEncodeTiled) call = nullptr;

    return cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&call, 12000,
                                            cudaEnableDefault, &found) == cudaSuccess &&
           call != nullptr &&
           call(out, type, rank, const_cast<void *>(at), dims, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* A matrix [rows][columns] with boxes of `height` rows and `width` columns. */
static bool encode_matrix(CUtensorMap *out, CUtensorMapDataType type, uint32_t bytes,
                          const void *at, uint32_t rows, uint32_t columns, uint32_t height,
                          uint32_t width, CUtensorMapSwizzle swizzle)
{
    const uint64_t dims[] = {columns, rows}, strides[] = {(uint64_t)columns * bytes};
    const uint32_t box[] = {width, height};

    return encode(out, type, 2, at, dims, strides, box, swizzle);
}

/* On the device, with what stands at `from`. */
template <class T> static T *on_device(const T *from, size_t n)
{
    void *at = nullptr;

    if (cudaMalloc(&at, n * sizeof(T)) != cudaSuccess)
        abort();
    (void)cudaMemcpy(at, from, n * sizeof(T), cudaMemcpyHostToDevice);
    return (T *)at;
}

template <class T> static void take_back(T *out, T *at, size_t n)
{
    if (out != nullptr)
        (void)cudaMemcpy(out, at, n * sizeof(T), cudaMemcpyDeviceToHost);
    (void)cudaFree(at);
}

template <epa_dev_type TYPE, int N>
static bool launch(const struct product_args &g, const struct tiles_product *p)
{
    const auto kernel = product<TYPE, N>;
    cudaLaunchAttribute attribute[1] = {};
    cudaLaunchConfig_t config = {};

    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = p->cluster;
    attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
    config.gridDim = dim3(p->m / ROWS, p->n / N);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = sizeof(struct product_shared<N>);
    config.attrs = attribute;
    config.numAttrs = 1;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)config.dynamicSmemBytes) == cudaSuccess &&
           cudaLaunchKernelEx(&config, kernel, g) == cudaSuccess &&
           cudaDeviceSynchronize() == cudaSuccess;
}

bool tiles_multiply(const struct tiles_product *p)
{
    const uint32_t bytes = p->type == TILES_E4M3 ? 1 : 2, n = p->columns;
    const CUtensorMapDataType type = p->type == TILES_E4M3   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                     : p->type == TILES_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                             : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    char *a = on_device((const char *)p->a, (size_t)p->m * p->k * bytes);
    char *b = on_device((const char *)p->b, (size_t)p->n * p->k * bytes);
    float *c = on_device(p->c, (size_t)p->m * p->n);
    struct product_args g = {};
    bool ok;

    g.block_values = BLOCK / bytes;
    g.k_blocks = p->k / g.block_values;
    g.cluster = p->cluster;
    g.fault = p->fault;
    ok = encode_matrix(&g.a, type, bytes, a, p->m, p->k, ROWS, g.block_values,
                       CU_TENSOR_MAP_SWIZZLE_128B) &&
         encode_matrix(&g.b, type, bytes, b, p->n, p->k, n / p->cluster, g.block_values,
                       CU_TENSOR_MAP_SWIZZLE_128B) &&
         encode_matrix(&g.c, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, c, p->m, p->n, ROWS,
                       n == 8 ? n : n / 2, CU_TENSOR_MAP_SWIZZLE_NONE);
    if (ok && n == 8)
        ok = p->type == TILES_BF16  ? launch<EPA_DEV_BF16, 8>(g, p)
             : p->type == TILES_F16 ? launch<EPA_DEV_F16, 8>(g, p)
                                    : launch<EPA_DEV_E4M3, 8>(g, p);
    else if (ok)
        ok = p->type == TILES_BF16  ? launch<EPA_DEV_BF16, 128>(g, p)
             : p->type == TILES_F16 ? launch<EPA_DEV_F16, 128>(g, p)
                                    : launch<EPA_DEV_E4M3, 128>(g, p);
    take_back<char>(nullptr, a, 0);
    take_back<char>(nullptr, b, 0);
    take_back(p->c, c, (size_t)p->m * p->n);
    return ok;
}

/* ---- a box ---- */

struct box_args {
    CUtensorMap from, back;
    int32_t x, y, z;
    uint32_t words, planes;
    uint16_t *out;
};

static __global__ void copy_box(const __grid_constant__ struct box_args g)
{
    extern __shared__ __align__(1024) char shared[];
    uint16_t *box = reinterpret_cast<uint16_t *>(shared + 1024);
    uint64_t *bar = reinterpret_cast<uint64_t *>(shared);

    if (threadIdx.x == 0) {
        epa_dev_map_prefetch(&g.from);
        epa_dev_mbar_init(bar, 1);
        epa_dev_mbar_init_done();
        epa_dev_mbar_expect(bar, g.words * 2);
        if (g.planes > 1)
            epa_dev_tile_load3(box, &g.from, g.x, g.y, g.z, bar, EPA_L2_NORMAL);
        else
            epa_dev_tile_load(box, &g.from, g.x, g.y, bar, EPA_L2_NORMAL);
    }
    __syncthreads();
    epa_dev_mbar_wait(bar, 0);
    for (uint32_t i = threadIdx.x; i < g.words; i += blockDim.x) {
        g.out[i] = box[i];
        box[i] += 1000;
    }
    epa_dev_fence_async_shared();
    __syncthreads();
    if (threadIdx.x == 0 && g.planes == 1) {
        epa_dev_tile_store(&g.back, g.x, g.y, box);
        epa_dev_bulk_commit();
        epa_dev_bulk_wait<0>();
    }
}

bool tiles_copy(const struct tiles_box *b)
{
    const size_t n = (size_t)b->columns * b->rows * b->planes;
    const uint64_t dims[] = {b->columns, b->rows, b->planes};
    const uint64_t strides[] = {b->columns * 2, (uint64_t)b->columns * b->rows * 2};
    const uint32_t box[] = {b->width, b->height, b->depth}, rank = b->planes > 1 ? 3 : 2;
    const CUtensorMapSwizzle swizzle = b->swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : b->swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                       : b->swizzle_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                                : CU_TENSOR_MAP_SWIZZLE_NONE;
    uint16_t *from = on_device(b->from, n), *back = on_device(b->back, n);
    struct box_args g = {};
    bool ok;

    g.x = b->x, g.y = b->y, g.z = b->z;
    g.words = b->width * b->height * b->depth;
    g.planes = b->planes;
    g.out = on_device(b->out, g.words);
    ok = encode(&g.from, CU_TENSOR_MAP_DATA_TYPE_UINT16, rank, from, dims, strides, box, swizzle) &&
         encode(&g.back, CU_TENSOR_MAP_DATA_TYPE_UINT16, rank, back, dims, strides, box, swizzle);
    if (ok)
        copy_box<<<1, 64, 1024 + g.words * 2>>>(g);
    ok = ok && cudaGetLastError() == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess;
    take_back(b->out, g.out, g.words);
    take_back(b->back, back, n);
    take_back<uint16_t>(nullptr, from, 0);
    return ok;
}

/* ---- sums, and a transposition ---- */

static __global__ void add(const float *from, float *out, uint32_t bytes)
{
    extern __shared__ __align__(1024) char shared[];
    uint64_t *bar = reinterpret_cast<uint64_t *>(shared);

    if (threadIdx.x != 0)
        return;
    epa_dev_mbar_init(bar, 1);
    epa_dev_mbar_init_done();
    epa_dev_mbar_expect(bar, bytes);
    epa_dev_bulk_load(shared + 1024, from, bytes, bar, EPA_L2_NORMAL);
    epa_dev_mbar_wait(bar, 0);
    epa_dev_bulk_add(out, reinterpret_cast<const float *>(shared + 1024), bytes / 2);
    epa_dev_bulk_commit();
    for (uint32_t i = bytes / 8; i < bytes / 4; i += 4)
        epa_dev_add_float4(out + i, *reinterpret_cast<const float4 *>(shared + 1024 + i * 4));
    epa_dev_bulk_wait<0>();
}

bool tiles_add(const float *from, float *out, uint32_t n, uint32_t blocks)
{
    float *values = on_device(from, n), *sums = on_device(out, n);
    bool ok;

    add<<<blocks, 32, 1024 + n * 4>>>(values, sums, n * 4);
    ok = cudaGetLastError() == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess;
    take_back(out, sums, n);
    take_back<float>(nullptr, values, 0);
    return ok;
}

static __global__ void transpose(const uint32_t *from, uint32_t *out)
{
    out[threadIdx.x] = epa_dev_transpose(from[threadIdx.x]);
}

bool tiles_transpose(const uint16_t from[64], uint16_t out[64])
{
    uint16_t *here = on_device(from, 64), *there = on_device(out, 64);
    bool ok;

    transpose<<<1, 32>>>((const uint32_t *)here, (uint32_t *)there);
    ok = cudaGetLastError() == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess;
    take_back(out, there, 64);
    take_back<uint16_t>(nullptr, here, 0);
    return ok;
}
