/* The document of --json: results that are JSON already, and a line on each run. It is valid
 * whenever it is written, so it can be written again after each run. */
#include "report/report.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "report/report_batch.h"

static json_t *words_or_null(const char *bytes)
{
    return bytes != NULL && bytes[0] != 0 ? json_text(bytes) : json_null();
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

    return json_pack(
        "{so so so ss so so so so so so}", "file", json_text(r->file), "label", json_text(r->label),
        "id", words_or_null(r->id), "end", report_end_name(r->end), "error",
        words_or_null(r->error), "dispatch_ns", ns_or_null(ran ? r->dispatch_ns : NAN),
        "experts_ns", ns_or_null(ran && r->experts_ns > 0 ? r->experts_ns : NAN), "combine_ns",
        ns_or_null(ran ? r->combine_ns : NAN), "total_ns", ns_or_null(ran ? r->total_ns : NAN),
        "ratio", isfinite(ratio) ? json_real(ratio) : json_null());
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

enum epa_status report_json_text(struct text *out, const struct text *results,
                                 const struct report_batch *batch, struct epa_error *err)
{
    bool several = batch != NULL && batch->n > 1;
    char *lines = several ? summary(batch->row, batch->n) : NULL;

    if (several && lines == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u runs as JSON", batch->n);
    text_add(out,
             "{\n\"schema\": %d,\n\"program\": \"epa2a\",\n"
             "\"percentiles\": \"nearest rank\",\n\"results\": [\n",
             REPORT_SCHEMA);
    if (results->bytes > 0)
        text_add_bytes(out, results->data, results->bytes);
    text_add(out, "\n]");
    if (several) {
        text_add(out, ",\n\"order\": \"%s\",\n\"order_seed\": ", batch->order);
        if (report_batch_mixed(batch))
            text_add(out, "%" PRIu64, batch->seed);
        else
            text_add(out, "null");
        text_add(out, ",\n\"summary\": %s", lines);
    }
    text_add(out, "\n}\n");
    free(lines);
    return EPA_OK;
}

enum epa_status report_json(const char *path, bool force, const struct text *results,
                            const struct report_batch *batch, struct epa_error *err)
{
    struct text text = {0};
    enum epa_status status = report_json_text(&text, results, batch, err);

    if (status == EPA_OK)
        status = report_file("--json", path, force, text.data, text.bytes, err);
    text_free(&text);
    return status;
}

enum epa_status report_json_line(struct text *out, const struct text *result, struct epa_error *err)
{
    struct text document = {0};
    enum epa_status status = report_json_text(&document, result, NULL, err);
    json_t *root = status != EPA_OK ? NULL : json_loadb(document.data, document.bytes, 0, NULL);
    char *line = root == NULL ? NULL : json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(9));

    text_free(&document);
    json_decref(root);
    if (line == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a result on one line");
    text_add(out, "%s\n", line);
    free(line);
    return EPA_OK;
}

enum epa_status report_json_read(const char *path, const char *id, struct text *out,
                                 struct epa_error *err)
{
    json_error_t why;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why), *result;
    const char *of, *status, *wrong = NULL;
    char *dump = NULL;

    if (root == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s:%d:%d: error: no result: %s", path, why.line,
                        why.column, why.text);
    result = json_array_get(json_object_get(root, "results"), 0);
    of = json_string_value(json_object_get(result, "id"));
    status = json_string_value(json_object_get(result, "status"));
    if (json_integer_value(json_object_get(root, "schema")) != REPORT_SCHEMA || of == NULL ||
        status == NULL)
        wrong = "not a result";
    else if (strcmp(of, id) != 0)
        wrong = "it is of another run";
    else if (strcmp(status, "ok") != 0)
        wrong = "that run did not end well";
    else if ((dump = json_dumps(result, JSON_INDENT(1) | JSON_REAL_PRECISION(9))) == NULL)
        wrong = "no memory for it";
    else
        text_add(out, "%s", dump);
    free(dump);
    json_decref(root);
    return wrong == NULL ? EPA_OK : epa_fail(err, EPA_ERR_CONFIG, "%s: %s", path, wrong);
}
