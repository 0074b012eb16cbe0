/* What must hold of a trace, whoever wrote it: slices of a lane nest, both ends of a flow are
 * there, stand in slices, and the later is not before the earlier by more than clocks may be
 * off. Of traces that epa2a wrote also: every lane has a name, nothing was lost. A flow to a
 * rank that is not in the file has one end. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "trace/read.h"

enum { DEPTH = 64 };

/* ---- single events ---- */

static void check_shape(struct trace_file *f, const struct trace_item *i)
{
    const json_t *args = json_object_get(i->json, "args"), *value;
    const char *bp = json_string_value(json_object_get(i->json, "bp")), *key;

    if (strchr("MXCsf", i->ph) == NULL)
        trace_flaw(f, "event %zu: ph '%c' is none that epa2a knows", i->index, i->ph);
    if (i->ph == 'C' && json_object_size(args) == 0)
        trace_flaw(f, "event %zu: a counter without a value", i->index);
    if (i->ph == 'C') {
        json_object_foreach((json_t *)args, key, value)
        {
            if (!json_is_number(value))
                trace_flaw(f, "event %zu: counter %s is no number", i->index, i->name);
        }
    }
    if ((i->ph == 's' || i->ph == 'f') && i->id[0] == '\0')
        trace_flaw(f, "event %zu: a flow without id", i->index);
    if (i->ph == 'f' && (bp == NULL || strcmp(bp, "e") != 0))
        trace_flaw(f, "event %zu: a flow's end that does not say bp: e", i->index);
    if (f->ours && (i->ph == 's' || i->ph == 'f') &&
        (i->ph == 's' ? i->from : i->to) != (int64_t)i->pid)
        trace_flaw(f, "event %zu: a flow of another rank than its slice", i->index);
}

/* ---- lanes ---- */

/* Slices that are open, the innermost last. Items are in order of time. */
struct lane {
    uint32_t pid, tid;
    bool named;
    size_t last; /* index in the file of the last event */
    int64_t last_ns;
    const struct trace_item *open[DEPTH];
    uint32_t depth;
};

struct checking {
    struct trace_file *f;
    struct lane *lane;
    size_t lanes, room;
    bool lost; /* no memory for another lane */
    const struct trace_item **flow;
    size_t flows;
};

static struct lane *lane_of(struct checking *c, const struct trace_item *i)
{
    for (size_t k = 0; k < c->lanes; k++) {
        if (c->lane[k].pid == i->pid && c->lane[k].tid == i->tid)
            return &c->lane[k];
    }
    if (c->lanes == c->room) {
        size_t room = 2 * c->room + 16;
        struct lane *more = realloc(c->lane, room * sizeof(*more));

        if (more == NULL)
            return NULL;
        c->lane = more;
        c->room = room;
    }
    c->lane[c->lanes] = (struct lane){.pid = i->pid, .tid = i->tid};
    return &c->lane[c->lanes++];
}

static int64_t end_of(const struct trace_item *i)
{
    return i->ts_ns + i->dur_ns;
}

/* Those that ended before `ns` are closed; whoever ends just then is still open. */
static void close_before(struct lane *lane, int64_t ns, bool at_end_too)
{
    while (lane->depth > 0 && (end_of(lane->open[lane->depth - 1]) < ns ||
                               (at_end_too && end_of(lane->open[lane->depth - 1]) == ns)))
        lane->depth--;
}

static void check_slice(struct checking *c, struct lane *lane, const struct trace_item *i)
{
    const struct trace_item *around;

    close_before(lane, i->ts_ns, true);
    around = lane->depth > 0 ? lane->open[lane->depth - 1] : NULL;
    if (around != NULL && end_of(i) > end_of(around))
        trace_flaw(c->f,
                   "event %zu: slice %s of lane %u.%u ends after event %zu, %s, in which "
                   "it began",
                   i->index, i->name, i->pid, i->tid, around->index, around->name);
    if (lane->depth == DEPTH)
        trace_flaw(c->f, "event %zu: more than %d slices in one another", i->index, DEPTH);
    else
        lane->open[lane->depth++] = i;
}

static void check_flow_place(struct checking *c, struct lane *lane, const struct trace_item *i)
{
    close_before(lane, i->ts_ns, false);
    if (lane->depth == 0)
        trace_flaw(c->f, "event %zu: flow %s is in no slice of lane %u.%u", i->index, i->id, i->pid,
                   i->tid);
    c->flow[c->flows++] = i;
}

static void check_lanes(struct checking *c)
{
    for (size_t k = 0; k < c->f->n; k++) {
        const struct trace_item *i = &c->f->item[k];
        struct lane *lane = lane_of(c, i);

        if (lane == NULL) {
            c->lost = true;
            return;
        }
        check_shape(c->f, i);
        if (i->ph == 'M') {
            lane->named |= strcmp(i->name, "thread_name") == 0;
            continue;
        }
        if (c->f->ours && i->index < lane->last)
            trace_flaw(c->f, "event %zu: not in order of time in lane %u.%u", i->index, i->pid,
                       i->tid);
        lane->last = i->index;
        if (i->ph == 'X')
            check_slice(c, lane, i);
        else if (i->ph == 's' || i->ph == 'f')
            check_flow_place(c, lane, i);
    }
    for (size_t k = 0; k < c->lanes && c->f->ours; k++) {
        if (!c->lane[k].named)
            trace_flaw(c->f, "lane %u.%u has no thread_name", c->lane[k].pid, c->lane[k].tid);
    }
}

/* ---- flows ---- */

static int by_id(const void *left, const void *right)
{
    const struct trace_item *a = *(const struct trace_item *const *)left;
    const struct trace_item *b = *(const struct trace_item *const *)right;
    int order = strcmp(a->id, b->id);

    if (order == 0)
        order = strcmp(a->cat, b->cat);
    if (order == 0)
        order = strcmp(a->name, b->name);
    return order != 0 ? order : (int)b->ph - (int)a->ph; /* s, then f */
}

static bool same_flow(const struct trace_item *a, const struct trace_item *b)
{
    return strcmp(a->id, b->id) == 0 && strcmp(a->cat, b->cat) == 0 &&
           strcmp(a->name, b->name) == 0;
}

static bool has_rank(const struct checking *c, int64_t rank)
{
    for (size_t k = 0; k < c->lanes; k++) {
        if (c->lane[k].pid == rank)
            return true;
    }
    return false;
}

static void check_alone(struct checking *c, const struct trace_item *i)
{
    int64_t other = i->ph == 's' ? i->to : i->from;

    if (c->f->ours && other >= 0 && !has_rank(c, other))
        return;
    trace_flaw(c->f, "event %zu: flow %s %s", i->index, i->id,
               i->ph == 's' ? "has no end" : "has no beginning");
}

static void check_pair(struct checking *c, const struct trace_item *s, const struct trace_item *f)
{
    double off = trace_error_ns(c->f, s->pid) + trace_error_ns(c->f, f->pid);

    if ((double)(s->ts_ns - f->ts_ns) > off)
        trace_flaw(c->f,
                   "event %zu: flow %s arrives %lld ns before it leaves, and clocks agree "
                   "within %.0f",
                   f->index, f->id, (long long)(s->ts_ns - f->ts_ns), off);
}

static void check_flows(struct checking *c)
{
    qsort(c->flow, c->flows, sizeof(const struct trace_item *), by_id);
    for (size_t k = 0, same; k < c->flows; k += same) {
        for (same = 1; k + same < c->flows && same_flow(c->flow[k], c->flow[k + same]); same++)
            ;
        if (same == 1)
            check_alone(c, c->flow[k]);
        else if (same == 2 && c->flow[k]->ph == 's' && c->flow[k + 1]->ph == 'f')
            check_pair(c, c->flow[k], c->flow[k + 1]);
        else
            trace_flaw(c->f, "event %zu: flow %s is there %zu times", c->flow[k]->index,
                       c->flow[k]->id, same);
    }
}

/* ---- all of it ---- */

static void check_other(struct trace_file *f)
{
    double dropped = trace_number(f, "dropped", -1);

    if (!f->ours)
        return;
    if (trace_number(f, "trace", -1) != 1)
        trace_flaw(f, "otherData.trace is not 1, the only kind there is");
    if (dropped < 0)
        trace_flaw(f, "otherData does not say what was dropped");
    else if (dropped > 0)
        trace_flaw(f, "%.0f events were dropped: lower what is noted, or the load", dropped);
}

enum epa_status trace_check(struct trace_file *f, struct epa_error *err)
{
    struct checking c = {.f = f, .flow = calloc(f->n + 1, sizeof(struct trace_item *))};
    enum epa_status status = EPA_OK;

    check_other(f);
    if (c.flow != NULL)
        check_lanes(&c);
    if (c.flow == NULL || c.lost)
        status = epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for %zu events", f->path, f->n);
    else
        check_flows(&c);
    free(c.lane);
    free((void *)c.flow);
    return status;
}
