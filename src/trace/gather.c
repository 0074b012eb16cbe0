/* The events of all ranks on one clock. Blocks may have come from other hosts, or from ranks
 * that were killed: numbers in them are checked before they lead anywhere. */
#include "trace/gather.h"

#include <math.h>
#include <stdlib.h>

static const struct record *record_of(const struct session *s, uint32_t rank)
{
    const struct record *record = session_trace(s, rank);

    /* Acquire: pairs with recorder_ready(). */
    return __atomic_load_n(&record->ready, __ATOMIC_ACQUIRE) == 1 &&
                   record->names.n <= EPA_TRACE_NAMES
               ? record
               : NULL;
}

/* ---- clocks ---- */

static double middle(const struct record_clock *c)
{
    return ((double)c->low_ns + (double)c->high_ns) / 2;
}

static double half(const struct record_clock *c)
{
    return fabs((double)c->high_ns - (double)c->low_ns) / 2;
}

static void learn_clock(struct gathered_rank *to)
{
    const struct record_clock *before = &to->record->clock[RECORD_BEFORE];
    const struct record_clock *after = &to->record->clock[RECORD_AFTER];

    if (to->record->near)
        return;
    to->error_ns = to->drift = NAN;
    if (!before->known)
        return;
    to->offset_ns = llround(middle(before));
    to->error_ns = half(before);
    if (!after->known || after->at_ns <= before->at_ns)
        return;
    to->offset_ns = llround(middle(after));
    to->error_ns = fmax(half(before), half(after));
    to->drift = (middle(after) - middle(before)) / ((double)(after->at_ns - before->at_ns) * 1e-9);
}

/* Between the two comparisons the offset is taken to grow evenly. */
static uint64_t on_common_clock(const struct gathered_rank *r, uint64_t ns)
{
    const struct record_clock *after = &r->record->clock[RECORD_AFTER];
    int64_t offset = r->offset_ns;

    if (!r->record->near && isfinite(r->drift))
        offset -= llround((double)(int64_t)(after->at_ns - ns) * 1e-9 * r->drift);
    return ns - (uint64_t)offset;
}

/* ---- events ---- */

static bool is_sound(const struct session *s, const struct record *record,
                     const struct epa_trace_event *e)
{
    return e->name < record->names.n && e->kind <= EPA_TRACE_COUNT && e->end_ns >= e->begin_ns &&
           (e->peer == EPA_TRACE_NOBODY || e->peer < s->experiment->ranks);
}

static bool is_flow(const struct epa_trace_event *e)
{
    return e->kind == EPA_TRACE_FLOW_BEGIN || e->kind == EPA_TRACE_FLOW_END;
}

/* Calls fn for each lane of each turn of each rank. */
static void each_part(const struct session *s, struct gathered *g,
                      void (*fn)(const struct session *, struct gathered *, uint32_t rank,
                                 uint32_t lane, const struct record_part *))
{
    for (uint32_t r = 0; r < s->experiment->ranks; r++) {
        for (uint32_t turn = 0; g->rank[r].record != NULL && turn <= s->trace.turns; turn++) {
            for (uint32_t lane = 0; lane < s->trace.lanes; lane++) {
                struct record_part part;

                if (record_part(g->rank[r].record, &s->trace, turn, lane, &part))
                    fn(s, g, r, lane, &part);
            }
        }
    }
}

static void find_last(const struct session *s, struct gathered *g, uint32_t rank, uint32_t lane,
                      const struct record_part *part)
{
    (void)s;
    (void)rank;
    (void)lane;
    g->n += part->n;
    if (part->n > 0 && part->iteration + 1 > g->last)
        g->last = part->iteration + 1; /* one more than it, until all are seen */
}

static void take_part(const struct session *s, struct gathered *g, uint32_t rank, uint32_t lane,
                      const struct record_part *part)
{
    struct gathered_rank *r = &g->rank[rank];

    if (part->iteration < g->first || part->iteration > g->last)
        return;
    g->busiest = part->n > g->busiest ? part->n : g->busiest;
    r->dropped += part->dropped;
    g->dropped += part->dropped;
    for (uint32_t i = 0; i < part->n; i++) {
        const struct epa_trace_event *e = &part->event[i];
        uint64_t at = e->begin_ns;

        if (!is_sound(s, r->record, e))
            continue;
        /* A wait holds the end of its flow within it, not where the next slice begins. */
        if (e->kind == EPA_TRACE_FLOW_END)
            at = e->end_ns - 1;
        g->slices += e->kind == EPA_TRACE_SLICE;
        r->events++;
        g->event[g->n++] = (struct gathered_event){
            .begin_ns = on_common_clock(r, at),
            .end_ns = is_flow(e) ? on_common_clock(r, at) : on_common_clock(r, e->end_ns),
            .iteration = part->iteration,
            .event = e,
            .rank = rank,
            .lane = lane,
            .cut = e->kind == EPA_TRACE_FLOW_END && e->end_ns == e->begin_ns,
        };
    }
}

static int by_time(const void *left, const void *right)
{
    const struct gathered_event *a = left, *b = right;

    if (a->begin_ns != b->begin_ns)
        return a->begin_ns < b->begin_ns ? -1 : 1;
    if (a->end_ns != b->end_ns) /* the longest is around the others */
        return a->end_ns > b->end_ns ? -1 : 1;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    /* What is noted later ended later: with the same times it is around. */
    return a->event > b->event ? -1 : a->event < b->event;
}

/* ---- flows ---- */

static uint32_t giver(const struct gathered_event *e)
{
    return e->event->kind == EPA_TRACE_FLOW_BEGIN ? e->rank : e->event->peer;
}

static uint32_t taker(const struct gathered_event *e)
{
    return e->event->kind == EPA_TRACE_FLOW_BEGIN ? e->event->peer : e->rank;
}

static int compare(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int by_flow(const struct gathered_event *a, const struct gathered_event *b)
{
    int order = compare(giver(a), giver(b));

    if (order == 0)
        order = compare(taker(a), taker(b));
    if (order == 0)
        order = compare(a->event->signal, b->event->signal);
    return order != 0 ? order : compare(a->event->value, b->event->value);
}

static int by_flow_and_end(const void *left, const void *right)
{
    const struct gathered_event *a = *(struct gathered_event *const *)left;
    const struct gathered_event *b = *(struct gathered_event *const *)right;
    int order = by_flow(a, b);

    return order != 0 ? order : (int)a->event->kind - (int)b->event->kind;
}

/* Ends that stand alone, or more often than once, are cut. */
static void pair_flows(struct gathered *g, struct gathered_event **end, uint64_t n)
{
    qsort(end, n, sizeof(struct gathered_event *), by_flow_and_end);
    for (uint64_t i = 0, same; i < n; i += same) {
        for (same = 1; i + same < n && by_flow(end[i], end[i + same]) == 0; same++)
            ;
        if (same == 2 && end[i]->event->kind == EPA_TRACE_FLOW_BEGIN &&
            end[i + 1]->event->kind == EPA_TRACE_FLOW_END && !end[i + 1]->cut) {
            g->flows++;
            continue;
        }
        for (uint64_t k = 0; k < same; k++)
            end[i + k]->cut = true;
        g->cut += same;
    }
}

static enum epa_status find_flows(struct gathered *g, struct epa_error *err)
{
    struct gathered_event **end = calloc(g->n + 1, sizeof(struct gathered_event *));
    uint64_t n = 0;

    if (end == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the flows of a trace");
    for (uint64_t i = 0; i < g->n; i++) {
        if (is_flow(g->event[i].event))
            end[n++] = &g->event[i];
    }
    pair_flows(g, end, n);
    free(end);
    return EPA_OK;
}

/* ---- all of it ---- */

enum epa_status gather(const struct session *s, struct gathered *out, struct epa_error *err)
{
    struct gathered g = {.rank = calloc(s->experiment->ranks, sizeof(*g.rank))};
    enum epa_status status;

    if (g.rank == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a trace");
    for (uint32_t r = 0; r < s->experiment->ranks; r++) {
        g.rank[r].record = record_of(s, r);
        if (g.rank[r].record != NULL)
            learn_clock(&g.rank[r]);
        else
            g.missing++;
    }
    each_part(s, &g, find_last);
    g.event = calloc(g.n + 1, sizeof(*g.event));
    g.n = 0;
    g.first = g.last > s->trace.turns ? g.last - s->trace.turns : 0;
    if (g.last == 0)
        g.first = 1;
    else
        g.last--;
    if (g.event == NULL) {
        gather_free(&g);
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the events of a trace");
    }
    each_part(s, &g, take_part);
    qsort(g.event, g.n, sizeof(*g.event), by_time);
    g.base_ns = g.n > 0 ? g.event[0].begin_ns : 0;
    status = find_flows(&g, err);
    if (status != EPA_OK) {
        gather_free(&g);
        return status;
    }
    *out = g;
    return EPA_OK;
}

void gather_free(struct gathered *g)
{
    free(g->rank);
    free(g->event);
}
