/* Reads traces of epa2a with jansson into an array in order of time, and merges them. Two forms
 * are accepted: an object with traceEvents, and the bare array. The first invalid event rejects
 * the file. A flow to a rank outside the file has one end only. */
#include "trace/read.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "trace/trace_json.h"
#include "trace/write.h"

/* A time and a duration of this many microseconds together fit 64 bits of nanoseconds. The epoch in
 * microseconds, as PyTorch writes it, is less than half of that. */
static const double most_us = 4e15;

static int64_t number_of(const json_t *object, const char *key, int64_t missing)
{
    const json_t *value = json_object_get(object, key);

    return json_is_integer(value) ? (int64_t)json_integer_value(value) : missing;
}

/* ---- events ---- */

static bool is_flow(const struct trace_item *i)
{
    return i->ph == 's' || i->ph == 'f';
}

/* Converts microseconds to nanoseconds. Exact for whole microseconds, and for fractions within the
 * precision of a double: the epoch in nanoseconds exceeds this precision. */
static int64_t ns_of_us(const json_t *value)
{
    double us = json_number_value(value), whole = floor(us);

    if (json_is_integer(value))
        return (int64_t)json_integer_value(value) * 1000;
    return (int64_t)whole * 1000 + llround((us - whole) * 1000);
}

static enum epa_status read_time(const char *path, const json_t *event, size_t index,
                                 const char *key, int64_t *out, struct epa_error *err)
{
    const json_t *value = json_object_get(event, key);
    double us = json_number_value(value);

    if (value == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: event %zu: %s is missing", path, index, key);
    if (!json_is_number(value))
        return epa_fail(err, EPA_ERR_CONFIG, "%s: event %zu: %s is not a number of microseconds",
                        path, index, key);
    if (us < 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: event %zu: %s is %.17g, but must not be negative",
                        path, index, key, us);
    if (us > most_us)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: event %zu: %s is %.17g us, above the limit of %.0e", path, index, key,
                        us, most_us);
    *out = ns_of_us(value);
    return EPA_OK;
}

static enum epa_status read_id(const char *path, const json_t *event, size_t index, const char *key,
                               uint32_t *out, struct epa_error *err)
{
    const json_t *value = json_object_get(event, key);
    int64_t id = number_of(event, key, -1);

    if (value == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: event %zu: %s is missing", path, index, key);
    if (id < 0 || id > UINT32_MAX)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: event %zu: %s is not a whole number from 0 to %u",
                        path, index, key, UINT32_MAX);
    *out = (uint32_t)id;
    return EPA_OK;
}

static enum epa_status read_item(const char *path, const json_t *event, size_t index,
                                 struct trace_item *out, struct epa_error *err)
{
    const json_t *args = json_object_get(event, "args");
    const char *ph = json_text_at(event, "ph");
    enum epa_status status;

    *out = (struct trace_item){
        .ph = ph[0],
        .name = json_text_at(event, "name"),
        .cat = json_text_at(event, "cat"),
        .id = json_text_at(event, "id"),
        .iteration = number_of(args, "iteration", -1),
        .from = number_of(args, "from", -1),
        .to = number_of(args, "to", -1),
        .bytes = (uint64_t)number_of(args, "bytes", 0),
        .index = index,
        .json = event,
    };
    if (!json_is_object(event))
        return epa_fail(err, EPA_ERR_CONFIG, "%s: event %zu is not an object", path, index);
    if (ph[0] == '\0' || ph[1] != '\0' || strchr("MXCsf", ph[0]) == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: event %zu: ph is not M, X, C, s or f", path,
                        index);
    status = read_id(path, event, index, "pid", &out->pid, err);
    if (status == EPA_OK && (strchr("CM", ph[0]) == NULL || json_object_get(event, "tid") != NULL))
        status = read_id(path, event, index, "tid", &out->tid, err);
    if (status == EPA_OK && ph[0] != 'M')
        status = read_time(path, event, index, "ts", &out->ts_ns, err);
    if (status == EPA_OK && ph[0] == 'X')
        status = read_time(path, event, index, "dur", &out->dur_ns, err);
    if (status == EPA_OK && out->name[0] == '\0')
        return epa_fail(err, EPA_ERR_CONFIG, "%s: event %zu: name is missing", path, index);
    return status;
}

/* Orders events with the same begin by length, longest first. */
static int compare_times(const struct trace_item *a, const struct trace_item *b)
{
    int order = compare_whole(a->ts_ns, b->ts_ns);

    return order != 0 ? order : compare_whole(b->dur_ns, a->dur_ns);
}

static int by_time(const void *left, const void *right)
{
    const struct trace_item *a = left, *b = right;
    int order = compare_times(a, b);

    return order != 0 ? order : a->index < b->index ? -1 : 1;
}

/* ---- lanes and flows ---- */

/* Orders by rank and lane, then by time, the order of the items. */
static int by_lane(const void *left, const void *right)
{
    const struct trace_item *a = *(struct trace_item *const *)left;
    const struct trace_item *b = *(struct trace_item *const *)right;
    int order = a->pid != b->pid ? compare_whole(a->pid, b->pid) : compare_whole(a->tid, b->tid);

    return order != 0 ? order : a < b ? -1 : 1;
}

/* Finds the innermost slice of the lane around each item. Where one slice ends another may
 * begin, and a flow there belongs to the second. */
static void nest_lanes(struct trace_file *f, struct trace_item **item)
{
    const struct trace_item *open = NULL;

    qsort(item, f->n, sizeof(*item), by_lane);
    for (size_t k = 0; k < f->n; k++) {
        struct trace_item *i = item[k];

        if (i->ph == 'M')
            continue;
        if (open != NULL && (open->pid != i->pid || open->tid != i->tid))
            open = NULL;
        while (open != NULL && trace_end_ns(open) < i->ts_ns + (i->ph == 'X'))
            open = open->in;
        i->in = open;
        if (i->ph == 'X')
            open = i;
    }
}

/* Makes the ends of one flow neighbours, its s before its f. */
static int by_flow(const struct trace_item *a, const struct trace_item *b)
{
    int order = strcmp(a->id, b->id);

    if (order == 0)
        order = strcmp(a->cat, b->cat);
    return order != 0 ? order : strcmp(a->name, b->name);
}

static int by_flow_and_end(const void *left, const void *right)
{
    const struct trace_item *a = *(struct trace_item *const *)left;
    const struct trace_item *b = *(struct trace_item *const *)right;
    int order = by_flow(a, b);

    return order != 0 ? order : (int)b->ph - (int)a->ph;
}

/* Joins the two ends of each flow. If a file is of one rank, the files of other ranks contain
 * the other ends. */
static void join_flows(struct trace_file *f, struct trace_item **flow)
{
    size_t n = 0;

    for (size_t k = 0; k < f->n; k++)
        if (is_flow(&f->item[k]))
            flow[n++] = &f->item[k];
    qsort(flow, n, sizeof(*flow), by_flow_and_end);
    for (size_t k = 0, same; k < n; k += same) {
        for (same = 1; k + same < n && by_flow(flow[k], flow[k + same]) == 0; same++)
            ;
        if (same == 2 && flow[k]->ph == 's' && flow[k + 1]->ph == 'f') {
            flow[k]->other = flow[k + 1];
            flow[k + 1]->other = flow[k];
        }
    }
}

static enum epa_status read_events(struct trace_file *f, struct epa_error *err)
{
    const json_t *events =
        json_is_array((json_t *)f->root) ? f->root : json_object_get(f->root, "traceEvents");
    struct trace_item **item;

    if (!json_is_array(events))
        return epa_fail(err, EPA_ERR_CONFIG, "%s: not a Chrome trace: traceEvents is missing",
                        f->path);
    if (strcmp(json_text_at(f->other, "program"), "epa2a") != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: not written by epa2a; ui.perfetto.dev shows traces of other programs",
                        f->path);
    f->item = memory_alloc(json_array_size(events), sizeof(*f->item));
    for (struct json_walk event = {events}; json_next(&event); f->n++) {
        struct trace_item *i = &f->item[f->n];

        if (read_item(f->path, event.value, event.n - 1, i, err) != EPA_OK)
            return err->status;
        if (i->ph != 'M' && i->pid < TRACE_RANKS)
            f->has[i->pid] = true;
    }
    qsort(f->item, f->n, sizeof(*f->item), by_time);
    item = memory_alloc(f->n, sizeof(*item));
    for (size_t k = 0; k < f->n; k++)
        item[k] = &f->item[k];
    nest_lanes(f, item);
    join_flows(f, item);
    free(item);
    return EPA_OK;
}

/* ---- files ---- */

enum epa_status trace_read(const char *path, struct trace_file *out, struct epa_error *err)
{
    enum epa_status status;
    json_error_t why;

    *out = (struct trace_file){.path = path};
    status = file_read_text(path, FILE_MOST, &out->text, err);
    if (status != EPA_OK)
        return status;
    out->root = json_loadb(out->text.data, out->text.bytes, JSON_REJECT_DUPLICATES, &why);
    if (out->root == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s:%d:%d: error: not JSON: %s", path, why.line,
                        why.column, why.text);
    out->other = json_object_get(out->root, "otherData");
    return read_events(out, err);
}

void trace_free(struct trace_file *f)
{
    text_free(&f->text);
    free(f->item);
    json_decref(f->root);
    *f = (struct trace_file){0};
}

/* ---- merging ---- */

/* Merges the traces of the ranks of one run: their times are on the clock of rank 0, relative to
 * the moment of writing. Files of different runs are rejected. */
static enum epa_status check_fingerprint(const struct trace_file *f, uint32_t n,
                                         struct epa_error *err)
{
    static const char *const key[] = {"run", "name", "verb", "base_ns", "version"};

    for (uint32_t i = 0; i < n; i++) {
        for (size_t k = 0; k < sizeof(key) / sizeof(key[0]); k++) {
            if (strcmp(json_text_at(f[i].other, key[k]), json_text_at(f[0].other, key[k])) != 0)
                return epa_fail(err, EPA_ERR_CONFIG,
                                "%s and %s are of different runs: %s is '%s', and '%s'", f[0].path,
                                f[i].path, key[k], json_text_at(f[0].other, key[k]),
                                json_text_at(f[i].other, key[k]));
        }
    }
    return EPA_OK;
}

static enum epa_status check_apart(const struct trace_file *f, uint32_t n, struct epa_error *err)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t other = 0; other < i; other++)
            for (uint32_t rank = 0; rank < TRACE_RANKS; rank++)
                if (f[i].has[rank] && f[other].has[rank])
                    return epa_fail(err, EPA_ERR_CONFIG, "rank %u is in %s and in %s", rank,
                                    f[other].path, f[i].path);
    return EPA_OK;
}

/* Appends the lists of all files to the lists of the first, and adds the dropped events. */
static void join_other(json_t *to, const struct trace_file *f, uint32_t n)
{
    double dropped = 0;

    for (uint32_t i = 0; i < n; i++) {
        /* NaN: the file has no number. */
        dropped += fmax(0, json_number_at(f[i].other, "dropped"));
        if (i == 0)
            continue;
        (void)json_array_extend(json_object_get(to, "clocks"),
                                json_object_get(f[i].other, "clocks"));
        (void)json_array_extend(json_object_get(to, "missing"),
                                json_object_get(f[i].other, "missing"));
    }
    (void)json_object_set_new(to, "dropped", json_integer((json_int_t)dropped));
}

/* Orders metadata first, then by time. */
static int metadata_first(const void *left, const void *right)
{
    const struct trace_item *a = *(const struct trace_item *const *)left;
    const struct trace_item *b = *(const struct trace_item *const *)right;
    int order = compare_whole(b->ph == 'M', a->ph == 'M');

    if (order == 0)
        order = compare_times(a, b);
    if (order == 0)
        order = compare_whole(a->pid, b->pid);
    return order != 0 ? order : compare_whole((int64_t)a->index, (int64_t)b->index);
}

static const struct trace_item **join_events(const struct trace_file *f, uint32_t n, size_t *out)
{
    const struct trace_item **all = NULL;

    *out = 0;
    for (uint32_t i = 0; i < n; i++) {
        all = memory_grow(all, (*out + f[i].n + 1) * sizeof(*all));
        for (size_t k = 0; k < f[i].n; k++)
            all[(*out)++] = &f[i].item[k];
    }
    qsort(all, *out, sizeof(*all), metadata_first);
    return all;
}

/* Returns true if an event belongs to the stage of its rank's last slice: it begins before that
 * slice ends, or its name contains the stage ("dispatch, wait" of a kernel that the host only
 * starts). */
static bool is_in_stage(const struct trace_item *i, const struct trace_item *last,
                        const char *stage)
{
    size_t bytes = strlen(stage);

    if (i->ph == 'M' || (last != NULL && i->ts_ns <= trace_end_ns(last)))
        return true;
    return strncmp(i->name, stage, bytes) == 0 && strchr(",_", i->name[bytes]) != NULL;
}

static int by_address(const void *left, const void *right)
{
    const struct trace_item *a = *(const struct trace_item *const *)left;
    const struct trace_item *b = *(const struct trace_item *const *)right;

    return a < b ? -1 : a > b;
}

/* Keeps the events of the stage, both ends of each flow that begins or ends there, and the slices
 * around these ends. */
static enum epa_status keep_stage(const struct trace_item **item, size_t *n, const char *stage,
                                  struct epa_error *err)
{
    const struct trace_item **last = memory_alloc(TRACE_RANKS, sizeof(*last));
    const struct trace_item **around = memory_alloc(*n, sizeof(*around));
    bool *kept = memory_alloc(*n, sizeof(*kept));
    json_t *flows = json_object(), *others = json_object();
    size_t slices = 0, rounds = 0, to = 0;

    for (size_t k = 0; k < *n; k++) {
        const struct trace_item *i = item[k];

        if (i->pid >= TRACE_RANKS) /* events of higher ranks are dropped */
            continue;
        if (trace_is_stage(i) && strcmp(i->name, stage) != 0)
            json_object_set_new(others, i->name, json_true());
        if (trace_is_stage(i) && strcmp(i->name, stage) == 0) {
            last[i->pid] = i;
            slices++;
        }
        kept[k] = is_in_stage(i, last[i->pid], stage);
        if (kept[k] && is_flow(i))
            json_object_set_new(flows, i->id, json_true());
    }
    for (size_t k = 0; k < *n; k++)
        if (is_flow(item[k]) && json_object_get(flows, item[k]->id) != NULL) {
            kept[k] = true;
            if (item[k]->in != NULL)
                around[rounds++] = item[k]->in;
        }
    qsort(around, rounds, sizeof(*around), by_address);
    for (size_t k = 0; k < *n; k++)
        if (kept[k] || bsearch(&item[k], around, rounds, sizeof(*around), by_address) != NULL)
            item[to++] = item[k];
    *n = to;
    if (slices == 0) {
        text_auto names = {0};

        for (struct json_walk it = {others}; json_next(&it);)
            text_add(&names, "%s%s", names.bytes > 0 ? ", " : "", it.key);
        (void)epa_fail(err, EPA_ERR_CONFIG, "--stage: no rank was in '%s'; stages are: %s", stage,
                       names.bytes > 0 ? names.data : "none");
    }
    json_decref(flows);
    json_decref(others);
    free(kept);
    free((void *)around);
    free((void *)last);
    return slices > 0 ? EPA_OK : EPA_ERR_CONFIG;
}

enum epa_status trace_merge(const struct trace_file *f, uint32_t n, const char *stage,
                            struct text *out, struct epa_error *err)
{
    enum epa_status status = check_fingerprint(f, n, err);
    const struct trace_item **item;
    json_t *other;
    size_t items;

    if (status == EPA_OK)
        status = check_apart(f, n, err);
    if (status != EPA_OK)
        return status;
    item = join_events(f, n, &items);
    if (stage != NULL && keep_stage(item, &items, stage, err) != EPA_OK) {
        free((void *)item);
        return err->status;
    }
    other = json_deep_copy(f[0].other);
    join_other(other, f, n);
    trace_begin(out, json_integer_value(json_object_get(f[0].root, "baseTimeNanoseconds")), other);
    for (size_t i = 0; i < items; i++)
        trace_add_event(out, item[i]->json, i == 0);
    text_add(out, "\n]}\n");
    free((void *)item);
    return EPA_OK;
}
