/* JUnit XML, cells of CSV, and OpenMetrics text. */
#include "report/summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* ---- JUnit ---- */

/* Characters that XML 1.0 does not allow become ?. */
void export_add_xml(struct text *out, const char *text)
{
    static const char *const entity[] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&quot;", ['\n'] = "&#10;"};

    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c < sizeof(entity) / sizeof(entity[0]) && entity[c] != NULL)
            text_add(out, "%s", entity[c]);
        else
            text_add_bytes(out, c < ' ' && c != '\t' ? "?" : text, 1);
    }
}

static void add_attribute(struct text *out, const char *name, const char *value)
{
    text_add(out, " %s=\"", name);
    export_add_xml(out, value);
    text_add(out, "\"");
}

static bool ended(const json_t *row, const char *end)
{
    return strcmp(json_text_at(row, "end"), end) == 0;
}

/* Wrong data and missed expectations are failures; everything else is an error. */
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

static void add_case(struct text *out, const json_t *row, const json_t *results)
{
    const char *file = json_text_at(row, "file"), *label = json_text_at(row, "label");
    const char *what = is_failure(row) ? "failure" : is_skipped(row) ? "skipped" : "error";
    double seconds = NAN;

    for (struct json_walk result = {results}; json_next(&result);) {
        if (strcmp(json_text_at(result.value, "label"), label) == 0 &&
            strcmp(json_text_at(result.value, "file"), file) == 0)
            seconds = json_number_at(result.value, "elapsed_s");
    }
    text_add(out, "    <testcase");
    add_attribute(out, "classname", file);
    add_attribute(out, "name", label);
    if (!isnan(seconds))
        text_add(out, " time=\"%.3f\"", seconds);
    if (ended(row, REPORT_OK)) {
        text_add(out, "/>\n");
        return;
    }
    text_add(out, ">\n      <%s", what);
    if (!is_skipped(row))
        add_attribute(out, "type", json_text_at(row, "status"));
    add_attribute(out, "message",
                  *json_text_at(row, "error") != '\0' ? json_text_at(row, "error")
                                                      : json_text_at(row, "end"));
    text_add(out, "/>\n    </testcase>\n");
}

/* Whether this row is the first of its file. */
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

/* ---- CSV ---- */

/* Cells of a row by the names of their columns: of each stage "dispatch.p95_us", ..., and of the
 * experiment all keys. */
static void add_figures(json_t *row, json_t *cells)
{
    static const struct {
        const char *name, *path;
        double scale;
    } figures[] = {{"min_us", "ns.min", 1e-3},
                   {"median_us", "ns.median", 1e-3},
                   {"p95_us", "ns.p95", 1e-3},
                   {"p99_us", "ns.p99", 1e-3},
                   {"p999_us", "ns.p999", 1e-3},
                   {"max_us", "ns.max", 1e-3},
                   {"mean_us", "ns.mean", 1e-3},
                   {"stdev_us", "ns.stdev", 1e-3},
                   {"goodput_gb_s", "rate.goodput", 1},
                   {"wire_gb_s", "rate.wire", 1},
                   {"bottleneck_gb_s", "rate.bottleneck", 1},
                   {"of_peak", "of_peak", 1}};

    for (struct json_walk stage = {json_object_get(row, "stages")}; json_next(&stage);) {
        for (uint32_t k = 0; k < sizeof(figures) / sizeof(figures[0]); k++) {
            double value = json_number_at(stage.value, figures[k].path) * figures[k].scale;
            char key[128];

            snprintf(key, sizeof(key), "%.60s.%s", json_text_at(stage.value, "name"),
                     figures[k].name);
            json_object_set_new(cells, key,
                                isnan(value) ? json_text("") : json_sprintf("%.6g", value));
        }
    }
}

static void add_keys(const json_t *from, const char *prefix, json_t *cells)
{
    for (struct json_walk it = {from}; json_next(&it);) {
        char path[128], *text;

        snprintf(path, sizeof(path), "%s%s%.60s", prefix, *prefix != '\0' ? "." : "", it.key);
        if (json_is_object(it.value)) {
            add_keys(it.value, path, cells);
        } else if (json_is_string(it.value)) {
            json_object_set(cells, path, it.value);
        } else {
            text = json_dumps(it.value, JSON_ENCODE_ANY | JSON_COMPACT);
            json_object_set_new(cells, path, json_text(text != NULL ? text : ""));
            free(text);
        }
    }
}

json_t *export_cells(json_t *rows, bool stages)
{
    json_t *names = json_object();

    for (uint32_t pass = 0; pass < 2; pass++)
        for (struct json_walk row = {rows}; json_next(&row);) {
            json_t *cells = json_object();

            if (pass == 0 && stages)
                add_figures(row.value, cells);
            if (pass == 1)
                add_keys(json_object_get(row.value, "experiment"), "", cells);
            json_object_update_missing(names, cells);
            json_object_update_missing(row.value, cells);
            json_decref(cells);
        }
    return names;
}

/* ---- OpenMetrics ---- */

/* NAME="TEXT", behind a comma where others are before it. */
static void add_label(struct text *out, const char *name, const char *text)
{
    text_add(out, "%s%s=\"", out->data[out->bytes - 1] == '{' ? "" : ",", name);
    for (; *text != '\0'; text++) {
        if (*text == '\n')
            text_add(out, "\\n");
        else if (*text == '"' || *text == '\\')
            text_add(out, "\\%c", *text);
        else
            text_add_bytes(out, text, 1);
    }
    text_add(out, "\"");
}

/* A sample with the labels that tell runs apart; a value that is not known is left out. */
static void add_sample(struct text *out, const char *name, const json_t *result, const char *stage,
                       const char *label, const char *text, double value)
{
    if (isnan(value))
        return;
    text_add(out, "%s{", name);
    add_label(out, "file", json_text_at(result, "file"));
    add_label(out, "run", json_text_at(result, "label"));
    add_label(out, "id", json_text_at(result, "id"));
    add_label(out, "algorithm", json_text_at(result, "experiment.algorithm.name"));
    add_label(out, "transport", json_text_at(result, "experiment.transport.name"));
    add_label(out, "host", json_text_at(result, "machine.host"));
    if (stage != NULL)
        add_label(out, "stage", stage);
    if (label != NULL)
        add_label(out, label, text);
    text_add(out, "} %.9g\n", value);
}

static void add_times(struct text *out, const json_t *result, const json_t *stage)
{
    static const char name[] = "epa2a_stage_seconds";
    static const char *const quantile[][2] = {{"0", "min"},    {"0.5", "median"}, {"0.95", "p95"},
                                              {"0.99", "p99"}, {"0.999", "p999"}, {"1", "max"}};
    const char *of = json_text_at(stage, "name");
    const json_t *ns = json_object_get(stage, "ns");
    double n = json_number_at(ns, "n");

    if (!(n > 0))
        return;
    for (uint32_t i = 0; i < sizeof(quantile) / sizeof(quantile[0]); i++)
        add_sample(out, name, result, of, "quantile", quantile[i][0],
                   json_number_at(ns, quantile[i][1]) * 1e-9);
    add_sample(out, "epa2a_stage_seconds_count", result, of, NULL, NULL, n);
    add_sample(out, "epa2a_stage_seconds_sum", result, of, NULL, NULL,
               json_number_at(ns, "mean") * 1e-9 * n);
}

static void add_rates(struct text *out, const json_t *result, const json_t *stage)
{
    static const char *const rate[] = {"goodput", "wire", "bottleneck"};

    for (uint32_t i = 0; i < sizeof(rate) / sizeof(rate[0]); i++)
        add_sample(out, "epa2a_stage_rate_bytes_per_second", result, json_text_at(stage, "name"),
                   "rate", rate[i], json_number_at(json_object_get(stage, "rate"), rate[i]) * 1e9);
}

void export_openmetrics(struct text *out, const json_t *results)
{
    static void (*const of_stages[])(struct text *, const json_t *, const json_t *) = {add_times,
                                                                                       add_rates};
    static const char *const head[] = {
        "# TYPE epa2a_stage_seconds summary\n# UNIT epa2a_stage_seconds seconds\n"
        "# HELP epa2a_stage_seconds Time of a stage on the slowest rank of each iteration.\n",
        "# TYPE epa2a_stage_rate_bytes_per_second gauge\n"
        "# UNIT epa2a_stage_rate_bytes_per_second bytes_per_second\n"
        "# HELP epa2a_stage_rate_bytes_per_second Bytes of a stage over its median.\n"};
    static const char *const figures[][3] = {
        {"epa2a_verify_compared_elements", "verify.compared", "Elements that were compared."},
        {"epa2a_verify_wrong_elements", "verify.wrong", "Elements that were wrong."},
        {"epa2a_run_exit_code", "exit_code", "0: the run ended well."}};

    for (uint32_t of = 0; of < 2; of++) {
        text_add(out, "%s", head[of]);
        for (struct json_walk result = {results}; json_next(&result);) {
            for (struct json_walk stage = {json_object_get(result.value, "stages")};
                 json_next(&stage);)
                of_stages[of](out, result.value, stage.value);
        }
    }
    for (uint32_t f = 0; f < sizeof(figures) / sizeof(figures[0]); f++) {
        text_add(out, "# TYPE %s gauge\n# HELP %s %s\n", figures[f][0], figures[f][0],
                 figures[f][2]);
        for (struct json_walk result = {results}; json_next(&result);)
            add_sample(out, figures[f][0], result.value, NULL, NULL, NULL,
                       json_number_at(result.value, figures[f][1]));
    }
    text_add(out, "# EOF\n");
}

/* Tables of JSON objects as text, Markdown, HTML and CSV. The text of a cell is the same in
 * each. */

enum { WIDTH = 100, TEXT = 12 /* of a text that is neither the first nor the last */ };

static bool is_text(const struct table_column *c)
{
    return c->width == 0;
}

/* Characters, not bytes. */
static int width_of(const char *text)
{
    int n = 0;

    for (; *text != 0; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* `none` is for a number that is not known: null; without its key a cell is empty. */
static void add_cell(struct text *out, const struct table_column *c, const json_t *row,
                     const char *none, bool fits)
{
    const json_t *whole = json_object_get(row, c->key);
    const json_t *value = whole != NULL ? whole : json_at(row, c->key);
    double x = json_number_value(value) / (c->scale > 0 ? c->scale : 1);
    int digits = c->digits != -2 ? c->digits : x != 0 && x < 0.1 ? 4 : 2;
    char number[400];

    if (json_is_string(value)) {
        text_add(out, "%s", json_string_value(value));
    } else if (!json_is_number(value)) {
        text_add(out, "%s", is_text(c) || value == NULL ? "" : none);
    } else {
        int n = digits < 0 ? snprintf(number, sizeof(number), "%.2g", x)
                           : snprintf(number, sizeof(number), "%.*f", digits, x);

        if (fits && n > c->width && snprintf(number, sizeof(number), "%.0f", x) > c->width)
            snprintf(number, sizeof(number), "%.2e", x);
        text_add(out, "%s", number);
    }
}

/* ---- text ---- */

/* The width of the first text: of its longest cell, as far as other columns leave room. */
static int label_width(const struct table_column *columns, const json_t *rows)
{
    const struct table_column *label = NULL;
    int longest = 0, room = WIDTH - 1;

    for (const struct table_column *c = columns; c->key != NULL; c++) {
        room -= c->width + 1;
        if (is_text(c) && label == NULL)
            label = c;
        else if (is_text(c))
            room -= c[1].key != NULL ? TEXT + 2 : 8;
    }
    longest = label->digits > 0 ? label->digits : TABLE_LABEL;
    for (struct json_walk row = {rows}; json_next(&row);) {
        text_auto cell = {0};

        add_cell(&cell, label, row.value, "", true);
        if (cell.data != NULL && width_of(cell.data) > longest)
            longest = width_of(cell.data);
    }
    return longest > room ? room : longest;
}

/* Cells of a line; a row NULL: headings, `unit`: units. */
static void print_cells(FILE *file, const struct table_column *columns, const json_t *row,
                        bool unit, int label)
{
    const char *named = json_string_value(json_object_get(row, "colour"));
    bool first = true;
    text_auto line = {0};

    for (const struct table_column *c = columns; c->key != NULL; c++) {
        text_auto cell = {0};
        int width = !is_text(c) ? c->width : first ? label : c[1].key == NULL ? 0 : TEXT;
        bool last = c[1].key == NULL && named != NULL;
        enum colour colour = last && strcmp(named, "bad") == 0 ? COLOUR_BAD : COLOUR_GOOD;

        if (row != NULL)
            add_cell(&cell, c, row, "-", true);
        else if (!unit && c->name != NULL)
            text_add(&cell, "%s", c->name);
        else if (unit && c->unit != NULL)
            text_add(&cell, "[%s]", c->unit);
        text_add(&cell, "%s", "");
        text_clean(cell.data);
        text_add(&line, "%s", line.bytes == 0 ? "" : is_text(c) ? "  " : " ");
        if (is_text(c) && first && width_of(cell.data) > width) /* a line of its own */
            text_add(&line, "%s\n  %*s", cell.data,
                     (int)(c == columns ? 0 : c[-1].width + 1) + width, "");
        else if (is_text(c))
            text_add(&line, "%s%s%*s%s", last ? colour_on(file, colour) : "", cell.data,
                     width > width_of(cell.data) ? width - width_of(cell.data) : 0, "",
                     last ? colour_off(file) : "");
        else
            text_add(&line, "%*s%s", width > width_of(cell.data) ? width - width_of(cell.data) : 0,
                     "", cell.data);
        first = first && !is_text(c);
    }
    while (line.bytes > 0 && line.data[line.bytes - 1] == ' ')
        line.data[--line.bytes] = '\0';
    fprintf(file, "%s%s\n", row != NULL ? "  " : "# ", line.data);
}

void table_text(FILE *file, const struct table_column *columns, const json_t *rows)
{
    int label = label_width(columns, rows);
    bool units = false;

    for (const struct table_column *c = columns; c->key != NULL; c++)
        units = units || c->unit != NULL;
    print_cells(file, columns, NULL, false, label);
    if (units)
        print_cells(file, columns, NULL, true, label);
    for (struct json_walk row = {rows}; json_next(&row);)
        print_cells(file, columns, row.value, false, label);
}

/* ---- Markdown, HTML and CSV ---- */

void table_markdown(struct text *out, const struct table_column *columns, const json_t *rows)
{
    text_add(out, "|");
    for (const struct table_column *c = columns; c->key != NULL; c++)
        text_add(out, c->unit != NULL ? " %s [%s] |" : " %s |", c->name != NULL ? c->name : "",
                 c->unit);
    text_add(out, "\n|");
    for (const struct table_column *c = columns; c->key != NULL; c++)
        text_add(out, is_text(c) ? "---|" : "---:|");
    text_add(out, "\n");
    for (struct json_walk row = {rows}; json_next(&row);) {
        text_add(out, "|");
        for (const struct table_column *c = columns; c->key != NULL; c++) {
            text_auto cell = {0};

            add_cell(&cell, c, row.value, "-", false);
            text_add(out, " ");
            if (cell.bytes > 0)
                text_add_markdown(out, cell.data);
            text_add(out, " |");
        }
        text_add(out, "\n");
    }
}

void table_html(struct text *out, const struct table_column *columns, const json_t *rows,
                void (*add)(struct text *, const char *))
{
    text_add(out, "<div class=wide><table>\n<tr>");
    for (const struct table_column *c = columns; c->key != NULL; c++)
        text_add(out, "<th%s>%s%s%s%s", is_text(c) ? " class=text" : "",
                 c->name != NULL ? c->name : "", c->unit != NULL ? " [" : "",
                 c->unit != NULL ? c->unit : "", c->unit != NULL ? "]" : "");
    for (struct json_walk row = {rows}; json_next(&row);) {
        text_add(out, "\n<tr>");
        for (const struct table_column *c = columns; c->key != NULL; c++) {
            struct text cell = {0};

            add_cell(&cell, c, row.value, "-", false);
            text_add(out, is_text(c) ? "<td class=text>" : "<td>");
            if (cell.bytes > 0)
                add(out, cell.data);
            text_free(&cell);
        }
    }
    text_add(out, "\n</table></div>\n");
}

static void add_csv(struct text *out, const char *text)
{
    bool quoted = strpbrk(text, ",\"\r\n") != NULL;

    text_add(out, quoted ? "\"" : "");
    for (; *text != 0; text++)
        text_add(out, *text == '"' ? "\"\"" : "%c", *text);
    text_add(out, quoted ? "\"" : "");
}

void table_csv(struct text *out, const struct table_column *columns, const json_t *rows)
{
    for (const struct table_column *c = columns; c->key != NULL; c++)
        text_add(out, "%s%s", c == columns ? "" : ",", c->name);
    text_add(out, "\n");
    for (struct json_walk row = {rows}; json_next(&row);) {
        for (const struct table_column *c = columns; c->key != NULL; c++) {
            text_auto cell = {0};

            add_cell(&cell, c, row.value, "", false);
            text_add(out, "%s", c == columns ? "" : ",");
            add_csv(out, cell.data != NULL ? cell.data : "");
        }
        text_add(out, "\n");
    }
}
