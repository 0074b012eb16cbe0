/* Checks calls of the CUDA runtime, and waits for the stream. The host never waits inside the driver:
 * it polls the stream, so that it can detect a failed rank, set *stop for kernels that wait for this
 * rank, and report kernels that do not end. */
#include "stream.h"

#include "clock.h"
#include "state.h"

#include <sched.h>
#include <time.h>

#include <epa2a/transport.h>
#include <epa2a/wait.h>

enum {
    SPINS = 2000,  /* queries of about a microsecond each before the thread yields */
    YIELDS = 2000, /* further queries before the thread sleeps between them */
    BACKOFF_NS = 20000,
    QUERIES = 64, /* queries between two reads of the clock */
    SETTLE_S = 3, /* seconds for kernels to end after *stop is set */
};

static const uint64_t settle_ns = SETTLE_S * UINT64_C(1000000000);

struct cuda *cuda_fresh(struct epa_backend *base)
{
    struct cuda *c = (struct cuda *)base;

    c->last.status = EPA_OK;
    return c;
}

enum epa_status cuda_fail(struct cuda *c, cudaError_t why, const char *call)
{
    (void)cudaGetLastError();
    return epa_fail_key(&c->last, why == cudaErrorMemoryAllocation ? EPA_ERR_NOMEM : EPA_ERR_SYSTEM,
                        EPA_LIMIT_NAMED,
                        "cuda: GPU %d: %s, or work that was queued before it: %s: %s",
                        c->base.device, call, cudaGetErrorName(why), cudaGetErrorString(why));
}

enum epa_status cuda_check(struct cuda *c, cudaError_t why, const char *call)
{
    return why == cudaSuccess ? EPA_OK : cuda_fail(c, why, call);
}

enum epa_status cuda_enter(struct cuda *c)
{
    return cuda_check(c, cudaSetDevice(c->base.device), "cudaSetDevice");
}

bool cuda_captures(struct epa_backend *base)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

    if (cudaStreamIsCapturing(base->stream, &status) != cudaSuccess) {
        (void)cudaGetLastError();
        return true; /* cudaStreamLegacy while another stream records */
    }
    return status != cudaStreamCaptureStatusNone;
}

enum epa_status cuda_enter_eager(struct cuda *c, const char *what)
{
    if (c->capturing || (c->base.stream != c->stream && cuda_captures(&c->base)))
        return epa_fail(&c->last, EPA_ERR_UNSUPPORTED,
                        "cuda: %s cannot be part of a graph; call it before the capture begins or "
                        "after it has ended",
                        what);
    return cuda_enter(c);
}

static void pause_after(const struct epa_world *world, uint64_t questions)
{
    uint64_t spins = world->local_size > world->local_cores ? 0 : SPINS;

    if (questions > spins + YIELDS)
        nanosleep(&(struct timespec){.tv_nsec = BACKOFF_NS}, NULL);
    else if (questions >= spins)
        sched_yield();
}

/* Relaxed: the word itself is the message. Kernels read it in epa_dev_wait_for(). */
void cuda_raise_stop(struct cuda *c)
{
    if (c->words != NULL) /* NULL: partly opened, no kernel was queued */
        __atomic_store_n(&c->words->stop, 1, __ATOMIC_RELAXED);
}

/* Reports a wait without a signal: the host does not know the signal that a kernel waits for. */
static void tell_of_wait(const struct cuda *c, uint64_t *begun, uint64_t *reported_ns)
{
    uint64_t now = epa_now_ns();

    if (*begun == 0)
        *begun = now;
    epa_wait_report(c->boot->observer,
                    &(struct epa_wait_state){.kind = EPA_WAIT_DEVICE,
                                             .peer = EPA_WAIT_NOBODY,
                                             .number = EPA_WAIT_NOBODY,
                                             .waited_ns = now - *begun},
                    reported_ns);
}

/* Kernels limit their own waits, so the host needs no limit before a rank has failed. */
enum epa_status cuda_drain(struct cuda *c, bool stop)
{
    uint64_t begun = 0, reported = 0, settle_begun = 0, settled = 0;
    bool stopped = false;

    for (uint64_t i = 0;; i++) {
        cudaError_t status = cudaStreamQuery(c->base.stream);

        if (status != cudaErrorNotReady) {
            (void)cudaGetLastError(); /* clears "not ready" */
            epa_wait_clear(c->boot->observer, reported);
            return cuda_check(c, status, "cudaStreamQuery");
        }
        if (!stopped && (stop || epa_aborted(c->boot))) {
            cuda_raise_stop(c);
            stopped = true;
        }
        if (stopped)
            settled = epa_waited_ns(&settle_begun, settled, settle_ns);
        if (settled > settle_ns) {
            c->lost = true;
            return epa_fail(&c->last, EPA_ERR_TIMEOUT,
                            "cuda: GPU %d did not finish its kernels within %d s after a rank "
                            "had failed",
                            c->base.device, SETTLE_S);
        }
        if (i % QUERIES == QUERIES - 1)
            tell_of_wait(c, &begun, &reported);
        pause_after(&c->boot->world, i);
    }
}

static enum epa_status tell_fault(struct cuda *c)
{
    const struct epa_fault *f = c->fault;

    c->base.fault = *f;
    if (f->status == EPA_OK)
        return EPA_OK;
    return epa_fail(&c->last, f->status,
                    "cuda: a kernel on GPU %d gave up (stage %u, wait %u): peer %u, index %u: "
                    "it saw %llu and wanted %llu, for %.3g ms",
                    c->base.device, f->stage, f->what, f->peer, f->index,
                    (unsigned long long)f->seen, (unsigned long long)f->wanted,
                    (double)f->waited_ns * 1e-6);
}

enum epa_status cuda_check_fault(struct epa_backend *base, struct epa_fault *out)
{
    const struct cuda *c = (const struct cuda *)base;
    /* Acquire: pairs with the fence before the status in epa_dev_fault(). */
    int32_t status = __atomic_load_n(&c->words->fault.status, __ATOMIC_ACQUIRE);

    if (status != EPA_OK)
        *out = c->words->fault;
    return (enum epa_status)status;
}

enum epa_status cuda_sync(struct epa_backend *base)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter_eager(c, "sync");

    if (status == EPA_OK)
        status = cuda_check(c,
                            cudaMemcpyAsync(c->fault, c->base.device_fault, sizeof(*c->fault),
                                            cudaMemcpyDeviceToHost, c->base.stream),
                            "cudaMemcpyAsync of the fault");
    if (status == EPA_OK)
        status = cuda_drain(c, false);
    return status == EPA_OK ? tell_fault(c) : status;
}

/* ---- calls of applications ---- */

void cuda_ignore_captures(enum cudaStreamCaptureMode *before)
{
    *before = cudaStreamCaptureModeThreadLocal;
    (void)cudaThreadExchangeStreamCaptureMode(before);
}

enum epa_status cuda_begin(struct epa_backend *base, void *stream)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_check(c, cudaGetDevice(&c->before), "cudaGetDevice");

    if (status == EPA_OK && c->before != c->base.device)
        status = cuda_enter(c);
    c->base.stream = stream != NULL ? stream : c->stream;
    cuda_ignore_captures(&c->captures_before);
    return status;
}

void cuda_end(struct epa_backend *base)
{
    struct cuda *c = (struct cuda *)base;

    c->base.stream = c->stream;
    (void)cudaThreadExchangeStreamCaptureMode(&c->captures_before);
    if (c->before != c->base.device)
        (void)cudaSetDevice(c->before);
}

/* Kernels limit their own waits, and the thread of the beat sets *stop after the failure of a rank,
 * so the wait in the driver ends. */
enum epa_status cuda_finish(struct epa_backend *base)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter_eager(c, "destroying an object");

    return status == EPA_OK ? cuda_check(c, cudaDeviceSynchronize(), "cudaDeviceSynchronize")
                            : status;
}

/* ---- the clock of kernels ---- */

enum { CLOCK_ROUNDS = 64, CLOCK_SPIN_NS = 1000000 };

/* The kernel reads the time of a round while the host waits: between `begin` and now. */
static enum epa_status ask_clock(struct cuda *c, struct clock_words *words, int64_t *low_ns,
                                 int64_t *high_ns)
{
    *low_ns = INT64_MIN;
    *high_ns = INT64_MAX;
    for (uint64_t round = 1; round <= CLOCK_ROUNDS; round++) {
        uint64_t begin = epa_now_ns(), now = begin, wait_begun = 0, waited = 0;
        int64_t low, high;

        /* Release and acquire pair with the kernel answer(). */
        __atomic_store_n(&words->asked, round, __ATOMIC_RELEASE);
        while (__atomic_load_n(&words->answered, __ATOMIC_ACQUIRE) < round) {
            waited = epa_waited_ns(&wait_begun, waited, CLOCK_REPLY_NS);
            if (waited > CLOCK_REPLY_NS) {
                /* The kernel replies to all rounds and ends. */
                __atomic_store_n(&words->asked, UINT64_MAX, __ATOMIC_RELEASE);
                return epa_fail(&c->last, EPA_ERR_TIMEOUT,
                                "cuda: GPU %d did not reply with its time within %d s",
                                c->base.device, (int)(CLOCK_REPLY_NS / 1000000000u));
            }
            epa_backoff(waited, CLOCK_SPIN_NS);
        }
        now = epa_now_ns();
        low = (int64_t)(words->time_ns - now);
        high = (int64_t)(words->time_ns - begin);
        *low_ns = low > *low_ns ? low : *low_ns;
        *high_ns = high < *high_ns ? high : *high_ns;
    }
    return EPA_OK;
}

enum epa_status cuda_clock(struct epa_backend *base, int64_t *low_ns, int64_t *high_ns)
{
    struct cuda *c = cuda_fresh(base);
    struct epa_device_view view = {
        .size = 1, .stop = c->base.stop, .beat = c->base.beat, .fault = c->base.device_fault};
    struct clock_words *words = NULL;
    void *there = NULL;
    enum epa_status status = cuda_enter_eager(c, "reading its clock"), drained;

    if (status == EPA_OK)
        status = cuda_check(c,
                            cudaHostAlloc((void **)&words, sizeof(*words),
                                          cudaHostAllocMapped | cudaHostAllocPortable),
                            "cudaHostAlloc");
    if (status != EPA_OK)
        return status;
    *words = (struct clock_words){0};
    status = cuda_check(c, cudaHostGetDevicePointer(&there, words, 0), "cudaHostGetDevicePointer");
    if (status == EPA_OK)
        status = cuda_check(c, clock_queue(&view, there, CLOCK_ROUNDS, c->base.stream),
                            "launching a kernel");
    if (status == EPA_OK)
        status = ask_clock(c, words, low_ns, high_ns);
    drained = cuda_drain(c, false);
    if (!c->lost)
        (void)cudaFreeHost(words);
    return status != EPA_OK ? status : drained;
}
