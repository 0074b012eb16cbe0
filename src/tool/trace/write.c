/* Writes recorded events as Chrome traces, in the subset of the format that Perfetto reads: M,
 * X, C, and flows s and f bound to their enclosing slices. pid is the rank, tid the worker.
 * Times are microseconds since base_ns on the clock of rank 0. The file of one rank holds its
 * ends of flows; the other ends are in the files of other ranks. Blocks may come from other
 * hosts or from ranks that were killed, so every number in them is checked before use. */
#include "trace/write.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <epa2a/trace_kernel.h>
#include <epa2a/wait.h>
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "trace/trace_json.h"

enum { ALL = -1, KERNEL_LANES = 1 << 17 };

/* ---- the events of all ranks ---- */

static const struct record *record_of(const struct session *s, uint32_t rank)
{
    const struct record *record = session_trace(s, rank);

    /* Acquire: pairs with recorder_ready(). */
    return __atomic_load_n(&record->ready, __ATOMIC_ACQUIRE) == 1 &&
                   record->names.n <= EPA_TRACE_NAMES
               ? record
               : NULL;
}

static bool is_sound(const struct session *s, const struct record *record,
                     const struct epa_trace_event *e)
{
    return e->name < record->names.n && e->kind <= EPA_TRACE_COUNT && e->end_ns >= e->begin_ns &&
           (e->peer == EPA_TRACE_NOBODY || e->peer < s->experiment->problem.ranks);
}

static bool is_flow_event(const struct epa_trace_event *e)
{
    return e->kind == EPA_TRACE_FLOW_BEGIN || e->kind == EPA_TRACE_FLOW_END;
}

/* Lanes of workers precede the lanes of the proxy, which precede the lanes of kernels. */
static uint32_t lane_beside(const struct session *s, int which, uint32_t lane)
{
    uint32_t first = s->trace.lanes;

    if (which == EPA_TRACE_KERNELS && s->trace.beside[EPA_TRACE_PROXY] != 0)
        first += EPA_TRACE_PROXY_LANES;
    return first + lane;
}

static uint32_t lanes_beside(int which)
{
    return which == EPA_TRACE_PROXY ? EPA_TRACE_PROXY_LANES : KERNEL_LANES;
}

/* Adds an event of a rank. `at`: time of its begin, or of the end of a flow, on the rank's
 * clock. */
static void add_event(struct gathered *g, const struct epa_trace_event *e, uint64_t at,
                      struct gathered_event event)
{
    const struct gathered_rank *r = &g->rank[event.rank];

    if ((g->n & (g->n - 1)) == 0)
        g->event = memory_grow(g->event, (g->n == 0 ? 1 : 2 * g->n) * sizeof(*g->event));
    event.event = e;
    event.begin_ns = record_on_common_clock(r->record, &r->clock, at);
    event.end_ns =
        is_flow_event(e) ? event.begin_ns : record_on_common_clock(r->record, &r->clock, e->end_ns);
    g->slices += e->kind == EPA_TRACE_SLICE;
    g->event[g->n++] = event;
}

/* The end of a flow lies within its wait, not at the begin of the next slice. */
static uint64_t event_time(const struct epa_trace_event *e)
{
    return e->kind == EPA_TRACE_FLOW_END ? e->end_ns - 1 : e->begin_ns;
}

static void gather_part(const struct session *s, struct gathered *g, uint32_t rank, uint32_t lane,
                        const struct record_part *part)
{
    struct gathered_rank *r = &g->rank[rank];
    uint64_t *begin = &r->begin_ns[part->iteration - g->first];

    g->busiest = part->n > g->busiest ? part->n : g->busiest;
    r->dropped += part->dropped;
    g->dropped += part->dropped;
    for (uint32_t i = 0; i < part->n; i++) {
        const struct epa_trace_event *e = &part->event[i];

        if (!is_sound(s, r->record, e))
            continue;
        if (lane == 0 && (*begin == 0 || e->begin_ns < *begin))
            *begin = e->begin_ns;
        if (e->end_ns > r->end_ns)
            r->end_ns = e->end_ns;
        add_event(g, e, event_time(e),
                  (struct gathered_event){.iteration = part->iteration,
                                          .rank = rank,
                                          .lane = lane,
                                          .beside = -1,
                                          .cut = e->kind == EPA_TRACE_FLOW_END &&
                                                 e->end_ns == e->begin_ns});
    }
}

/* Walks the iterations of all ranks. `add` false: finds the last iteration; true: adds the kept
 * iterations. */
static void gather_parts(const struct session *s, struct gathered *g, bool add)
{
    struct record_part part;

    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++)
        for (uint32_t turn = 0; g->rank[r].record != NULL && turn <= s->trace.turns; turn++)
            for (uint32_t lane = 0; lane < s->trace.lanes; lane++) {
                if (!record_part(g->rank[r].record, &s->trace, turn, lane, &part))
                    continue;
                if (!add && part.n > 0 && part.iteration + 1 > g->last)
                    g->last = part.iteration + 1; /* one more, until all parts are read */
                if (add && part.iteration >= g->first && part.iteration <= g->last)
                    gather_part(s, g, r, lane, &part);
            }
}

/* State while gathering the side lanes of one rank. */
struct gathering {
    const struct session *s;
    struct gathered *g;
    uint32_t rank;
    int which;
};

/* Adds events of side lanes. Leaves out events outside the kept iterations, and cuts a slice that
 * began before them. Events of kernels belong to the last call, in any iteration. */
static void gather_beside(void *arg, const struct epa_trace_event *e)
{
    const struct gathering *from = arg;
    struct gathered *g = from->g;
    const struct gathered_rank *r = &g->rank[from->rank];
    uint64_t n = g->last - g->first + 1, i = 0, first = r->begin_ns[0], at = event_time(e);
    uint32_t lane = is_flow_event(e) ? 0 : e->signal;

    if (!is_sound(from->s, r->record, e) || lane >= lanes_beside(from->which))
        return;
    if (e->kind == EPA_TRACE_SLICE && at < first && e->end_ns > first)
        at = first;
    if (at < first || (at >= r->end_ns && from->which == EPA_TRACE_PROXY))
        return;
    while (i + 1 < n && r->begin_ns[i + 1] != 0 && r->begin_ns[i + 1] <= at)
        i++;
    add_event(g, e, at,
              (struct gathered_event){.iteration = g->first + i,
                                      .rank = from->rank,
                                      .lane = lane_beside(from->s, from->which, lane),
                                      .beside = (int8_t)from->which});
}

/* Adds the side lanes after the events of iterations. */
static void gather_besides(const struct session *s, struct gathered *g)
{
    for (uint32_t r = 0; r < s->experiment->problem.ranks && g->first <= g->last; r++)
        for (int which = 0; which < EPA_TRACE_BESIDES && g->rank[r].end_ns != 0; which++)
            record_each_beside(g->rank[r].record, &s->trace, (uint32_t)which, gather_beside,
                               &(struct gathering){s, g, r, which});
}

static int compare_event_times(const void *left, const void *right)
{
    const struct gathered_event *a = left, *b = right;

    if (a->begin_ns != b->begin_ns)
        return a->begin_ns < b->begin_ns ? -1 : 1;
    if (a->end_ns != b->end_ns) /* the longest encloses the others */
        return a->end_ns > b->end_ns ? -1 : 1;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    /* A slice that was recorded later encloses one with equal times. */
    return a->event > b->event ? -1 : a->event < b->event;
}

static uint32_t flow_from(const struct gathered_event *e)
{
    return e->event->kind == EPA_TRACE_FLOW_BEGIN ? e->rank : e->event->peer;
}

static uint32_t flow_to(const struct gathered_event *e)
{
    return e->event->kind == EPA_TRACE_FLOW_BEGIN ? e->event->peer : e->rank;
}

/* Returns `out` with the id of a flow, which is the same for both ends. */
static char *flow_id(const struct gathered_event *e, char out[64])
{
    snprintf(out, 64, "%u-%u-%u-%llu", flow_from(e), flow_to(e), e->event->signal,
             (unsigned long long)e->event->value);
    return out;
}

/* Cuts ends without the other end, and ids with several begins or ends. */
static void cut_flows(struct gathered *g)
{
    enum { BEGIN = 1, END = 1 << 16 };
    json_t *ends = json_object(); /* by id: number of begins and ends */
    char id[64];

    for (uint64_t i = 0; i < g->n; i++) {
        const struct gathered_event *e = &g->event[i];
        json_int_t n = e->event->kind == EPA_TRACE_FLOW_BEGIN ? BEGIN : e->cut ? 2 * END : END;

        if (!is_flow_event(e->event))
            continue;
        n += json_integer_value(json_object_get(ends, flow_id(e, id)));
        json_object_set_new(ends, id, json_integer(n));
    }
    for (uint64_t i = 0; i < g->n; i++) {
        struct gathered_event *e = &g->event[i];

        if (!is_flow_event(e->event))
            continue;
        e->cut = json_integer_value(json_object_get(ends, flow_id(e, id))) != BEGIN + END;
        g->cut += e->cut;
        g->flows += !e->cut && e->event->kind == EPA_TRACE_FLOW_BEGIN;
    }
    json_decref(ends);
}

struct gathered trace_gather(const struct session *s)
{
    struct gathered g = {.rank = memory_alloc(s->experiment->problem.ranks, sizeof(*g.rank)),
                         .event = memory_alloc(1, sizeof(*g.event)),
                         .ranks = s->experiment->problem.ranks};

    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++) {
        g.rank[r].record = record_of(s, r);
        if (g.rank[r].record != NULL)
            g.rank[r].clock = record_offset(g.rank[r].record);
        else
            g.missing++;
    }
    gather_parts(s, &g, false);
    g.first = g.last > s->trace.turns ? g.last - s->trace.turns : 0;
    if (g.last == 0)
        g.first = 1;
    else
        g.last--;
    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++)
        g.rank[r].begin_ns = memory_alloc(s->trace.turns + 1, sizeof(uint64_t));
    gather_parts(s, &g, true);
    gather_besides(s, &g);
    qsort(g.event, g.n, sizeof(*g.event), compare_event_times);
    g.base_ns = g.n > 0 ? g.event[0].begin_ns : 0;
    cut_flows(&g);
    return g;
}

void trace_gather_free(struct gathered *g)
{
    for (uint32_t r = 0; r < g->ranks; r++)
        free(g->rank[r].begin_ns);
    free(g->rank);
    free(g->event);
}

/* ---- as JSON ---- */

static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(round(value * 1e3) / 1e3) : json_null();
}

static json_t *clock_json(uint32_t r, const struct gathered_rank *rank)
{
    return json_pack("{s:i,s:s,s:I,s:o,s:o}", "rank", (int)r, "method",
                     rank->record->near ? "the host of rank 0: CLOCK_MONOTONIC is one"
                                        : "exchanged with rank 0 before and after",
                     "offset_ns", (json_int_t)rank->clock.offset_ns, "error_ns",
                     real_or_null(rank->clock.error_ns), "drift_ns_per_s",
                     real_or_null(rank->clock.drift));
}

/* Returns otherData of a rank, or of ALL ranks. */
static json_t *other_json(const struct session *s, const struct gathered *g, enum epa_status ended,
                          int only)
{
    const struct experiment *x = s->experiment;
    json_t *clocks = json_array(), *missing = json_array();

    for (uint32_t r = only == ALL ? 0 : (uint32_t)only;
         r < (only == ALL ? x->problem.ranks : (uint32_t)only + 1); r++) {
        if (g->rank[r].record != NULL)
            json_array_append_new(clocks, clock_json(r, &g->rank[r]));
        else
            json_array_append_new(missing, json_integer(r));
    }
    return json_pack("{s:s,s:s,s:i,s:s,s:o,s:s,s:s,s:s,s:s,s:i,s:o,s:o,s:o,s:o,s:I,s:I}", "program",
                     "epa2a", "version", EPA2A_RELEASE, "trace", TRACE_SCHEMA, "verb",
                     session_verb(s), "name", json_text(x->name), "run", x->id != NULL ? x->id : "",
                     "algorithm", x->algorithm.plugin->name, "transport", x->transport.plugin->name,
                     "status", status_name(ended), "ranks", (int)x->problem.ranks, "base_ns",
                     json_sprintf("%llu", (unsigned long long)g->base_ns), "iterations",
                     g->first <= g->last
                         ? json_pack("[I,I]", (json_int_t)g->first, (json_int_t)g->last)
                         : json_null(),
                     "clocks", clocks, "missing", missing, "flows_cut", (json_int_t)g->cut,
                     "dropped", (json_int_t)(only == ALL ? g->dropped : g->rank[only].dropped));
}

/* Returns a name as JSON. Names may come from other hosts: characters outside ASCII become ?. */
static json_t *name_json(const char *name)
{
    char clean[EPA_TRACE_NAME_BYTES + 1];

    snprintf(clean, sizeof(clean), "%.*s", EPA_TRACE_NAME_BYTES, name);
    for (char *c = clean; *c != '\0'; c++)
        *c = (unsigned char)*c < ' ' || (unsigned char)*c >= 0x7f ? '?' : *c;
    return json_string(clean);
}

static void add_metadata(json_t *events, uint32_t rank, uint32_t lane, const char *what,
                         json_t *name, const char *sort, uint32_t at)
{
    json_array_append_new(events,
                          json_pack("{s:s,s:i,s:i,s:s,s:{s:o}}", "ph", "M", "pid", (int)rank, "tid",
                                    (int)lane, "name", what, "args", "name", name));
    json_array_append_new(events,
                          json_pack("{s:s,s:i,s:i,s:s,s:{s:i}}", "ph", "M", "pid", (int)rank, "tid",
                                    (int)lane, "name", sort, "args", "sort_index", (int)at));
}

static void add_names(json_t *events, const struct session *s, uint32_t rank)
{
    add_metadata(events, rank, 0, "process_name",
                 json_sprintf("rank %u @%.64s", rank, session_rank(s, rank)->host),
                 "process_sort_index", rank);
    for (uint32_t lane = 0; lane < s->trace.lanes; lane++)
        add_metadata(events, rank, lane, "thread_name",
                     lane == 0 ? json_string("rank") : json_sprintf("worker %u", lane),
                     "thread_sort_index", lane);
}

/* Adds lane names. A lane of a kernel's warp exists only if it contains events. */
static void add_names_beside(json_t *events, const struct session *s, const struct gathered *g)
{
    static const char *const proxy[] = {[EPA_TRACE_LANE_PROXY] = "proxy",
                                        [EPA_TRACE_LANE_COPIES_OUT] = "copies to staging",
                                        [EPA_TRACE_LANE_COPIES_IN] = "copies from staging"};
    bool *seen = memory_alloc((size_t)s->experiment->problem.ranks * KERNEL_LANES, sizeof(*seen));

    for (uint32_t r = 0; r < s->experiment->problem.ranks && s->trace.beside[EPA_TRACE_PROXY] != 0;
         r++)
        for (uint32_t i = 0; i < EPA_TRACE_PROXY_LANES && g->rank[r].record != NULL; i++) {
            uint32_t lane = lane_beside(s, EPA_TRACE_PROXY, i);

            add_metadata(events, r, lane, "thread_name", json_string(proxy[i]), "thread_sort_index",
                         lane);
        }
    for (uint64_t i = 0; i < g->n; i++) {
        const struct gathered_event *e = &g->event[i];
        bool *one = &seen[(size_t)e->rank * KERNEL_LANES + e->event->signal % KERNEL_LANES];

        if (e->beside != EPA_TRACE_KERNELS || *one)
            continue;
        *one = true;
        add_metadata(events, e->rank, e->lane, "thread_name",
                     json_sprintf("block %u, warp %u, %.31s", epa_trace_block(e->event->value),
                                  epa_trace_warp(e->event->value),
                                  g->rank[e->rank].record->names.name[e->event->name]),
                     "thread_sort_index", e->lane);
    }
    free(seen);
}

static json_t *microseconds(uint64_t ns)
{
    return json_real((double)ns / 1e3);
}

/* Adds the arguments of a slice of a kernel. */
static void add_kernel_args(json_t *args, const struct epa_trace_event *e)
{
    uint32_t what = epa_trace_what(e->value);
    bool tile = what >= EPA_TRACE_EXPERT;

    if (tile)
        json_object_set_new(args, "expert", json_integer(epa_trace_expert(e->bytes)));
    if (e->tokens != 0)
        json_object_set_new(args, what == EPA_TRACE_TOKEN ? "token" : "row",
                            json_integer(e->tokens - 1));
    if (tile)
        json_object_set_new(args, "rows", json_integer(epa_trace_rows(e->bytes)));
    if (what >= EPA_TRACE_COLUMN)
        json_object_set_new(args, "column",
                            json_integer(what - (tile ? EPA_TRACE_EXPERT : EPA_TRACE_COLUMN)));
    json_object_set_new(args, "block", json_integer(epa_trace_block(e->value)));
    json_object_set_new(args, "warp", json_integer(epa_trace_warp(e->value)));
    json_object_set_new(
        args, "error_ns",
        json_integer(tile ? (json_int_t)epa_trace_error_ns(e->bytes) : (json_int_t)e->bytes));
}

static json_t *slice_args(const struct gathered_event *e)
{
    json_t *args = json_pack("{s:I}", "iteration", (json_int_t)e->iteration);

    if (e->event->peer != EPA_TRACE_NOBODY)
        json_object_set_new(args, "peer", json_integer(e->event->peer));
    if (e->beside == EPA_TRACE_KERNELS) {
        add_kernel_args(args, e->event);
        return args;
    }
    if (e->event->bytes != 0)
        json_object_set_new(args, "bytes", json_integer((json_int_t)e->event->bytes));
    if (e->event->tokens != 0)
        json_object_set_new(args, e->beside == EPA_TRACE_PROXY ? "descriptors" : "tokens",
                            json_integer(e->event->tokens));
    return args;
}

static const char *category_of(const struct gathered_event *e, const struct record *record)
{
    static const char *const beside[] = {
        [EPA_TRACE_PROXY] = "proxy", [EPA_TRACE_KERNELS] = "kernel"};
    uint16_t name = e->event->name;

    if (e->beside >= 0)
        return beside[e->beside];
    return name < record->n_core ? "core" : (record->stages >> name & 1) != 0 ? "stage" : "phase";
}

static json_t *event_json(const struct gathered *g, const struct gathered_event *e)
{
    static const char *const ph[] = {[EPA_TRACE_SLICE] = "X",
                                     [EPA_TRACE_FLOW_BEGIN] = "s",
                                     [EPA_TRACE_FLOW_END] = "f",
                                     [EPA_TRACE_COUNT] = "C"};
    const struct record *record = g->rank[e->rank].record;
    const struct epa_trace_event *of = e->event;
    json_t *out = json_pack("{s:s,s:i,s:i,s:o}", "ph", ph[of->kind], "pid", (int)e->rank, "tid",
                            (int)e->lane, "ts", microseconds(e->begin_ns - g->base_ns));
    json_t *more;
    char id[64];

    if (of->kind == EPA_TRACE_SLICE)
        more = json_pack("{s:o,s:s,s:o,s:o}", "dur", microseconds(e->end_ns - e->begin_ns), "cat",
                         category_of(e, record), "name", name_json(record->names.name[of->name]),
                         "args", slice_args(e));
    else if (of->kind == EPA_TRACE_COUNT)
        more = json_pack("{s:o,s:{s:I}}", "name", name_json(record->names.name[of->name]), "args",
                         "value", (json_int_t)of->value);
    else
        more = json_pack("{s:s,s:s,s:o,s:{s:I,s:i,s:i,s:I,s:I}}", "cat", "flow", "name", "signal",
                         "id", json_string(flow_id(e, id)), "args", "iteration",
                         (json_int_t)e->iteration, "from", (int)flow_from(e), "to", (int)flow_to(e),
                         "signal", (json_int_t)of->signal, "value", (json_int_t)of->value);
    if (of->kind == EPA_TRACE_FLOW_END)
        json_object_set_new(more, "bp", json_string("e"));
    json_object_update(out, more);
    json_decref(more);
    return out;
}

static json_t *events_json(const struct session *s, const struct gathered *g)
{
    json_t *events = json_array();

    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++)
        if (g->rank[r].record != NULL)
            add_names(events, s, r);
    add_names_beside(events, s, g);
    for (uint64_t i = 0; i < g->n; i++)
        if (!g->event[i].cut)
            json_array_append_new(events, event_json(g, &g->event[i]));
    return events;
}

/* Returns the nanoseconds since 1970 at ts 0, by the clock of the writing host. */
static json_int_t base_real_ns(const struct gathered *g)
{
    struct timespec now = {0};

    clock_gettime(CLOCK_REALTIME, &now);
    return (json_int_t)now.tv_sec * 1000000000 + now.tv_nsec -
           (json_int_t)(epa_now_ns() - g->base_ns);
}

/* ---- files ---- */

/* Builds the path of a file. Runs of one file have distinct names: the id, and, for repetitions,
 * the number at the end of their labels. */
static void path_of(const struct session *s, int rank, char *out, size_t room)
{
    const struct experiment *x = s->experiment;
    bool several = x->label != NULL && x->id != NULL;
    const char *number = several ? strrchr(x->label, '#') : NULL;
    bool again = number != NULL && number[1] != '\0' &&
                 strspn(number + 1, "0123456789") == strlen(number + 1);
    int n = snprintf(out, room, "%s%s%s%s%s", x->profile.file, several ? "-" : "",
                     several ? x->id : "", again ? "-" : "", again ? number + 1 : "");

    if (n < 0 || (size_t)n >= room)
        return;
    if (rank == ALL)
        snprintf(out + n, room - (size_t)n, ".json");
    else
        snprintf(out + n, room - (size_t)n, ".%d.json", rank);
}

enum epa_status trace_write_check(const struct session *s, bool force, struct epa_error *err)
{
    const char *file = s->experiment->profile.file;
    enum epa_status status = EPA_OK;
    char path[PATH_MAX];

    if (file == NULL)
        return EPA_OK;
    if (strlen(file) > sizeof(path) - 128)
        return epa_fail_key(err, EPA_ERR_CONFIG, "profile.file",
                            "profile.file: the name is too long");
    for (int r = ALL; r < (int)s->experiment->problem.ranks && status == EPA_OK; r++) {
        path_of(s, r, path, sizeof(path));
        status = file_check("profile.file:", path, force, err);
    }
    return status == EPA_OK ? EPA_OK : epa_fail_at(err, "profile.file");
}

static enum epa_status write_one(const struct session *s, const struct gathered *g,
                                 enum epa_status ended, const json_t *events, int only, bool force,
                                 char *path, size_t room, struct epa_error *err)
{
    text_auto out = {0};
    bool first = true;

    path_of(s, only, path, room);
    trace_begin(&out, g->n > 0 ? base_real_ns(g) : 0, other_json(s, g, ended, only));
    for (struct json_walk event = {events}; json_next(&event);) {
        if (only != ALL && json_integer_value(json_object_get(event.value, "pid")) != only)
            continue;
        trace_add_event(&out, event.value, first);
        first = false;
    }
    text_add(&out, "\n]}\n");
    return file_write("profile.file:", path, force, &out, err);
}

static void sum_up(const struct session *s, const struct gathered *g, struct trace_written *out)
{
    *out = (struct trace_written){
        .iterations = g->first <= g->last ? g->last - g->first + 1 : 0,
        .slices = g->slices,
        .flows = g->flows,
        .dropped = g->dropped,
        .busiest = (double)g->busiest,
    };
    for (uint32_t r = 0; r < s->experiment->problem.ranks; r++) {
        const struct gathered_rank *rank = &g->rank[r];

        if (rank->record == NULL)
            continue;
        out->event_ns = fmax(out->event_ns, rank->record->event_ns);
        if (!(rank->clock.error_ns <= out->error_ns)) /* NaN takes precedence and stays */
            out->error_ns = isnan(out->error_ns) ? NAN : rank->clock.error_ns;
    }
}

enum epa_status trace_write(const struct session *s, bool force, enum epa_status ended,
                            struct trace_written *out, struct epa_error *err)
{
    enum epa_status status = EPA_OK;
    char path[PATH_MAX];
    struct gathered g;
    json_t *events;

    *out = (struct trace_written){.path = ""};
    if (s->trace.lanes == 0)
        return EPA_OK;
    g = trace_gather(s);
    events = events_json(s, &g);
    for (int r = 0; r < (int)s->experiment->problem.ranks && status == EPA_OK; r++)
        status = write_one(s, &g, ended, events, r, force, path, sizeof(path), err);
    if (status == EPA_OK)
        status = write_one(s, &g, ended, events, ALL, force, path, sizeof(path), err);
    if (status == EPA_OK) {
        sum_up(s, &g, out);
        snprintf(out->path, sizeof(out->path), "%s", path);
    }
    json_decref(events);
    trace_gather_free(&g);
    return status;
}
