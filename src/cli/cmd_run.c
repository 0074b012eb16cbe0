/* run, bench and verify: files to experiments to sessions to reports. Every file is read,
 * and everything that can be refused is refused, before the first rank starts. Then runs go
 * one after the other; what a run leaves is a result as JSON and a line of the summary.
 *
 * Where somebody else has started the ranks this program runs once for each of them. That
 * of rank 0 reports; of the others each says at most one line of what only it knows. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/run_command.h"
#include "launch/process_id.h"

/* From here on SIGINT and SIGTERM end a session and not the program. While files are read
 * they do what they always do: there are no results yet, and a pipe may have no end. */
static enum epa_status catch_signals(struct run_command *c, struct epa_error *err)
{
    sigset_t signals;

    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    if (sigprocmask(SIG_BLOCK, &signals, NULL) == 0)
        c->stop_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (c->stop_fd < 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "signalfd: %s", strerror(errno));
    return EPA_OK;
}

/* Where threads that cannot be ended still use a session all of it is left to the process. */
static void command_finish(struct run_command *c)
{
    if (c->stays)
        return;
    for (uint32_t i = 0; i < c->runs.n && c->session != NULL; i++)
        session_destroy(c->session[i]);
    free(c->session);
    live_destroy(c->live);
    documents_finish(&c->documents);
    run_folder_finish(&c->folder);
    runs_finish(&c->runs);
    facts_finish(&c->facts);
    registry_destroy(c->registry);
    if (c->stop_fd >= 0)
        close(c->stop_fd);
}

/* Who the files say that we are; they may know better than the environment. */
static bool is_reporter(const struct run_command *c)
{
    for (uint32_t i = 0; i < c->runs.n; i++) {
        if (c->runs.run[i].process_id.rank == 0)
            return true;
    }
    return false;
}

static const char *verb_name(enum verb verb)
{
    return session_verb(&(struct session){.verb = verb});
}

/* Slow changes of a machine are in all repetitions alike, unless the user wants it otherwise.
 * A batch that goes on does so in its own order. The seed is the same for all processes. */
static void order_runs(struct run_command *c)
{
    const struct cli *cli = c->cli;
    const struct batch_index *old = &c->folder.old;
    bool goes_on = c->folder.was.bytes > 0 && cli->order == RUNS_USUAL && !cli->shuffle;
    enum runs_order order = cli->order;
    uint64_t seed = cli->shuffle ? cli->shuffle_seed : 1;

    if (goes_on && runs_order_find(old->order, &order))
        seed = old->seed;
    else if (order == RUNS_USUAL && cli->shuffle)
        order = RUNS_SHUFFLED;
    else if (order == RUNS_USUAL)
        order = c->verb == VERB_BENCH && runs_repeat(&c->runs) ? RUNS_INTERLEAVED : RUNS_DECLARED;
    runs_order(&c->runs, order, seed);
}

static enum epa_status prepare(struct run_command *c, struct epa_error *err)
{
    const struct cli *cli = c->cli;
    struct epa_error ignored = {EPA_OK, ""};
    struct process_job job = {0};
    enum epa_status status = EPA_OK;

    facts_collect(&c->facts);
    c->facts.context = cli->context;
    c->facts.n_context = cli->n_context;
    if (process_id_find(&job, &ignored) == EPA_OK) /* else who needs it says why */
        c->process_id = job.process_id;
    if (c->process_id.rank == 0)
        status = documents_check(cli, err);
    if (status == EPA_OK)
        status = live_create(cli, &c->live, err);
    if (status == EPA_OK)
        status = registry_create(cli->plugin_path, &c->registry, err);
    if (status == EPA_OK)
        status = run_read(c, err);
    if (status == EPA_OK)
        status = run_folder_look(&c->folder, cli, verb_name(c->verb), &c->runs, err);
    if (status == EPA_OK) {
        order_runs(c);
        status = run_check(c, err);
    }
    if (status == EPA_OK && c->process_id.rank > 0 && is_reporter(c))
        status = documents_check(cli, err);
    if (status == EPA_OK)
        status = documents_init(&c->documents, cli, c->verb, &c->runs, is_reporter(c), err);
    if (status == EPA_OK && !cli->dry_run)
        status = documents_open(&c->documents, err);
    if (status == EPA_OK && !cli->dry_run && is_reporter(c))
        status = run_folder_open(&c->folder, &c->documents, c->facts.host, err);
    return status;
}

/* --dry-run: what cannot run is told by the exit code as it would be by a run of all. */
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

static int command_run(const struct cli *cli, enum verb verb)
{
    struct run_command c = {.cli = cli, .verb = verb, .stop_fd = -1};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;
    int code;

    live_catch();
    status = prepare(&c, &err);
    if (status == EPA_OK && !cli->dry_run)
        status = catch_signals(&c, &err);
    if (err.status != EPA_OK)
        run_write(&c.process_id, "epa2a", err.text);
    if (status != EPA_OK) {
        code = exit_code(status, SIGINT);
    } else if (cli->dry_run) {
        code = list_runs(&c);
    } else {
        run_write_processes(&c);
        run_write_fingerprint(&c);
        code = run_all(&c);
    }
    command_finish(&c);
    return code;
}

int cmd_run(const struct cli *cli)
{
    return command_run(cli, VERB_RUN);
}

int cmd_bench(const struct cli *cli)
{
    return command_run(cli, VERB_BENCH);
}

int cmd_verify(const struct cli *cli)
{
    return command_run(cli, VERB_VERIFY);
}
