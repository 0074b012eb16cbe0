/* See probe.h. Blocks have two warps. */
#include "probe.h"

#include <epa2a/packets.cuh>

#include <cuda_runtime.h>

#include <stdlib.h>

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
