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
static void run_session(struct result *r, const struct run_how *how,
                        const struct run_observer *observer)
{
    struct cpu_quota before;
    uint64_t start = epa_now_ns();

    r->started = time(NULL);
    cpu_quota_read("", &before);
    if (observer->begin != NULL)
        observer->begin(observer->arg, r->session);
    r->status = session_run(r->session, how->stop_fd, &r->error);
    if (observer->begin != NULL)
        r->signal = observer->end(observer->arg, r->session);
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
    struct result r = {.session = how->session, .skips = how->skips};

    observer = observer != NULL ? observer : &none;
    if (r.session == NULL)
        r.status = run_check(x, verb, observer->page, how->force, &r.session, &r.error);
    if (r.session == NULL)
        return r;
    r.session->scope = how->alternation != NULL ? BENCH_TIMES : how->scope;
    r.session->alternation = how->alternation;
    r.session->side = how->side;
    run_session(&r, how, observer);
    if (r.session->process_id.rank == 0 &&
        trace_write(r.session, how->force, r.status, &r.trace, &r.trace_error) != EPA_OK)
        error_add_remedy(&r.trace_error);
    r.figures = result_make(&r, how->machine);
    return r;
}

bool result_finish(struct result *r)
{
    bool in_use = session_in_use(r->session);

    if (!in_use)
        session_destroy(r->session);
    result_free(r->figures);
    r->session = NULL;
    r->figures = NULL;
    return !in_use;
}
