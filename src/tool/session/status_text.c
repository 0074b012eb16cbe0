/* The status of a command as text: lines of `status` and of live output, and their words. */
#include "session/status_text.h"
#include "base/memory.h"

#include <stdio.h>

#include <epa2a/wait.h>

const char *status_state_name(enum status_state state)
{
    static const char *const name[] = {
        [STATUS_ABSENT] = "absent",   [STATUS_SET_UP] = "set-up",   [STATUS_RUNNING] = "running",
        [STATUS_WAITING] = "waiting", [STATUS_STOPPED] = "stopped", [STATUS_GONE] = "gone",
        [STATUS_DONE] = "done",       [STATUS_FAILED] = "failed",
    };

    return name[state];
}

const char *status_stage(const struct status *s, uint32_t rank)
{
    return s->rank[rank].state == STATUS_ABSENT
               ? "-"
               : session_stage(&s->notes, s->rank[rank].said.stage);
}

void status_waits_for(const struct status *s, uint32_t rank, char *out, size_t room)
{
    const struct session_wait *w = &s->rank[rank].said.waiting;
    double since = s->now_ns > w->since_ns ? (double)(s->now_ns - w->since_ns) / 1e9 : 0;
    unsigned long long seen = w->seen, wanted = w->wanted;
    char whom[32] = "", whose[40] = "", which[16] = "";

    snprintf(out, room, "-");
    if (!s->rank[rank].waits)
        return;
    if (w->peer != EPA_WAIT_NOBODY) {
        snprintf(whom, sizeof(whom), "rank %u", w->peer);
        snprintf(whose, sizeof(whose), " of rank %u", w->peer);
    }
    switch ((enum epa_wait_kind)w->kind) {
    case EPA_WAIT_SIGNAL:
        snprintf(out, room, "%s%s for %.2f s: signal %u is %llu, wants %llu",
                 w->what[0] == '\0' ? "a signal" : w->what, whose, since, w->number, seen, wanted);
        break;
    case EPA_WAIT_BARRIER:
    case EPA_WAIT_SET_UP:
        snprintf(out, room, "%s for %.2f s: reached barrier %llu%s, wants %llu",
                 whom[0] == '\0' ? "other ranks" : whom, since, seen,
                 w->kind == EPA_WAIT_SET_UP ? " of set-up" : "", wanted);
        break;
    case EPA_WAIT_DATA:
        if (w->number != EPA_WAIT_NOBODY)
            snprintf(which, sizeof(which), " %u", w->number);
        snprintf(out, room, "%s%s%s for %.2f s: its flag is %llu, wants %llu", w->what, which,
                 whose, since, seen, wanted);
        break;
    case EPA_WAIT_PUTS:
        snprintf(out, room, "its puts%s%s to be in place for %.2f s", whom[0] == '\0' ? "" : " to ",
                 whom, since);
        break;
    case EPA_WAIT_CALL:
        snprintf(out, room, "%s%s for %.2f s", w->what, whose, since);
        break;
    case EPA_WAIT_DEVICE:
        snprintf(out, room, "its device for %.2f s", since);
        break;
    case EPA_WAIT_NOTHING:
        break;
    }
}

const char *status_verb(const struct status *s)
{
    return s->head.run.verb <= VERB_VERIFY ? session_verb_name(s->head.run.verb) : "?";
}

void status_print_head(const struct status *s, struct text *out)
{
    struct status_page_run run = s->head.run;
    double elapsed = (double)(s->now_ns - s->head.began_ns) / 1e9;

    if (run.began_ns == 0) {
        text_add(out, "pid %d: between two runs, after %.1f s", s->head.pid, elapsed);
        return;
    }
    text_clean(run.file);
    text_clean(run.label);
    text_add(out, "pid %d: %s %s%s%s, run %u of %u, %.1f s; %u iterations", s->head.pid,
             status_verb(s), run.file, run.label[0] == '\0' ? "" : ": ", run.label, run.number,
             run.of, elapsed, run.iterations);
    if (run.warmup > 0)
        text_add(out, " after %u of warm-up", run.warmup);
    if (run.place_size > 1)
        text_add(out, "; process of rank %u of %u", run.place_rank, run.place_size);
}

void status_print(const struct status *s, const char *before, struct text *out)
{
    text_add(out, "%s", before);
    status_print_head(s, out);
    text_add(out, "\n");
    if (s->n > 0)
        text_add(out, "%s%6s %7s %-12s %-8s %-16s %9s %9s  %s\n", before, "rank", "pid", "host",
                 "state", "stage", "iteration", "samples", "waits for");
    for (uint32_t r = 0; r < s->n; r++) {
        const struct status_rank *rank = &s->rank[r];
        char waits[160], host[sizeof(rank->said.host)];

        if (s->head.run.place_size > 1 && rank->state == STATUS_ABSENT)
            continue; /* a rank of another process */
        snprintf(host, sizeof(host), "%s", rank->said.host);
        status_waits_for(s, r, waits, sizeof(waits));
        text_clean(host);
        text_clean(waits);
        text_add(out, "%s%6u %7d %-12s %-8s %-16s %9llu %9llu  %s\n", before, r, rank->said.pid,
                 host[0] == '\0' ? "-" : host, status_state_name(rank->state), status_stage(s, r),
                 (unsigned long long)rank->said.iteration, (unsigned long long)rank->said.samples,
                 waits);
    }
}
