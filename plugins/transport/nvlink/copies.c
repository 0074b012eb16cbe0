/* See nvlink.h. Each lane has a stream. The GPU's front end writes words (signals, marks, and puts of
 * a few words) by cuStreamBatchMemOp, many with one call. A fence before each write orders it after
 * earlier work of the stream, so a kernel that polls a signal finds its data. The front end needs no
 * multiprocessor, unlike a kernel. A mark in pinned memory shows completed operations without a call
 * of the driver, whose lock the rank's own thread may hold.
 *
 * The streams have the highest priority and thus share no hardware queue with the streams of
 * kernels. A kernel may wait for operations that are queued here. */
#include "copies.h"

#include "state.h"

#include <string.h>

#include "nvlink_kernels.h"

enum {
    LEAST = 512,       /* maximum of operations of a lane without a completed mark */
    WORDS = 4,         /* longest put, in words, that the front end writes */
    LOOK_POLLS = 8192, /* unsuccessful polls of a mark before a query of the driver for errors */
};

/* Time limit for copies in flight when the proxy ends. */
static const uint64_t leave_ns = 10000000000u;

static struct copies *copies_of(struct proxy_copies *copies)
{
    return (struct copies *)copies; /* base is the first member */
}

static enum epa_status check(struct copies *c, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return EPA_OK;
    (void)cudaGetLastError();
    c->error = error;
    c->result = CUDA_SUCCESS;
    c->what = what;
    return EPA_ERR_SYSTEM;
}

static enum epa_status flush_words(struct copies *c)
{
    if (c->batched == 0)
        return EPA_OK;
    c->result = c->driver->batch_words(c->lane[PROXY_IN].stream, c->batched, c->batch, 0);
    c->batched = 0;
    c->what = "writing words";
    return c->result == CUDA_SUCCESS ? EPA_OK : EPA_ERR_SYSTEM;
}

/* A write of a word with a fence before it. The driver rejects writes without a fence
 * (CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) in this call. */
static CUstreamBatchMemOpParams word_write(CUdeviceptr at, uint64_t value)
{
    CUstreamBatchMemOpParams op;

    memset(&op, 0, sizeof(op));
    op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    op.writeValue.address = at;
    op.writeValue.value64 = value;
    op.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    return op;
}

static enum epa_status write_word(struct copies *c, CUdeviceptr at, uint64_t value)
{
    enum epa_status status = c->batched == COPIES_BATCH ? flush_words(c) : EPA_OK;

    if (status == EPA_OK)
        c->batch[c->batched++] = word_write(at, value);
    return status;
}

static bool is_full(const struct copies *c, enum proxy_lane lane)
{
    return c->base.queued[lane] -
               /* Relaxed: the value only bounds the number of operations. */
               __atomic_load_n(c->lane[lane].mark, __ATOMIC_RELAXED) >=
           LEAST;
}

static bool is_words(const void *to, size_t bytes, uint32_t rows)
{
    return rows == 1 && bytes <= WORDS * sizeof(uint64_t) && bytes % sizeof(uint64_t) == 0 &&
           (uintptr_t)to % sizeof(uint64_t) == 0;
}

static enum epa_status copy(struct proxy_copies *copies, enum proxy_lane lane, void *to,
                            const void *from, size_t bytes, uint32_t rows, uint64_t stride)
{
    struct copies *c = copies_of(copies);
    bool out = lane == PROXY_OUT;
    cudaStream_t stream = c->lane[lane].stream;
    cudaError_t error = cudaSuccess;
    enum epa_status status = EPA_OK;

    if (is_full(c, lane))
        return EPA_AGAIN;
    if (!out && is_words(to, bytes, rows)) {
        for (size_t at = 0; at < bytes && status == EPA_OK; at += sizeof(uint64_t)) {
            uint64_t word;

            memcpy(&word, (const char *)from + at, sizeof(word));
            status = write_word(c, (CUdeviceptr)(uintptr_t)to + at, word);
        }
        copies->queued[lane] += status == EPA_OK;
        return status;
    }
    if (!out)
        status = flush_words(c);
    if (status != EPA_OK)
        return status;
    if (rows == 1)
        error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
    else
        error = cudaMemcpy2DAsync(to, out ? bytes : stride, from, out ? stride : bytes, bytes, rows,
                                  cudaMemcpyDefault, stream);
    status = check(c, error, "queueing a copy");
    copies->queued[lane] += status == EPA_OK;
    return status;
}

static enum epa_status set(struct proxy_copies *copies, uint64_t *word, uint64_t value)
{
    struct copies *c = copies_of(copies);
    enum epa_status status;

    if (is_full(c, PROXY_IN))
        return EPA_AGAIN;
    status = write_word(c, (CUdeviceptr)(uintptr_t)word, value);
    copies->queued[PROXY_IN] += status == EPA_OK;
    return status;
}

static enum epa_status add(struct proxy_copies *copies, uint64_t *word, uint64_t by)
{
    struct copies *c = copies_of(copies);
    enum epa_status status;

    if (is_full(c, PROXY_IN))
        return EPA_AGAIN;
    status = flush_words(c);
    if (status == EPA_OK)
        status = check(c, nvlink_queue_signal(c->lane[PROXY_IN].stream, word, by, true),
                       "queueing an addition");
    copies->queued[PROXY_IN] += status == EPA_OK;
    return status;
}

static enum epa_status mark(struct proxy_copies *copies, enum proxy_lane lane)
{
    struct copies *c = copies_of(copies);
    struct copies_lane *l = &c->lane[lane];
    CUstreamBatchMemOpParams op = word_write(l->at, copies->queued[lane]);
    enum epa_status status;

    l->marked = copies->queued[lane];
    if (lane == PROXY_OUT) {
        c->result = c->driver->batch_words(l->stream, 1, &op, 0);
        c->what = "writing a mark";
        return c->result == CUDA_SUCCESS ? EPA_OK : EPA_ERR_SYSTEM;
    }
    status = write_word(c, l->at, l->marked);
    return status == EPA_OK ? flush_words(c) : status;
}

static enum epa_status count_done(struct proxy_copies *copies, enum proxy_lane lane, uint64_t *out)
{
    struct copies *c = copies_of(copies);
    struct copies_lane *l = &c->lane[lane];
    cudaError_t error = cudaSuccess;
    /* Acquire: pairs with the fence before the mark. Data that copies wrote to staging is visible. */
    uint64_t done = __atomic_load_n(l->mark, __ATOMIC_ACQUIRE);

    l->polls = done != *out || done == l->marked ? 0 : l->polls + 1;
    if (l->polls == LOOK_POLLS) {
        l->polls = 0;
        error = cudaStreamQuery(l->stream);
        (void)cudaGetLastError();
    }
    *out = done;
    return check(c, error == cudaErrorNotReady ? cudaSuccess : error, "a copy");
}

static bool leave(struct proxy_copies *copies)
{
    struct copies *c = copies_of(copies);
    uint64_t begun = 0, waited = 0;

    (void)flush_words(c);
    for (uint32_t lane = 0; lane < PROXY_LANES; lane++)
        while (c->lane[lane].stream != NULL &&
               cudaStreamQuery(c->lane[lane].stream) == cudaErrorNotReady) {
            waited = epa_waited_ns(&begun, waited, leave_ns);
            if (waited > leave_ns)
                return false;
            epa_backoff(waited, 0);
        }
    for (uint32_t lane = 0; lane < PROXY_LANES; lane++)
        if (c->lane[lane].stream != NULL)
            (void)cudaStreamDestroy(c->lane[lane].stream);
    while (c->n_pinned > 0)
        (void)cudaHostUnregister(c->pinned[--c->n_pinned]);
    if (c->marks != NULL)
        (void)cudaFreeHost(c->marks);
    c->marks = NULL;
    memset(c->lane, 0, sizeof(c->lane));
    (void)cudaGetLastError();
    return true;
}

static cudaError_t pin(struct copies *c, void *memory, size_t bytes)
{
    cudaError_t error = cudaErrorMemoryAllocation;

    if (c->n_pinned < sizeof(c->pinned) / sizeof(c->pinned[0]))
        error = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
    if (error == cudaSuccess)
        c->pinned[c->n_pinned++] = memory;
    else
        (void)cudaGetLastError();
    return error;
}

/* Pins the memory of another rank. A rank of this process has already pinned it. */
static bool reach(struct proxy_copies *copies, void *memory, size_t bytes)
{
    cudaError_t error = pin(copies_of(copies), memory, bytes);

    return error == cudaSuccess || error == cudaErrorHostMemoryAlreadyRegistered;
}

static enum epa_status make_lanes(struct copies *c)
{
    enum { WORDS_APART = 8 };
    int least = 0, greatest = 0;
    void *marks = NULL;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);

    if (error == cudaSuccess)
        error = cudaHostAlloc((void **)&c->marks, PROXY_LANES * WORDS_APART * sizeof(*c->marks),
                              cudaHostAllocMapped | cudaHostAllocPortable);
    if (error == cudaSuccess) {
        memset(c->marks, 0, PROXY_LANES * WORDS_APART * sizeof(*c->marks));
        error = cudaHostGetDevicePointer(&marks, c->marks, 0);
    }
    for (uint32_t lane = 0; lane < PROXY_LANES && error == cudaSuccess; lane++) {
        struct copies_lane *l = &c->lane[lane];

        l->mark = c->marks + lane * WORDS_APART;
        l->at = (CUdeviceptr)(uintptr_t)((uint64_t *)marks + lane * WORDS_APART);
        error = cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, greatest);
    }
    return check(c, error, "making streams");
}

static enum epa_status enter(struct proxy_copies *copies, void *staging, size_t bytes)
{
    struct copies *c = copies_of(copies);
    enum epa_status status = check(c, cudaSetDevice(c->device), "choosing it");

    if (status == EPA_OK && bytes > 0) /* 0: the direct way needs no staging */
        status = check(c, pin(c, staging, bytes), "pinning staging memory");
    if (status == EPA_OK)
        status = make_lanes(c);
    if (status != EPA_OK)
        (void)leave(copies);
    return status;
}

static void explain_copies(struct proxy_copies *copies, struct epa_error *err)
{
    struct copies *c = copies_of(copies);
    const char *why = cudaGetErrorString(c->error);

    if (c->result != CUDA_SUCCESS &&
        (c->driver->error_string(c->result, &why) != CUDA_SUCCESS || why == NULL))
        why = "unknown error";
    (void)epa_fail(err, EPA_ERR_SYSTEM, "GPU %d: %s: %s", c->device, c->what, why);
}

/* Kernels poll `claimed` while they wait, so an error value there stops them. */
static void stop_kernels(struct proxy_copies *copies, enum epa_status status)
{
    struct copies *c = copies_of(copies);

    c->fault = (struct epa_fault){.claimed = 1, .status = status, .stage = EPA_FAULT_TRANSPORT};
    (void)cudaMemcpyAsync(c->device_fault, &c->fault, offsetof(struct epa_fault, host),
                          cudaMemcpyHostToDevice, c->lane[PROXY_IN].stream);
}

void copies_init(struct copies *c, const struct driver *driver, const struct epa_backend *backend)
{
    *c = (struct copies){.base = {.enter = enter,
                                  .leave = leave,
                                  .reach = reach,
                                  .copy = copy,
                                  .set = set,
                                  .add = add,
                                  .mark = mark,
                                  .done = count_done,
                                  .explain = explain_copies,
                                  .stop_kernels = stop_kernels},
                         .driver = driver,
                         .device = backend->device,
                         .device_fault = backend->device_fault};
}

bool copies_left(const struct copies *c)
{
    return c->marks == NULL;
}
