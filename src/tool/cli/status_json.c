/* Writes commands and the state of their ranks as JSON. */
#include "cli/status_json.h"

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

static json_t *status_run_json(const struct status *s)
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

static json_t *command_json(const struct status *s)
{
    return json_pack("{s:i,s:s,s:f,s:o}", "pid", (int)s->head.pid, "version", s->head.version,
                     "elapsed_s", (double)(s->now_ns - s->head.began_ns) / 1e9, "run",
                     status_run_json(s));
}

json_t *status_json(const struct status *command, uint32_t n)
{
    json_t *commands = json_array();

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(commands, command_json(&command[i]));
    return json_pack("{s:s,s:o}", "schema", "epa2a-status-1", "commands", commands);
}
