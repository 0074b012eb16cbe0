/* `epa2a status [PID]`: where the ranks of commands that run are. Nothing is asked of them:
 * their status pages are read through /proc, so it works for one that hangs or is stopped. */
#include "cli/cli.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "config/options.h"
#include "base/file.h"
#include "session/status.h"

/* ---- JSON ---- */

static json_t *number(uint32_t n)
{
    return n == EPA_WAIT_NOBODY ? json_null() : json_integer(n);
}

static json_t *waiting_json(const struct status *s, uint32_t rank)
{
    static const char *const kind[] = {
        [EPA_WAIT_SIGNAL] = "signal", [EPA_WAIT_BARRIER] = "barrier", [EPA_WAIT_SET_UP] = "set-up",
        [EPA_WAIT_DATA] = "data",     [EPA_WAIT_PUTS] = "puts",       [EPA_WAIT_CALL] = "call",
        [EPA_WAIT_DEVICE] = "device",
    };
    const struct session_wait *w = &s->rank[rank].said.waiting;
    bool counts =
        w->kind != EPA_WAIT_PUTS && w->kind != EPA_WAIT_CALL && w->kind != EPA_WAIT_DEVICE;
    double since = s->now_ns > w->since_ns ? (double)(s->now_ns - w->since_ns) / 1e9 : 0;

    if (!s->rank[rank].waits || w->kind > EPA_WAIT_DEVICE)
        return json_null();
    return json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:f}", "kind", kind[w->kind], "what",
                     json_text_or_null(w->what), "rank", number(w->peer), "signal",
                     number(w->number), "seen", counts ? json_count(w->seen) : json_null(),
                     "wanted", counts ? json_count(w->wanted) : json_null(), "waited_s", since);
}

static json_t *rank_json(const struct status *s, uint32_t r)
{
    const struct status_rank *rank = &s->rank[r];
    bool here = rank->state != STATUS_ABSENT;

    return json_pack(
        "{s:i,s:s,s:o,s:o,s:o,s:o,s:o,s:o}", "rank", (int)r, "state",
        status_state_name(rank->state), "pid", here ? json_integer(rank->said.pid) : json_null(),
        "host", here ? json_text(rank->said.host) : json_null(), "stage",
        here ? json_text(status_stage(s, r)) : json_null(), "iteration",
        here ? json_count(rank->said.iteration) : json_null(), "samples",
        here ? json_count(rank->said.samples) : json_null(), "waits_for", waiting_json(s, r));
}

static json_t *run_json(const struct status *s)
{
    const struct status_page_run *run = &s->head.run;
    json_t *ranks = json_array();

    if (run->began_ns == 0) {
        json_decref(ranks);
        return json_null();
    }
    for (uint32_t r = 0; r < s->n; r++)
        json_array_append_new(ranks, rank_json(s, r));
    return json_pack(
        "{s:s,s:o,s:o,s:i,s:i,s:f,s:i,s:i,s:o,s:o}", "verb", status_verb(s), "file",
        json_text(run->file), "label", json_text_or_null(run->label), "number", (int)run->number,
        "of", (int)run->of, "elapsed_s", (double)(s->now_ns - run->began_ns) / 1e9, "warmup",
        (int)run->warmup, "iterations", (int)run->iterations, "process_of_rank",
        run->place_size > 1 ? json_integer(run->place_rank) : json_null(), "ranks", ranks);
}

static void add_json(void *to, const struct status *s)
{
    json_array_append_new(to, json_pack("{s:i,s:s,s:f,s:o}", "pid", (int)s->head.pid, "version",
                                        s->head.version, "elapsed_s",
                                        (double)(s->now_ns - s->head.began_ns) / 1e9, "run",
                                        run_json(s)));
}

/* ---- the command ---- */

struct shown {
    json_t *commands;
    struct text text;
};

static void add_command(void *arg, const struct status *s)
{
    struct shown *to = arg;

    add_json(to->commands, s);
    status_print_head(s, &to->text);
    text_add(&to->text, "\n");
}

static enum epa_status read_one(const char *word, struct shown *out, struct epa_error *err)
{
    struct value_error why;
    enum epa_status status;
    struct status s;
    uint64_t pid = 0;

    if (!value_u64(word, &pid, &why) || pid == 0 || pid > INT32_MAX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "'%s' is not the number of a process; 'epa2a status' lists those "
                        "that run an experiment",
                        word);
    status = status_read_pid((pid_t)pid, &s, err);
    if (status != EPA_OK)
        return status;
    add_json(out->commands, &s);
    status_print(&s, "", &out->text);
    status_finish(&s);
    return EPA_OK;
}

int cmd_status(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};
    struct shown shown = {.commands = json_array()};
    enum epa_status status = EPA_OK;

    if (cli->json != NULL)
        status = file_check("--json", cli->json, cli->force, &err);
    if (status == EPA_OK && cli->n_args == 1)
        status = read_one(cli->arg[0], &shown, &err);
    else if (status == EPA_OK)
        status_each(add_command, &shown);
    if (status == EPA_OK && cli->json != NULL)
        status = cli_write_json(
            cli, json_pack("{s:s,s:O}", "schema", "epa2a-status-1", "commands", shown.commands),
            &err);
    if (status == EPA_OK && (cli->json == NULL || strcmp(cli->json, "-") != 0)) {
        if (shown.text.bytes > 0)
            fputs(shown.text.data, stdout);
        else
            fputs("epa2a: no command of this user runs an experiment here\n", stderr);
    }
    json_decref(shown.commands);
    text_free(&shown.text);
    if (status == EPA_OK)
        return EXIT_OK;
    return cli_fail(&err);
}
