/* The summary of a batch: one row for each run, for comparison. In tables, the repetitions of a run
 * share one row with their medians and spread. Figures equal the figures in the table of each run;
 * unmeasured figures stay empty. */
#include "report/summary.h"

#include "report/table_json.h"
#include "report/csv_cells.h"
#include "report/xml.h"
#include "report/fill.h"
#include "report/lines.h"
#include "report/verdicts.h"
#include "report/means.h"
#include "report/result_parts.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/stats.h"
#include "base/text.h"
#include "report/results.h"
#include "report/rows.h"

/* ---- the row of a run ---- */

/* Places where a figure is shown: tables of text, Markdown and HTML, CSV, "summary" of JSON; for
 * timed runs, and for verified runs. */
enum {
    TEXT = 1,
    MARKDOWN = 2,
    HTML = 4,
    CSV = 8,
    JSON = 16,
    TABLES = TEXT | MARKDOWN | HTML,
    TIMED = 32,
    VERIFIED = 64,
    BOTH = TIMED | VERIFIED,
    OPTIONAL = 128, /* no column if no row has a value */
};

/* Fields of a row, in the order of columns. */
static const struct field {
    struct table_column is;
    const char *csv; /* name in CSV; NULL: the key */
    int digits;      /* in CSV */
    unsigned where;
} fields[] = {
    {{"who", "run"}, .where = TABLES | BOTH},
    {{"file"}, .where = CSV | JSON | BOTH},
    {{"label"}, .where = CSV | JSON | BOTH},
    {{"id", "id"}, .where = MARKDOWN | CSV | JSON | BOTH},
    {{"dispatch_ns", "dispatch", "us", 1e3, 1, 10}, "dispatch_us", 3, TABLES | CSV | JSON | TIMED},
    {{"experts_ns", "experts", "us", 1e3, 1, 10},
     "experts_us",
     3,
     TABLES | CSV | JSON | TIMED | OPTIONAL},
    {{"combine_ns", "combine", "us", 1e3, 1, 10}, "combine_us", 3, TABLES | CSV | JSON | TIMED},
    {{"total_ns", "total", "us", 1e3, 1, 10}, "total_us", 3, TABLES | CSV | JSON | TIMED},
    {{"limit_ns", "limit", "us", 1e3, 1, 10}, NULL, 0, MARKDOWN | HTML | TIMED | OPTIONAL},
    {{"ratio", "ratio", NULL, 0, 2, 10}, NULL, 2, TABLES | CSV | JSON | TIMED | OPTIONAL},
    {{"spread", "spread", "%", 0.01, 1, 10}, NULL, 0, TABLES | TIMED | OPTIONAL},
    {{"iterations", "iterations", NULL, 0, 0, 10}, NULL, 0, TABLES | CSV | VERIFIED},
    {{"elements", "elements", NULL, 0, 0, 10}, NULL, 0, TABLES | CSV | VERIFIED},
    {{"wrong", "wrong", NULL, 0, 0, 10}, NULL, 0, TABLES | CSV | VERIFIED},
    {{"end"}, .where = CSV | JSON | BOTH},
    {{"status"}, .where = CSV | BOTH},
    {{"error"}, .where = CSV | JSON | BOTH},
    {{"samples", .width = 1}, NULL, 0, CSV | TIMED},
    {{"stop"}, NULL, 0, CSV | TIMED},
    {{"ci95", .width = 1}, NULL, 6, CSV | TIMED},
    {{"ended"}, .where = TABLES | BOTH | OPTIONAL},
    {{0}},
};

static const char *const times[] = {"dispatch_ns", "experts_ns", "combine_ns", "total_ns"};
static const char *const counts[] = {"iterations", "elements", "wrong"};
enum { TIMES = sizeof(times) / sizeof(times[0]), COUNTS = sizeof(counts) / sizeof(counts[0]) };

static bool ended(const json_t *row, const char *end)
{
    return strcmp(json_text_at(row, "end"), end) == 0;
}

json_t *report_row(const char *who, const char *file, const char *label, const char *id)
{
    json_t *row = json_object_of("who", json_text(who), "file", json_text(file), "label",
                                 json_text(label), "id", json_text_or_null(id), NULL);

    report_row_end(row, REPORT_NOT_RUN, EPA_OK, "");
    json_object_set_new(row, "status", json_text(""));
    for (uint32_t i = 0; i < TIMES; i++)
        json_object_set_new(row, times[i], json_null());
    return row;
}

void report_row_end(json_t *row, const char *end, enum epa_status status, const char *error)
{
    json_object_set_new(row, "end", json_text(end));
    json_object_set_new(row, "status", json_text(status_name(status)));
    json_object_set_new(row, "error", json_text_or_null(error));
}

/* Returns the kind of a stage. The first half of a split stage is a separate stage, and counts with
 * the second half. */
static enum epa_stage_kind kind_of(const struct session *s, uint32_t stage)
{
    while (stage + 1 < s->notes->n_stages && s->notes->stage_kind[stage] == EPA_STAGE_SEND)
        stage++;
    return s->notes->stage_kind[stage];
}

/* Returns the median over samples of the slowest rank, of all stages of a kind together. */
static double median_of(const struct session *s, enum epa_stage_kind kind, uint64_t n)
{
    double *sample = memory_alloc(n, sizeof(*sample)), median = NAN;
    bool any = false;

    for (uint32_t r = 0; n > 0 && r < s->experiment->problem.ranks; r++) {
        for (uint64_t k = 0; k < n; k++) {
            double sum = 0;

            for (uint32_t i = 0; i < s->notes->n_stages; i++) {
                if (kind_of(s, i) != kind)
                    continue;
                sum += session_times(s, r, i)[k];
                any = true;
            }
            sample[k] = fmax(sample[k], sum);
        }
    }
    if (any)
        median = stats_quantile(sample, n, 500);
    free(sample);
    return median;
}

static void fill_parts(json_t *row, const struct session *s, const struct run_figures *run)
{
    static const enum epa_stage_kind kind[] = {EPA_STAGE_DISPATCH, EPA_STAGE_EXPERTS,
                                               EPA_STAGE_COMBINE};

    for (uint32_t i = 0; i + 1 < TIMES; i++) {
        double ns = NAN;

        if (s->notes->clock == CLOCK_HOST || s->notes->clock == CLOCK_EVENTS)
            ns = median_of(s, kind[i], run->stop.samples);
        for (uint32_t k = 0; k < run->n_stages; k++)
            /* of graphs, whose rows have these names */
            if (s->notes->clock == CLOCK_GRAPH &&
                strncmp(run->stage[k].name, times[i], strlen(times[i]) - 3) == 0)
                ns = run->stage[k].figures.ns.median;
        json_object_set_new(row, times[i], json_whole(ns));
    }
}

/* Returns the cells of CSV for the figures of stages: {"dispatch.p95_us": "12.3", ...} */
static json_t *stage_cells(const struct run_figures *run)
{
    json_t *cells = json_object();

    for (uint32_t i = 0; i < run->n_stages; i++)
        for (const struct figure *f = figures; f->path != NULL; f++) {
            double value = figure_value(f, &run->stage[i].figures);
            char name[128], cell[32] = "";

            if (f->csv == NULL)
                continue;
            snprintf(name, sizeof(name), "%s.%s", run->stage[i].name, f->csv);
            if (isfinite(value))
                snprintf(cell, sizeof(cell), "%.6g", f->kind == FIGURE_NS ? value / 1e3 : value);
            json_object_set_new(cells, name, json_text(cell));
        }
    return cells;
}

/* Copies figures of the result; figures of stages, and the experiment, are for CSV and JSON. The
 * limit is the largest of the minimum times of products, weights and links. */
static void copy_figures(json_t *row, const struct run_figures *run, json_t *experiment)
{
    const struct run_verify *v = &run->verify;
    const struct run_stop *stop = &run->stop;
    const struct stage_figures *total = run->n_stages > 0 ? &run_total(run)->figures : NULL;
    bool any = stop->samples > 0;
    bool limited = run->compute.flops > 0 && isfinite(run->compute.flops_ns);

    json_object_set_new(row, "iterations", json_count(v->iterations));
    json_object_set_new(row, "elements", json_count(v->compared));
    json_object_set_new(row, "wrong", json_count(v->wrong));
    json_object_set_new(row, "samples", any ? json_count(stop->samples) : json_null());
    json_object_set_new(row, "stop", json_text_or_null(any ? stop_name(stop->reason) : NULL));
    json_object_set_new(row, "ci95", json_number(any ? stop->ci95 : NAN));
    json_object_set_new(row, "mean_ns", json_whole(total != NULL ? total->ns.mean : NAN));
    json_object_set_new(row, "limit_ns",
                        json_whole(limited && total != NULL ? total->peak_ns : NAN));
    json_object_set_new(row, "cells", stage_cells(run));
    json_object_set_new(row, "partial", run->partial ? json_count(stop->samples) : json_null());
    json_object_set(row, "experiment", experiment);
}

void report_row_fill(json_t *row, const struct session *s, const struct run_figures *run,
                     json_t *experiment)
{
    bool ok = strcmp(run->status, "ok") == 0, missed = strcmp(run->status, "missed") == 0;

    report_row_end(row, ok ? REPORT_OK : REPORT_FAILED, EPA_OK,
                   run->error != NULL ? run->error_text : "");
    if (!ok)
        json_object_set_new(row, "status",
                            json_text(missed ? status_name(EPA_ERR_MISMATCH) : run->error));
    copy_figures(row, run, experiment);
    fill_parts(row, s, run);
    json_object_set_new(row, "total_ns", json_whole(run_total(run)->figures.ns.median));
}

void report_row_read(json_t *row, const struct results_run *was, const json_t *saved)
{
    report_row_end(row, REPORT_OK, EPA_OK, "");
    copy_figures(row, &was->figures, json_object_get(was->json, "experiment"));
    for (uint32_t i = 0; i < TIMES; i++)
        json_object_set(row, times[i], json_object_get(saved, times[i]));
}

/* Returns true if the row has figures; a failed run may have some. */
static bool has_figures(const json_t *row)
{
    return ended(row, REPORT_OK) ||
           (ended(row, REPORT_FAILED) &&
            (json_number_at(row, "total_ns") > 0 || json_number_at(row, "elements") > 0));
}

/* ---- repetitions ---- */

static bool is_repetition(const json_t *row, const json_t *before)
{
    const char *label = json_text_at(row, "label"), *other = json_text_at(before, "label");
    size_t bytes = results_label_bytes(label);

    return json_integer_value(json_object_get(row, "repetition")) >
               json_integer_value(json_object_get(before, "repetition")) &&
           strcmp(json_text_at(row, "file"), json_text_at(before, "file")) == 0 &&
           bytes == results_label_bytes(other) && strncmp(label, other, bytes) == 0;
}

/* Returns the median of a figure of rows `from` to `end - 1`, nearest rank; NaN: no row has it.
 * *spread: (maximum - minimum) / median; NaN: fewer than two rows have it. */
static double merge_figure(const json_t *rows, size_t from, size_t end, const char *key,
                           double *spread)
{
    double *value = memory_alloc(end - from, sizeof(*value)), median;
    uint32_t n = 0;

    for (size_t i = from; i < end; i++) {
        double x = json_number_at(json_array_get(rows, i), key);

        if (has_figures(json_array_get(rows, i)) && !isnan(x))
            value[n++] = x;
    }
    median = stats_quantile(value, n, 500);
    *spread = n > 1 ? (value[n - 1] - value[0]) / median : NAN;
    free(value);
    return median;
}

/* Returns "failed (timeout): rank 1: ...", "2 of 3 ok, failed ..."; null: all runs were
 * successful. */
static json_t *end_json(const json_t *row, size_t good, size_t n)
{
    bool more = strcmp(json_text_at(row, "error"), json_text_at(row, "status")) != 0;
    text_auto out = {0};

    if (ended(row, REPORT_OK))
        return json_null();
    if (good > 0)
        text_add(&out, "%zu of %zu ok, ", good, n);
    fill_add(&out, "{end}[{end=failed} ({status})]", row, NULL);
    if (more)
        fill_add(&out, ": {error}", row, NULL);
    fill_add(&out, "; partial: {partial} samples", row, NULL);
    return json_text(out.data);
}

/* Returns rows `from` to `end - 1`, a run and its repetitions, as one row: medians of rows with
 * figures, sums of counts, the end of the first failed run. */
static json_t *line_of(const json_t *rows, size_t from, size_t end)
{
    json_t *line = json_copy(json_array_get(rows, from));
    const char *who = json_text_at(line, "who");
    size_t bytes = end - from > 1 ? results_label_bytes(who) : strlen(who), good = 0;
    double spread, unused, sum[COUNTS] = {0};

    for (size_t i = from; i < end; i++) {
        const json_t *row = json_array_get(rows, i);

        good += ended(row, REPORT_OK);
        for (uint32_t k = 0; k < COUNTS; k++)
            sum[k] += (double)json_integer_value(json_object_get(row, counts[k]));
        if (ended(line, REPORT_OK) && !ended(row, REPORT_OK)) {
            json_object_set(line, "end", json_object_get(row, "end"));
            json_object_set(line, "status", json_object_get(row, "status"));
            json_object_set(line, "error", json_object_get(row, "error"));
        }
    }
    for (uint32_t i = 0; i < TIMES; i++)
        json_object_set_new(line, times[i],
                            json_number(merge_figure(rows, from, end, times[i], &spread)));
    json_object_set_new(line, "mean_ns",
                        json_number(merge_figure(rows, from, end, "mean_ns", &unused)));
    for (uint32_t k = 0; k < COUNTS; k++)
        json_object_set_new(line, counts[k], json_whole(sum[k]));
    for (uint32_t k = 0; k < COUNTS && !has_figures(line); k++)
        json_object_set_new(line, counts[k], json_null());
    json_object_set_new(
        line, "who", bytes > 0 ? json_stringn(who, bytes) : json_text(json_text_at(line, "file")));
    json_object_set_new(line, "spread", json_number(spread));
    json_object_set_new(line, "ended", end_json(line, good < end - from ? good : 0, end - from));
    return line;
}

/* Adds ratios and the notes of the user to rows. */
static void finish_rows(const struct report_batch *batch, const json_t *lines, json_t *rows)
{
    for (struct json_walk row = {rows}; json_next(&row);) {
        const json_t *base = report_base(lines, json_object_get(row.value, "question"));

        json_object_set_new(
            row.value, "ratio",
            json_number(json_number_at(row.value, "total_ns") / json_number_at(base, "total_ns")));
        for (uint32_t k = 0; k < batch->n_context; k++) {
            char key[80];

            snprintf(key, sizeof(key), "context.%.*s", (int)strcspn(batch->context[k], "="),
                     batch->context[k]);
            json_object_set_new(row.value, key, json_text(strchr(batch->context[k], '=') + 1));
        }
    }
}

/* Returns the rows, repetitions merged into one line. */
static json_t *lines_of(const struct report_batch *batch)
{
    size_t n = json_array_size(batch->rows);
    json_t *lines = json_array();

    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && is_repetition(json_array_get(batch->rows, end),
                                                   json_array_get(batch->rows, end - 1));)
            end++;
        json_array_append_new(lines, line_of(batch->rows, i, end));
    }
    finish_rows(batch, lines, lines);
    return lines;
}

/* Returns a row for each repetition, with ratios over lines. */
static json_t *single_rows(const struct report_batch *batch)
{
    json_t *lines = lines_of(batch), *rows = json_array();

    for (size_t i = 0; i < json_array_size(batch->rows); i++)
        json_array_append_new(rows, line_of(batch->rows, i, i + 1));
    finish_rows(batch, lines, rows);
    json_decref(lines);
    return rows;
}

/* ---- tables ---- */

enum { COLUMNS = 16 };

struct layout {
    json_t *rows;
    struct table_column column[COLUMNS];
    bool ratios, repeated;
};

/* Returns true if a row has the figure; for a ratio: if a problem has several runs. */
static bool has_figure(const struct layout *layout, const char *key)
{
    for (struct json_walk row = {layout->rows}; json_next(&row);)
        if (strcmp(key, "ratio") != 0
                ? !json_is_null(json_object_get(row.value, key)) &&
                      json_object_get(row.value, key) != NULL
                : json_number_at(row.value, "total_ns") > 0 &&
                      report_base(layout->rows, json_object_get(row.value, "question")) !=
                          row.value)
            return true;
    return false;
}

static struct layout layout_of(const struct report_batch *batch, unsigned where)
{
    struct layout out = {.rows = lines_of(batch)};
    unsigned verb = batch->verb == VERB_VERIFY ? VERIFIED : TIMED;
    bool is_short = false;
    uint32_t n = 0;

    for (struct json_walk row = {out.rows}; json_next(&row);)
        for (uint32_t k = 0; k < TIMES; k++)
            is_short = is_short || (k != 1 && json_number_at(row.value, times[k]) < 1e4);
    for (const struct field *f = fields; f->is.key != NULL; f++) {
        bool is_ratio = strcmp(f->is.key, "ratio") == 0;

        if ((f->where & where) == 0 || (f->where & verb) == 0 ||
            ((f->where & OPTIONAL) != 0 && !has_figure(&out, f->is.key)))
            continue;
        out.ratios = out.ratios || is_ratio;
        out.column[n] = f->is;
        if (where == MARKDOWN && f[1].is.key == NULL)
            out.column[n].name = "end";
        out.column[n++].digits += f->is.scale > 1 && is_short;
    }
    for (struct json_walk row = {out.rows}; json_next(&row);)
        if (where == MARKDOWN && json_is_null(json_object_get(row.value, "ended")))
            json_object_set_new(row.value, "ended", json_string("ok"));
    out.repeated = json_array_size(out.rows) < json_array_size(batch->rows);
    return out;
}

/* Describes the baseline of the ratios; adds nothing if there are no ratios. */
static void describe_base(const struct layout *layout, struct text *out)
{
    const json_t *base = NULL;
    bool several = false, asked = false;

    for (struct json_walk row = {layout->rows}; json_next(&row);) {
        const json_t *mine = report_base(layout->rows, json_object_get(row.value, "question"));

        several = several || (base != NULL && mine != NULL && mine != base);
        base = base != NULL ? base : mine;
        asked = asked || json_is_true(json_object_get(row.value, "baseline"));
    }
    if (base == NULL || !layout->ratios)
        return;
    text_add(out, "ratio: total / total of %s",
             !several ? json_text_at(base, "who")
             : asked  ? "the baseline, of runs that differ only in algorithm, transport, backend "
                        "or launcher"
                      : "the first run that differs only in algorithm, transport, backend or "
                        "launcher");
}

/* Returns true if the order differs from the declared one. */
static bool is_mixed(const struct report_batch *batch)
{
    return strcmp(batch->order, "declared") != 0;
}

void report_batch_text(FILE *file, const struct report_batch *batch)
{
    struct layout layout = layout_of(batch, TEXT);
    text_auto base = {0}, means = {0};
    static const char *const ends[] = {REPORT_OK, REPORT_FAILED, REPORT_SKIPPED, REPORT_NOT_RUN};

    describe_base(&layout, &base);
    fprintf(file, "#\n# %zu runs", json_array_size(batch->rows));
    for (size_t k = 0; k < sizeof(ends) / sizeof(ends[0]); k++) {
        uint32_t n = 0;

        for (size_t i = 0; i < json_array_size(batch->rows); i++)
            n += ended(json_array_get(batch->rows, i), ends[k]);
        fprintf(file, "%s %u %s", k == 0 ? ":" : ",", n, ends[k]);
    }
    fprintf(file, "\n");
    if (is_mixed(batch))
        fprintf(file, "# order: %s, by seed %" PRIu64 "\n", batch->order, batch->seed);
    if (batch->verb != VERB_VERIFY && layout.repeated)
        fprintf(file, "# medians of repetitions; spread: of their totals, most - least\n");
    if (base.bytes > 0)
        text_comment(file, "%s%s", layout.repeated ? "" : "medians; ", base.data);
    fprintf(file, "#\n");
    table_json_text(file, layout.column, layout.rows);
    for (int of = 0; of < MEANS_OF; of++) {
        report_means(layout.rows, (enum means_of)of, &means);
        if (means.bytes > 0)
            text_comment(file, "%s", means.data);
        text_free(&means);
    }
    json_decref(layout.rows);
}

/* Adds a paragraph, unless the note is empty. */
static void add_note(struct text *out, bool html, struct text *note)
{
    if (note->bytes == 0)
        return;
    if (!html)
        note->data[0] = (char)toupper((unsigned char)note->data[0]);
    text_add(out, "%s", html ? "<p class=note>" : "\n");
    (html ? export_add_xml : text_add_markdown)(out, note->data);
    text_add(out, ".\n");
    text_free(note);
}

void report_batch_page(struct text *out, const struct report_batch *batch, bool html)
{
    struct layout layout = layout_of(batch, html ? HTML : MARKDOWN);
    text_auto note = {0};

    table_json_add(out, html ? TABLE_HTML : TABLE_MARKDOWN, layout.column, layout.rows);
    describe_base(&layout, &note);
    add_note(out, html, &note);
    for (int of = 0; of < MEANS_OF; of++) {
        report_means(layout.rows, (enum means_of)of, &note);
        add_note(out, html, &note);
    }
    for (uint32_t i = 0; i < batch->n_context; i++)
        text_add(&note, "%s%s", i == 0 ? "context: " : ", ", batch->context[i]);
    add_note(out, html, &note);
    if (is_mixed(batch))
        text_add(&note, "order: %s, by seed %" PRIu64, batch->order, batch->seed);
    add_note(out, html, &note);
    json_decref(layout.rows);
}

void report_batch_csv(struct text *out, const struct report_batch *batch)
{
    unsigned verb = batch->verb == VERB_VERIFY ? VERIFIED : TIMED;
    struct arena *arena = arena_create();
    json_auto_t *rows = single_rows(batch);
    json_auto_t *names = export_cells(rows, verb == TIMED);
    struct table_column *column =
        arena_alloc(arena, (batch->n_context + json_object_size(names) + 32) * sizeof(*column));
    uint32_t n = 0;

    for (const struct field *f = fields; f->is.key != NULL; f++)
        if ((f->where & CSV) != 0 && (f->where & verb) != 0)
            column[n++] = (struct table_column){f->is.key, f->csv != NULL ? f->csv : f->is.key,
                                                NULL,      f->is.scale,
                                                f->digits, f->is.width};
    for (struct json_walk it = {names}; json_next(&it);)
        column[n++] = (struct table_column){it.key, it.key};
    for (uint32_t i = 0; i < batch->n_context; i++) {
        char *key = arena_printf(arena, "context.%.*s", (int)strcspn(batch->context[i], "="),
                                 batch->context[i]);

        column[n++] = (struct table_column){key, key};
    }
    table_json_add(out, TABLE_CSV, column, rows);
    arena_destroy(arena);
}

/* ---- documents ---- */

json_t *report_document(json_t *results, const struct report_batch *batch)
{
    json_t *out =
        json_object_of("schema", json_integer(RESULT_SCHEMA), "program", json_text("epa2a"),
                       "percentiles", json_text("nearest rank"), "results", results, NULL);
    json_t *rows, *summary = json_array();

    if (batch == NULL) {
        json_decref(summary);
        return out;
    }
    rows = single_rows(batch);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        json_t *row = json_object();

        for (const struct field *f = fields; f->is.key != NULL; f++)
            if ((f->where & JSON) != 0)
                json_object_set(row, f->is.key,
                                json_object_get(json_array_get(rows, i), f->is.key));
        json_array_append_new(summary, row);
    }
    json_decref(rows);
    json_object_set_new(out, "order", json_text(batch->order));
    json_object_set_new(out, "order_seed", is_mixed(batch) ? json_count(batch->seed) : json_null());
    json_object_set_new(out, "summary", summary);
    return out;
}
