/* Streams, events and graphs of the made-up CUDA. A stream is a thread that does what was
 * queued, in order, while the host goes on, as on a GPU: what the host forgets to wait for
 * is not there yet. A stream that is recorded puts what is queued into a graph instead. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "fake_cuda.h"

/* Nobody yields in a loop: see rest() in ../simt/block.c. */
enum { BACKOFF_NS = 20000, QUESTION_NS = 100000, ALIGN = 128 /* of what kernels take */ };

struct op {
    struct op *next;
    void (*run)(void *data);
    size_t bytes;
    _Alignas(ALIGN) char data[];
};

struct ops {
    struct op *first, *last;
};

struct CUstream_st {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct ops queue, recorded;
    bool busy, leaving, records;
    unsigned long long graph; /* that is recorded */
    int device;
    struct CUstream_st *next;
};

struct CUevent_st {
    uint64_t ns;      /* 0: never made */
    uint32_t pending; /* times that it is queued */
};

struct CUgraph_st {
    struct ops ops;
};

struct CUgraphExec_st {
    struct ops ops;
};

static struct {
    pthread_mutex_t lock;
    struct CUstream_st *first;
    unsigned long long graphs;
} streams = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- what is queued ---- */

static struct op *op_create(void (*run)(void *), const void *data, size_t bytes)
{
    struct op *op = aligned_alloc(ALIGN, (sizeof(*op) + bytes + ALIGN - 1) / ALIGN * ALIGN);

    if (op == NULL)
        return NULL;
    *op = (struct op){.run = run, .bytes = bytes};
    memcpy(op->data, data, bytes);
    return op;
}

static void ops_add(struct ops *ops, struct op *op)
{
    op->next = NULL;
    if (ops->first == NULL)
        ops->first = op;
    else
        ops->last->next = op;
    ops->last = op;
}

static struct op *ops_take(struct ops *ops)
{
    struct op *op = ops->first;

    if (op != NULL)
        ops->first = op->next;
    return op;
}

static void ops_free(struct ops *ops)
{
    struct op *op;

    while ((op = ops_take(ops)) != NULL)
        free(op);
}

static bool ops_copy(const struct ops *from, struct ops *to)
{
    for (const struct op *op = from->first; op != NULL; op = op->next) {
        struct op *copy = op_create(op->run, op->data, op->bytes);

        if (copy == NULL)
            return false;
        ops_add(to, copy);
    }
    return true;
}

static void *stream_main(void *arg)
{
    struct CUstream_st *s = arg;
    struct op *op;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        op = ops_take(&s->queue);
        s->busy = op != NULL;
        if (op == NULL) {
            pthread_cond_broadcast(&s->changed);
            if (s->leaving)
                break;
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        op->run(op->data);
        free(op);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void queue_all(struct CUstream_st *s, struct ops *ops)
{
    struct op *op;

    pthread_mutex_lock(&s->lock);
    while ((op = ops_take(ops)) != NULL)
        ops_add(s->records ? &s->recorded : &s->queue, op);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

cudaError_t fake_queue(cudaStream_t stream, void (*run)(void *), const void *data, size_t bytes)
{
    struct op *op = op_create(run, data, bytes);
    struct ops one = {op, op};

    if (op == NULL)
        return cudaErrorMemoryAllocation;
    if (stream != NULL) {
        queue_all(stream, &one);
        return cudaSuccess;
    }
    run(op->data);
    free(op);
    return cudaSuccess;
}

static void drain(struct CUstream_st *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->queue.first != NULL || s->busy)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    struct CUstream_st *s = fake_fails() ? NULL : calloc(1, sizeof(*s));

    (void)flags;
    if (s == NULL)
        return cudaErrorUnknown;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    (void)cudaGetDevice(&s->device);
    if (pthread_create(&s->thread, NULL, stream_main, s) != 0) {
        free(s);
        return cudaErrorUnknown;
    }
    pthread_mutex_lock(&streams.lock);
    s->next = streams.first;
    streams.first = s;
    pthread_mutex_unlock(&streams.lock);
    fake_count(1);
    *out = s;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    struct CUstream_st **at = &streams.first;

    pthread_mutex_lock(&streams.lock);
    while (*at != NULL && *at != s)
        at = &(*at)->next;
    if (*at == NULL)
        abort(); /* twice, or what is none */
    *at = s->next;
    pthread_mutex_unlock(&streams.lock);
    pthread_mutex_lock(&s->lock);
    s->leaving = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    ops_free(&s->recorded);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
    fake_count(-1);
    return cudaSuccess;
}

static bool is_busy(struct CUstream_st *s)
{
    bool busy;

    pthread_mutex_lock(&s->lock);
    busy = s->queue.first != NULL || s->busy;
    pthread_mutex_unlock(&s->lock);
    return busy;
}

static void backoff(uint32_t ns)
{
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
}

/* Who asks in vain asks again, so he is kept a while. */
static bool stays_busy(struct CUstream_st *s)
{
    if (!is_busy(s))
        return false;
    backoff(QUESTION_NS);
    return is_busy(s);
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    if (s != NULL && s->records)
        return cudaErrorStreamCaptureUnsupported;
    if (fake_fails())
        return cudaErrorUnknown;
    return s != NULL && stays_busy(s) ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (s->records)
        return cudaErrorStreamCaptureUnsupported;
    drain(s);
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

static bool device_is_busy(int device)
{
    bool busy = false;

    pthread_mutex_lock(&streams.lock);
    for (struct CUstream_st *s = streams.first; s != NULL && !busy; s = s->next)
        busy = s->device == device && is_busy(s);
    pthread_mutex_unlock(&streams.lock);
    return busy;
}

/* Nothing is held while it waits: what runs may wait for a thread that makes a stream. */
cudaError_t cudaDeviceSynchronize(void)
{
    int device = 0;

    (void)cudaGetDevice(&device);
    while (device_is_busy(device))
        backoff(BACKOFF_NS);
    return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    struct CUevent_st *e = fake_fails() ? NULL : calloc(1, sizeof(*e));

    (void)flags;
    if (e == NULL)
        return cudaErrorUnknown;
    fake_count(1);
    *out = e;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    /* Acquire: pairs with the release in run_event(), which no longer uses it then. */
    while (__atomic_load_n(&event->pending, __ATOMIC_ACQUIRE) != 0)
        backoff(BACKOFF_NS);
    free(event);
    fake_count(-1);
    return cudaSuccess;
}

static void run_event(void *data)
{
    struct CUevent_st *e;

    memcpy(&e, data, sizeof(e));
    __atomic_store_n(&e->ns, clock_ns(), __ATOMIC_RELAXED);
    __atomic_fetch_sub(&e->pending, 1, __ATOMIC_RELEASE);
}

/* In a graph: made each time that it runs; cudaGraphLaunch() queues it, not this. */
static void run_event_again(void *data)
{
    struct CUevent_st *e;

    memcpy(&e, data, sizeof(e));
    __atomic_store_n(&e->ns, clock_ns(), __ATOMIC_RELAXED);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    if (fake_fails())
        return cudaErrorUnknown;
    if (stream != NULL && stream->records)
        return flags == cudaEventRecordExternal
                   ? fake_queue(stream, run_event_again, &event, sizeof(event))
                   : cudaErrorStreamCaptureUnsupported;
    __atomic_fetch_add(&event->pending, 1, __ATOMIC_RELAXED);
    return fake_queue(stream, run_event, &event, sizeof(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    uint64_t begun, ended;

    if (__atomic_load_n(&from->pending, __ATOMIC_ACQUIRE) != 0 ||
        __atomic_load_n(&to->pending, __ATOMIC_ACQUIRE) != 0)
        return cudaErrorNotReady;
    begun = __atomic_load_n(&from->ns, __ATOMIC_RELAXED);
    ended = __atomic_load_n(&to->ns, __ATOMIC_RELAXED);
    if (begun == 0 || ended == 0)
        return cudaErrorInvalidResourceHandle;
    *ms = (float)((double)(int64_t)(ended - begun) * 1e-6);
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    if (fake_fails() || s->records)
        return cudaErrorUnknown;
    pthread_mutex_lock(&streams.lock);
    s->graph = ++streams.graphs;
    pthread_mutex_unlock(&streams.lock);
    pthread_mutex_lock(&s->lock);
    s->records = true;
    pthread_mutex_unlock(&s->lock);
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *graph, cudaGraph_t *recorded,
                                     const cudaGraphNode_t **after, const cudaGraphEdgeData **edges,
                                     size_t *n)
{
    if (recorded != NULL || after != NULL || edges != NULL || n != NULL)
        return cudaErrorNotSupported;
    *status = s->records ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (s->records && graph != NULL)
        *graph = s->graph;
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    struct CUgraph_st *graph = fake_fails() ? NULL : calloc(1, sizeof(*graph));

    *out = NULL;
    if (!s->records) {
        free(graph);
        return cudaErrorUnknown;
    }
    pthread_mutex_lock(&s->lock);
    s->records = false;
    if (graph != NULL) {
        graph->ops = s->recorded;
        s->recorded = (struct ops){NULL, NULL};
    }
    pthread_mutex_unlock(&s->lock);
    ops_free(&s->recorded);
    if (graph == NULL)
        return cudaErrorUnknown;
    fake_count(1);
    *out = graph;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    ops_free(&graph->ops);
    free(graph);
    fake_count(-1);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    struct CUgraphExec_st *exec = fake_fails() ? NULL : calloc(1, sizeof(*exec));

    (void)flags;
    if (exec == NULL)
        return cudaErrorUnknown;
    fake_count(1);
    if (!ops_copy(&graph->ops, &exec->ops)) {
        (void)cudaGraphExecDestroy(exec);
        return cudaErrorMemoryAllocation;
    }
    *out = exec;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    ops_free(&exec->ops);
    free(exec);
    fake_count(-1);
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)exec;
    (void)stream;
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    struct ops copy = {NULL, NULL};

    if (fake_fails())
        return cudaErrorUnknown;
    if (!ops_copy(&exec->ops, &copy)) {
        ops_free(&copy);
        return cudaErrorMemoryAllocation;
    }
    queue_all(stream, &copy);
    return cudaSuccess;
}
