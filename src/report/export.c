/* JUnit XML, cells of CSV, and OpenMetrics text. */
#include "report/export.h"

#include "report/fill.h"
#include "report/summary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "report/results.h"
#include "report/findings.h"

/* ---- JUnit ---- */

/* Replaces characters that XML 1.0 does not allow by ?. */
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

static void add_case(struct text *out, const json_t *row, const json_t *results)
{
    json_auto_t *facts = json_copy((json_t *)(uintptr_t)row);

    for (struct json_walk result = {results}; json_next(&result);) {
        if (strcmp(json_text_at(result.value, "label"), json_text_at(row, "label")) == 0 &&
            strcmp(json_text_at(result.value, "file"), json_text_at(row, "file")) == 0)
            json_object_set(facts, "elapsed_s", json_object_get(result.value, "elapsed_s"));
    }
    json_object_set_new(facts, "what",
                        json_text(is_failure(row)   ? "failure"
                                  : is_skipped(row) ? "skipped"
                                                    : "error"));
    fill_add(out,
             "    <testcase classname=\"[{file}]\" name=\"[{label}]\"[ time=\"{elapsed_s%.3f}\"]"
             "[{end=ok}/>\n|>\n      <{what}[{what!skipped} type=\"[{status}]\"] "
             "message=\"[{error}|{end}]\"/>\n    </testcase>\n]",
             facts, export_add_xml);
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
        fill_add(out, "  <testsuite name=\"[{file}]\"", json_array_get(rows, i), export_add_xml);
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

/* Adds the cells of a row by the names of their columns: for each stage "dispatch.p95_us", ... */
static void add_figures(json_t *row, json_t *cells)
{
    static const char *const figures[][2] = {{"min_us", "{ns.min/1e3%.6g}"},
                                             {"median_us", "{ns.median/1e3%.6g}"},
                                             {"p95_us", "{ns.p95/1e3%.6g}"},
                                             {"p99_us", "{ns.p99/1e3%.6g}"},
                                             {"p999_us", "{ns.p999/1e3%.6g}"},
                                             {"max_us", "{ns.max/1e3%.6g}"},
                                             {"mean_us", "{ns.mean/1e3%.6g}"},
                                             {"stdev_us", "{ns.stdev/1e3%.6g}"},
                                             {"goodput_gb_s", "{rate.goodput%.6g}"},
                                             {"wire_gb_s", "{rate.wire%.6g}"},
                                             {"bottleneck_gb_s", "{rate.bottleneck%.6g}"},
                                             {"peak_us", "{peak_ns/1e3%.6g}"},
                                             {"of_peak", "{of_peak%.6g}"}};

    for (struct json_walk stage = {json_object_get(row, "stages")}; json_next(&stage);) {
        for (uint32_t k = 0; k < sizeof(figures) / sizeof(figures[0]); k++) {
            text_auto cell = {0}, key = {0};

            text_add(&key, "%s.%s", json_text_at(stage.value, "name"), figures[k][0]);
            fill_add(&cell, figures[k][1], stage.value, NULL);
            json_object_set_new(cells, key.data, json_text(cell.data));
        }
    }
}

/* Adds all keys of the experiment. */
static void add_keys(json_t *row, json_t *cells)
{
    json_auto_t *keys = results_part(json_object_get(row, "experiment"), RESULTS_ALL);

    for (struct json_walk it = {keys}; json_next(&it);) {
        text_auto cell = {0};

        results_add_value(&cell, it.value, false);
        json_object_set_new(cells, it.key, json_text(cell.data));
    }
}

json_t *export_cells(json_t *rows, bool stages)
{
    json_t *names = json_object();

    for (uint32_t pass = stages ? 0 : 1; pass < 2; pass++)
        for (struct json_walk row = {rows}; json_next(&row);) {
            json_auto_t *cells = json_object();

            (pass == 0 ? add_figures : add_keys)(row.value, cells);
            json_object_update_missing(names, cells);
            json_object_update_missing(row.value, cells);
        }
    return names;
}

/* ---- OpenMetrics ---- */

static void add_label(struct text *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\n')
            text_add(out, "\\n");
        else if (*text == '"' || *text == '\\')
            text_add(out, "\\%c", *text);
        else
            text_add_bytes(out, text, 1);
    }
}

/* Labels of a sample, which distinguish runs; unknown values are left out. */
#define RUN \
    "file=\"[{file}]\",run=\"[{label}]\",id=\"[{id}]\",algorithm=\"" \
    "[{experiment.algorithm.name}]\",transport=\"[{experiment.transport.name}]\",host=\"" \
    "[{machine.host}]\""
#define STAGE RUN ",stage=\"{stage.name}\""
#define SECONDS(quantile, key) \
    "epa2a_stage_seconds{{" STAGE ",quantile=\"" quantile "\"} {stage.ns." key "/1e9%.9g}\n"
#define RATE(key) \
    "epa2a_stage_rate_bytes_per_second{{" STAGE ",rate=\"" key "\"} {stage.rate." key "/1e-9%.9g}\n"
#define FIGURE(name, path, help) \
    { \
        "# TYPE " name " gauge\n# HELP " name " " help "\n", false, \
        { \
            name "{{" RUN "} {" path "%.9g}\n" \
        } \
    }

static const struct {
    const char *head;
    bool stages; /* one sample for each stage of a run */
    const char *sample[9];
} families[] = {
    {"# TYPE epa2a_stage_seconds summary\n# UNIT epa2a_stage_seconds seconds\n"
     "# HELP epa2a_stage_seconds Time of a stage on the slowest rank of each iteration.\n",
     true,
     {SECONDS("0", "min"), SECONDS("0.5", "median"), SECONDS("0.95", "p95"), SECONDS("0.99", "p99"),
      SECONDS("0.999", "p999"), SECONDS("1", "max"),
      "{stage.ns.n>0}epa2a_stage_seconds_count{{" STAGE "} {stage.ns.n%.9g}\n",
      "epa2a_stage_seconds_sum{{" STAGE "} {sum_ns/1e9%.9g}\n"}},
    {"# TYPE epa2a_stage_rate_bytes_per_second gauge\n"
     "# UNIT epa2a_stage_rate_bytes_per_second bytes_per_second\n"
     "# HELP epa2a_stage_rate_bytes_per_second Bytes of a stage over its median.\n",
     true,
     {RATE("goodput"), RATE("wire"), RATE("bottleneck")}},
    FIGURE("epa2a_verify_compared_elements", "verify.compared", "Elements that were compared."),
    FIGURE("epa2a_verify_wrong_elements", "verify.wrong", "Elements that were wrong."),
    FIGURE("epa2a_run_exit_code", "exit_code", "0: the run ended well."),
};

void export_openmetrics(struct text *out, const json_t *results)
{
    for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++) {
        text_add(out, "%s", families[f].head);
        for (struct json_walk result = {results}; json_next(&result);) {
            json_auto_t *facts = json_copy(result.value);
            json_auto_t *once = json_pack("[{}]");

            for (struct json_walk stage = {families[f].stages ? json_object_get(facts, "stages")
                                                              : once};
                 json_next(&stage);) {
                json_object_set(facts, "stage", stage.value);
                json_object_set_new(facts, "sum_ns",
                                    json_number(json_number_at(stage.value, "ns.mean") *
                                                json_number_at(stage.value, "ns.n")));
                for (const char *const *form = families[f].sample; *form != NULL; form++)
                    fill_add(out, *form, facts, add_label);
            }
        }
    }
    text_add(out, "# EOF\n");
}

/* Tables of JSON objects as text, Markdown, HTML and CSV. The text of a cell is the same in each
 * format. */

enum { WIDTH = 100, TEXT = 12 /* TEXT: width of a text between the first and the last */ };

static bool is_text(const struct table_column *c)
{
    return c->width == 0;
}

/* Returns the number of characters, not bytes. */
static int width_of(const char *text)
{
    int n = 0;

    for (; *text != 0; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* Adds a cell. `none` replaces an unknown number: null; without its key a cell is empty. */
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

/* Returns the width of the first text: its longest cell, within the room that other columns
 * leave. */
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

/* Prints the cells of a line; row NULL: headings, `unit`: units. */
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
        if (is_text(c) && first && width_of(cell.data) > width) /* on a separate line */
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

static void add_csv(struct text *out, const char *text)
{
    bool quoted = strpbrk(text, ",\"\r\n") != NULL;

    text_add(out, quoted ? "\"" : "");
    for (; *text != 0; text++)
        text_add(out, *text == '"' ? "\"\"" : "%c", *text);
    text_add(out, quoted ? "\"" : "");
}

/* Text around a table, its rows and its cells; [1]: for cells of text. */
static const struct table_words {
    const char *begin, *row, *head[2], *cell[2], *end_cell, *end_row, *end;
    const char *none; /* text of an unknown number */
    void (*escape)(struct text *, const char *);
} forms[] = {
    [TABLE_MARKDOWN] = {"", "|", {" ", " "}, {" ", " "}, " |", "\n", "", "-", text_add_markdown},
    [TABLE_HTML] = {"<div class=wide><table>\n",
                    "<tr>",
                    {"<th>", "<th class=text>"},
                    {"<td>", "<td class=text>"},
                    "",
                    "\n",
                    "</table></div>\n",
                    "-",
                    export_add_xml},
    [TABLE_CSV] = {"", "", {",", ","}, {",", ","}, "", "\n", "", "", add_csv},
};

void table_add(struct text *out, enum table_form how, const struct table_column *columns,
               const json_t *rows)
{
    const struct table_words *form = &forms[how];
    bool commas = how == TABLE_CSV, markdown = how == TABLE_MARKDOWN;

    text_add(out, "%s%s", form->begin, form->row);
    for (const struct table_column *c = columns; c->key != NULL; c++) {
        bool unit = c->unit != NULL && !commas;

        text_add(out, "%s%s", commas && c == columns ? "" : form->head[is_text(c)],
                 c->name != NULL ? c->name : "");
        text_add(out, "%s%s%s%s", unit ? " [" : "", unit ? c->unit : "", unit ? "]" : "",
                 form->end_cell);
    }
    text_add(out, "%s%s", form->end_row, markdown ? "|" : "");
    for (const struct table_column *c = columns; markdown && c->key != NULL; c++)
        text_add(out, is_text(c) ? "---|" : "---:|");
    text_add(out, "%s", markdown ? "\n" : "");
    for (struct json_walk row = {rows}; json_next(&row);) {
        text_add(out, "%s", form->row);
        for (const struct table_column *c = columns; c->key != NULL; c++) {
            text_auto cell = {0};

            add_cell(&cell, c, row.value, form->none, false);
            text_add(out, "%s", commas && c == columns ? "" : form->cell[is_text(c)]);
            form->escape(out, cell.data != NULL ? cell.data : "");
            text_add(out, "%s", form->end_cell);
        }
        text_add(out, "%s", form->end_row);
    }
    text_add(out, "%s", form->end);
}
