/* `epa2a run`, `bench` and `verify`: read files, make a session for each run, and report results.
 * All files are read and checked before the first rank starts. Runs are executed one after the
 * other; each adds a result as JSON and a row of the summary.
 *
 * If mpirun, srun or torchrun started the ranks, this program runs once for each rank. The process
 * of rank 0 reports. Each other process prints at most one line, about errors of its own rank. */
#include "cli/run_experiments.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <epa2a/wait.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "base/output.h"
#include "base/sysfile.h"
#include "base/terminal.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "cli/live.h"
#include "cli/progress_line.h"
#include "cli/run_folder.h"
#include "cli/run_messages.h"
#include "cli/runs.h"
#include "config/diag.h"
#include "boot/process_id.h"
#include "launch/program_registry.h"
#include "result/verdicts.h"
#include "report/warning_lines.h"
#include "report/report.h"
#include "report/result_parts.h"
#include "report/rows.h"
#include "run/run.h"
#include "run/stop_signals.h"
#include "session/session.h"
#include "session/session_create.h"

struct run_command {
    const struct cli *cli;
    enum verb verb;
    struct registry *registry;
    struct runs runs;
    struct session *
        *session; /* [runs.n]: sessions of the checks that are kept; see keeps_session() */
    uint64_t memory_passed; /* as in session_check() */
    struct documents documents;
    struct run_folder folder;
    struct machine_facts machine;
    struct facts facts;
    struct epa_process_id process_id; /* from the environment; size 0: the only process */
    struct live *live;                /* progress line and status page */
    uint32_t number;                  /* number of the current run, from 1 */
    int stop_fd;
    bool leaks; /* threads that cannot be ended still use a session */
    bool lost;  /* ranks of other processes did not connect, and will not for later runs */
};

/* ---- reading ---- */

/* --dry-run: checks a run at once. A run that fails is checked again by check_sessions(), which
 * reports the reason. */
static bool passes_dry_run(void *arg, const struct experiment *x)
{
    struct run_command *c = arg;
    struct epa_error err = {EPA_OK, ""};
    struct session *session = NULL;
    enum epa_status status = session_check(x, c->verb, &c->memory_passed, &session, &err);

    if (status == EPA_OK)
        status = trace_write_check(session, c->cli->force, &err);
    session_destroy(session);
    return status == EPA_OK;
}

static enum epa_status read_files(struct run_command *c, const char *text, struct epa_error *err)
{
    struct runs_wish wish = runs_wish(c->cli);
    struct diag *diag = diag_create();
    enum epa_status status;

    /* --resume compares the experiments, and checks for several processes need their launchers. */
    if (c->cli->batch.dry_run && c->cli->out_dir == NULL && c->process_id.size <= 1) {
        wish.passes = passes_dry_run;
        wish.passes_arg = c;
    }
    if (text != NULL) { /* the selection of runs was made when the text was written */
        wish.text = text;
        wish.n_only = 0;
    }
    status = runs_read(&wish, c->registry, diag, &c->runs, err);

    if (c->process_id.rank == 0) {
        diag_print(diag, stderr);
    } else if (diag_errors(diag) > 0) {
        fprintf(stderr, "[rank %u] ", c->process_id.rank);
        diag_print_first(diag, stderr);
    }
    diag_destroy(diag);
    return status;
}

/* Returns true if the session of a check is kept for the run. The sessions of a batch are
 * otherwise created again just before each run. If another launcher started the ranks, the
 * launcher plugin may fork for the first run and continue in the child, so the sessions of all
 * runs must exist by then. */
static bool keeps_session(const struct run_command *c, const struct session *session)
{
    return c->runs.n == 1 || session->process_id.size > 0;
}

/* Rejects the launchers fork and thread in a process that mpirun, srun or torchrun has started,
 * since each process would start all ranks again. Skips a variant of verify --thorough. */
static enum epa_status check_launchers(struct run_command *c)
{
    struct epa_error err = {EPA_OK, ""};

    for (uint32_t i = 0; i < c->runs.n && c->process_id.size > 1; i++) {
        struct run *run = &c->runs.run[i];
        const struct epa_plugin *plugin = run->x == NULL ? NULL : run->x->launcher.plugin;

        if (plugin == NULL || ((const struct epa_launcher_plugin *)plugin)->process_id != NULL)
            continue;
        err = (struct epa_error){EPA_OK, ""};
        epa_fail_key(&err, run->variant ? EPA_ERR_UNSUPPORTED : EPA_ERR_CONFIG, "launcher.name",
                     "launcher.name: %s starts all ranks itself, but this is one process of %u "
                     "already (%s): leave launcher out, or unset the variables of another job",
                     plugin->name, c->process_id.size, c->process_id.source);
        if (c->process_id.rank == 0)
            run_print_end(run, &c->process_id, &err);
        if (!run->variant)
            return err.status;
        run->refused = err;
    }
    return EPA_OK;
}

static enum epa_status check_sessions(struct run_command *c)
{
    enum epa_status status = EPA_OK;

    c->session = memory_alloc(c->runs.n, sizeof(struct session *));
    for (uint32_t i = 0; i < c->runs.n; i++) {
        struct run *run = &c->runs.run[i];
        struct epa_error err = {EPA_OK, ""};
        struct session *session = NULL;
        enum epa_status one;

        run->process_id = c->process_id;
        if (run->x == NULL || run->done != NULL || run->refused.status != EPA_OK)
            continue;
        one = run_check(run->x, c->verb, live_status_page(c->live), c->cli->force, &session, &err);
        if ((one == EPA_ERR_CONFIG || one == EPA_ERR_NOMEM) && run->variant)
            one = err.status = EPA_ERR_UNSUPPORTED;
        if (one == EPA_OK)
            run->process_id = session->process_id;
        if (one == EPA_OK && keeps_session(c, session))
            c->session[i] = session;
        else
            session_destroy(session);
        if (one == EPA_OK)
            continue;
        if (status == EPA_OK || c->process_id.rank == 0)
            run_print_refusal(run, &c->process_id, &err);
        if (run->skips && one != EPA_ERR_CONFIG)
            run->refused = err;
        else
            status = one;
    }
    return status;
}

static void add_to_fingerprints(struct run_command *c)
{
    uint32_t refused = 0, done = 0;

    for (uint32_t i = 0; i < c->runs.n; i++) {
        refused += c->runs.run[i].refused.status != EPA_OK;
        done += c->runs.run[i].done != NULL;
    }
    for (uint32_t at = 0; at < c->runs.n && c->runs.n > 1; at++) {
        struct session *session = c->session[c->runs.order[at]];

        if (session != NULL)
            text_add(&session->fingerprint,
                     "run: %u of %u\nruns that cannot be had here: %u\nruns done before: %u\n",
                     at + 1, c->runs.n, refused, done);
    }
}

static void print_launchers(const struct run_command *c)
{
    const char *before = "";

    for (uint32_t i = 0; i < c->runs.n && !c->cli->quiet; i++) {
        const struct run *run = &c->runs.run[i];

        if (run->x == NULL)
            continue;
        if (run->process_id.size > 0 && run->process_id.rank == 0 &&
            strcmp(run->process_id.source, before) != 0)
            fprintf(stderr, "epa2a: launcher: %s (%s)\n", run->x->launcher.plugin->name,
                    run->process_id.source);
        before = run->process_id.source;
    }
}

/* ---- one run after the other ---- */

/* Returns `code`; for a skipped run marks its row and returns EXIT_OK. */
static int finish_row(const struct run *run, struct report_row *row, enum epa_status status,
                      int code)
{
    if (!run_is_skipped(run, status))
        return code;
    row->end = REPORT_SKIPPED;
    return EXIT_OK;
}

/* Reports a result and returns its exit code. Wrong data has priority over a full disk. */
static int report_result(struct run_command *c, const struct run *run, struct report_row *row,
                         const struct result *result)
{
    const struct run_figures *f = result->figures;
    int code = f->exit_code;

    if (result->trace_error.status != EPA_OK)
        run_print_error(&run->process_id, run->who, result->trace_error.text);
    if (!c->cli->quiet && !cli_has_stdout(c->cli))
        report_table(stdout, result, &c->facts);
    fflush(stdout);
    if (c->runs.n > 1)
        warnings_add(&c->documents.warnings, run->name, f);
    else if (!c->cli->quiet)
        report_warnings(stderr, f);
    run_print_result(run, &run->process_id, result);
    documents_add(&c->documents, row, result, &c->facts);
    code = finish_row(run, row, result->status, code);
    return code == EXIT_OK && result->trace_error.status != EPA_OK ? EXIT_RESOURCE : code;
}

/* Fills the row of a run that cannot start. The reason has been printed. */
static int reject_run(struct run_command *c, const struct run *run, struct report_row *row,
                      const struct epa_error *why)
{
    report_row_end(row, REPORT_FAILED, why->status,
                   arena_printf(c->documents.arena, "%s", why->text));
    return finish_row(run, row, why->status, exit_code(why->status, SIGINT));
}

/* Returns true if this process reports in place of rank 0, which has been lost: rank 1 can read the
 * blocks of the ranks of its host. Documents of a batch contain runs that only rank 0 knows, so rank 1
 * writes documents of a single run only, and no file of a folder. */
static bool replaces_rank_0(struct run_command *c, const struct run *run,
                            const struct result *result)
{
    if (run->process_id.rank != 1 || !result->rank_0_lost)
        return false;
    c->documents.ours = c->runs.n == 1 && c->cli->out_dir == NULL;
    return true;
}

/* Reports a result if this process reports, and returns its exit code. */
static int finish_run(struct run_command *c, const struct run *run, struct report_row *row,
                      const struct result *result)
{
    /* A time limit expired before this process started its rank. */
    c->lost = result->status == EPA_ERR_TIMEOUT && run->process_id.size > 1 && result->not_started;
    if (run->process_id.rank == 0 || replaces_rank_0(c, run, result))
        return report_result(c, run, row, result);
    if (result->error.text[0] != '\0')
        run_print_end(run, &run->process_id, &result->error);
    report_row_end(row, REPORT_NOT_RUN, result->status, "");
    return finish_row(run, row, result->status, exit_code(result->status, result->signal));
}

static int run_one(struct run_command *c, uint32_t i, enum epa_status *status)
{
    const struct run *run = &c->runs.run[i];
    struct report_row *row = &c->documents.row[i];
    const struct live_run shown = {.file = run->batch->file,
                                   .label = run->batch->n > 1 ? run->label : "",
                                   .number = c->number,
                                   .of = c->runs.n,
                                   .reports = run->process_id.rank == 0,
                                   .documents = &c->documents,
                                   .stop_fd = c->stop_fd};
    const struct run_how how = {.session = c->session[i],
                                .force = c->cli->force,
                                .skips = run->skips,
                                .machine = &c->machine,
                                .stop_fd = c->stop_fd};
    const struct run_observer observer = live_observe(c->live, &shown);
    struct result result;
    int code;

    c->session[i] = NULL;
    *status = EPA_OK;
    if (run->refused.status != EPA_OK)
        return reject_run(c, run, row, &run->refused);
    result = run_experiment(run->x, c->verb, &how, &observer);
    if (result.figures == NULL) {
        run_print_refusal(run, &run->process_id, &result.error);
        return reject_run(c, run, row, &result.error);
    }
    *status = result.status;
    code = finish_run(c, run, row, &result);
    if (!result_finish(&result))
        c->leaks = true;
    return code;
}

/* Reports the runs that are not started because ranks did not connect: each of them would wait for
 * the same ranks again. */
static void report_lost(const struct run_command *c, uint32_t at)
{
    uint32_t left = c->runs.n - at - 1;
    char text[120];

    if (left == 0)
        return;
    snprintf(text, sizeof(text), "%u more run%s not started, since ranks did not connect", left,
             left == 1 ? " is" : "s are");
    run_print_error(&c->process_id, "epa2a", text);
}

static bool all_skipped(const struct run_command *c)
{
    for (uint32_t i = 0; i < c->runs.n; i++)
        if (strcmp(c->documents.row[i].end, REPORT_SKIPPED) != 0)
            return false;
    return true;
}

/* Returns true if further runs have no effect: their output has no reader, and no run writes
 * traces. Ranks that another launcher started always continue, since every rank runs the whole
 * batch. */
static bool is_pointless(const struct run_command *c)
{
    for (uint32_t i = 0; i < c->runs.n; i++)
        if (c->runs.run[i].x != NULL && c->runs.run[i].x->profile.file != NULL)
            return false;
    return c->process_id.size <= 1 && documents_are_unread(&c->documents);
}

static int run_all(struct run_command *c)
{
    enum epa_status status = EPA_OK;
    int first = EXIT_OK, code;

    for (uint32_t at = 0; at < c->runs.n && status != EPA_ERR_INTERRUPTED; at++) {
        uint32_t i = c->runs.order[at];

        c->number = at + 1;
        if (c->runs.run[i].done != NULL)
            continue;
        documents_begin_run(&c->documents);
        code = run_one(c, i, &status);
        (void)run_folder_add(&c->folder, &c->documents, i, false);
        if (first == EXIT_OK)
            first = code;
        if (c->lost)
            report_lost(c, at);
        if (c->lost || (code != EXIT_OK && c->cli->batch.fail_fast) || is_pointless(c))
            break;
        if (at + 1 < c->runs.n && status != EPA_ERR_INTERRUPTED)
            (void)documents_write(&c->documents, false);
    }
    if (first == EXIT_OK && all_skipped(c))
        first = EXIT_SKIPPED;
    if (!documents_write(&c->documents, true) && first == EXIT_OK)
        first = EXIT_RESOURCE;
    if (!run_folder_add(&c->folder, &c->documents, 0, true) && first == EXIT_OK)
        first = EXIT_RESOURCE;
    return first;
}

/* ---- the command ---- */

/* Frees the state. If threads that cannot be ended still use a session, leaks everything until the
 * process ends. */
static void command_finish(struct run_command *c)
{
    if (c->leaks)
        return;
    for (uint32_t i = 0; i < c->runs.n && c->session != NULL; i++)
        session_destroy(c->session[i]);
    free(c->session);
    live_destroy(c->live);
    documents_finish(&c->documents);
    run_folder_finish(&c->folder);
    runs_finish(&c->runs);
    registry_destroy(c->registry);
    if (c->stop_fd >= 0)
        close(c->stop_fd);
}

/* Returns true if this process is rank 0 of a run. The launcher of a file may know the rank more
 * exactly than the environment. */
static bool is_reporter(const struct run_command *c)
{
    for (uint32_t i = 0; i < c->runs.n; i++) {
        if (c->runs.run[i].process_id.rank == 0)
            return true;
    }
    return false;
}

/* By default repetitions are interleaved, so that slow drift of the machine affects all runs
 * equally. --resume keeps the order of its batch. The seed is the same for all processes. */
static void order_runs(struct run_command *c)
{
    const struct cli *cli = c->cli;
    bool usual = cli->batch.order == RUNS_USUAL && !cli->batch.shuffle;
    enum runs_order order = cli->batch.order;
    uint64_t seed = cli->batch.shuffle ? cli->batch.shuffle_seed : 1;

    if (usual && run_folder_order(&c->folder, &order, &seed))
        ; /* keeps the order of the batch */
    else if (order == RUNS_USUAL && cli->batch.shuffle)
        order = RUNS_SHUFFLED;
    else if (order == RUNS_USUAL)
        order = c->verb == VERB_BENCH && runs_repeat(&c->runs) ? RUNS_INTERLEAVED : RUNS_DECLARED;
    runs_order(&c->runs, order, seed);
}

static enum epa_status prepare_command(struct run_command *c, const char *text, bool shares,
                                       struct epa_error *err)
{
    const struct cli *cli = c->cli;
    struct epa_error ignored = {EPA_OK, ""};
    struct process_job job = {0};
    enum epa_status status = EPA_OK;

    machine_facts_read("", &c->machine);
    c->facts.machine = &c->machine;
    c->facts.context = cli->batch.context;
    c->facts.n_context = cli->batch.n_context;
    if (process_id_find(&job, &ignored) == EPA_OK) /* the launcher reports a failure */
        c->process_id = job.process_id;
    if (c->process_id.rank == 0)
        status = cli_check_documents(cli, err);
    c->live = live_create(progress_is_on(cli));
    if (status == EPA_OK)
        status = program_registry_create(cli->plugin_path, &c->registry, err);
    if (status == EPA_OK)
        status = read_files(c, text, err);
    if (status == EPA_OK)
        status = run_folder_read(&c->folder, cli, session_verb_name(c->verb), &c->runs, err);
    if (status == EPA_OK) {
        order_runs(c);
        status = check_launchers(c);
        if (status == EPA_OK)
            status = check_sessions(c);
    }
    if (status == EPA_OK && c->process_id.rank > 0 && is_reporter(c))
        status = cli_check_documents(cli, err);
    if (status == EPA_OK && is_reporter(c))
        status = run_folder_check(&c->folder, err);
    if (status == EPA_OK)
        documents_init(&c->documents, cli, c->verb, &c->runs, is_reporter(c), shares);
    if (status == EPA_OK && !cli->batch.dry_run)
        status = documents_open(&c->documents, err);
    if (status == EPA_OK && !cli->batch.dry_run && is_reporter(c))
        status = run_folder_open(&c->folder, &c->documents, &c->facts, err);
    return status;
}

/* --dry-run: lists the runs and returns the exit code that a real batch would return for runs that
 * cannot start. */
static int list_runs(const struct run_command *c)
{
    int first = EXIT_OK;
    uint32_t skipped = 0;

    if (c->process_id.rank == 0 && !c->cli->quiet)
        runs_list(&c->runs);
    for (uint32_t i = 0; i < c->runs.n && first == EXIT_OK; i++) {
        enum epa_status status = c->runs.run[c->runs.order[i]].refused.status;

        if (status != EPA_ERR_UNSUPPORTED)
            first = exit_code(status, SIGINT);
        else
            skipped++;
    }
    return skipped == c->runs.n ? EXIT_SKIPPED : first;
}

int run_experiments(const struct cli *cli, enum verb verb, const char *text,
                    struct results *results)
{
    struct run_command c = {.cli = cli, .verb = verb, .stop_fd = -1};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;
    sigset_t stops;
    int code, stop;

    stop_signals_catch(&stops);
    status = prepare_command(&c, text, results != NULL, &err);
    /* Signals keep their default action while files are read: there are no results yet, and a read
     * from a pipe may block forever. */
    if (status == EPA_OK && !cli->batch.dry_run)
        status = stop_signals_open(&stops, &c.stop_fd, &err);
    if (err.status != EPA_OK) {
        error_add_remedy(&err);
        run_print_error(&c.process_id, "epa2a", err.text);
    }
    if (status != EPA_OK) {
        code = exit_code(status, SIGINT);
    } else if (cli->batch.dry_run) {
        code = list_runs(&c);
    } else {
        print_launchers(&c);
        add_to_fingerprints(&c);
        code = run_all(&c);
        stop = stop_signals_read(c.stop_fd);
        if (stop != 0) {
            output_stop();
            code = code == EXIT_OK ? exit_code(EPA_ERR_INTERRUPTED, stop) : code;
        }
    }
    if (results != NULL && c.documents.n_rows > 0)
        documents_share(&c.documents, results);
    command_finish(&c);
    return code;
}
