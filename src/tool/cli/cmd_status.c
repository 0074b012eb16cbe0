/* `epa2a status [PID]`: state of the ranks of running commands. Reads their status pages through /proc
 * without their help, so it also works for a command that hangs or is stopped. */
#include "cli/cmd_status.h"

#include <stdio.h>

#include "base/exit_code.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "options/value.h"
#include "registry/registry.h"
#include "session/status.h"
#include "session/status_text.h"

static json_t *number_or_null(uint32_t n)
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
                     json_text_or_null(w->what), "rank", number_or_null(w->peer), "signal",
                     number_or_null(w->number), "seen", counts ? json_count(w->seen) : json_null(),
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

static void add_command_json(void *to, const struct status *s)
{
    json_array_append_new(to, json_pack("{s:i,s:s,s:f,s:o}", "pid", (int)s->head.pid, "version",
                                        s->head.version, "elapsed_s",
                                        (double)(s->now_ns - s->head.began_ns) / 1e9, "run",
                                        run_json(s)));
}

struct shown {
    json_t *commands;
    struct text *text;
};

static void add_command_head(void *arg, const struct status *s)
{
    struct shown *to = arg;

    add_command_json(to->commands, s);
    status_print_head(s, to->text);
    text_add(to->text, "\n");
}

static enum epa_status read_process(const char *word, struct shown *out, struct epa_error *err)
{
    struct value_error why;
    enum epa_status status;
    struct status s;
    uint64_t pid = 0;

    if (!value_u64(word, &pid, &why) || pid == 0 || pid > INT32_MAX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "'%s' is not the number of a process; 'epa2a status' lists the processes "
                        "that run an experiment",
                        word);
    status = status_read_pid((pid_t)pid, &s, err);
    if (status != EPA_OK)
        return status;
    add_command_json(out->commands, &s);
    status_print(&s, "", out->text);
    status_finish(&s);
    return EPA_OK;
}

int cmd_status(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};
    text_auto text = {0};
    struct shown shown = {json_array(), &text};
    enum epa_status status = EPA_OK;

    if (cli->n_args == 1)
        status = read_process(cli->arg[0], &shown, &err);
    else
        status = status_each(add_command_head, &shown, &err);
    if (status == EPA_OK)
        status = cli_write_json(
            cli, json_pack("{s:s,s:O}", "schema", "epa2a-status-1", "commands", shown.commands),
            &err);
    if (status == EPA_OK && !cli_has_stdout(cli)) {
        if (text.bytes > 0)
            fputs(text.data, stdout);
        else
            fputs("epa2a: no command of this user runs an experiment here\n", stderr);
    }
    json_decref(shown.commands);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}
