/* Streams, events and graphs of the simulated CUDA. A stream is a thread that executes queued work
 * in order while the host continues, as on a GPU: missing waits of the host show old data. A stream
 * in recording mode appends queued work to a graph instead.
 *
 * A stream that waits for an event of a recording stream records as well, into a branch of the
 * graph; another stream must wait for it before the recording ends. A branch runs on a stream that
 * the graph owns. A recorded event supports a single wait. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <epa2a/wait.h>
#include "fake_cuda.h"
#include "fake_traffic.h"

/* Waits sleep instead of yielding in a loop: see rest() in ../simt/block.c. ALIGN: alignment of
 * kernel arguments. */
enum { BACKOFF_NS = 20000, QUESTION_NS = 100000, ALIGN = 128 };

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
    pthread_t thread, creator;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct ops queue, recorded;
    bool busy, leaving, records;
    bool unjoined;            /* a branch without a wait for its end so far */
    unsigned long long graph; /* id of the graph in recording */
    cudaGraphNode_t node;     /* the last recorded operation, for cudaStreamGetCaptureInfo() */
    int device;
    struct CUstream_st *next;
};

struct CUevent_st {
    uint64_t ns;                  /* 0: never recorded */
    uint32_t pending;             /* number of queued records and waits */
    uint64_t queued, made;        /* counts of queued and executed records */
    struct CUstream_st *recorded; /* recording stream in a graph, until a wait for the event */
    uint32_t again;               /* records in graph runs, less the waits for them */
};

/* The first branch is the stream that records or launches. */
enum { BRANCHES = 3 };

struct CUgraph_st {
    struct ops branch[BRANCHES];
};

struct CUgraphExec_st {
    struct CUgraph_st graph;
    struct CUstream_st *stream[BRANCHES]; /* NULL: unused branch, or the first one */
};

static struct {
    pthread_mutex_t lock;
    struct CUstream_st *first;
    unsigned long long graphs;
} streams = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- recordings that forbid calls ---- */

static uint32_t global_recordings; /* atomic */
static __thread cudaStream_t recorded;
static __thread enum cudaStreamCaptureMode recorded_mode;
static __thread enum cudaStreamCaptureMode interaction = cudaStreamCaptureModeGlobal;

static bool others_forbid(void)
{
    bool own = recorded != NULL && recorded_mode == cudaStreamCaptureModeGlobal;
    uint32_t others = __atomic_load_n(&global_recordings, __ATOMIC_ACQUIRE) - own;

    return others > 0 && interaction == cudaStreamCaptureModeGlobal;
}

bool fake_recording_forbids(void)
{
    return others_forbid() || (recorded != NULL && interaction != cudaStreamCaptureModeRelaxed);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    enum cudaStreamCaptureMode before = interaction;

    interaction = *mode;
    *mode = before;
    return cudaSuccess;
}

/* ---- queues ---- */

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
    s->unjoined = s->records;
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

struct host_call {
    cudaHostFn_t run;
    void *data;
};

static void run_host_call(void *data)
{
    const struct host_call *call = data;

    call->run(call->data);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t run, void *data)
{
    struct host_call call = {run, data};

    return fake_fails() ? cudaErrorUnknown : fake_queue(stream, run_host_call, &call, sizeof(call));
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    struct CUstream_st *s = fake_fails() ? NULL : calloc(1, sizeof(*s));

    if (s == NULL)
        return cudaErrorUnknown;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    (void)cudaGetDevice(&s->device);
    s->creator = pthread_self();
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

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    return cudaStreamCreateWithFlags(out, flags);
}

FAKE_SAFE(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest), *least = 0; *greatest = -5)

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    struct CUstream_st **at = &streams.first;

    pthread_mutex_lock(&streams.lock);
    while (*at != NULL && *at != s)
        at = &(*at)->next;
    if (*at == NULL)
        abort(); /* double destroy or unknown stream */
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

struct kernel_traffic *fake_traffic_of_stream(cudaStream_t s)
{
    if (__atomic_load_n(&fake_traffic_counts, __ATOMIC_RELAXED) == 0)
        return NULL;
    return fake_traffic_of(s != NULL ? s->creator : pthread_self());
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

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    if ((s != NULL && s->records) || others_forbid())
        return cudaErrorStreamCaptureUnsupported;
    if (s != NULL && is_busy(s)) {
        backoff(QUESTION_NS); /* slows callers that poll in a loop */
        if (is_busy(s))
            return cudaErrorNotReady; /* not counted: their number depends on time */
    }
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (s->records || others_forbid())
        return cudaErrorStreamCaptureUnsupported;
    pthread_mutex_lock(&s->lock);
    while (s->queue.first != NULL || s->busy)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
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

/* Holds no lock during the wait: the queued work may wait for a thread that creates a stream. */
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
    /* Acquire: pairs with the release in run_event(), after which run_event() no longer uses the
     * event. */
    while (__atomic_load_n(&event->pending, __ATOMIC_ACQUIRE) != 0)
        backoff(BACKOFF_NS);
    free(event);
    fake_count(-1);
    return cudaSuccess;
}

static __thread uint64_t taken_ns;

void fake_takes(uint64_t ns)
{
    taken_ns += ns;
}

static void run_event(void *data)
{
    struct CUevent_st *e = *(struct CUevent_st **)data;

    __atomic_store_n(&e->ns, epa_now_ns() + taken_ns, __ATOMIC_RELAXED);
    /* Release: pairs with the acquire in run_wait(). */
    __atomic_fetch_add(&e->made, 1, __ATOMIC_RELEASE);
    __atomic_fetch_sub(&e->pending, 1, __ATOMIC_RELEASE);
}

/* In a graph: records the event in each run. cudaGraphLaunch() queues it. */
static void run_event_again(void *data)
{
    struct CUevent_st *e = *(struct CUevent_st **)data;

    __atomic_store_n(&e->ns, epa_now_ns() + taken_ns, __ATOMIC_RELAXED);
}

/* In a graph: posts the event for its single wait, which consumes it. */
static void run_post(void *data)
{
    struct CUevent_st *e = *(struct CUevent_st **)data;

    /* Release: pairs with the acquire in run_take(). */
    __atomic_fetch_add(&e->again, 1, __ATOMIC_RELEASE);
}

static void run_take(void *data)
{
    struct CUevent_st *e = *(struct CUevent_st **)data;

    while (__atomic_load_n(&e->again, __ATOMIC_ACQUIRE) == 0)
        backoff(BACKOFF_NS);
    __atomic_fetch_sub(&e->again, 1, __ATOMIC_RELAXED);
}

struct event_wait {
    struct CUevent_st *event;
    uint64_t made; /* least count of records */
};

static void run_wait(void *data)
{
    const struct event_wait *w = data;

    while (__atomic_load_n(&w->event->made, __ATOMIC_ACQUIRE) < w->made)
        backoff(BACKOFF_NS);
    __atomic_fetch_sub(&w->event->pending, 1, __ATOMIC_RELEASE);
}

/* Work queued before the event precedes work queued after this call. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    struct event_wait w = {event, event->queued};
    struct CUstream_st *from = event->recorded;

    if (fake_fails())
        return cudaErrorUnknown;
    if (from == NULL && stream->records)
        return cudaErrorStreamCaptureIsolation;
    if (from == NULL) {
        __atomic_fetch_add(&event->pending, 1, __ATOMIC_RELAXED);
        return fake_queue(stream, run_wait, &w, sizeof(w));
    }
    if (!from->records || (stream->records && stream->graph != from->graph))
        return cudaErrorStreamCaptureIsolation;
    event->recorded = NULL;
    pthread_mutex_lock(&stream->lock);
    stream->records = true;
    stream->graph = from->graph;
    pthread_mutex_unlock(&stream->lock);
    from->unjoined = false;
    return fake_queue(stream, run_take, &event, sizeof(event));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    if (fake_fails())
        return cudaErrorUnknown;
    if (stream != NULL && stream->records) {
        if (flags == cudaEventRecordExternal)
            return fake_queue(stream, run_event_again, &event, sizeof(event));
        event->recorded = stream;
        return fake_queue(stream, run_post, &event, sizeof(event));
    }
    event->recorded = NULL;
    event->queued++;
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
    if (fake_fails() || s->records)
        return cudaErrorUnknown;
    pthread_mutex_lock(&streams.lock);
    s->graph = ++streams.graphs;
    pthread_mutex_unlock(&streams.lock);
    pthread_mutex_lock(&s->lock);
    s->records = true;
    pthread_mutex_unlock(&s->lock);
    if (mode == cudaStreamCaptureModeGlobal)
        __atomic_fetch_add(&global_recordings, 1, __ATOMIC_ACQ_REL);
    if (mode != cudaStreamCaptureModeRelaxed)
        recorded = s;
    recorded_mode = mode;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *graph, cudaGraph_t *handle,
                                     const cudaGraphNode_t **after, const cudaGraphEdgeData **edges,
                                     size_t *n)
{
    if (handle != NULL)
        return cudaErrorNotSupported;
    *status = s->records ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (s->records && graph != NULL)
        *graph = s->graph;
    if (s->records && n != NULL) {
        pthread_mutex_lock(&s->lock);
        s->node = (cudaGraphNode_t)(void *)s->recorded.last;
        pthread_mutex_unlock(&s->lock);
        *after = &s->node;
        *edges = NULL;
        *n = s->node != NULL;
    }
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status)
{
    return cudaStreamGetCaptureInfo(s, status, NULL, NULL, NULL, NULL, NULL);
}

/* Moves the recorded work to *out, or discards it. */
static void end_recording(struct CUstream_st *s, struct ops *out)
{
    pthread_mutex_lock(&s->lock);
    s->records = false;
    if (out != NULL) {
        *out = s->recorded;
        s->recorded = (struct ops){NULL, NULL};
    }
    pthread_mutex_unlock(&s->lock);
    ops_free(&s->recorded);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    struct CUgraph_st *graph = fake_fails() ? NULL : calloc(1, sizeof(*graph));
    cudaError_t code = cudaSuccess;
    uint32_t branches = 1;

    *out = NULL;
    if (!s->records) {
        free(graph);
        return cudaErrorUnknown;
    }
    if (recorded == s && recorded_mode == cudaStreamCaptureModeGlobal)
        __atomic_fetch_sub(&global_recordings, 1, __ATOMIC_ACQ_REL);
    if (recorded == s)
        recorded = NULL;
    end_recording(s, graph != NULL ? &graph->branch[0] : NULL);
    pthread_mutex_lock(&streams.lock);
    for (struct CUstream_st *b = streams.first; b != NULL; b = b->next) {
        if (!b->records || b->graph != s->graph)
            continue;
        if (b->unjoined)
            code = cudaErrorStreamCaptureUnjoined;
        if (branches == BRANCHES)
            abort();
        end_recording(b, graph != NULL ? &graph->branch[branches++] : NULL);
    }
    pthread_mutex_unlock(&streams.lock);
    if (graph == NULL)
        return cudaErrorUnknown;
    fake_count(1);
    if (code != cudaSuccess) {
        (void)cudaGraphDestroy(graph);
        return code;
    }
    *out = graph;
    return cudaSuccess;
}

/* Only counts the nodes. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
    if (nodes != NULL)
        return cudaErrorNotSupported;
    *n = 0;
    for (uint32_t i = 0; i < BRANCHES; i++)
        for (const struct op *op = graph->branch[i].first; op != NULL; op = op->next)
            ++*n;
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

static void branches_free(struct CUgraph_st *graph)
{
    for (uint32_t i = 0; i < BRANCHES; i++)
        ops_free(&graph->branch[i]);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    branches_free(graph);
    free(graph);
    fake_count(-1);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    struct CUgraphExec_st *exec = fake_fails() ? NULL : calloc(1, sizeof(*exec));
    bool ok = true;

    if (exec == NULL)
        return cudaErrorUnknown;
    fake_count(1);
    for (uint32_t i = 0; i < BRANCHES && ok; i++) {
        if (i > 0 && graph->branch[i].first != NULL)
            ok = cudaStreamCreateWithFlags(&exec->stream[i], 0) == cudaSuccess;
        ok = ok && ops_copy(&graph->branch[i], &exec->graph.branch[i]);
    }
    if (!ok) {
        (void)cudaGraphExecDestroy(exec);
        return cudaErrorMemoryAllocation;
    }
    *out = exec;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    for (uint32_t i = 1; i < BRANCHES; i++)
        if (exec->stream[i] != NULL)
            (void)cudaStreamDestroy(exec->stream[i]);
    branches_free(&exec->graph);
    free(exec);
    fake_count(-1);
    return cudaSuccess;
}

FAKE(cudaGraphUpload, (cudaGraphExec_t exec, cudaStream_t stream), cudaErrorUnknown, )

/* Runs at the position of the graph in its stream: earlier branches may have waited for the same
 * events. */
static void run_branches(void *data)
{
    struct CUgraphExec_st *exec = *(struct CUgraphExec_st **)data;

    for (uint32_t i = 1; i < BRANCHES; i++) {
        struct ops copy = {NULL, NULL};

        if (exec->stream[i] == NULL)
            continue;
        if (!ops_copy(&exec->graph.branch[i], &copy))
            abort();
        queue_all(exec->stream[i], &copy);
    }
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    struct ops copy = {NULL, NULL};
    cudaError_t code = fake_fails() ? cudaErrorUnknown : cudaSuccess;

    if (code == cudaSuccess && !ops_copy(&exec->graph.branch[0], &copy))
        code = cudaErrorMemoryAllocation;
    if (code == cudaSuccess && exec->stream[1] != NULL)
        code = fake_queue(stream, run_branches, &exec, sizeof(exec));
    if (code == cudaSuccess)
        queue_all(stream, &copy);
    else
        ops_free(&copy);
    return code;
}
