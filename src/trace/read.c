/* Chrome traces, read by jansson into an array in order of time. Both forms are read: an
 * object with traceEvents, and the bare array. */
#include "trace/read.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLAWS_TOLD = 100 };

/* Microseconds of a file that runs for longer than this are no numbers of a trace. */
static const double most_us = 1e12;

void trace_flaw(struct trace_file *f, const char *fmt, ...)
{
    char line[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    for (char *c = line; *c != '\0'; c++) /* names are of the file's */
        *c = (unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c;
    if (f->n_flaws++ < FLAWS_TOLD)
        text_add(&f->flaws, "%s: %s\n", f->path, line);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL ? text : "";
}

static int64_t number_of(const json_t *object, const char *key, int64_t missing)
{
    const json_t *value = json_object_get(object, key);

    return json_is_integer(value) ? (int64_t)json_integer_value(value) : missing;
}

const char *trace_text(const struct trace_file *f, const char *key)
{
    return text_of(f->other, key);
}

double trace_number(const struct trace_file *f, const char *key, double missing)
{
    const json_t *value = json_object_get(f->other, key);

    return json_is_number(value) ? json_number_value(value) : missing;
}

double trace_error_ns(const struct trace_file *f, uint32_t rank)
{
    const json_t *clocks = json_object_get(f->other, "clocks"), *clock;
    size_t i;

    json_array_foreach(clocks, i, clock)
    {
        if (number_of(clock, "rank", -1) == (int64_t)rank)
            return json_number_value(json_object_get(clock, "error_ns"));
    }
    return 0;
}

/* ---- events ---- */

static bool read_time(struct trace_file *f, const json_t *event, size_t index, const char *key,
                      int64_t *out)
{
    const json_t *value = json_object_get(event, key);
    double us = json_number_value(value);

    if (!json_is_number(value) || !(us >= 0 && us <= most_us)) {
        trace_flaw(f, "event %zu: %s is no time of 0 or more", index, key);
        return false;
    }
    *out = llround(us * 1000);
    return true;
}

static bool read_id(struct trace_file *f, const json_t *event, size_t index, const char *key,
                    uint32_t *out)
{
    int64_t id = number_of(event, key, -1);

    if (id < 0 || id > UINT32_MAX) {
        trace_flaw(f, "event %zu: %s is no number", index, key);
        return false;
    }
    *out = (uint32_t)id;
    return true;
}

static bool read_item(struct trace_file *f, const json_t *event, size_t index,
                      struct trace_item *out)
{
    const json_t *args = json_object_get(event, "args");
    const char *ph = text_of(event, "ph");
    bool ok;

    *out = (struct trace_item){
        .ph = ph[0],
        .name = text_of(event, "name"),
        .cat = text_of(event, "cat"),
        .id = text_of(event, "id"),
        .iteration = number_of(args, "iteration", -1),
        .peer = number_of(args, "peer", -1),
        .from = number_of(args, "from", -1),
        .to = number_of(args, "to", -1),
        .bytes = (uint64_t)number_of(args, "bytes", 0),
        .tokens = (uint64_t)number_of(args, "tokens", 0),
        .index = index,
        .json = event,
    };
    if (ph[0] == '\0' || ph[1] != '\0') {
        trace_flaw(f, "event %zu: ph is not one letter", index);
        return false;
    }
    ok = read_id(f, event, index, "pid", &out->pid);
    if (ph[0] != 'C' || json_object_get(event, "tid") != NULL)
        ok = read_id(f, event, index, "tid", &out->tid) && ok;
    if (ph[0] != 'M')
        ok = read_time(f, event, index, "ts", &out->ts_ns) && ok;
    if (ph[0] == 'X')
        ok = read_time(f, event, index, "dur", &out->dur_ns) && ok;
    if (out->name[0] == '\0') {
        trace_flaw(f, "event %zu: it has no name", index);
        ok = false;
    }
    return ok;
}

static int by_time(const void *left, const void *right)
{
    const struct trace_item *a = left, *b = right;

    if (a->ts_ns != b->ts_ns)
        return a->ts_ns < b->ts_ns ? -1 : 1;
    if (a->dur_ns != b->dur_ns)
        return a->dur_ns > b->dur_ns ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

static enum epa_status read_events(struct trace_file *f, struct epa_error *err)
{
    const json_t *events =
        json_is_array((json_t *)f->root) ? f->root : json_object_get(f->root, "traceEvents");
    const json_t *event;
    size_t i;

    if (!json_is_array(events))
        return epa_fail(err, EPA_ERR_CONFIG, "%s: no Chrome trace: there is no traceEvents",
                        f->path);
    f->item = calloc(json_array_size(events) + 1, sizeof(*f->item));
    if (f->item == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for its events", f->path);
    json_array_foreach(events, i, event)
    {
        if (!json_is_object(event))
            trace_flaw(f, "event %zu: no object", i);
        else if (read_item(f, event, i, &f->item[f->n]))
            f->n++;
    }
    qsort(f->item, f->n, sizeof(*f->item), by_time);
    return EPA_OK;
}

/* ---- files ---- */

static enum epa_status read_text(struct trace_file *f, struct epa_error *err)
{
    FILE *file = fopen(f->path, "re");
    struct text all = {0};
    char piece[65536];
    size_t n;
    int failed;

    if (file == NULL)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s: %s", f->path, strerror(errno));
    while ((n = fread(piece, 1, sizeof(piece), file)) > 0)
        text_add_bytes(&all, piece, n);
    failed = ferror(file) ? errno : 0;
    fclose(file);
    f->text = all.data;
    f->bytes = all.bytes;
    if (failed != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s: %s", f->path, strerror(failed));
    return EPA_OK;
}

enum epa_status trace_read(const char *path, struct trace_file *out, struct epa_error *err)
{
    struct trace_file f = {.path = path};
    enum epa_status status = read_text(&f, err);
    json_error_t why;

    if (status == EPA_OK) {
        f.root = json_loadb(f.text == NULL ? "" : f.text, f.bytes, JSON_REJECT_DUPLICATES, &why);
        if (f.root == NULL)
            status = epa_fail(err, EPA_ERR_CONFIG, "%s:%d:%d: error: not JSON: %s", path, why.line,
                              why.column, why.text);
    }
    if (status == EPA_OK)
        status = read_events(&f, err);
    if (status != EPA_OK) {
        trace_free(&f);
        return status;
    }
    f.other = json_object_get(f.root, "otherData");
    f.ours = strcmp(trace_text(&f, "program"), "epa2a") == 0;
    *out = f;
    return EPA_OK;
}

void trace_free(struct trace_file *f)
{
    free(f->text);
    free(f->item);
    json_decref(f->root);
    text_free(&f->flaws);
    *f = (struct trace_file){0};
}
