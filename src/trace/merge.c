/* Traces of the ranks of one run, as one file and as an archive. All were put on the clock of
 * rank 0, and count from one moment, when they were written: files of different runs, or of
 * programs that say nothing of their clock, are refused rather than laid side by side. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace/read.h"

enum { TAR_BLOCK = 512 };

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

/* ---- one file ---- */

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

static json_t *join_events(const struct trace_file *f, uint32_t n)
{
    const struct trace_item **all;
    json_t *events = json_array();
    size_t m = 0;

    for (uint32_t i = 0; i < n; i++)
        m += f[i].n;
    all = calloc(m + 1, sizeof(struct trace_item *));
    m = 0;
    for (uint32_t i = 0; i < n && all != NULL; i++) {
        for (size_t k = 0; k < f[i].n; k++)
            all[m++] = &f[i].item[k];
    }
    if (all != NULL)
        qsort(all, m, sizeof(const struct trace_item *), by_time);
    for (size_t k = 0; k < m; k++)
        (void)json_array_append(events, (json_t *)all[k]->json);
    if (all == NULL || json_array_size(events) != m) {
        json_decref(events);
        events = NULL;
    }
    free((void *)all);
    return events;
}

static int add_piece(const char *piece, size_t bytes, void *out)
{
    text_add_bytes(out, piece, bytes);
    return 0;
}

/* An event a line, as they were written. */
static void print_merged(const json_t *first, const json_t *other, const json_t *events,
                         struct text *out)
{
    const json_t *event;
    size_t i, flags = JSON_REAL_PRECISION(15);

    text_add(out,
             "{\"displayTimeUnit\": \"ns\", \"baseTimeNanoseconds\": %lld,\n"
             "\"otherData\": ",
             (long long)json_integer_value(json_object_get(first, "baseTimeNanoseconds")));
    (void)json_dump_callback(other, add_piece, out, flags);
    text_add(out, ",\n\"traceEvents\": [");
    json_array_foreach(events, i, event)
    {
        text_add(out, i == 0 ? "\n" : ",\n");
        (void)json_dump_callback(event, add_piece, out, flags);
    }
    text_add(out, "\n]}\n");
}

enum epa_status trace_merge(const struct trace_file *f, uint32_t n, struct text *out,
                            struct epa_error *err)
{
    enum epa_status status = check_fingerprint(f, n, err);
    json_t *other, *events;

    if (status == EPA_OK)
        status = check_apart(f, n, err);
    if (status != EPA_OK)
        return status;
    other = json_deep_copy(f[0].other);
    events = join_events(f, n);
    if (other != NULL && events != NULL) {
        join_other(other, f, n);
        print_merged(f[0].root, other, events, out);
    } else {
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory for %u traces as one", n);
    }
    json_decref(other);
    json_decref(events);
    return status;
}

/* ---- an archive ---- */

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

/* ustar: 100 bytes of name, then numbers in octal, and the sum of all bytes with the field of
 * the sum blank. */
static enum epa_status add_member(struct text *out, const char *name, const char *data,
                                  size_t bytes, struct epa_error *err)
{
    char head[TAR_BLOCK] = {0};
    unsigned sum = 0;

    if (strlen(name) >= 100)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: a name of 100 bytes or more", name);
    if (bytes > 077777777777ull)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: too large for an archive", name);
    memcpy(head, name, strlen(name));
    memcpy(head + 100,
           "0000644\0"
           "0000000\0"
           "0000000\0",
           24);
    snprintf(head + 124, 12, "%011llo", (unsigned long long)bytes);
    memcpy(head + 136, "00000000000", 12); /* no time: the same files, the same archive */
    memset(head + 148, ' ', 8);
    head[156] = '0';
    memcpy(head + 257,
           "ustar\0"
           "00",
           8);
    for (size_t i = 0; i < sizeof(head); i++)
        sum += (unsigned char)head[i];
    snprintf(head + 148, 8, "%06o", sum & 0777777);
    text_add_bytes(out, head, sizeof(head));
    text_add_bytes(out, data, bytes);
    memset(head, 0, sizeof(head));
    text_add_bytes(out, head, (TAR_BLOCK - bytes % TAR_BLOCK) % TAR_BLOCK);
    return EPA_OK;
}

/* Every file counts from the same moment, so each is pinned to the first by 0. */
static json_t *manifest_files(const struct trace_file *f, uint32_t n)
{
    json_t *files = json_array();

    for (uint32_t i = 0; i < n; i++) {
        json_t *file = json_pack("{s:s}", "path", name_of(f[i].path));

        if (i > 0)
            (void)json_object_set_new(
                file, "clocks",
                json_pack("{s:{s:s},s:i}", "sync_to", "file", name_of(f[0].path), "offset_ns", 0));
        (void)json_array_append_new(files, file);
    }
    return files;
}

static char *manifest(const struct trace_file *f, uint32_t n)
{
    double error = 0;
    json_t *all;
    char *text;

    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t r = 0; r < trace_number(&f[i], "ranks", 0); r++)
            error = trace_error_ns(&f[i], r) > error ? trace_error_ns(&f[i], r) : error;
    }
    all = json_pack("{s:{s:i,s:o,s:{s:s,s:s,s:s,s:I}}}", "perfetto_manifest", "version", 1, "files",
                    manifest_files(f, n), "attributes", "epa2a.run", trace_text(&f[0], "run"),
                    "epa2a.name", trace_text(&f[0], "name"), "epa2a.verb",
                    trace_text(&f[0], "verb"), "epa2a.clock_error_ns", (json_int_t)error);
    text = all == NULL ? NULL : json_dumps(all, JSON_INDENT(1));
    json_decref(all);
    return text;
}

enum epa_status trace_pack(const struct trace_file *f, uint32_t n, struct text *out,
                           struct epa_error *err)
{
    static const char end[2 * TAR_BLOCK];
    enum epa_status status = check_fingerprint(f, n, err);
    char *text;

    if (status == EPA_OK)
        status = check_apart(f, n, err);
    if (status != EPA_OK)
        return status;
    text = manifest(f, n);
    if (text == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a manifest");
    status = add_member(out, "perfetto_manifest.json", text, strlen(text), err);
    free(text);
    for (uint32_t i = 0; i < n && status == EPA_OK; i++)
        status = add_member(out, name_of(f[i].path), f[i].text, f[i].bytes, err);
    if (status == EPA_OK)
        text_add_bytes(out, end, sizeof(end));
    return status;
}
