/* Calls of MPI that take time. MPI knows neither of a time-out nor of ranks that have
 * failed, so each is started without blocking and tested in a loop that knows both. */
#include "alltoallv.h"

#include "base/clock.h"

/* A test is some 100 ns; where cores are short each look gives one away first, and that can
 * take milliseconds. */
enum { TESTS = 64 };

double av_timeout_s(const struct av *a)
{
    return (double)a->timeout_ns * 1e-9;
}

enum epa_status av_poll(struct av *a, struct av_poll *p)
{
    struct epa_wait_state w = {.kind = EPA_WAIT_CALL,
                            .peer = p->peer,
                            .number = EPA_WAIT_NOBODY,
                            .seen = p->seen,
                            .what = p->what};
    enum epa_status status;

    if (!a->crowded && ++p->looks % TESTS != 0)
        return EPA_OK;
    w.waited_ns = clock_ns();
    if (p->since_ns == 0)
        p->since_ns = w.waited_ns;
    w.waited_ns -= p->since_ns;
    if (a->crowded)
        clock_pause(w.waited_ns, 0);
    status = a->t->ops->progress(a->t);
    if (status != EPA_OK)
        return status;
    epa_wait_report(a->observer, &w, &p->reported_ns);
    return w.waited_ns > a->timeout_ns ? EPA_ERR_TIMEOUT : EPA_OK;
}

void av_poll_end(const struct av *a, const struct av_poll *p)
{
    epa_wait_clear(a->observer, p->reported_ns);
}

enum epa_status av_fail(struct av *a, enum epa_status status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(a->last.text, sizeof(a->last.text), fmt, args);
    va_end(args);
    a->last.status = status;
    a->failed = true;
    return status;
}

enum epa_status av_check(struct av *a, const char *call, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    if (code == MPI_SUCCESS)
        return EPA_OK;
    MPI_Error_string(code, text, &length);
    return av_fail(a, EPA_ERR_SYSTEM, "%s: %.250s", call, text);
}

static enum epa_status finish(struct av *a, const char *call, MPI_Request *request)
{
    struct av_poll poll = {.what = call, .peer = EPA_WAIT_NOBODY};
    enum epa_status status = EPA_OK;
    int done = 0, code = MPI_SUCCESS;

    a->pending = true;
    for (;;) {
        code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS || done)
            break;
        status = av_poll(a, &poll);
        if (status == EPA_ERR_TIMEOUT)
            return av_fail(a, status,
                           "%s did not end within %.3f s on rank %u; MPI does not say for "
                           "whom it waits",
                           call, av_timeout_s(a), a->world.rank);
        if (status != EPA_OK) {
            a->failed = true;
            return status;
        }
    }
    av_poll_end(a, &poll);
    a->pending = code != MPI_SUCCESS;
    return av_check(a, call, code);
}

enum epa_status av_finish(struct av *a, const char *call, MPI_Request *request)
{
    uint64_t begin = epa_trace_now(a->trace);
    enum epa_status status = finish(a, call, request);

    (void)epa_trace_slice(a->trace, 0, epa_trace_name(a->trace, call), begin,
                          EPA_TRACE_NOBODY, 0, 0);
    return status;
}

enum epa_status av_barrier(struct av *a, const char *what)
{
    MPI_Request request = MPI_REQUEST_NULL;
    enum epa_status status = av_check(a, what, MPI_Ibarrier(a->comm, &request));

    return status == EPA_OK ? av_finish(a, what, &request) : status;
}

enum epa_status av_check_world(const struct epa_world *world, struct epa_error *err)
{
    int yes = 0, over = 0, size = 0, rank = 0, threads = 0, first = 0;

    MPI_Initialized(&yes);
    if (yes)
        MPI_Finalized(&over);
    if (!yes || over)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "alltoallv needs ranks that mpirun started: run mpirun -n %u "
                        "epa2a ..., with launcher: mpi",
                        world->size);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if ((uint32_t)size != world->size || (uint32_t)rank != world->rank)
        return epa_fail(
            err, EPA_ERR_UNSUPPORTED,
            "alltoallv: this is rank %u of %u, and rank %d of %d in "
            "MPI_COMM_WORLD; use launcher: mpi, which has ranks as MPI has them",
            world->rank, world->size, rank, size);
    MPI_Query_thread(&threads);
    MPI_Is_thread_main(&first);
    if (threads < MPI_THREAD_SERIALIZED && !first)
        return epa_fail(
            err, EPA_ERR_UNSUPPORTED,
            "alltoallv: MPI was set up for the one thread that called MPI_Init, "
            "and rank %u runs on another",
            world->rank);
    return EPA_OK;
}
