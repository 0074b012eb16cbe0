/* The summary: one line a run, so that runs can be held against each other; in tables, repetitions of a
 * run are one line, with the medians of theirs and how far apart they are. The figures are those of the
 * runs' own tables; what a run has not measured has none. One list of columns is behind all forms. */
#include "report/summary.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/json.h"
#include "base/stats.h"
#include "report/report.h"
#include "report/results.h"

enum { WIDTH = 100, LABEL_LEAST = 24, FIGURE = 10, COLUMNS = 9 };

static const char *end_name(enum report_end end)
{
    static const char *const name[] = {[REPORT_NOT_RUN] = "not run",
                                       [REPORT_OK] = "ok",
                                       [REPORT_FAILED] = "failed",
                                       [REPORT_SKIPPED] = "skipped"};

    return name[end];
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

/* ---- repetitions ---- */

/* A run, of all its repetitions. */
struct line {
    struct report_row row; /* figures are medians of those that have any; counts are sums */
    char *who;             /* without the number of a repetition; owned */
    uint32_t n, good;
    double spread; /* of totals, (most - least) / median; NaN: fewer than two */
};

static bool is_repetition(const struct report_row *row, const struct report_row *before)
{
    size_t bytes = results_label_bytes(row->label);

    return row->repetition > before->repetition && strcmp(row->file, before->file) == 0 &&
           bytes == results_label_bytes(before->label) &&
           strncmp(row->label, before->label, bytes) == 0;
}

/* The median of a figure of `n` rows that follow each other, nearest rank; NaN: none has it. */
static double merge(const struct report_row *row, uint32_t n, size_t offset, double *spread)
{
    double *value = malloc((n + 1) * sizeof(*value)), median = NAN;
    uint32_t found = 0;

    for (uint32_t i = 0; i < n && value != NULL; i++) {
        double x = *(const double *)(const void *)((const char *)&row[i] + offset);

        if (has_figures(&row[i]) && isfinite(x))
            value[found++] = x;
    }
    if (found > 0) {
        stats_sort(value, found);
        median = stats_percentile(value, found, 500);
    }
    *spread = found > 1 ? (value[found - 1] - value[0]) / median : NAN;
    free(value);
    return median;
}

static void fill_line(struct line *line, const struct report_row *row, uint32_t n)
{
    static const size_t times[] = {
        offsetof(struct report_row, dispatch_ns), offsetof(struct report_row, experts_ns),
        offsetof(struct report_row, combine_ns), offsetof(struct report_row, total_ns)};
    size_t bytes = n > 1 ? results_label_bytes(row->who) : strlen(row->who);

    *line = (struct line){.row = row[0], .n = n};
    line->who = bytes > 0 ? strndup(row->who, bytes) : strdup(row->file);
    line->row.who = line->who != NULL ? line->who : row->who;
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        *(double *)(void *)((char *)&line->row + times[i]) = merge(row, n, times[i], &line->spread);
    for (uint32_t i = 0; i < n; i++) {
        line->good += row[i].end == REPORT_OK;
        if (i > 0) {
            line->row.checked += row[i].checked;
            line->row.compared += row[i].compared;
            line->row.wrong += row[i].wrong;
        }
        if (line->row.end == REPORT_OK && row[i].end != REPORT_OK) {
            line->row.end = row[i].end;
            line->row.status = row[i].status;
            memcpy(line->row.error, row[i].error, sizeof(line->row.error));
        }
    }
}

/* ---- columns ---- */

/* What stands behind the label: for verify what was compared, else times. */
struct column {
    const char *name;
    enum { TIME, RATIO, SPREAD, COUNT } kind;
    size_t offset; /* in a row: of a double (TIME), of an uint64_t (COUNT) */
};

static const struct column columns[] = {
    {"dispatch", TIME, offsetof(struct report_row, dispatch_ns)},
    {"experts", TIME, offsetof(struct report_row, experts_ns)},
    {"combine", TIME, offsetof(struct report_row, combine_ns)},
    {"total", TIME, offsetof(struct report_row, total_ns)},
    {"ratio", RATIO, 0},
    {"spread", SPREAD, 0},
    {"iterations", COUNT, offsetof(struct report_row, checked)},
    {"elements", COUNT, offsetof(struct report_row, compared)},
    {"wrong", COUNT, offsetof(struct report_row, wrong)},
    {0}};

struct layout {
    const struct report_batch *batch;
    struct line *line; /* owned; NULL: no memory, and no lines */
    uint32_t lines;
    const struct column *column[COLUMNS];
    uint32_t n;
    int digits; /* of microseconds: one more in all rows where some are short */
};

/* That which ratios of a question are over; NULL: none has a total. */
static const struct line *base_of(const struct layout *layout, uint64_t question)
{
    const struct line *first = NULL;

    for (uint32_t i = 0; i < layout->lines; i++) {
        const struct line *line = &layout->line[i];

        if (line->row.question != question || !(line->row.total_ns > 0))
            continue;
        if (line->row.baseline)
            return line;
        first = first != NULL ? first : line;
    }
    return first;
}

/* Whether a column says anything: experts that are timed, several runs to a question, repetitions. */
static bool has_column(const struct layout *layout, const struct column *c)
{
    bool has = c->kind == COUNT || (c->kind == TIME && strcmp(c->name, "experts") != 0);

    for (uint32_t i = 0; i < layout->lines && !has; i++) {
        const struct line *line = &layout->line[i];

        if (c->kind == TIME)
            has = line->row.experts_ns > 0;
        else if (c->kind == SPREAD)
            has = isfinite(line->spread);
        else
            has = line->row.total_ns > 0 && base_of(layout, line->row.question) != line;
    }
    return has;
}

/* documents: programs read them, so that only what this kind of command never has is left out. */
static struct layout layout_of(const struct report_batch *batch, bool documents)
{
    struct layout out = {.batch = batch, .digits = 1};

    out.line = calloc(batch->n + 1, sizeof(*out.line));
    for (uint32_t i = 0, end; i < batch->n && out.line != NULL; i = end) {
        const struct report_row *row = &batch->row[i];

        for (end = i + 1; end < batch->n && is_repetition(&batch->row[end], &batch->row[end - 1]);)
            end++;
        fill_line(&out.line[out.lines++], row, end - i);
        if (row->dispatch_ns < 1e4 || row->combine_ns < 1e4 || row->total_ns < 1e4)
            out.digits = 2;
    }
    for (const struct column *c = columns; c->name != NULL; c++)
        if ((c->kind == COUNT) == (batch->verb == VERB_VERIFY) &&
            (documents ? c->kind != SPREAD : has_column(&out, c)))
            out.column[out.n++] = c;
    return out;
}

static void layout_free(struct layout *layout)
{
    for (uint32_t i = 0; i < layout->lines; i++)
        free(layout->line[i].who);
    free(layout->line);
}

/* Over the total of what it is held against; NaN: one of them has none. */
static double ratio_of(const struct layout *layout, const struct report_row *row)
{
    const struct line *base = base_of(layout, row->question);

    return base != NULL ? row->total_ns / base->row.total_ns : NAN;
}

/* In microseconds, as a ratio, in percent, or as it is; NaN: there is none. `spread` is NaN for one
 * repetition. */
static double figure_of(const struct layout *layout, const struct column *c,
                        const struct report_row *row, double spread)
{
    const char *at = (const char *)row + c->offset;

    if (!has_figures(row))
        return NAN;
    switch (c->kind) {
    case COUNT:
        return (double)*(const uint64_t *)(const void *)at;
    case TIME:
        return *(const double *)(const void *)at / 1e3;
    case RATIO:
        return ratio_of(layout, row);
    case SPREAD:
        break;
    }
    return 100 * spread;
}

static void add_figure(struct text *out, const struct column *c, double value, int digits,
                       const char *none)
{
    static const int fixed[] = {[RATIO] = 2, [SPREAD] = 1, [COUNT] = 0};

    if (isfinite(value))
        text_add(out, "%.*f", c->kind == TIME ? digits : fixed[c->kind], value);
    else
        text_add(out, "%s", none);
}

/* "failed (timeout): rank 1: ...", "2 of 3 ok, failed ...". */
static void add_end(struct text *out, const struct line *line)
{
    const struct report_row *row = &line->row;

    if (line->good > 0 && line->good < line->n)
        text_add(out, "%u of %u ok, ", line->good, line->n);
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
static void print_line(FILE *file, const struct layout *layout, int width, const struct line *line)
{
    const struct report_row *row = &line->row;
    bool figures = has_figures(row);
    int mine = width_of(row->who);
    struct text text = {0};

    fputs("  ", file);
    text_print_clean(file, row->who);
    fprintf(file, mine > width ? "\n  %*s" : "%*s", mine > width ? width : width - mine, "");
    for (uint32_t c = 0; c < layout->n && figures; c++) {
        struct text figure = {0};

        add_figure(&figure, layout->column[c],
                   figure_of(layout, layout->column[c], row, line->spread), layout->digits, "-");
        text_add(&text, " %*s", FIGURE, figure.data);
        text_free(&figure);
    }
    if (row->end != REPORT_OK) {
        text_add(&text, figures ? "  " : "   ");
        add_end(&text, line);
    }
    text_print_clean(file, text.data);
    text_free(&text);
    fputc('\n', file);
}

/* What ratios are over: a name where it is one, else which. NULL: there are none. */
static char *describe_base(const struct layout *layout)
{
    const struct line *base = NULL;
    bool ratios = false, several = false, asked = false;
    char *out = NULL;

    for (uint32_t c = 0; c < layout->n; c++)
        ratios = ratios || layout->column[c]->kind == RATIO;
    for (uint32_t i = 0; i < layout->lines && ratios; i++) {
        const struct line *mine = base_of(layout, layout->line[i].row.question);

        several = several || (base != NULL && mine != NULL && mine != base);
        base = base != NULL ? base : mine;
        asked = asked || layout->line[i].row.baseline;
    }
    if (!ratios || base == NULL)
        return NULL;
    if (asprintf(&out, "ratio: total over that of %s",
                 !several ? base->row.who
                 : asked  ? "the baseline, of runs that differ only in algorithm, transport, "
                            "backend or launcher"
                          : "the first run that differs only in algorithm, transport, backend or "
                            "launcher") < 0)
        return NULL;
    return out;
}

static bool is_repeated(const struct layout *layout)
{
    return layout->lines < layout->batch->n;
}

void report_batch_text(FILE *file, const struct report_batch *batch)
{
    struct layout layout = layout_of(batch, false);
    int width = LABEL_LEAST, most = WIDTH - 2 - (FIGURE + 1) * (int)layout.n;
    char *base = describe_base(&layout);
    struct text units = {0};
    uint32_t ends[4] = {0};

    for (uint32_t i = 0; i < layout.lines; i++) {
        int mine = width_of(layout.line[i].row.who);

        width = mine <= width ? width : mine > most ? most : mine;
    }
    for (uint32_t i = 0; i < batch->n; i++)
        ends[batch->row[i].end]++;
    fprintf(file, "#\n# %u runs: %u ok, %u failed, %u skipped, %u not run\n", batch->n,
            ends[REPORT_OK], ends[REPORT_FAILED], ends[REPORT_SKIPPED], ends[REPORT_NOT_RUN]);
    if (is_mixed(batch))
        fprintf(file, "# order: %s, by seed %" PRIu64 "\n", batch->order, batch->seed);
    if (batch->verb != VERB_VERIFY && is_repeated(&layout))
        fprintf(file, "# medians of repetitions; spread: of their totals, most - least\n");
    if (base != NULL)
        text_comment(file, "%s%s", is_repeated(&layout) ? "" : "medians; ", base);
    fprintf(file, "#\n# %-*s", width, "run");
    for (uint32_t c = 0; c < layout.n; c++)
        fprintf(file, " %*s", FIGURE, layout.column[c]->name);
    for (uint32_t c = 0; c < layout.n; c++)
        text_add(&units, " %*s", FIGURE,
                 layout.column[c]->kind == TIME     ? "[us]"
                 : layout.column[c]->kind == SPREAD ? "[%]"
                                                    : "");
    while (units.bytes > 0 && units.data[units.bytes - 1] == ' ')
        units.data[--units.bytes] = '\0';
    if (units.bytes > 0)
        fprintf(file, "\n# %-*s%s", width, "", units.data);
    text_free(&units);
    fputc('\n', file);
    for (uint32_t i = 0; i < layout.lines; i++)
        print_line(file, &layout, width, &layout.line[i]);
    free(base);
    layout_free(&layout);
}

/* ---- Markdown and CSV ---- */

void report_batch_markdown(struct text *out, const struct report_batch *batch)
{
    struct layout layout = layout_of(batch, false);
    char *base = describe_base(&layout);
    bool ends = false;

    for (uint32_t i = 0; i < layout.lines; i++)
        ends = ends || layout.line[i].row.end != REPORT_OK;
    text_add(out, "| run | id |");
    for (uint32_t c = 0; c < layout.n; c++)
        text_add(out,
                 layout.column[c]->kind == TIME     ? " %s [us] |"
                 : layout.column[c]->kind == SPREAD ? " %s [%%] |"
                                                    : " %s |",
                 layout.column[c]->name);
    text_add(out, "%s\n|---|---|", ends ? " end |" : "");
    for (uint32_t c = 0; c < layout.n; c++)
        text_add(out, "---:|");
    text_add(out, "%s\n", ends ? "---|" : "");
    for (uint32_t i = 0; i < layout.lines; i++) {
        const struct line *line = &layout.line[i];
        struct text end = {0};

        text_add(out, "| ");
        text_add_markdown(out, line->row.who);
        text_add(out, " | %s |", line->row.id != NULL ? line->row.id : "-");
        for (uint32_t c = 0; c < layout.n; c++) {
            text_add(out, " ");
            add_figure(out, layout.column[c],
                       figure_of(&layout, layout.column[c], &line->row, line->spread),
                       layout.digits, "-");
            text_add(out, " |");
        }
        add_end(&end, line);
        text_add(out, "%s", ends ? " " : "");
        text_add_markdown(out, ends ? end.data : "");
        text_add(out, "%s\n", ends ? " |" : "");
        text_free(&end);
    }
    if (base != NULL) {
        text_add(out, "\n%c", base[0] - 'a' + 'A');
        text_add_markdown(out, base + 1);
        text_add(out, ".\n");
    }
    for (uint32_t i = 0; i < batch->n_context; i++) {
        text_add(out, i == 0 ? "\nContext: " : ", ");
        text_add_markdown(out, batch->context[i]);
    }
    if (batch->n_context > 0)
        text_add(out, ".\n");
    if (is_mixed(batch))
        text_add(out, "\nOrder: %s, by seed %" PRIu64 ".\n", batch->order, batch->seed);
    free(base);
    layout_free(&layout);
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
    struct layout layout = layout_of(batch, true);
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
            add_figure(out, layout.column[c], figure_of(&layout, layout.column[c], row, NAN), 3,
                       ""); /* whole ns */
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
    layout_free(&layout);
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
    json_put(&out, "ratio", json_number(has_ran(row) ? ratio_of(layout, row) : NAN));
    return out;
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
        struct layout layout = layout_of(batch, true);

        for (uint32_t i = 0; i < batch->n; i++)
            json_add(&rows, row_json(&layout, &batch->row[i]));
        layout_free(&layout);
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
