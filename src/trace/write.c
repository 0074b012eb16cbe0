/* What ranks noted as Chrome traces, in the part of that format that Perfetto reads: M, X, C,
 * and s and f bound to the slices around them. pid is the rank, tid the worker. All times are
 * on the clock of rank 0, in microseconds since base_ns of it; a file for one rank has the
 * ends of its flows, whose other ends are in those of other ranks. */
#include "trace/write.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/exit_code.h"
#include "base/file.h"
#include "base/text.h"
#include "trace/gather.h"

enum { ALL = -1 };

struct writing {
    const struct session *session;
    const struct gathered *g;
    enum epa_status ended;
    int only; /* a rank, or ALL */
    struct text out;
    bool any; /* an event stands before this one */
};

/* Names may come from other hosts, and paths hold anything. */
static void add_string(struct text *out, const char *s, size_t most)
{
    text_add(out, "\"");
    for (size_t i = 0; i < most && s[i] != '\0'; i++) {
        unsigned char c = (unsigned char)s[i];

        if (c == '"' || c == '\\')
            text_add(out, "\\%c", c);
        else if (c < ' ' || c >= 0x7f)
            text_add(out, "?");
        else
            text_add(out, "%c", c);
    }
    text_add(out, "\"");
}

static void add_pair(struct text *out, const char *key, const char *value)
{
    text_add(out, "\"%s\": ", key);
    add_string(out, value, SIZE_MAX);
    text_add(out, ", ");
}

static void add_number_or_null(struct text *out, const char *key, double value)
{
    if (isfinite(value))
        text_add(out, "\"%s\": %.3f", key, value);
    else
        text_add(out, "\"%s\": null", key);
}

static bool is_in(const struct writing *w, uint32_t rank)
{
    return w->only == ALL || (uint32_t)w->only == rank;
}

static void add_clocks(struct writing *w)
{
    const char *before = "";

    text_add(&w->out, "\"clocks\": [");
    for (uint32_t r = 0; r < w->session->experiment->ranks; r++) {
        const struct gathered_rank *rank = &w->g->rank[r];

        if (rank->record == NULL || !is_in(w, r))
            continue;
        text_add(&w->out, "%s{\"rank\": %u, \"method\": \"%s\", \"offset_ns\": %lld, ", before, r,
                 rank->record->near ? "the host of rank 0: CLOCK_MONOTONIC is one"
                                    : "exchanged with rank 0 before and after",
                 (long long)rank->offset_ns);
        add_number_or_null(&w->out, "error_ns", rank->error_ns);
        text_add(&w->out, ", ");
        add_number_or_null(&w->out, "drift_ns_per_s", rank->drift);
        text_add(&w->out, "}");
        before = ", ";
    }
    text_add(&w->out, "], \"missing\": [");
    before = "";
    for (uint32_t r = 0; r < w->session->experiment->ranks; r++) {
        if (w->g->rank[r].record == NULL && is_in(w, r)) {
            text_add(&w->out, "%s%u", before, r);
            before = ", ";
        }
    }
    text_add(&w->out, "], ");
}

/* What a rank that is in this file lost. */
static uint64_t dropped(const struct writing *w)
{
    return w->only == ALL ? w->g->dropped : w->g->rank[w->only].dropped;
}

static void add_other_data(struct writing *w)
{
    const struct experiment *x = w->session->experiment;
    struct text *out = &w->out;

    text_add(out, "\"otherData\": {\"program\": \"epa2a\", \"version\": \"%s\", ", EPA2A_VERSION);
    text_add(out, "\"trace\": %d, \"verb\": \"%s\", ", TRACE_SCHEMA, session_verb(w->session));
    add_pair(out, "name", x->name);
    add_pair(out, "run", x->id != NULL ? x->id : "");
    add_pair(out, "algorithm", x->algorithm.plugin->name);
    add_pair(out, "transport", x->transport.plugin->name);
    add_pair(out, "status", status_name(w->ended));
    text_add(out, "\"ranks\": %u, \"base_ns\": \"%llu\", ", x->ranks,
             (unsigned long long)w->g->base_ns);
    if (w->g->first <= w->g->last)
        text_add(out, "\"iterations\": [%llu, %llu], ", (unsigned long long)w->g->first,
                 (unsigned long long)w->g->last);
    else
        text_add(out, "\"iterations\": null, ");
    add_clocks(w);
    text_add(out, "\"flows_cut\": %llu, \"dropped\": %llu}", (unsigned long long)w->g->cut,
             (unsigned long long)dropped(w));
}

/* ---- events ---- */

static void begin_event(struct writing *w, const char *ph, uint32_t rank, uint32_t lane)
{
    text_add(&w->out, "%s\n{\"ph\": \"%s\", \"pid\": %u, \"tid\": %u, ", w->any ? "," : "", ph,
             rank, lane);
    w->any = true;
}

static void add_time(struct text *out, const char *key, uint64_t ns)
{
    text_add(out, "\"%s\": %llu.%03u, ", key, (unsigned long long)(ns / 1000),
             (unsigned)(ns % 1000));
}

static void add_name(struct writing *w, uint32_t rank, uint32_t lane, const char *what,
                     const char *name, const char *sort, uint32_t at)
{
    begin_event(w, "M", rank, lane);
    text_add(&w->out, "\"name\": \"%s\", \"args\": {\"name\": ", what);
    add_string(&w->out, name, SIZE_MAX);
    text_add(&w->out, "}}");
    begin_event(w, "M", rank, lane);
    text_add(&w->out, "\"name\": \"%s\", \"args\": {\"sort_index\": %u}}", sort, at);
}

static void add_names(struct writing *w, uint32_t rank)
{
    char name[128];

    snprintf(name, sizeof(name), "rank %u @%.64s", rank, session_rank(w->session, rank)->host);
    add_name(w, rank, 0, "process_name", name, "process_sort_index", rank);
    for (uint32_t lane = 0; lane < w->session->trace.lanes; lane++) {
        snprintf(name, sizeof(name), lane == 0 ? "rank" : "worker %u", lane);
        add_name(w, rank, lane, "thread_name", name, "thread_sort_index", lane);
    }
}

static const char *category(const struct record *record, uint32_t name)
{
    if (name < record->n_core)
        return "core";
    return (record->stages >> name & 1) != 0 ? "stage" : "phase";
}

static void add_slice(struct writing *w, const struct gathered_event *e)
{
    const struct record *record = w->g->rank[e->rank].record;
    struct text *out = &w->out;

    add_time(out, "dur", e->end_ns - e->begin_ns);
    text_add(out, "\"cat\": \"%s\", \"name\": ", category(record, e->event->name));
    add_string(out, record->names.name[e->event->name], EPA_TRACE_NAME_BYTES);
    text_add(out, ", \"args\": {\"iteration\": %llu", (unsigned long long)e->iteration);
    if (e->event->peer != EPA_TRACE_NOBODY)
        text_add(out, ", \"peer\": %u", e->event->peer);
    if (e->event->bytes != 0)
        text_add(out, ", \"bytes\": %llu", (unsigned long long)e->event->bytes);
    if (e->event->tokens != 0)
        text_add(out, ", \"tokens\": %u", e->event->tokens);
    text_add(out, "}}");
}

static void add_flow(struct writing *w, const struct gathered_event *e)
{
    bool gives = e->event->kind == EPA_TRACE_FLOW_BEGIN;
    uint32_t from = gives ? e->rank : e->event->peer, to = gives ? e->event->peer : e->rank;
    unsigned long long value = e->event->value;

    text_add(&w->out,
             "%s\"cat\": \"flow\", \"name\": \"signal\", \"id\": \"%u-%u-%u-%llu\", "
             "\"args\": {\"iteration\": %llu, \"from\": %u, \"to\": %u, \"signal\": %u, "
             "\"value\": %llu}}",
             gives ? "" : "\"bp\": \"e\", ", from, to, e->event->signal, value,
             (unsigned long long)e->iteration, from, to, e->event->signal, value);
}

static void add_event(struct writing *w, const struct gathered_event *e)
{
    static const char *const ph[] = {[EPA_TRACE_SLICE] = "X",
                                     [EPA_TRACE_FLOW_BEGIN] = "s",
                                     [EPA_TRACE_FLOW_END] = "f",
                                     [EPA_TRACE_COUNT] = "C"};
    const struct record *record = w->g->rank[e->rank].record;

    if (e->cut)
        return;
    begin_event(w, ph[e->event->kind], e->rank, e->lane);
    add_time(&w->out, "ts", e->begin_ns - w->g->base_ns);
    if (e->event->kind == EPA_TRACE_SLICE) {
        add_slice(w, e);
    } else if (e->event->kind == EPA_TRACE_COUNT) {
        text_add(&w->out, "\"name\": ");
        add_string(&w->out, record->names.name[e->event->name], EPA_TRACE_NAME_BYTES);
        text_add(&w->out, ", \"args\": {\"value\": %llu}}", (unsigned long long)e->event->value);
    } else {
        add_flow(w, e);
    }
}

/* Nanoseconds since 1970 at ts 0, by the clock of the host that writes this. */
static long long base_real_ns(const struct gathered *g)
{
    struct timespec now = {0};

    clock_gettime(CLOCK_REALTIME, &now);
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec - (long long)(clock_ns() - g->base_ns);
}

static void add_all(struct writing *w)
{
    text_add(&w->out, "{\"displayTimeUnit\": \"ns\", \"baseTimeNanoseconds\": %lld,\n",
             w->g->n > 0 ? base_real_ns(w->g) : 0);
    add_other_data(w);
    text_add(&w->out, ",\n\"traceEvents\": [");
    for (uint32_t r = 0; r < w->session->experiment->ranks; r++) {
        if (w->g->rank[r].record != NULL && is_in(w, r))
            add_names(w, r);
    }
    for (uint64_t i = 0; i < w->g->n; i++) {
        if (is_in(w, w->g->event[i].rank))
            add_event(w, &w->g->event[i]);
    }
    text_add(&w->out, "\n]}\n");
}

/* ---- files ---- */

/* Runs of one file have names of their own: the id, and of repetitions the number, which
 * their labels end in. */
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
        return epa_fail(err, EPA_ERR_CONFIG, "profile: the name of the file is too long");
    for (int r = ALL; r < (int)s->experiment->ranks && status == EPA_OK; r++) {
        path_of(s, r, path, sizeof(path));
        status = file_check("profile:", path, force, err);
    }
    return status;
}

static enum epa_status write_one(struct writing *w, int rank, bool force, char *path, size_t room,
                                 struct epa_error *err)
{
    enum epa_status status;

    w->only = rank;
    w->any = false;
    path_of(w->session, rank, path, room);
    add_all(w);
    status = file_write("profile:", path, force, &w->out, err);
    text_free(&w->out);
    return status;
}

static void sum_up(const struct session *s, const struct gathered *g, struct trace_written *out)
{
    *out = (struct trace_written){
        .iterations = g->first <= g->last ? g->last - g->first + 1 : 0,
        .slices = g->slices,
        .flows = g->flows,
        .dropped = g->dropped,
        .cut = g->cut,
        .missing = g->missing,
        .busiest = (double)g->busiest,
    };
    for (uint32_t r = 0; r < s->experiment->ranks; r++) {
        const struct gathered_rank *rank = &g->rank[r];

        if (rank->record == NULL)
            continue;
        out->event_ns = fmax(out->event_ns, rank->record->event_ns);
        if (!(rank->error_ns <= out->error_ns)) /* not a number wins, and stays */
            out->error_ns = isnan(out->error_ns) ? NAN : rank->error_ns;
    }
}

enum epa_status trace_write(const struct session *s, bool force, enum epa_status ended,
                            struct trace_written *out, struct epa_error *err)
{
    struct writing w = {.session = s, .ended = ended};
    struct gathered g;
    char path[PATH_MAX];
    enum epa_status status;

    *out = (struct trace_written){.path = ""};
    if (s->trace.lanes == 0)
        return EPA_OK;
    status = gather(s, &g, err);
    if (status != EPA_OK)
        return status;
    w.g = &g;
    for (uint32_t r = 0; r < s->experiment->ranks && status == EPA_OK; r++)
        status = write_one(&w, (int)r, force, path, sizeof(path), err);
    if (status == EPA_OK)
        status = write_one(&w, ALL, force, path, sizeof(path), err);
    if (status == EPA_OK) {
        sum_up(s, &g, out);
        snprintf(out->path, sizeof(out->path), "%s", path);
    }
    gather_free(&g);
    return status;
}
