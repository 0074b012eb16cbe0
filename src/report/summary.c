/* The summary: one line a run, so that runs can be held against each other. The figures are
 * those of the runs' own tables; what a run has not measured has none. One list of columns is
 * behind all forms. */
#include "report/summary.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/json.h"
#include "report/report.h"

/* Four figures beside the longest label are 100 columns. */
enum { LABEL_LEAST = 24, LABEL_MOST = 54, FIGURE = 10, COLUMNS = 8 };

static const char *end_name(enum report_end end)
{
    static const char *const name[] = {[REPORT_NOT_RUN] = "not run",
                                       [REPORT_OK] = "ok",
                                       [REPORT_FAILED] = "failed",
                                       [REPORT_SKIPPED] = "skipped"};

    return name[end];
}

/* ---- rows ---- */

/* Of a stage of two halves the first is a stage of its own; it goes with the second. */
static enum epa_stage_kind kind_of(const struct session *s, uint32_t stage)
{
    while (stage + 1 < s->n_stages && s->stage_kind[stage] == EPA_STAGE_SEND)
        stage++;
    return s->stage_kind[stage];
}

/* Median over samples of the slowest rank, of all stages of a kind together. */
static double median_of(const struct result *result, enum epa_stage_kind kind, double *scratch)
{
    const struct session *s = result->session;
    uint64_t n = result->n_samples;
    bool any = false;

    memset(scratch, 0, n * sizeof(*scratch));
    for (uint32_t r = 0; n > 0 && r < s->experiment->ranks; r++) {
        for (uint64_t k = 0; k < n; k++) {
            double sum = 0;

            for (uint32_t i = 0; i < s->n_stages; i++) {
                if (kind_of(s, i) != kind)
                    continue;
                sum += session_times(s, r, i)[k];
                any = true;
            }
            scratch[k] = fmax(scratch[k], sum);
        }
    }
    if (!any)
        return NAN;
    stats_sort(scratch, n);
    return stats_percentile(scratch, n, 500);
}

static enum epa_status fill_parts(struct report_row *row, const struct result *result,
                                  struct epa_error *err)
{
    enum bench_clock clock = result->session->clock;
    double *const part[FIGURES] = {[FIGURE_DISPATCH] = &row->dispatch_ns,
                                   [FIGURE_EXPERTS] = &row->experts_ns,
                                   [FIGURE_COMBINE] = &row->combine_ns};
    double *scratch;

    row->dispatch_ns = row->experts_ns = row->combine_ns = NAN;
    /* Where it is one row, that is WHOLE. */
    for (uint32_t i = 0; clock == CLOCK_GRAPH && result->n_stages > 1 && i < result->n_stages;
         i++) {
        enum session_figure figure = session_figure_at(result->session, i);

        if (part[figure] != NULL)
            *part[figure] = result->stage[i].slowest.median;
    }
    if (clock != CLOCK_HOST && clock != CLOCK_EVENTS)
        return EPA_OK;
    scratch = calloc(result->n_samples + 1, sizeof(*scratch));
    if (scratch == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %llu samples",
                        (unsigned long long)result->n_samples);
    row->dispatch_ns = median_of(result, EPA_STAGE_DISPATCH, scratch);
    row->experts_ns = median_of(result, EPA_STAGE_EXPERTS, scratch);
    row->combine_ns = median_of(result, EPA_STAGE_COMBINE, scratch);
    free(scratch);
    return EPA_OK;
}

enum epa_status report_row_fill(struct report_row *row, const struct result *result,
                                struct epa_error *err)
{
    row->status = result->n_missed > 0 ? EPA_ERR_MISMATCH : result->status;
    row->end = row->status == EPA_OK ? REPORT_OK : REPORT_FAILED;
    snprintf(row->error, sizeof(row->error), "%.*s", (int)sizeof(row->error) - 1, result->error);
    row->total_ns = NAN;
    if (result->n_stages > 0 && result->n_samples > 0)
        row->total_ns = result->stage[result->n_stages - 1].slowest.median;
    row->samples = result->n_samples;
    row->stop = result->stop;
    row->ci95 = result_ci95(result);
    row->checked = result->checked;
    row->compared = result->compared;
    row->wrong = result->wrong;
    return fill_parts(row, result, err);
}

/* Whether it may have a figure. */
static bool has_ran(const struct report_row *row)
{
    return row->end == REPORT_OK || row->end == REPORT_FAILED;
}

/* A run that failed may have measured or compared something before. */
static bool has_figures(const struct report_row *row)
{
    return row->end == REPORT_OK ||
           (row->end == REPORT_FAILED && (row->total_ns > 0 || row->compared > 0));
}

/* The first row that has a total: ratios are over its. NULL: there is none. */
static const struct report_row *first_of(const struct report_batch *batch)
{
    for (uint32_t i = 0; i < batch->n; i++)
        if (batch->row[i].end != REPORT_NOT_RUN && batch->row[i].total_ns > 0)
            return &batch->row[i];
    return NULL;
}

/* ---- columns ---- */

/* What stands behind the label: for verify what was compared, else times. */
struct column {
    const char *name;
    enum { TIME, RATIO, COUNT } kind;
    size_t offset; /* in a row: of a double (TIME), of an uint64_t (COUNT) */
};

static const struct column columns[] = {
    {"dispatch", TIME, offsetof(struct report_row, dispatch_ns)},
    {"experts", TIME, offsetof(struct report_row, experts_ns)},
    {"combine", TIME, offsetof(struct report_row, combine_ns)},
    {"total", TIME, offsetof(struct report_row, total_ns)},
    {"ratio", RATIO, 0},
    {"iterations", COUNT, offsetof(struct report_row, checked)},
    {"elements", COUNT, offsetof(struct report_row, compared)},
    {"wrong", COUNT, offsetof(struct report_row, wrong)},
    {0}};

struct layout {
    const struct report_batch *batch;
    const struct report_row *first;
    const struct column *column[COLUMNS];
    uint32_t n;
    int digits; /* of microseconds: one more in all rows where some are short */
};

static struct layout layout_of(const struct report_batch *batch)
{
    struct layout out = {.batch = batch, .first = first_of(batch), .digits = 1};
    bool experts = false;

    for (uint32_t i = 0; i < batch->n; i++) {
        const struct report_row *row = &batch->row[i];

        experts = experts || row->experts_ns > 0;
        if (row->dispatch_ns < 1e4 || row->combine_ns < 1e4 || row->total_ns < 1e4)
            out.digits = 2;
    }
    for (const struct column *c = columns; c->name != NULL; c++)
        if ((c->kind == COUNT) == (batch->verb == VERB_VERIFY) &&
            (c->offset != offsetof(struct report_row, experts_ns) || c->kind != TIME || experts))
            out.column[out.n++] = c;
    return out;
}

/* In microseconds, as a ratio, or as it is; NaN: there is none. */
static double figure_of(const struct layout *layout, const struct column *c,
                        const struct report_row *row)
{
    const char *at = (const char *)row + c->offset;

    if (!has_figures(row))
        return NAN;
    if (c->kind == COUNT)
        return (double)*(const uint64_t *)(const void *)at;
    if (c->kind == TIME)
        return *(const double *)(const void *)at / 1e3;
    return layout->first != NULL ? row->total_ns / layout->first->total_ns : NAN;
}

static void add_figure(struct text *out, const struct layout *layout, const struct column *c,
                       const struct report_row *row, int digits, const char *none)
{
    double value = figure_of(layout, c, row);

    if (isfinite(value))
        text_add(out, "%.*f", c->kind == TIME ? digits : c->kind == RATIO ? 2 : 0, value);
    else
        text_add(out, "%s", none);
}

/* "failed (timeout): rank 1: ...". */
static void add_end(struct text *out, const struct report_row *row)
{
    text_add(out, "%s", end_name(row->end));
    if (row->end == REPORT_FAILED)
        text_add(out, " (%s)", status_name(row->status));
    if (row->error[0] != 0 && strcmp(row->error, status_name(row->status)) != 0)
        text_add(out, ": %s", row->error);
}

/* Whether the order is another than the declared one. */
static bool is_mixed(const struct report_batch *batch)
{
    return strcmp(batch->order, "declared") != 0;
}

/* ---- text ---- */

/* Characters, not bytes. */
static int width_of(const char *text)
{
    int n = 0;

    for (; *text != 0; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* A label that is too long has a line of its own. */
static void print_row(FILE *file, const struct layout *layout, int width,
                      const struct report_row *row)
{
    int mine = width_of(row->who);
    struct text line = {0};

    fputs("  ", file);
    text_print_clean(file, row->who);
    fprintf(file, mine > width ? "\n  %*s" : "%*s", mine > width ? width : width - mine, "");
    for (uint32_t c = 0; c < layout->n && has_figures(row); c++) {
        struct text figure = {0};

        add_figure(&figure, layout, layout->column[c], row, layout->digits, "-");
        text_add(&line, " %*s", FIGURE, figure.data);
        text_free(&figure);
    }
    if (row->end != REPORT_OK) {
        text_add(&line, has_figures(row) ? "  " : "   ");
        add_end(&line, row);
    }
    text_print_clean(file, line.data);
    text_free(&line);
    fputc('\n', file);
}

void report_batch_text(FILE *file, const struct report_batch *batch)
{
    struct layout layout = layout_of(batch);
    int width = LABEL_LEAST;
    uint32_t ends[4] = {0};

    for (uint32_t i = 0; i < batch->n; i++) {
        int mine = width_of(batch->row[i].who);

        width = mine <= width ? width : mine > LABEL_MOST ? LABEL_MOST : mine;
        ends[batch->row[i].end]++;
    }
    fprintf(file, "#\n# %u runs: %u ok, %u failed, %u skipped, %u not run\n", batch->n,
            ends[REPORT_OK], ends[REPORT_FAILED], ends[REPORT_SKIPPED], ends[REPORT_NOT_RUN]);
    if (is_mixed(batch))
        fprintf(file, "# order: %s, by seed %" PRIu64 "\n", batch->order, batch->seed);
    if (batch->verb != VERB_VERIFY && layout.first != NULL) {
        fprintf(file, "# medians; ratio: total over that of ");
        text_print_clean(file, layout.first->who);
        fputc('\n', file);
    }
    fprintf(file, "#\n# %-*s", width, "run");
    for (uint32_t c = 0; c < layout.n; c++)
        fprintf(file, " %*s", FIGURE, layout.column[c]->name);
    if (batch->verb != VERB_VERIFY)
        fprintf(file, "\n# %-*s", width, "");
    for (uint32_t c = 0; c < layout.n && layout.column[c]->kind == TIME; c++)
        fprintf(file, " %*s", FIGURE, "[us]");
    fputc('\n', file);
    for (uint32_t i = 0; i < batch->n; i++)
        print_row(file, &layout, width, &batch->row[i]);
}

/* ---- Markdown and CSV ---- */

void report_batch_markdown(struct text *out, const struct report_batch *batch)
{
    struct layout layout = layout_of(batch);

    text_add(out, "| run | id |");
    for (uint32_t c = 0; c < layout.n; c++)
        text_add(out, layout.column[c]->kind == TIME ? " %s [us] |" : " %s |",
                 layout.column[c]->name);
    text_add(out, " end |\n|---|---|");
    for (uint32_t c = 0; c < layout.n; c++)
        text_add(out, "---:|");
    text_add(out, "---|\n");
    for (uint32_t i = 0; i < batch->n; i++) {
        const struct report_row *row = &batch->row[i];
        struct text end = {0};

        text_add(out, "| ");
        text_add_markdown(out, row->who);
        text_add(out, " | %s |", row->id != NULL ? row->id : "-");
        for (uint32_t c = 0; c < layout.n; c++) {
            text_add(out, " ");
            add_figure(out, &layout, layout.column[c], row, layout.digits, "-");
            text_add(out, " |");
        }
        add_end(&end, row);
        text_add(out, " ");
        text_add_markdown(out, end.data);
        text_add(out, " |\n");
        text_free(&end);
    }
    for (uint32_t i = 0; i < batch->n_context; i++) {
        text_add(out, i == 0 ? "\nContext: " : ", ");
        text_add_markdown(out, batch->context[i]);
    }
    if (batch->n_context > 0)
        text_add(out, ".\n");
    if (is_mixed(batch))
        text_add(out, "\nOrder: %s, by seed %" PRIu64 ".\n", batch->order, batch->seed);
}

/* As RFC 4180 has it. */
static void add_csv(struct text *out, const char *text)
{
    bool quoted = strpbrk(text, ",\"\r\n") != NULL;

    text_add(out, quoted ? "\"" : "");
    for (; *text != 0; text++)
        text_add(out, *text == '"' ? "\"\"" : "%c", *text);
    text_add(out, quoted ? "\"" : "");
}

void report_batch_csv(struct text *out, const struct report_batch *batch)
{
    struct layout layout = layout_of(batch);
    bool timed = batch->verb != VERB_VERIFY;

    text_add(out, "file,label,id");
    for (uint32_t c = 0; c < layout.n; c++)
        text_add(out, layout.column[c]->kind == TIME ? ",%s_us" : ",%s", layout.column[c]->name);
    text_add(out, ",end,status,error%s", timed ? ",samples,stop,ci95" : "");
    for (uint32_t i = 0; i < batch->n_context; i++)
        text_add(out, ",context.%.*s", (int)strcspn(batch->context[i], "="), batch->context[i]);
    text_add(out, "\n");
    for (uint32_t i = 0; i < batch->n; i++) {
        const struct report_row *row = &batch->row[i];
        const char *why = stop_name(row->stop);

        add_csv(out, row->file);
        text_add(out, ",");
        add_csv(out, row->label);
        text_add(out, ",%s", row->id != NULL ? row->id : "");
        for (uint32_t c = 0; c < layout.n; c++) {
            text_add(out, ",");
            add_figure(out, &layout, layout.column[c], row, 3, ""); /* whole ns */
        }
        text_add(out, ",%s,%s,", end_name(row->end),
                 row->end == REPORT_NOT_RUN ? "" : status_name(row->status));
        add_csv(out, row->error);
        /* Samples, why no more, and how wide the median's interval is as a part of it. */
        if (timed && row->samples == 0)
            text_add(out, ",,,");
        else if (timed)
            text_add(out, ",%" PRIu64 ",%s,", row->samples, why != NULL ? why : "");
        if (timed && row->samples > 0 && isfinite(row->ci95))
            text_add(out, "%.6f", row->ci95);
        for (uint32_t k = 0; k < batch->n_context; k++) {
            text_add(out, ",");
            add_csv(out, strchr(batch->context[k], '=') + 1);
        }
        text_add(out, "\n");
    }
}

/* ---- JSON ---- */

static json_t *row_json(const struct layout *layout, const struct report_row *row)
{
    json_t *out = json_object_of("file", json_text(row->file), "label", json_text(row->label), "id",
                                 json_text_or_null(row->id), "end", json_text(end_name(row->end)),
                                 "error", json_text_or_null(row->error), NULL);

    for (const struct column *c = columns; c->kind == TIME; c++) {
        char key[32];

        snprintf(key, sizeof(key), "%s_ns", c->name);
        json_put(&out, key,
                 json_whole(has_ran(row)
                                ? *(const double *)(const void *)((const char *)row + c->offset)
                                : NAN));
    }
    json_put(&out, "ratio",
             json_number(has_ran(row) && layout->first != NULL
                             ? row->total_ns / layout->first->total_ns
                             : NAN));
    return out;
}

void report_row_read(struct report_row *row, const json_t *result, const json_t *from)
{
    const json_t *verify = json_object_get(result, "verify");
    const json_t *stop = json_object_get(result, "stop");

    row->end = REPORT_OK;
    row->status = EPA_OK;
    for (const struct column *c = columns; c->kind == TIME; c++) {
        char key[32];
        const json_t *ns;

        snprintf(key, sizeof(key), "%s_ns", c->name);
        ns = json_object_get(from, key);
        *(double *)(void *)((char *)row + c->offset) =
            json_is_number(ns) ? json_number_value(ns) : NAN;
    }
    row->checked = (uint64_t)json_integer_value(json_object_get(verify, "iterations"));
    row->compared = (uint64_t)json_integer_value(json_object_get(verify, "compared"));
    row->wrong = (uint64_t)json_integer_value(json_object_get(verify, "wrong"));
    row->samples = (uint64_t)json_integer_value(json_object_get(stop, "samples"));
    row->ci95 = json_is_number(json_object_get(stop, "ci95"))
                    ? json_number_value(json_object_get(stop, "ci95"))
                    : NAN;
    for (enum stop_reason i = STOP_ITERATIONS; i <= STOP_TIME; i++)
        if (strcmp(stop_name(i), json_text_at(stop, "reason")) == 0)
            row->stop = i;
}

enum epa_status report_json_text(struct text *out, const struct text *results,
                                 const struct report_batch *batch, struct epa_error *err)
{
    json_t *rows = batch != NULL ? json_array() : NULL;

    text_add(out,
             "{\n\"schema\": %d,\n\"program\": \"epa2a\",\n"
             "\"percentiles\": \"nearest rank\",\n\"results\": [\n",
             REPORT_SCHEMA);
    if (results->bytes > 0)
        text_add_bytes(out, results->data, results->bytes);
    text_add(out, "\n]");
    if (batch != NULL) {
        struct layout layout = layout_of(batch);

        for (uint32_t i = 0; i < batch->n; i++)
            json_add(&rows, row_json(&layout, &batch->row[i]));
        text_add(out, ",\n\"order\": \"%s\",\n\"order_seed\": ", batch->order);
        text_add(out, is_mixed(batch) ? "%" PRIu64 : "null", batch->seed);
        text_add(out, ",\n\"summary\": ");
        if (!json_write(out, rows, JSON_INDENT(1)))
            return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u runs as JSON", batch->n);
    }
    text_add(out, "\n}\n");
    return EPA_OK;
}

enum epa_status report_json_line(struct text *out, const struct text *results,
                                 const struct report_batch *batch, struct epa_error *err)
{
    struct text document = {0};
    enum epa_status status = report_json_text(&document, results, batch, err);

    if (status == EPA_OK &&
        !json_write(out, json_loadb(document.data, document.bytes, 0, NULL), JSON_COMPACT))
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory for a result on one line");
    text_add(out, "\n");
    text_free(&document);
    return status;
}
