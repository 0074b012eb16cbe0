/* Implements probe.h. Blocks have two warps, or three warpgroups for tiles. */
#include "probe.h"

#include <common/gemm_cuda.h>
#include <epa2a/packets.cuh>
#include <epa2a/sm90.cuh>

#include <cuda_runtime.h>

#include <stdlib.h>
#include <string.h>

enum { THREADS = 64, ODD = 40 };

static __global__ void threads(int *words, enum probe_fault fault)
{
    const uint32_t all = 0xffffffffu;
    const int t = (int)threadIdx.x;

    if (fault == PROBE_LOST_BARRIER && t == ODD)
        words[0] = __shfl_sync(all, 1, 0);
    else if (fault == PROBE_OTHER_BARRIER && t < 32)
        words[0] = __syncthreads_and(1);
    else
        __syncthreads();
    if (fault == PROBE_FOREIGN_LANE && t < 16)
        words[t] = __shfl_sync(0xffffu, 1, 20);
    if (fault == PROBE_CROOKED_STORE && t == 0)
        epa_dev_store_pair((char *)words + 8, 1, 2);
    if (fault == PROBE_BEHIND_MEMORY)
        words[THREADS + t] = 1;
    words[t] = __shfl_sync(all, t, 3);
}

/* Blocks of a cluster send each other a number; the second block is late. */
static __global__ void talk(int *words, enum probe_fault fault)
{
    extern __shared__ __align__(1024) char shared[];
    uint64_t *bar = reinterpret_cast<uint64_t *>(shared), *told = bar + 1;
    const uint32_t me = epa_dev_cluster_rank();

    if (threadIdx.x == 0) {
        epa_dev_mbar_init(bar, 1);
        epa_dev_mbar_init_done();
    }
    __syncthreads();
    if (fault != PROBE_CLUSTER_EARLY)
        epa_dev_cluster_sync();
    if (threadIdx.x == 0) {
        for (uint64_t since = simt_time(); me == 1 && simt_time() - since < 20000000;)
            ;
        epa_dev_cluster_store(told, 7 + me, bar, 1 - me);
        epa_dev_mbar_expect(bar, sizeof(*told));
        if (fault != PROBE_CLUSTER_ENDED)
            epa_dev_mbar_wait(bar, 0);
        words[me] = (int)*told;
    }
    if (fault != PROBE_CLUSTER_ENDED)
        epa_dev_cluster_sync();
}

/* Returns zeroed device memory. */
template <class T> static T *create(size_t n)
{
    void *at = nullptr;

    if (cudaMalloc(&at, n * sizeof(T)) != cudaSuccess)
        abort();
    memset(at, 0, n * sizeof(T));
    return (T *)at;
}

/* ---- time limit ---- */

enum { PACKETS = 8, MOST_LOOKS = 1000 };

/* The words that kernels poll, and a row. */
struct late {
    struct epa_fault fault;
    uint32_t stop, beat;
    __align__(128) char row[PACKETS * EPA_PACKET];
    unsigned looks;
    uint64_t ns;
};

/* Polls as kernels do until the whole row has arrived, which is at the time limit. */
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
        if (epa_dev_poll_is_last(&poll))
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

enum { LIMIT_NS = 1000000, PAUSE_NS = 10 * LIMIT_NS, STALLED_LOOKS = 2 };

/* Waits for a missing word while the host has no beat for the time of a pause, then a beat at each
 * poll. */
static __global__ void suspended_word(struct late *l)
{
    struct epa_device_view v = {};
    struct epa_dev_poll poll = {};
    uint64_t begun = epa_dev_time();

    v.fault = &l->fault;
    v.stop = &l->stop;
    v.beat = &l->beat;
    l->beat = 1;
    while (!epa_dev_poll_expired(v, &poll, LIMIT_NS, {}, 0, 1))
        l->beat += epa_dev_time() - begun > PAUSE_NS;
    l->ns = epa_dev_time() - begun;
}

/* Waits for a missing word and runs no instruction for the time of a pause, then looks at the clock
 * a few times. */
static __global__ void stalled_word(struct late *l)
{
    struct epa_device_view v = {};
    struct epa_dev_poll poll = {};
    uint64_t begun;

    v.fault = &l->fault;
    v.stop = &l->stop;
    for (uint32_t i = 0; i < EPA_DEV_POLLS; i++)
        (void)epa_dev_poll_expired(v, &poll, LIMIT_NS, {}, 0, 1);
    begun = epa_dev_time();
    while (epa_dev_time() - begun < PAUSE_NS)
        ;
    for (uint32_t i = 0; i < STALLED_LOOKS * EPA_DEV_POLLS; i++)
        l->looks += epa_dev_poll_expired(v, &poll, LIMIT_NS, {}, 0, 1);
}

/* ---- a line that is read while it is stored ---- */

/* One warp stores a line, then a single word of its next state, then the rest, while the other warp
 * reads. */
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

static unsigned looks_of(struct late *l)
{
    unsigned looks;

    (void)cudaDeviceSynchronize();
    looks = l->looks;
    (void)cudaFree(l);
    return looks;
}

unsigned probe_late_row(bool last)
{
    struct late *l = create<struct late>(1);

    late_row<<<1, 1>>>(l, last);
    return looks_of(l);
}

unsigned probe_late_word(void)
{
    struct late *l = create<struct late>(1);

    late_word<<<1, 1>>>(l);
    return looks_of(l);
}

double probe_suspended_word(void)
{
    struct late *l = create<struct late>(1);
    double counted;

    suspended_word<<<1, 1>>>(l);
    (void)cudaDeviceSynchronize();
    counted = l->fault.status == EPA_ERR_TIMEOUT ? ((double)l->ns - PAUSE_NS) / LIMIT_NS : -1;
    (void)cudaFree(l);
    return counted;
}

unsigned probe_stalled_word(void)
{
    struct late *l = create<struct late>(1);

    stalled_word<<<1, 1>>>(l);
    return looks_of(l);
}

unsigned probe_torn_line(void)
{
    struct late *l = create<struct late>(1);

    torn_line<<<1, THREADS>>>(l);
    return looks_of(l);
}

/* ---- a product of tiles: of three warpgroups one loads, one multiplies, and one is idle ---- */

enum {
    TILES_THREADS = 384,
    MATH_END = 256,
    STAGES = 3,
    M = 128,
    N = 256,
    K = 512,
    ROWS = 64,
    COLUMNS = 128,
    HALF = COLUMNS / 2, /* columns per store */
    BLOCK = 128,        /* bytes of K per stage */
    LESS = 40,
    MORE = 216,
    MOST = 256,
    BARRIER = 1,
};

/* c[M][N] = a[M][K] * b[N][K]^T */
struct product_args {
    CUtensorMap a, b;
    float *c;
    uint32_t k_blocks;
    enum probe_fault fault;
};

struct product_shared {
    char a[STAGES][ROWS * BLOCK], b[STAGES][COLUMNS * BLOCK];
    float out[ROWS][HALF];
    uint64_t full[STAGES], empty[STAGES];
};

EPA_DEV void load(struct product_shared &s, const struct product_args &g)
{
    uint32_t phase = g.fault == TILES_PARITY ? 0 : 1;

    for (uint32_t i = 0; i < g.k_blocks; i++) {
        uint32_t stage = i % STAGES;
        int32_t x = (int32_t)(i * (BLOCK / 2));

        epa_dev_mbar_wait(&s.empty[stage], phase);
        epa_dev_mbar_expect(&s.full[stage],
                            (ROWS + COLUMNS) * BLOCK + (g.fault == TILES_BYTES ? 16 : 0));
        epa_dev_tile_load(s.a[stage], &g.a, x, (int32_t)blockIdx.x * ROWS, &s.full[stage],
                          EPA_L2_NORMAL);
        epa_dev_tile_load(s.b[stage], &g.b, x, (int32_t)blockIdx.y * COLUMNS, &s.full[stage],
                          EPA_L2_EVICT_FIRST);
        phase ^= stage == STAGES - 1;
    }
}

EPA_DEV void release(struct product_shared &s, uint32_t stage)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        epa_dev_mbar_arrive(&s.empty[stage]);
}

/* Like epa_dev_wgmma(), with a struct whose padding differs between lanes. */
EPA_DEV void multiply_from_padding(float *sum, uint64_t a, uint64_t b, bool add)
{
    struct simt_product what;

    memset(&what, (int)threadIdx.x, sizeof(what));
    what.a = a;
    what.b = b;
    what.n = COLUMNS;
    what.type = SIMT_BF16;
    what.sum = add;
    simt_wgmma(sum, &what);
}

EPA_DEV void multiply(struct product_shared &s, const struct product_args &g, float (&sum)[HALF])
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
            if (g.fault == TILES_PADDING)
                multiply_from_padding(sum, epa_dev_descriptor_add(a, j),
                                      epa_dev_descriptor_add(b, j), i + j > 0);
            else
                epa_dev_wgmma<EPA_DEV_BF16, COLUMNS>(sum, epa_dev_descriptor_add(a, j),
                                                     epa_dev_descriptor_add(b, j), i + j > 0);
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

EPA_DEV void store(struct product_shared &s, const struct product_args &g, const float (&sum)[HALF])
{
    const uint32_t t = threadIdx.x % 128, row = t / 32 * 16 + t % 32 / 4;

    for (int part = 0; part < 2; part++) {
        if (part > 0 && t == 0 && g.fault != TILES_NO_READ_WAIT)
            epa_dev_bulk_wait_read<0>();
        epa_dev_named_sync(BARRIER, g.fault == TILES_NAMED && t == 127 ? 96 : 128);
        if (g.fault == TILES_EARLY_FENCE)
            epa_dev_fence_async_shared();
        for (int i = 0; i < HALF / 2; i++)
            s.out[row + i / 2 % 2 * 8][i / 4 * 8 + t % 4 * 2 + i % 2] = sum[part * HALF / 2 + i];
        if (g.fault != TILES_NO_FENCE && g.fault != TILES_EARLY_FENCE)
            epa_dev_fence_async_shared();
        epa_dev_named_sync(BARRIER, 128);
        if (t == 0) {
            for (uint32_t i = 0; i < ROWS; i++)
                epa_dev_bulk_store(g.c + (size_t)(blockIdx.x * ROWS + i) * N +
                                       blockIdx.y * COLUMNS + part * HALF,
                                   s.out[i], HALF * sizeof(float));
            epa_dev_bulk_commit();
        }
    }
    if (t == 0 && g.fault != TILES_NO_STORE_WAIT)
        epa_dev_bulk_wait<0>();
    if (g.fault == TILES_EARLY_SUM)
        epa_dev_wgmma_wait<0>();
}

static __global__ void __launch_bounds__(TILES_THREADS, 1)
    product(const __grid_constant__ struct product_args g)
{
    extern __shared__ __align__(1024) char shared[];
    struct product_shared &s = *reinterpret_cast<struct product_shared *>(shared);

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
        float sum[HALF];

        if (g.fault == TILES_REGISTERS)
            epa_dev_registers_more<MOST>();
        else
            epa_dev_registers_more<MORE>();
        multiply(s, g, sum);
        store(s, g, sum);
    }
}

/* ---- hosts ---- */

/* Returns an integer from -4 to 4, with exact sums, and its bf16 value. */
static float value_of(uint32_t i, uint32_t seed)
{
    return (float)((int)((i * 2654435761u + seed * 40503u) >> 13) % 9 - 4);
}

static void fill(uint16_t *to, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] = (uint16_t)(simt_bits<uint32_t>(value_of(i, seed)) >> 16);
}

static unsigned multiply_tiles(enum probe_fault fault)
{
    uint16_t *a = create<uint16_t>(M * K), *b = create<uint16_t>(N * K);
    float *c = create<float>(M * N);
    /* Without the wait, phases of later blocks of K would be wrong as well. */
    const uint32_t k = fault == TILES_NO_FULL ? BLOCK / 2 : K;
    const dim3 blocks(M / ROWS, N / COLUMNS);
    struct product_args g = {{}, {}, c, k / (BLOCK / 2), fault};
    unsigned wrong = 0;

    fill(a, M * k, 1);
    fill(b, N * k, 2);
    if (!gemm_map_weights(&g.a, EPA_BF16, a, M, k, ROWS) ||
        !gemm_map_weights(&g.b, EPA_BF16, b, N, k, COLUMNS))
        abort();
    product<<<blocks, TILES_THREADS, sizeof(struct product_shared)>>>(g);
    if (cudaDeviceSynchronize() != cudaSuccess)
        abort();
    for (uint32_t i = 0; i < M * N; i++) {
        float sum = 0;

        for (uint32_t j = 0; j < k; j++)
            sum += value_of(i / N * k + j, 1) * value_of(i % N * k + j, 2);
        wrong += !(c[i] == sum);
    }
    (void)cudaFree(a);
    (void)cudaFree(b);
    (void)cudaFree(c);
    return wrong;
}

unsigned probe_run(enum probe_fault fault)
{
    int *words;

    if (fault >= TILES_RIGHT)
        return multiply_tiles(fault);
    words = create<int>(THREADS);
    if (fault >= PROBE_CLUSTER)
        (void)simt_queue_call(talk, {dim3(2), dim3(THREADS), 1024, 2}, nullptr, words, fault);
    else
        threads<<<1, THREADS>>>(words, fault);
    (void)cudaDeviceSynchronize();
    if (fault == PROBE_CLUSTER && (words[0] != 8 || words[1] != 7))
        abort();
    (void)cudaFree(words);
    return 0;
}
