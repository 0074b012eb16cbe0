/* Files to runs to sessions that can be: every file is read, and everything that can be
 * refused is refused, before the first rank starts. */
#include "cli/run_command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/experiment.h"
#include "config/node.h"

/* Paths, and what a file holds, are shown to a terminal and not obeyed by it. */
static void tell_as(const char *word, enum colour colour, const struct epa_process_id *place,
                    const char *who, const char *what)
{
    const char *part[] = {who, ": ", word, ": ", what};

    if (place->rank > 0)
        fprintf(stderr, "[rank %u] ", place->rank);
    for (uint32_t i = 0; i < 5; i++) {
        fputs(part[i] == word ? colour_on(stderr, colour) : "", stderr);
        for (const char *c = part[i]; *c != '\0'; c++)
            fputc((unsigned char)*c < ' ' || *c == 127 ? '?' : *c, stderr);
        fputs(part[i] == word ? colour_off(stderr) : "", stderr);
    }
    fputc('\n', stderr);
}

void run_write(const struct epa_process_id *place, const char *who, const char *what)
{
    tell_as("error", COLOUR_ERROR, place, who, what);
}

/* Of a run of several, that something is not here is all there is to say. */
bool run_is_skipped(const struct run *run, enum epa_status status)
{
    return status == EPA_ERR_UNSUPPORTED && run_is_of_several(run);
}

/* "FILE:3:18" of the first key in `what` that a file has set; NULL: of none. */
static char *find_location(const struct experiment *x, const char *what)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyz0123456789_.";
    char *out = NULL;

    for (size_t n; x != NULL && out == NULL && *what != '\0'; what += n) {
        const struct node *origin = NULL;
        char key[64];

        n = strspn(what, word);
        if (n > 0 && n < sizeof(key)) {
            snprintf(key, sizeof(key), "%.*s", (int)n, what);
            key[n - (key[n - 1] == '.')] = '\0';
            if (strchr(key, '.') != NULL)
                origin = origin_find(x, key);
        }
        if (origin != NULL && strcmp(origin->location.file, "--set") != 0 &&
            asprintf(&out, "%s:%u:%u", origin->location.file, origin->location.line,
                     origin->location.column) < 0)
            out = NULL;
        n += strcspn(what + n, word);
    }
    return out;
}

void run_write_end(const struct run *run, const struct epa_process_id *place,
                   enum epa_status status, const char *what)
{
    bool skipped = run_is_skipped(run, status);
    char *where = find_location(run->x, what);
    char *who = NULL;

    if (where != NULL)
        (void)!asprintf(&who, "%s%s", where, run->who + strlen(run->batch->file));
    tell_as(skipped ? "skipped" : "error", skipped ? COLOUR_WARNING : COLOUR_ERROR, place,
            who != NULL ? who : run->who, what);
    free(who);
    free(where);
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

enum epa_status run_read(struct run_command *c, struct epa_error *err)
{
    struct diag *diag = diag_create();
    char timeout[64];
    uint32_t n_sets = 0;
    const char **set = all_sets(c->cli, timeout, sizeof(timeout), &n_sets);
    enum epa_status status;

    if (set == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory for %u settings", c->cli->n_sets);
    else
        status = runs_read(c->cli, set, n_sets, c->registry, diag, &c->runs, err);
    if (c->process_id.rank == 0) {
        diag_print(diag, stderr);
    } else if (diag_errors(diag) > 0) {
        fprintf(stderr, "[rank %u] ", c->process_id.rank);
        diag_print_first(diag, stderr);
    }
    diag_destroy(diag);
    free(set);
    return status;
}

/* What a run lacks here ends the command, unless the run is one of several of its file. */
static bool may_lack(const struct run *run, enum epa_status status)
{
    return run_is_of_several(run) && status != EPA_ERR_CONFIG;
}

/* Sessions of many runs are made when their turn comes. But where ranks were started by
 * others, a launcher may fork for the first run and go on with that process: what later runs
 * need is to be there by then. */
static bool keeps(const struct run_command *c, const struct session *session)
{
    return c->runs.n == 1 || session->process_id.size > 0;
}

/* Started by mpirun and its like, each of them would start all ranks again. */
static enum epa_status check_launchers(const struct run_command *c)
{
    struct epa_error err = {EPA_OK, ""};

    for (uint32_t i = 0; i < c->runs.n && c->process_id.size > 1; i++) {
        const struct run *run = &c->runs.run[i];
        const struct epa_plugin *plugin = run->x == NULL ? NULL : run->x->launcher.plugin;

        if (plugin == NULL || ((const struct epa_launcher_plugin *)plugin)->process_id != NULL)
            continue;
        epa_fail(&err, EPA_ERR_CONFIG,
                 "launcher.name: %s starts all ranks itself, and this is one process of %u "
                 "already (%s): leave launcher out, or unset what is left over from another "
                 "job",
                 plugin->name, c->process_id.size, c->process_id.source);
        if (c->process_id.rank == 0)
            run_write_end(run, &c->process_id, err.status, err.text);
        return err.status;
    }
    return EPA_OK;
}

static enum epa_status check_sessions(struct run_command *c, struct epa_error *error)
{
    enum epa_status status = EPA_OK;

    c->session = calloc(c->runs.n, sizeof(struct session *));
    if (c->session == NULL)
        return epa_fail(error, EPA_ERR_NOMEM, "no memory for %u runs", c->runs.n);
    for (uint32_t i = 0; i < c->runs.n; i++) {
        struct run *run = &c->runs.run[i];
        struct epa_error err = {EPA_OK, ""};
        struct session *session = NULL;
        enum epa_status one;

        run->process_id = c->process_id;
        if (run->x == NULL || run->done)
            continue;
        one = session_create_on(live_status_page(c->live), run->x, c->verb, &session, &err);
        if (one == EPA_OK)
            run->process_id = session->process_id;
        if (one == EPA_OK && run->process_id.rank == 0)
            one = trace_write_check(session, c->cli->force, &err);
        if (one == EPA_OK && keeps(c, session))
            c->session[i] = session;
        else
            session_destroy(session);
        if (one == EPA_OK)
            continue;
        if (status == EPA_OK || c->process_id.rank == 0)
            run_write_end(run, &c->process_id, one, err.text);
        if (may_lack(run, one))
            run->refused = err;
        else
            status = one;
    }
    return status;
}

enum epa_status run_check(struct run_command *c, struct epa_error *err)
{
    enum epa_status status = check_launchers(c);

    return status == EPA_OK ? check_sessions(c, err) : status;
}

void run_write_fingerprint(struct run_command *c)
{
    uint32_t refused = 0, done = 0;

    for (uint32_t i = 0; i < c->runs.n; i++) {
        refused += c->runs.run[i].refused.status != EPA_OK;
        done += c->runs.run[i].done;
    }
    for (uint32_t at = 0; at < c->runs.n && c->runs.n > 1; at++) {
        struct session *session = c->session[c->runs.order[at]];

        if (session != NULL)
            text_add(&session->fingerprint,
                     "run: %u of %u\nruns that cannot be had here: %u\nruns done before: %u\n",
                     at + 1, c->runs.n, refused, done);
    }
}

void run_write_processes(const struct run_command *c)
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
