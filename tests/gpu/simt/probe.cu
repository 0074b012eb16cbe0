/* See probe.h. Blocks have two warps. */
#include "probe.h"

#include <epa2a/packets.cuh>
#include <epa2a/sm90.cuh>

#include <cuda_runtime.h>

#include <stdlib.h>
#include <string.h>

enum { THREADS = 64, ODD = 40 };

static __global__ void nothing(int *words)
{
    __syncthreads();
    words[threadIdx.x] = __shfl_sync(0xffffffffu, (int)threadIdx.x, 3);
}

static __global__ void lost_barrier(int *words)
{
    if (threadIdx.x == ODD)
        words[0] = __shfl_sync(0xffffffffu, 1, 0);
    else
        __syncthreads();
}

static __global__ void other_barrier(int *words)
{
    if (threadIdx.x < 32)
        words[0] = __syncthreads_and(1);
    else
        __syncthreads();
}

static __global__ void foreign_lane(int *words)
{
    if (threadIdx.x < 16)
        words[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
}

static __global__ void crooked_store(int *words)
{
    if (threadIdx.x == 0)
        epa_dev_store_pair((char *)words + 8, 1, 2);
}

static __global__ void behind_memory(int *words)
{
    words[THREADS + threadIdx.x] = 1;
}

/* ---- the time is up ---- */

enum { PACKETS = 8, MOST_LOOKS = 1000 };

/* What kernels look at while they wait, and a row. */
struct late {
    struct epa_fault fault;
    uint32_t stop;
    __align__(128) char row[PACKETS * EPA_PACKET];
    unsigned looks;
};

/* Polls as kernels do, until all of the row is there, which is when the time is up. */
static __global__ void late_row(struct late *l, bool last)
{
    uint64_t *first_count = (uint64_t *)(l->row + EPA_PACKET) - 1;
    uint64_t *last_count = (uint64_t *)(l->row + PACKETS * EPA_PACKET) - 1;
    struct epa_dev_poll poll = {};
    struct {
        struct epa_device_view v;
        uint64_t timeout_ns;
    } a = {};

    a.v.fault = &l->fault;
    a.v.stop = &l->stop;
    *first_count = last;
    *last_count = !last;
    for (unsigned i = 1; i < MOST_LOOKS; i++) {
        if (*first_count == 1 && *last_count == 1) {
            l->looks = i;
            return;
        }
        if (!epa_dev_packet_wait(a, l->row, PACKETS, 1, {}, &poll))
            return;
        if (poll.late)
            *first_count = *last_count = 1;
    }
}

static __global__ void late_word(struct late *l)
{
    struct epa_device_view v = {};
    struct epa_dev_poll poll = {};

    v.fault = &l->fault;
    v.stop = &l->stop;
    for (l->looks = 1; !epa_dev_poll_expired(v, &poll, 0, {}, 0, 1); l->looks++)
        ;
}

static struct late *late_create(void)
{
    struct late *l = nullptr;

    if (cudaMalloc((void **)&l, sizeof(*l)) != cudaSuccess)
        abort();
    memset(l, 0, sizeof(*l));
    return l;
}

unsigned probe_late_row(bool last)
{
    struct late *l = late_create();
    unsigned looks;

    late_row<<<1, 1>>>(l, last);
    (void)cudaDeviceSynchronize();
    looks = l->looks;
    (void)cudaFree(l);
    return looks;
}

unsigned probe_late_word(void)
{
    struct late *l = late_create();
    unsigned polls;

    late_word<<<1, 1>>>(l);
    (void)cudaDeviceSynchronize();
    polls = l->looks;
    (void)cudaFree(l);
    return polls;
}

/* ---- a line that is looked at while it is stored ---- */

/* One warp stores all of a line, then a single word of the next state of it, then the rest
 * while the other looks. */
static __global__ void torn_line(struct late *l)
{
    uint32_t lane = threadIdx.x % 32;
    bool stores = threadIdx.x >= 32, looks = !stores && lane < 8;
    uint64_t w[2] = {0, 0}, end;

    if (stores && lane < 8)
        epa_dev_store_pair(l->row + lane * 16, 1, 1);
    __syncthreads();
    if (looks)
        epa_dev_load_pair(l->row + lane * 16, &w[0], &w[1]);
    __syncthreads();
    if (stores && lane == 0)
        epa_dev_store_pair(l->row, 2, 1);
    __syncthreads();
    if (stores && lane < 8)
        epa_dev_store_pair(l->row + lane * 16, 2, 2);
    if (looks)
        epa_dev_load_pair(l->row + lane * 16, &w[0], &w[1]);
    end = __shfl_sync(0xffffffffu, w[1], 7);
    if (looks && end == 2 && w[1] != 2)
        atomicAdd(&l->looks, 1);
}

unsigned probe_torn_line(void)
{
    struct late *l = late_create();
    unsigned torn;

    torn_line<<<1, THREADS>>>(l);
    (void)cudaDeviceSynchronize();
    torn = l->looks;
    (void)cudaFree(l);
    return torn;
}

/* ---- what is wrong ---- */

static void run(void (*kernel)(int *))
{
    int *words = nullptr;

    if (cudaMalloc((void **)&words, THREADS * sizeof(*words)) != cudaSuccess)
        return;
    kernel<<<1, THREADS>>>(words);
    (void)cudaDeviceSynchronize();
    (void)cudaFree(words);
}

void probe_nothing(void)
{
    run(nothing);
}

void probe_lost_barrier(void)
{
    run(lost_barrier);
}

void probe_other_barrier(void)
{
    run(other_barrier);
}

void probe_foreign_lane(void)
{
    run(foreign_lane);
}

void probe_crooked_store(void)
{
    run(crooked_store);
}

void probe_behind_memory(void)
{
    run(behind_memory);
}

/* ---- products of tiles: of a block's three warpgroups one loads, one multiplies, and one does nothing ---- */

enum {
    TILES_THREADS = 384,
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
    CUtensorMap a, b;
    float *c;
    uint32_t n, k_blocks, block_values;
    enum tiles_fault fault;
};

template <int N> struct product_shared {
    enum { PARTS = N == 8 ? 1 : 2, COLUMNS = N / PARTS }; /* that are stored at a time */
    char a[STAGES][ROWS * BLOCK], b[STAGES][N * BLOCK];
    float out[ROWS][COLUMNS];
    uint64_t full[STAGES], empty[STAGES];
};

/* ---- a product ---- */

template <int N> EPA_DEV void load(struct product_shared<N> &s, const struct product_args &g)
{
    uint32_t phase = g.fault == TILES_PARITY ? 0 : 1;

    for (uint32_t i = 0; i < g.k_blocks; i++) {
        uint32_t stage = i % STAGES;
        int32_t x = (int32_t)(i * g.block_values);

        epa_dev_mbar_wait(&s.empty[stage], phase);
        epa_dev_mbar_expect(&s.full[stage], (ROWS + N) * BLOCK + (g.fault == TILES_BYTES ? 16 : 0));
        epa_dev_tile_load(s.a[stage], &g.a, x, (int32_t)blockIdx.x * ROWS, &s.full[stage],
                          EPA_L2_NORMAL);
        epa_dev_tile_load(s.b[stage], &g.b, x, (int32_t)blockIdx.y * N, &s.full[stage],
                          EPA_L2_EVICT_FIRST);
        phase ^= stage == STAGES - 1;
    }
}

template <int N> EPA_DEV void release(struct product_shared<N> &s, uint32_t stage)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        epa_dev_mbar_arrive(&s.empty[stage]);
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
            release(s, stage);
        epa_dev_wgmma_wait<1>();
        if (i > 0 && g.fault != TILES_EARLY_RELEASE)
            release(s, (i - 1) % STAGES);
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
            for (uint32_t i = 0; i < ROWS; i++)
                epa_dev_bulk_store(g.c + (size_t)(blockIdx.x * ROWS + i) * g.n + blockIdx.y * N +
                                       part * COLUMNS,
                                   s.out[i], COLUMNS * sizeof(float));
            epa_dev_bulk_commit();
        }
    }
    if (t == 0 && g.fault != TILES_NO_STORE_WAIT)
        epa_dev_bulk_wait<0>();
    if (g.fault == TILES_EARLY_SUM)
        epa_dev_wgmma_wait<0>();
}

template <epa_dev_type TYPE, int N>
static __global__ void __launch_bounds__(TILES_THREADS, 1)
    product(const __grid_constant__ struct product_args g)
{
    extern __shared__ __align__(1024) char shared[];
    struct product_shared<N> &s = *reinterpret_cast<struct product_shared<N> *>(shared);

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            epa_dev_mbar_init(&s.full[i], 1);
            epa_dev_mbar_init(&s.empty[i], 4);
        }
        if (g.fault != TILES_NO_INIT_FENCE)
            epa_dev_mbar_init_done();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        if (g.fault != TILES_REGISTERS && (g.fault != TILES_ODD_REGISTERS || threadIdx.x < 96))
            epa_dev_registers_less<LESS>();
        if (threadIdx.x == 0)
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
}

/* ---- hosts ---- */

/* A matrix [rows][columns] with boxes of `height` rows and `width` columns. */
static bool encode_matrix(CUtensorMap *out, CUtensorMapDataType type, uint32_t bytes,
                          const void *at, uint32_t rows, uint32_t columns, uint32_t height,
                          uint32_t width, CUtensorMapSwizzle swizzle)
{
    const uint64_t dims[] = {columns, rows}, strides[] = {(uint64_t)columns * bytes};
    const uint32_t box[] = {width, height}, steps[] = {1, 1};
    enum cudaDriverEntryPointQueryResult found;
    decltype(&cuTensorMapEncodeTiled) call = nullptr;

    return cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&call, 12000,
                                            cudaEnableDefault, &found) == cudaSuccess &&
           call != nullptr &&
           call(out, type, 2, const_cast<void *>(at), dims, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* On the device, with what is at `from`. */
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
    const dim3 blocks(p->m / ROWS, p->n / N);

    kernel<<<blocks, TILES_THREADS, sizeof(struct product_shared<N>)>>>(g);
    return cudaGetLastError() == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess;
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
    g.n = p->n;
    g.c = c;
    g.fault = p->fault;
    ok = encode_matrix(&g.a, type, bytes, a, p->m, p->k, ROWS, g.block_values,
                       CU_TENSOR_MAP_SWIZZLE_128B) &&
         encode_matrix(&g.b, type, bytes, b, p->n, p->k, n, g.block_values,
                       CU_TENSOR_MAP_SWIZZLE_128B);
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
    CUtensorMap from;
    int32_t x, y;
    uint32_t words;
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
        epa_dev_tile_load(box, &g.from, g.x, g.y, bar, EPA_L2_NORMAL);
    }
    __syncthreads();
    epa_dev_mbar_wait(bar, 0);
    for (uint32_t i = threadIdx.x; i < g.words; i += blockDim.x)
        g.out[i] = box[i];
}

bool tiles_copy(const struct tiles_box *b)
{
    const size_t n = (size_t)b->columns * b->rows;
    const CUtensorMapSwizzle swizzle = b->swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : b->swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                       : b->swizzle_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                                : CU_TENSOR_MAP_SWIZZLE_NONE;
    uint16_t *from = on_device(b->from, n);
    struct box_args g = {};
    bool ok;

    g.x = b->x, g.y = b->y;
    g.words = b->width * b->height;
    g.out = on_device(b->out, g.words);
    ok = encode_matrix(&g.from, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, from, b->rows, b->columns,
                       b->height, b->width, swizzle);
    if (ok)
        copy_box<<<1, 64, 1024 + g.words * 2>>>(g);
    ok = ok && cudaGetLastError() == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess;
    take_back(b->out, g.out, g.words);
    take_back<uint16_t>(nullptr, from, 0);
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
