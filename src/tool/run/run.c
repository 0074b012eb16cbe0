/* Runs one experiment: checks, the launch of the ranks, the files of the profile, and the figures. */
#include "run/run.h"

#include <time.h>

#include <epa2a/wait.h>

#include "base/output.h"
#include "base/sysfile.h"
#include "base/text.h"
#include "run/stop_signals.h"
#include "session/session_create.h"
#include "session/session_run.h"
#include "trace/write.h"

enum epa_status run_check(const struct experiment *x, enum verb verb, struct status_page *page,
                          bool force, struct session **out, struct epa_error *err)
{
    struct session *session = NULL;
    enum epa_status status = session_create_on(page, x, verb, &session, err);

    if (status == EPA_OK && session->process_id.rank == 0)
        status = trace_write_check(session, force, err);
    if (status != EPA_OK) {
        session_destroy(session);
        return status;
    }
    *out = session;
    return EPA_OK;
}

/* Launches the ranks and waits for their end. */
static void run_session(struct session *session, const struct run_how *how,
                        const struct run_observer *observer, struct result *r)
{
    struct cpu_quota before;
    uint64_t start = epa_now_ns();

    r->started = time(NULL);
    cpu_quota_read("", &before);
    if (observer->begin != NULL)
        observer->begin(observer->arg, session);
    r->status = session_run(session, how->stop_fd, &r->error);
    if (observer->begin != NULL)
        r->signal = observer->end(observer->arg, session);
    r->elapsed_s = (double)(epa_now_ns() - start) / 1e9;
    cpu_quota_read("", &r->quota);
    r->quota.stops -= before.stops;
    r->quota.stopped_ns -= before.stopped_ns;
    if (r->status == EPA_ERR_INTERRUPTED) {
        int signal = stop_signals_read(how->stop_fd);

        r->signal = signal != 0 ? signal : r->signal;
        output_stop();
    }
}

struct result run_experiment(const struct experiment *x, enum verb verb, const struct run_how *how,
                             const struct run_observer *observer)
{
    static const struct run_observer none = {0};
    struct session *session = how->session;
    struct result r = {.skips = how->skips};

    observer = observer != NULL ? observer : &none;
    if (session == NULL)
        r.status = run_check(x, verb, observer->page, how->force, &session, &r.error);
    if (session == NULL)
        return r;
    session->scope = how->alternation != NULL ? BENCH_TIMES : how->scope;
    session->alternation = how->alternation;
    session->side = how->side;
    run_session(session, how, observer, &r);
    if (session->process_id.rank == 0 &&
        trace_write(session, how->force, r.status, &r.trace, &r.trace_error) != EPA_OK)
        error_add_remedy(&r.trace_error);
    r.figures = result_make(&r, session, how->machine);
    r.not_started = session_rank(session, session->process_id.rank)->pid == 0;
    r.rank_0_lost = session->rank_0_lost;
    r.leaks = session_in_use(session);
    if (!r.leaks)
        session_destroy(session);
    return r;
}

bool result_finish(struct result *r)
{
    result_free(r->figures);
    r->figures = NULL;
    return !r->leaks;
}
