/* JUnit XML: a test case for each run. */
#include "report/junit.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "report/results.h"
#include "report/rows.h"
#include "report/xml.h"

static bool ended(const json_t *row, const char *end)
{
    return strcmp(json_text_at(row, "end"), end) == 0;
}

/* Returns true for wrong data and missed expectations, which are failures in JUnit; all else is an
 * error. */
static bool is_failure(const json_t *row)
{
    return ended(row, REPORT_FAILED) &&
           strcmp(json_text_at(row, "status"), status_name(EPA_ERR_MISMATCH)) == 0;
}

static bool is_skipped(const json_t *row)
{
    return ended(row, REPORT_SKIPPED) || ended(row, REPORT_NOT_RUN);
}

/* Counts rows of `file`; NULL: all rows. */
static void add_counts(struct text *out, const json_t *rows, const char *file)
{
    uint32_t tests = 0, failures = 0, errors = 0, skipped = 0;

    for (struct json_walk row = {rows}; json_next(&row);) {
        if (file != NULL && strcmp(json_text_at(row.value, "file"), file) != 0)
            continue;
        tests++;
        skipped += is_skipped(row.value);
        failures += is_failure(row.value);
        errors += !ended(row.value, REPORT_OK) && !is_skipped(row.value) && !is_failure(row.value);
    }
    text_add(out, " tests=\"%u\" failures=\"%u\" errors=\"%u\" skipped=\"%u\"", tests, failures,
             errors, skipped);
}

/* Adds ` NAME="TEXT"`. */
static void add_attribute(struct text *out, const char *name, const char *text)
{
    text_add(out, " %s=\"", name);
    export_add_xml(out, text);
    text_add(out, "\"");
}

/* Returns the duration of a run; NaN: it has no result. */
static double elapsed_of(const json_t *row, const json_t *results)
{
    double elapsed_s = NAN;

    for (struct json_walk result = {results}; json_next(&result);)
        if (strcmp(json_text_at(result.value, "label"), json_text_at(row, "label")) == 0 &&
            strcmp(json_text_at(result.value, "file"), json_text_at(row, "file")) == 0)
            elapsed_s = json_number_at(result.value, "elapsed_s");
    return elapsed_s;
}

static void add_case(struct text *out, const json_t *row, const json_t *results)
{
    const char *what = is_failure(row) ? "failure" : is_skipped(row) ? "skipped" : "error";
    const json_t *error = json_object_get(row, "error");
    double elapsed_s = elapsed_of(row, results);

    text_add(out, "    <testcase");
    add_attribute(out, "classname", json_text_at(row, "file"));
    add_attribute(out, "name", json_text_at(row, "label"));
    if (isfinite(elapsed_s))
        text_add(out, " time=\"%.3f\"", elapsed_s);
    if (ended(row, REPORT_OK)) {
        text_add(out, "/>\n");
        return;
    }
    text_add(out, ">\n      <%s", what);
    if (!is_skipped(row))
        add_attribute(out, "type", json_text_at(row, "status"));
    add_attribute(out, "message",
                  json_is_string(error) ? json_string_value(error) : json_text_at(row, "end"));
    text_add(out, "/>\n    </testcase>\n");
}

/* Returns true if this row is the first of its file. */
static bool begins_file(const json_t *rows, size_t at)
{
    const char *file = json_text_at(json_array_get(rows, at), "file");

    for (size_t i = 0; i < at; i++)
        if (strcmp(json_text_at(json_array_get(rows, i), "file"), file) == 0)
            return false;
    return true;
}

void export_junit(struct text *out, const struct report_batch *batch, const json_t *results)
{
    const json_t *rows = batch->rows;
    size_t i;

    text_add(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"epa2a %s\"",
             session_verb_name(batch->verb));
    add_counts(out, rows, NULL);
    text_add(out, ">\n");
    for (i = 0; i < json_array_size(rows); i++) {
        const char *file = json_text_at(json_array_get(rows, i), "file");

        if (!begins_file(rows, i))
            continue;
        text_add(out, "  <testsuite");
        add_attribute(out, "name", file);
        add_counts(out, rows, file);
        text_add(out, ">\n");
        for (struct json_walk row = {rows}; json_next(&row);) {
            if (strcmp(json_text_at(row.value, "file"), file) == 0)
                add_case(out, row.value, results);
        }
        text_add(out, "  </testsuite>\n");
    }
    text_add(out, "</testsuites>\n");
}
