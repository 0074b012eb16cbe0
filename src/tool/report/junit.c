/* JUnit XML: a test case for each run. */
#include "report/junit.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "report/rows.h"
#include "report/xml.h"

static bool ended_as(const struct report_row *row, const char *end)
{
    return strcmp(row->end, end) == 0;
}

/* Returns true for wrong data and missed expectations, which are failures in JUnit; all else is an
 * error. */
static bool is_failure(const struct report_row *row)
{
    return ended_as(row, REPORT_FAILED) && strcmp(row->status, status_name(EPA_ERR_MISMATCH)) == 0;
}

static bool is_skipped(const struct report_row *row)
{
    return ended_as(row, REPORT_SKIPPED) || ended_as(row, REPORT_NOT_RUN);
}

/* Counts rows of `file`; NULL: all rows. */
static void add_counts(struct text *out, const struct report_batch *batch, const char *file)
{
    uint32_t tests = 0, failures = 0, errors = 0, skipped = 0;

    for (uint32_t i = 0; i < batch->n; i++) {
        const struct report_row *row = &batch->row[i];

        if (file != NULL && strcmp(row->file, file) != 0)
            continue;
        tests++;
        skipped += is_skipped(row);
        failures += is_failure(row);
        errors += !ended_as(row, REPORT_OK) && !is_skipped(row) && !is_failure(row);
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

static void add_case(struct text *out, const struct report_row *row)
{
    const char *what = is_failure(row) ? "failure" : is_skipped(row) ? "skipped" : "error";

    text_add(out, "    <testcase");
    add_attribute(out, "classname", row->file);
    add_attribute(out, "name", row->label);
    if (isfinite(row->elapsed_s))
        text_add(out, " time=\"%.3f\"", row->elapsed_s);
    if (ended_as(row, REPORT_OK)) {
        text_add(out, "/>\n");
        return;
    }
    text_add(out, ">\n      <%s", what);
    if (!is_skipped(row))
        add_attribute(out, "type", row->status);
    add_attribute(out, "message", row->error != NULL ? row->error : row->end);
    text_add(out, "/>\n    </testcase>\n");
}

/* Returns true if this row is the first of its file. */
static bool begins_file(const struct report_row *row, uint32_t at)
{
    for (uint32_t i = 0; i < at; i++)
        if (strcmp(row[i].file, row[at].file) == 0)
            return false;
    return true;
}

void export_junit(struct text *out, const struct report_batch *batch)
{
    text_add(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"epa2a %s\"",
             session_verb_name(batch->verb));
    add_counts(out, batch, NULL);
    text_add(out, ">\n");
    for (uint32_t i = 0; i < batch->n; i++) {
        const char *file = batch->row[i].file;

        if (!begins_file(batch->row, i))
            continue;
        text_add(out, "  <testsuite");
        add_attribute(out, "name", file);
        add_counts(out, batch, file);
        text_add(out, ">\n");
        for (uint32_t k = 0; k < batch->n; k++)
            if (strcmp(batch->row[k].file, file) == 0)
                add_case(out, &batch->row[k]);
        text_add(out, "  </testsuite>\n");
    }
    text_add(out, "</testsuites>\n");
}
