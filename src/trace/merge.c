/* Traces as other files. Traces of the ranks of one run as one: all were put on the clock of rank 0,
 * and count from one moment, when they were written: files of different runs, or of programs that
 * say nothing of their clock, are refused rather than laid side by side. And a page that draws one
 * trace: view.html with the trace in it. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "trace/read.h"
#include "view_texts.h"

static enum epa_status check_fingerprint(const struct trace_file *f, uint32_t n,
                                         struct epa_error *err)
{
    static const char *const key[] = {"run", "name", "verb", "base_ns", "version"};

    for (uint32_t i = 0; i < n; i++) {
        if (!f[i].ours)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: not by epa2a: what its clock is is not known, and beside "
                            "others it would be a guess",
                            f[i].path);
        for (size_t k = 0; k < sizeof(key) / sizeof(key[0]); k++) {
            if (strcmp(trace_text(&f[i], key[k]), trace_text(&f[0], key[k])) != 0)
                return epa_fail(err, EPA_ERR_CONFIG,
                                "%s and %s are of different runs: %s is '%s', and '%s'", f[0].path,
                                f[i].path, key[k], trace_text(&f[0], key[k]),
                                trace_text(&f[i], key[k]));
        }
    }
    return EPA_OK;
}

static bool has_rank(const struct trace_file *f, uint32_t rank)
{
    for (size_t k = 0; k < f->n; k++) {
        if (f->item[k].ph != 'M' && f->item[k].pid == rank)
            return true;
    }
    return false;
}

static enum epa_status check_apart(const struct trace_file *f, uint32_t n, struct epa_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        for (size_t k = 0; k < f[i].n; k++) {
            uint32_t rank = f[i].item[k].pid;

            for (uint32_t other = 0; other < i; other++) {
                if ((k == 0 || rank != f[i].item[k - 1].pid) && has_rank(&f[other], rank))
                    return epa_fail(err, EPA_ERR_CONFIG, "rank %u is in %s and in %s", rank,
                                    f[other].path, f[i].path);
            }
        }
    }
    return EPA_OK;
}

/* Lists of all files in that of the first, the dropped added up. */
static void join_other(json_t *to, const struct trace_file *f, uint32_t n)
{
    double dropped = 0;

    for (uint32_t i = 0; i < n; i++) {
        dropped += trace_number(&f[i], "dropped", 0);
        if (i == 0)
            continue;
        (void)json_array_extend(json_object_get(to, "clocks"),
                                json_object_get(f[i].other, "clocks"));
        (void)json_array_extend(json_object_get(to, "missing"),
                                json_object_get(f[i].other, "missing"));
    }
    (void)json_object_set_new(to, "dropped", json_integer((json_int_t)dropped));
}

/* Metadata first, then all by time. */
static int by_time(const void *left, const void *right)
{
    const struct trace_item *a = *(const struct trace_item *const *)left;
    const struct trace_item *b = *(const struct trace_item *const *)right;

    if ((a->ph == 'M') != (b->ph == 'M'))
        return a->ph == 'M' ? -1 : 1;
    if (a->ts_ns != b->ts_ns)
        return a->ts_ns < b->ts_ns ? -1 : 1;
    if (a->dur_ns != b->dur_ns)
        return a->dur_ns > b->dur_ns ? -1 : 1;
    if (a->pid != b->pid)
        return a->pid < b->pid ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* NULL: no memory. */
static const struct trace_item **join_events(const struct trace_file *f, uint32_t n, size_t *out)
{
    const struct trace_item **all;
    size_t m = 0;

    for (uint32_t i = 0; i < n; i++)
        m += f[i].n;
    all = calloc(m + 1, sizeof(*all));
    *out = 0;
    for (uint32_t i = 0; i < n && all != NULL; i++) {
        for (size_t k = 0; k < f[i].n; k++)
            all[(*out)++] = &f[i].item[k];
    }
    if (all != NULL)
        qsort(all, m, sizeof(*all), by_time);
    return all;
}

static int add_piece(const char *piece, size_t bytes, void *out)
{
    text_add_bytes(out, piece, bytes);
    return 0;
}

enum epa_status trace_merge(const struct trace_file *f, uint32_t n, struct text *out,
                            struct epa_error *err)
{
    const size_t flags = JSON_REAL_PRECISION(15);
    enum epa_status status = check_fingerprint(f, n, err);
    const struct trace_item **item;
    json_t *other;
    size_t items;

    if (status == EPA_OK)
        status = check_apart(f, n, err);
    if (status != EPA_OK)
        return status;
    other = json_deep_copy(f[0].other);
    item = join_events(f, n, &items);
    if (other == NULL || item == NULL) {
        json_decref(other);
        free((void *)item);
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u traces as one", n);
    }
    join_other(other, f, n);
    text_add(out,
             "{\"displayTimeUnit\": \"ns\", \"baseTimeNanoseconds\": %lld,\n"
             "\"otherData\": ",
             (long long)json_integer_value(json_object_get(f[0].root, "baseTimeNanoseconds")));
    (void)json_dump_callback(other, add_piece, out, flags);
    text_add(out, ",\n\"traceEvents\": [");
    for (size_t i = 0; i < items; i++) { /* an event a line, as they were written */
        text_add(out, i == 0 ? "\n" : ",\n");
        (void)json_dump_callback(item[i]->json, add_piece, out, flags);
    }
    text_add(out, "\n]}\n");
    json_decref(other);
    free((void *)item);
    return EPA_OK;
}

/* ---- a page ---- */

/* Where the trace goes; it stands there once. */
static const char mark[] = "\"@TRACE@\"";

/* In a page `</script` would end the script, and U+2028 a line: `<` and `/` that follow each
 * other are parted by an escape that JSON has for it, which stands in strings alone. */
static void add_safely(struct text *out, const char *text, size_t bytes)
{
    size_t from = 0;

    for (size_t i = 0; i < bytes; i++) {
        if (text[i] != '<')
            continue;
        text_add_bytes(out, text + from, i - from);
        text_add(out, "\\u003c");
        from = i + 1;
    }
    text_add_bytes(out, text + from, bytes - from);
}

enum epa_status trace_view(const struct trace_file *f, struct text *out, struct epa_error *err)
{
    const char *at = strstr(view_html, mark);

    if (at == NULL)
        return epa_fail(err, EPA_ERR_SYSTEM, "the page has no place for a trace");
    text_add_bytes(out, view_html, (size_t)(at - view_html));
    add_safely(out, f->text, f->bytes);
    text_add(out, "%s", at + strlen(mark));
    return EPA_OK;
}
