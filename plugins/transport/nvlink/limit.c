/* What the links can do, measured: bytes out of each rank while all of them store to all
 * others, and the latency of a signal from kernel to kernel. Ranks meet on the device
 * before each run, so that they store at the same time. */
#include "nvlink.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum {
    RUNS = 9, /* the median counts, so that the first may be slow */
    ALIGN = 128,
    PART_LEAST = 64 << 10, /* to one peer: less tells nothing of links */
    RUN_BYTES = 64 << 20,  /* out of a rank */
};

/* Longest wait of a kernel for another rank. */
static const uint64_t wait_ns = 5000000000u;
/* For all that one rank queues at once. */
static const uint64_t drain_ns = 60000000000u;

struct measured {
    int32_t status;
    double store_ns[RUNS], latency_ns;
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof(*values), by_size);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static uint32_t word_of(const struct nvlink *n, uint32_t own)
{
    return n->memory.params.signals + own;
}

static uint64_t *own_word(const struct nvlink *n, uint32_t own)
{
    return n->view.peer_signal[n->base.rank] + word_of(n, own);
}

static enum epa_status finish_run(struct nvlink *n)
{
    return nvlink_drain(n, n->stream, clock_ns() + drain_ns, true);
}

/* Copies own words behind the signals back to n->pinned. */
static enum epa_status fetch(struct nvlink *n, uint32_t own, size_t bytes)
{
    enum epa_status status = nvlink_cuda(n,
                                         cudaMemcpyAsync(n->pinned, own_word(n, own), bytes,
                                                         cudaMemcpyDeviceToHost, n->stream),
                                         "a copy of what was measured");

    return status == EPA_OK ? finish_run(n) : status;
}

/* Whether a kernel gave up. */
static enum epa_status check_fault(struct nvlink *n)
{
    struct epa_fault fault;
    enum epa_status status = fetch(n, OWN_FAULT, sizeof(fault));

    if (status != EPA_OK)
        return status;
    memcpy(&fault, n->pinned, sizeof(fault));
    if (fault.claimed != 0)
        n->failure = (struct failure){.at = FAILED_PEAK,
                                      .status = fault.status,
                                      .peer = fault.peer,
                                      .want = fault.wanted,
                                      .seen = fault.seen,
                                      .waited_ns = fault.waited_ns};
    return fault.status;
}

static enum epa_status store_dedup(struct nvlink *n, const struct epa_device_view *view,
                                  const struct store_run *run, double *out)
{
    enum epa_status status;
    float ms = 0;
    cudaError_t error =
        nvlink_queue_meet(n->stream, view, word_of(n, OWN_MEET), ++n->meets, wait_ns);

    if (error == cudaSuccess)
        error = cudaEventRecord(n->event[0], n->stream);
    if (error == cudaSuccess)
        error = nvlink_queue_store(n->stream, view, run);
    if (error == cudaSuccess)
        error = cudaEventRecord(n->event[1], n->stream);
    status = nvlink_cuda(n, error, "queueing stores");
    if (status == EPA_OK)
        status = finish_run(n);
    if (status == EPA_OK)
        status = nvlink_cuda(n, cudaEventElapsedTime(&ms, n->event[0], n->event[1]),
                             "timing stores");
    if (status == EPA_OK)
        status = check_fault(n);
    *out = (double)ms * 1e6;
    return status;
}

/* What is stored in a run; passes 0: the heap has no room to tell. */
static struct store_run plan_stores(const struct nvlink *n, uint64_t scratch)
{
    uint64_t at = (scratch + ALIGN - 1) / ALIGN * ALIGN, peers = n->base.size - 1, room;
    struct store_run run = {.at = at, .blocks = n->backend->multiprocessors};

    room = at < n->base.heap_bytes ? n->base.heap_bytes - at : 0;
    if (room > RUN_BYTES)
        room = RUN_BYTES;
    run.part = room / peers / ALIGN * ALIGN;
    if (run.part >= PART_LEAST)
        run.passes = (uint32_t)((RUN_BYTES + run.part * peers - 1) / (run.part * peers));
    if (run.blocks == 0)
        run.blocks = 1;
    return run;
}

/* Processes that share a GPU run in turn, some milliseconds each: a signal takes as long,
 * and a few will do for what is no measurement of links anyway. */
static bool shares_gpu(const struct nvlink *n)
{
    for (uint32_t i = 0; i < n->base.size; i++) {
        if (pairs_find(n->gpu, (int)n->base.size, &n->gpu[i]) != (int)i)
            return true;
    }
    return false;
}

static struct ping_run plan_turns(const struct nvlink *n)
{
    bool few = shares_gpu(n);

    return (struct ping_run){.word = word_of(n, OWN_PING),
                             .batches = few ? 4 : LIMIT_BATCHES,
                             .turns = few ? 4 : 64,
                             .base = n->turns,
                             .timeout_ns = wait_ns};
}

/* With each other rank in turn; who has the lower number keeps the time. */
static enum epa_status play_turns(struct nvlink *n, const struct epa_device_view *view,
                                  struct ping_run run, double *latency_ns)
{
    bool keeps_time = n->base.rank < run.peer;
    double each[LIMIT_BATCHES], ns;
    enum epa_status status;

    run.times = keeps_time ? own_word(n, OWN_TIME) : NULL;
    status = nvlink_cuda(n, nvlink_queue_ping(n->stream, view, &run), "queueing signals");
    if (status == EPA_OK)
        status = check_fault(n);
    if (status != EPA_OK || !keeps_time)
        return status;
    status = fetch(n, OWN_TIME, run.batches * sizeof(uint64_t));
    if (status != EPA_OK)
        return status;
    for (uint32_t i = 0; i < run.batches; i++)
        each[i] = (double)n->pinned[i];
    ns = median(each, run.batches) / (2 * run.turns);
    if (ns > *latency_ns)
        *latency_ns = ns;
    return EPA_OK;
}

static enum epa_status measure(struct nvlink *n, const struct store_run *stores,
                               struct measured *out)
{
    struct epa_device_view view = n->view;
    struct ping_run turns = plan_turns(n);
    enum epa_status status;

    view.fault = (struct epa_fault *)(void *)own_word(n, OWN_FAULT);
    status = nvlink_cuda(n, cudaMemsetAsync(view.fault, 0, sizeof(*view.fault), n->stream),
                         "zeroing a fault");
    for (uint32_t i = 0; i < RUNS && stores->passes > 0 && status == EPA_OK; i++)
        status = store_dedup(n, &view, stores, &out->store_ns[i]);
    for (uint32_t i = 0; i < pairs_rounds(n->base.size) && status == EPA_OK; i++) {
        turns.peer = pairs_partner(n->base.size, i, n->base.rank);
        if (turns.peer < n->base.size)
            status = play_turns(n, &view, turns, &out->latency_ns);
    }
    n->turns += (uint64_t)turns.batches * turns.turns;
    return status;
}

/* The slowest rank counts, in each run and in the end. */
static void sum_up(struct nvlink *n, const struct store_run *stores,
                   const struct measured *all, struct epa_peak *out)
{
    double slowest[RUNS] = {0}, bytes;

    out->latency_ns = 0;
    for (uint32_t r = 0; r < n->base.size; r++) {
        if (all[r].latency_ns > out->latency_ns)
            out->latency_ns = all[r].latency_ns;
        for (uint32_t i = 0; i < RUNS; i++) {
            if (all[r].store_ns[i] > slowest[i])
                slowest[i] = all[r].store_ns[i];
        }
    }
    bytes = (double)stores->part * (n->base.size - 1) * stores->passes;
    out->bytes_per_ns = stores->passes > 0 ? bytes / median(slowest, RUNS) : 0;
}

/* One rank has no links: 0 is "unknown". A rank that fails still tells the others, so that
 * all return the same. */
enum epa_status nvlink_peak(struct epa_transport *t, uint64_t scratch,
                             struct epa_peak *out)
{
    struct nvlink *n = (struct nvlink *)t;
    struct measured mine = {.status = EPA_OK}, all[EPA_DEVICE_RANKS];
    struct store_run stores;
    enum epa_status status;

    if (t->size == 1) {
        *out = (struct epa_peak){.bytes_per_ns = 0};
        return EPA_OK;
    }
    stores = plan_stores(n, scratch);
    status = finish_run(n);
    if (status != EPA_OK)
        return status;
    status = n->boot->barrier(n->boot); /* nobody uses the scratch any more */
    if (status == EPA_OK) {
        mine.status = measure(n, &stores, &mine);
        status = n->boot->allgather(n->boot, &mine, sizeof(mine), all);
    }
    for (uint32_t r = 0; r < t->size && status == EPA_OK; r++)
        status = all[r].status;
    if (status == EPA_OK)
        sum_up(n, &stores, all, out);
    else if (mine.status == EPA_OK) /* else that is what there is to tell */
        n->failure = (struct failure){
            .at = FAILED_SET_UP, .status = status, .what = "could not measure its links"};
    return status;
}
