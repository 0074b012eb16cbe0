/* The document of --json: results that are JSON already, and a line on each run. It is valid
 * whenever it is written, so it can be written again after each run. */
#include "report/report.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/report_batch.h"

/* Text that is not UTF-8 is made so. */
static json_t *words(const char *bytes)
{
    json_t *value = json_string(bytes);
    char *clean;

    if (value != NULL || (clean = strdup(bytes)) == NULL)
        return value;
    for (char *c = clean; *c != 0; c++)
        *c = (unsigned char)*c >= 0x80 ? '?' : *c;
    value = json_string(clean);
    free(clean);
    return value;
}

static json_t *words_or_null(const char *bytes)
{
    return bytes != NULL && bytes[0] != 0 ? words(bytes) : json_null();
}

static json_t *ns_or_null(double ns)
{
    return isfinite(ns) ? json_integer((json_int_t)llround(ns)) : json_null();
}

static json_t *row_json(const struct report_row *row, uint32_t n, uint32_t i)
{
    const struct report_row *r = &row[i];
    bool ran = r->end == REPORT_OK || r->end == REPORT_FAILED;
    double ratio = ran ? report_ratio(row, n, i) : NAN;

    return json_pack("{so so so ss so so so so so}", "file", words(r->file), "label",
                     words(r->label), "id", words_or_null(r->id), "end",
                     report_end_name(r->end), "error", words_or_null(r->error),
                     "dispatch_ns", ns_or_null(ran ? r->dispatch_ns : NAN), "combine_ns",
                     ns_or_null(ran ? r->combine_ns : NAN), "total_ns",
                     ns_or_null(ran ? r->total_ns : NAN), "ratio",
                     isfinite(ratio) ? json_real(ratio) : json_null());
}

static char *summary(const struct report_row *row, uint32_t n)
{
    json_t *rows = json_array();
    bool lost = rows == NULL;
    char *dump;

    for (uint32_t i = 0; i < n && !lost; i++)
        lost = json_array_append_new(rows, row_json(row, n, i)) != 0;
    dump = lost ? NULL : json_dumps(rows, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(rows);
    return dump;
}

enum epa_status report_json(const char *path, bool force, const struct text *results,
                            const struct report_row *row, uint32_t n, struct epa_error *err)
{
    char *lines = n == 0 ? NULL : summary(row, n);
    struct text text = {0};
    enum epa_status status;

    if (n > 0 && lines == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "--json %s: no memory for %u runs", path, n);
    text_add(&text,
             "{\n\"schema\": %d,\n\"program\": \"epa2a\",\n"
             "\"percentiles\": \"nearest rank\",\n\"results\": [\n",
             REPORT_SCHEMA);
    if (results->bytes > 0)
        text_add_bytes(&text, results->data, results->bytes);
    text_add(&text, "\n]");
    if (lines != NULL)
        text_add(&text, ",\n\"summary\": %s", lines);
    text_add(&text, "\n}\n");
    status = report_file("--json", path, force, text.data, text.bytes, err);
    text_free(&text);
    free(lines);
    return status;
}
