/* Runs go one after the other; what a run leaves is a result as JSON and a line of the
 * summary. */
#include "cli/run_command.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* The signal that asked to stop, which may have been read already; or 0. */
static int stop_signal(const struct run_command *c)
{
    struct signalfd_siginfo info;

    return read(c->stop_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)
               ? (int)info.ssi_signo
               : live_stop_signal(c->live);
}

/* Exit code `code`, unless the run was skipped. */
static int settle(const struct run *run, struct report_row *row, int code)
{
    if (!run_is_skipped(run, row->status))
        return code;
    row->end = REPORT_SKIPPED;
    return EXIT_OK;
}

/* The exit code of a result that is reported: data that is wrong matters more than a disk
 * that is full. */
static int report(struct run_command *c, const struct run *run, struct report_row *row,
                  const struct result *result, const char *error)
{
    struct epa_error err = {EPA_OK, ""};

    if (!c->cli->quiet && !documents_have_stdout(&c->documents))
        report_table(stdout, result);
    fflush(stdout);
    if (!c->cli->quiet)
        report_warnings(stderr, result);
    if (result->status != EPA_OK)
        run_write_end(run, &run->process_id, result->status, error);
    else if (result->n_missed > 0)
        run_write_end(run, &run->process_id, EPA_OK, result->error);
    if (report_row_fill(row, result, &err) != EPA_OK ||
        documents_add(&c->documents, result, &err) != EPA_OK) {
        run_write(&run->process_id, "epa2a", err.text);
        return result->exit_code != EXIT_OK ? result->exit_code : EXIT_RESOURCE;
    }
    return settle(run, row, result->exit_code);
}

/* Runs a session and reports it, if it is ours to report; returns its exit code. */
static int run_session(struct run_command *c, const struct run *run, struct report_row *row,
                       struct session *session, enum epa_status *status)
{
    struct result result;
    struct epa_error err = {EPA_OK, ""}, own = {EPA_OK, ""};
    uint64_t start = clock_ns();
    time_t started = time(NULL);
    int signal, code;

    live_begin(c->live, session,
               &(struct live_run){.file = run->batch->file,
                                  .label = run_is_of_several(run) ? run->label : "",
                                  .number = c->number,
                                  .of = c->runs.n,
                                  .reports = run->process_id.rank == 0},
               c->stop_fd);
    *status = session_run(session, c->stop_fd, &err);
    live_end(c->live, session);
    signal = *status == EPA_ERR_INTERRUPTED ? stop_signal(c) : 0;
    if (run->process_id.rank > 0) {
        if (err.text[0] != '\0')
            run_write_end(run, &run->process_id, *status, err.text);
        row->status = *status;
        return settle(run, row, exit_code(*status, signal));
    }
    if (result_make(session, &c->facts, *status, err.text, &result, &own) != EPA_OK) {
        run_write(&run->process_id, "epa2a", own.text);
        return EXIT_INTERNAL;
    }
    result_when(&result, started, (double)(clock_ns() - start) / 1e9);
    if (trace_write(session, c->cli->force, *status, &result.trace, &own) != EPA_OK)
        run_write(&run->process_id, run->who, own.text);
    if (*status == EPA_ERR_INTERRUPTED)
        result.exit_code = exit_code(*status, signal);
    code = report(c, run, row, &result, err.text);
    if (code == EXIT_OK && own.status != EPA_OK)
        code = EXIT_RESOURCE;
    result_finish(&result);
    return code;
}

/* A run that cannot be had: it was told when that was found. */
static int refuse(const struct run *run, struct report_row *row, const struct epa_error *why)
{
    row->end = REPORT_FAILED;
    row->status = why->status;
    snprintf(row->error, sizeof(row->error), "%s", why->text);
    return settle(run, row, exit_code(why->status, SIGINT));
}

static int run_one(struct run_command *c, uint32_t i, enum epa_status *status)
{
    const struct run *run = &c->runs.run[i];
    struct report_row *row = &c->documents.row[i];
    struct session *session = c->session[i];
    struct epa_error err = {EPA_OK, ""};
    int code;

    c->session[i] = NULL;
    *status = EPA_OK;
    if (run->refused.status != EPA_OK)
        return refuse(run, row, &run->refused);
    if (session == NULL &&
        session_create_on(live_status_page(c->live), run->x, c->verb, &session, &err) != EPA_OK) {
        run_write_end(run, &run->process_id, err.status, err.text);
        return refuse(run, row, &err);
    }
    code = run_session(c, run, row, session, status);
    if (session_in_use(session))
        c->stays = true;
    else
        session_destroy(session);
    return code;
}

/* With the folder's index before and after it. */
static int run_one_noted(struct run_command *c, uint32_t i, enum epa_status *status)
{
    int code;

    if (c->runs.run[i].refused.status == EPA_OK)
        (void)run_folder_begin(&c->folder, i);
    text_free(&c->documents.one);
    code = run_one(c, i, status);
    (void)run_folder_end(&c->folder, i, &c->documents.row[i], &c->documents.one, code);
    return code;
}

static bool all_skipped(const struct run_command *c)
{
    for (uint32_t i = 0; i < c->runs.n; i++)
        if (c->documents.row[i].end != REPORT_SKIPPED)
            return false;
    return true;
}

int run_all(struct run_command *c)
{
    enum epa_status status = EPA_OK;
    int first = EXIT_OK, code;

    for (uint32_t at = 0; at < c->runs.n && status != EPA_ERR_INTERRUPTED; at++) {
        uint32_t i = c->runs.order[at];

        c->number = at + 1;
        if (c->runs.run[i].done)
            continue;
        code = run_one_noted(c, i, &status);
        if (first == EXIT_OK)
            first = code;
        if (code != EXIT_OK && c->cli->fail_fast)
            break;
        if (at + 1 < c->runs.n && status != EPA_ERR_INTERRUPTED)
            (void)documents_write(&c->documents, false);
    }
    if (first == EXIT_OK && all_skipped(c))
        first = EXIT_SKIPPED;
    if (!documents_write(&c->documents, true) && first == EXIT_OK)
        first = EXIT_RESOURCE;
    if (!run_folder_last(&c->folder, first) && first == EXIT_OK)
        first = EXIT_RESOURCE;
    return first;
}
