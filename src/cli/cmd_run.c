/* run, bench and verify: files to experiments to sessions to reports. Every file is read,
 * and everything that can be refused is refused, before the first rank starts.
 *
 * Where somebody else has started the ranks this program runs once for each of them. That
 * of rank 0 reports; of the others each says at most one line of what only it knows. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "base/clock.h"
#include "config/diag.h"
#include "launch/place.h"
#include "plugin/registry.h"
#include "report/report.h"
#include "session/session.h"

struct command {
    const struct cli *cli;
    enum verb verb;
    struct registry *registry;
    uint32_t n; /* of all below */
    struct experiment **experiment;
    struct session **session;
    struct result *result;
    const struct result **done; /* those of `result` that there are so far */
    uint32_t n_done;
    struct facts facts;
    struct epa_place place; /* by the environment; size 0: not one of several */
    int stop_fd;
    bool json_is_ours; /* written by this command, so to be written over */
};

/* Paths, and what a file holds, are shown to a terminal and not obeyed by it. */
static void tell(const struct epa_place *place, const char *who, const char *what)
{
    const char *part[] = {who, ": error: ", what};

    if (place->rank > 0)
        fprintf(stderr, "[rank %u] ", place->rank);
    for (uint32_t i = 0; i < 3; i++) {
        for (const char *c = part[i]; *c != '\0'; c++)
            fputc((unsigned char)*c < ' ' || *c == 127 ? '?' : *c, stderr);
    }
    fputc('\n', stderr);
}

/* ---- reading ---- */

/* --timeout is a --set like any other, and comes last so that it wins. */
static const char **all_sets(const struct cli *cli, char *timeout, size_t room, uint32_t *n)
{
    const char **set = calloc(cli->n_sets + 1, sizeof(*set));

    *n = 0;
    if (set == NULL)
        return NULL;
    for (uint32_t i = 0; i < cli->n_sets; i++)
        set[(*n)++] = cli->set[i];
    if (cli->timeout_ns != 0) {
        snprintf(timeout, room, "timeout=%lluns", (unsigned long long)cli->timeout_ns);
        set[(*n)++] = timeout;
    }
    return set;
}

static enum epa_status read_files(struct command *c, struct epa_error *err)
{
    struct diag *diag = diag_create();
    char timeout[64];
    uint32_t n_sets = 0;
    const char **set = all_sets(c->cli, timeout, sizeof(timeout), &n_sets);
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < c->n && set != NULL; i++) {
        enum epa_status one = experiment_read(c->cli->arg[i], set, n_sets, c->registry,
                                              diag, &c->experiment[i]);

        if (one != EPA_OK)
            status = one;
    }
    if (set == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory for %u settings", c->cli->n_sets);
    if (c->place.rank == 0) {
        diag_print(diag, stderr);
    } else if (diag_errors(diag) > 0) {
        fprintf(stderr, "[rank %u] ", c->place.rank);
        diag_print_first(diag, stderr);
    }
    diag_destroy(diag);
    free(set);
    return status;
}

static enum epa_status make_sessions(struct command *c)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < c->n; i++) {
        struct epa_error err = {EPA_OK, ""};
        enum epa_status one =
            session_create(c->experiment[i], c->verb, &c->session[i], &err);

        if (one != EPA_OK) {
            if (status == EPA_OK || c->place.rank == 0)
                tell(&c->place, c->cli->arg[i], err.text);
            status = one;
        }
    }
    return status;
}

/* ---- running ---- */

/* The signal that asked to stop, or 0. */
static int stop_signal(const struct command *c)
{
    struct signalfd_siginfo info;

    return read(c->stop_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)
               ? (int)info.ssi_signo
               : 0;
}

/* The JSON is written after each session, so that a later one cannot take it away. */
static enum epa_status write_json(struct command *c, bool last, struct epa_error *err)
{
    const char *path = c->cli->json;
    enum epa_status status;

    if (path == NULL || (strcmp(path, "-") == 0 && !last))
        return EPA_OK;
    status = report_json(path, c->cli->force || c->json_is_ours, c->done, c->n_done, err);
    c->json_is_ours |= status == EPA_OK;
    return status;
}

/* The exit code of a result that is reported: data that is wrong matters more than a disk
 * that is full. */
static int report(struct command *c, uint32_t i, const char *error)
{
    struct result *result = &c->result[i];
    struct epa_error err = {EPA_OK, ""};
    bool last = i + 1 == c->n || result->status == EPA_ERR_INTERRUPTED;

    c->done[c->n_done++] = result;
    if (!c->cli->quiet && (c->cli->json == NULL || strcmp(c->cli->json, "-") != 0))
        report_table(stdout, result);
    fflush(stdout);
    if (!c->cli->quiet)
        report_warnings(stderr, result);
    if (result->status != EPA_OK)
        tell(&c->session[i]->place, c->cli->arg[i], error);
    if (write_json(c, last, &err) != EPA_OK) {
        tell(&c->session[i]->place, "epa2a", err.text);
        if (result->exit_code == EXIT_OK)
            return EXIT_RESOURCE;
    }
    return result->exit_code;
}

/* Runs session i and reports it, if it is ours to report; returns its exit code. */
static int run_one(struct command *c, uint32_t i, enum epa_status *status)
{
    const struct epa_place *place = &c->session[i]->place;
    struct result *result = &c->result[i];
    struct epa_error err = {EPA_OK, ""}, own = {EPA_OK, ""};
    uint64_t start = clock_ns();
    time_t started = time(NULL);
    int signal;

    *status = session_run(c->session[i], c->stop_fd, &err);
    signal = *status == EPA_ERR_INTERRUPTED ? stop_signal(c) : 0;
    if (place->rank > 0) {
        if (err.text[0] != '\0')
            tell(place, c->cli->arg[i], err.text);
        return exit_code(*status, signal);
    }
    if (result_make(c->session[i], &c->facts, *status, err.text, result, &own) != EPA_OK) {
        tell(place, "epa2a", own.text);
        return EXIT_INTERNAL;
    }
    result_when(result, started, (double)(clock_ns() - start) / 1e9);
    if (*status == EPA_ERR_INTERRUPTED)
        result->exit_code = exit_code(*status, signal);
    return report(c, i, err.text);
}

static int run_all(struct command *c)
{
    enum epa_status status = EPA_OK;
    int first = EXIT_OK;

    for (uint32_t i = 0; i < c->n && status != EPA_ERR_INTERRUPTED; i++) {
        int code = run_one(c, i, &status);

        if (first == EXIT_OK)
            first = code;
    }
    return first;
}

/* ---- the command ---- */

/* From here on SIGINT and SIGTERM end a session and not the program. While files are read
 * they do what they always do: there are no results yet, and a pipe may have no end. */
static enum epa_status catch_signals(struct command *c, struct epa_error *err)
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

static bool command_init(struct command *c)
{
    uint32_t n = c->cli->n_args;

    c->experiment = calloc(n, sizeof(struct experiment *));
    c->session = calloc(n, sizeof(struct session *));
    c->result = calloc(n, sizeof(*c->result));
    c->done = calloc(n, sizeof(struct result *));
    facts_collect(&c->facts);
    if (c->experiment == NULL || c->session == NULL || c->result == NULL || c->done == NULL)
        return false;
    c->n = n; /* not before there is something to finish */
    return true;
}

/* Where threads that cannot be ended still use a session all of it is left to the process. */
static void command_finish(struct command *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        if (session_in_use(c->session[i]))
            return;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        result_finish(&c->result[i]);
        session_destroy(c->session[i]);
        experiment_destroy(c->experiment[i]);
    }
    free(c->experiment);
    free(c->session);
    free(c->result);
    free(c->done);
    facts_finish(&c->facts);
    registry_destroy(c->registry);
    if (c->stop_fd >= 0)
        close(c->stop_fd);
}

/* Who the files say that we are; they may know better than the environment. */
static bool is_reporter(const struct command *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->session[i]->place.rank == 0)
            return true;
    }
    return false;
}

/* Which ranks these are is found and not asked for, so it is said. */
static void tell_places(const struct command *c)
{
    const char *before = "";

    for (uint32_t i = 0; i < c->n && !c->cli->quiet; i++) {
        const struct epa_place *place = &c->session[i]->place;

        if (place->size > 0 && place->rank == 0 && strcmp(place->how, before) != 0)
            fprintf(stderr, "epa2a: launcher: %s (%s)\n",
                    c->experiment[i]->launcher.plugin->name, place->how);
        before = place->how;
    }
}

/* Started by mpirun and its like, each of them would start all ranks again. */
static enum epa_status check_launchers(const struct command *c, struct epa_error *err)
{
    for (uint32_t i = 0; i < c->n && c->place.size > 1; i++) {
        const struct epa_plugin *plugin = c->experiment[i]->launcher.plugin;

        if (((const struct epa_launcher_plugin *)plugin)->place != NULL)
            continue;
        if (c->place.rank > 0) /* rank 0 says it */
            return EPA_ERR_CONFIG;
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: launcher: %s starts all ranks itself, and this is one process "
                        "of %u already (%s): leave launcher out, or unset what is left "
                        "over from another job",
                        c->cli->arg[i], plugin->name, c->place.size, c->place.how);
    }
    return EPA_OK;
}

static enum epa_status prepare(struct command *c, struct epa_error *err)
{
    const struct cli *cli = c->cli;
    struct epa_error ignored = {EPA_OK, ""};
    struct place_job job = {0};
    enum epa_status status = EPA_OK;

    if (!command_init(c))
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u experiments", cli->n_args);
    if (place_find(&job, &ignored) == EPA_OK) /* else who needs it says why */
        c->place = job.place;
    if (cli->json != NULL && c->place.rank == 0)
        status = report_json_check(cli->json, cli->force, err);
    if (status == EPA_OK)
        status = registry_create(cli->plugin_path, &c->registry, err);
    if (status == EPA_OK)
        status = read_files(c, err);
    if (status == EPA_OK)
        status = check_launchers(c, err);
    if (status == EPA_OK)
        status = make_sessions(c);
    if (status == EPA_OK && cli->json != NULL && c->place.rank > 0 && is_reporter(c))
        status = report_json_check(cli->json, cli->force, err);
    if (status == EPA_OK)
        status = catch_signals(c, err);
    if (status == EPA_OK)
        tell_places(c);
    return status;
}

static int command_run(const struct cli *cli, enum verb verb)
{
    struct command c = {.cli = cli, .verb = verb, .stop_fd = -1};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = prepare(&c, &err);
    int code;

    if (err.status != EPA_OK)
        tell(&c.place, "epa2a", err.text);
    code = status == EPA_OK ? run_all(&c) : exit_code(status, SIGINT);
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
