/* The critical path of a stage, backwards from its last end: what the rank did just then; and
 * where that was a wait for a signal that was given after the wait began, what the giver did
 * before. A rank's own lane is looked at, in which its workers' time is the phase's. */
#include "trace/path.h"

#include <string.h>

static int64_t end_of(const struct trace_item *i)
{
    return i->ts_ns + i->dur_ns;
}

static bool is_stage(const struct trace_item *i, const char *name)
{
    return i->ph == 'X' && strcmp(i->cat, "stage") == 0 && strcmp(i->name, name) == 0;
}

/* The stage on that rank, or of all ranks (rank -1) the one that ended last. */
static const struct trace_item *stage_of(const struct path_round *r, const char *name, int64_t rank)
{
    const struct trace_item *last = NULL;

    for (size_t k = 0; k < r->n; k++) {
        const struct trace_item *i = r->item[k];

        if (is_stage(i, name) && (rank < 0 || i->pid == rank) &&
            (last == NULL || end_of(i) > end_of(last)))
            last = i;
    }
    return last;
}

/* What the rank did just before `ns`: the innermost slice; and when that began: after what is
 * within it and over. NULL: nothing. */
static const struct trace_item *phase(const struct path_round *r, uint32_t rank, int64_t ns,
                                      int64_t *since)
{
    const struct trace_item *in = NULL;

    for (size_t k = 0; k < r->n; k++) {
        const struct trace_item *i = r->item[k];

        if (i->ph == 'X' && i->pid == rank && i->tid == 0 && i->ts_ns < ns && end_of(i) >= ns &&
            (in == NULL || i->dur_ns < in->dur_ns))
            in = i;
    }
    *since = in == NULL ? ns : in->ts_ns;
    for (size_t k = 0; k < r->n && in != NULL; k++) {
        const struct trace_item *i = r->item[k];

        if (i->ph == 'X' && i->pid == rank && i->tid == 0 && i != in && i->ts_ns >= in->ts_ns &&
            end_of(i) < ns && end_of(i) > *since)
            *since = end_of(i);
    }
    return in;
}

/* The signal that ended wait `i`, if it was given while that waited. */
static const struct trace_item *given(const struct path_round *r, const struct trace_item *i)
{
    const struct trace_item *taken = NULL;

    for (size_t k = 0; k < r->n; k++) {
        const struct trace_item *f = r->item[k];

        if (f->ph == 'f' && f->pid == i->pid && f->tid == i->tid && f->ts_ns >= i->ts_ns &&
            f->ts_ns <= end_of(i))
            taken = f;
    }
    for (size_t k = 0; k < r->n && taken != NULL; k++) {
        const struct trace_item *s = r->item[k];

        if (s->ph == 's' && strcmp(s->id, taken->id) == 0)
            return s->ts_ns > i->ts_ns && s->ts_ns < end_of(i) ? s : NULL;
    }
    return NULL;
}

static void add_step(struct path *p, uint32_t rank, uint32_t from, const char *name, int64_t ns)
{
    if (p->n < PATH_STEPS)
        p->step[p->n++] = (struct path_step){rank, from, name, ns};
}

static void turn_round(struct path *p)
{
    for (uint32_t i = 0; i < p->n / 2; i++) {
        struct path_step step = p->step[i];

        p->step[i] = p->step[p->n - 1 - i];
        p->step[p->n - 1 - i] = step;
    }
}

bool path_find(const struct path_round *r, const char *name, struct path *out)
{
    const struct trace_item *at = stage_of(r, name, -1), *in, *give;
    int64_t ns, since;

    out->stage = at;
    out->n = 0;
    if (at == NULL)
        return false;
    ns = end_of(at);
    while (at != NULL && ns > at->ts_ns && out->n < PATH_STEPS) {
        in = phase(r, at->pid, ns, &since);
        if (in == NULL)
            break;
        give = since == in->ts_ns ? given(r, in) : NULL;
        if (give != NULL && give->ts_ns < ns) {
            add_step(out, at->pid, give->pid, in->name, ns - give->ts_ns);
            ns = give->ts_ns;
            at = stage_of(r, name, give->pid);
        } else {
            add_step(out, at->pid, at->pid, in->name, ns - since);
            ns = since;
        }
    }
    turn_round(out);
    return true;
}
