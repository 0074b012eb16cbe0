/* The summary: one line a run, so that runs can be held against each other. The figures are
 * those of the runs' own tables; what a run has not measured has none. */
#include "report/report_batch.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Four figures beside the longest label are 100 columns. */
enum { LABEL_LEAST = 24, LABEL_MOST = 54, FIGURE = 10 };

const char *report_end_name(enum report_end end)
{
    static const char *const name[] = {[REPORT_NOT_RUN] = "not run",
                                       [REPORT_OK] = "ok",
                                       [REPORT_FAILED] = "failed",
                                       [REPORT_SKIPPED] = "skipped"};

    return name[end];
}

/* ---- figures ---- */

/* Of a stage of two halves the first is a stage of its own; it goes with the second. */
static enum epa_stage_kind kind_of(const struct session *s, uint32_t stage)
{
    while (stage + 1 < s->n_stages && s->stage_kind[stage] == EPA_STAGE_SEND)
        stage++;
    return s->stage_kind[stage];
}

/* Median over samples of the slowest rank, of all stages of a kind together. */
static enum epa_status median_of(const struct result *result, enum epa_stage_kind kind, double *out,
                                 struct epa_error *err)
{
    const struct session *s = result->session;
    uint64_t n = result->n_samples;
    double *slowest = calloc(2 * n + 1, sizeof(*slowest));
    bool any = false;

    *out = NAN;
    if (slowest == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %llu samples", (unsigned long long)n);
    for (uint32_t r = 0; n > 0 && r < s->experiment->ranks; r++) {
        for (uint64_t k = 0; k < n; k++) {
            double sum = 0;

            for (uint32_t i = 0; i < s->n_stages; i++) {
                if (kind_of(s, i) != kind)
                    continue;
                sum += session_times(s, r, i)[k];
                any = true;
            }
            slowest[k] = fmax(slowest[k], sum);
        }
    }
    if (any)
        *out = stats_of(slowest, n, slowest + n).median;
    free(slowest);
    return EPA_OK;
}

static enum epa_status fill_parts(struct report_row *row, const struct result *result,
                                  struct epa_error *err)
{
    enum bench_clock clock = result->session->clock;
    enum epa_status status;

    row->dispatch_ns = row->experts_ns = row->combine_ns = NAN;
    /* Where it is one row, that is WHOLE. */
    for (uint32_t i = 0; clock == CLOCK_GRAPH && result->n_stages > 1 && i < result->n_stages;
         i++) {
        double median = result->stage[i].slowest.median;

        switch (session_figure_at(result->session, i)) {
        case FIGURE_DISPATCH:
            row->dispatch_ns = median;
            break;
        case FIGURE_EXPERTS:
            row->experts_ns = median;
            break;
        case FIGURE_COMBINE:
            row->combine_ns = median;
            break;
        default:
            break;
        }
    }
    if (clock != CLOCK_HOST && clock != CLOCK_EVENTS)
        return EPA_OK;
    status = median_of(result, EPA_STAGE_DISPATCH, &row->dispatch_ns, err);
    if (status == EPA_OK)
        status = median_of(result, EPA_STAGE_EXPERTS, &row->experts_ns, err);
    if (status == EPA_OK)
        status = median_of(result, EPA_STAGE_COMBINE, &row->combine_ns, err);
    return status;
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

bool report_batch_mixed(const struct report_batch *batch)
{
    return strcmp(batch->order, "declared") != 0;
}

double report_ratio(const struct report_row *row, uint32_t n, uint32_t i)
{
    uint32_t first = 0;

    while (first < n && !(row[first].end != REPORT_NOT_RUN && row[first].total_ns > 0))
        first++;
    if (first == n || row[i].end == REPORT_NOT_RUN)
        return NAN;
    return row[i].total_ns / row[first].total_ns;
}

/* ---- columns ---- */

/* What stands behind the label: for verify what was compared, else times. */
struct column {
    const char *name, *unit;
    int digits;
    double (*figure)(const struct report_row *, uint32_t n, uint32_t i);
};

static double dispatch_us(const struct report_row *row, uint32_t n, uint32_t i)
{
    (void)n;
    return row[i].dispatch_ns / 1e3;
}

static double experts_us(const struct report_row *row, uint32_t n, uint32_t i)
{
    (void)n;
    return row[i].experts_ns > 0 ? row[i].experts_ns / 1e3 : NAN;
}

static double combine_us(const struct report_row *row, uint32_t n, uint32_t i)
{
    (void)n;
    return row[i].combine_ns / 1e3;
}

static double total_us(const struct report_row *row, uint32_t n, uint32_t i)
{
    (void)n;
    return row[i].total_ns / 1e3;
}

static double iterations(const struct report_row *row, uint32_t n, uint32_t i)
{
    (void)n;
    return (double)row[i].checked;
}

static double elements(const struct report_row *row, uint32_t n, uint32_t i)
{
    (void)n;
    return (double)row[i].compared;
}

static double wrong(const struct report_row *row, uint32_t n, uint32_t i)
{
    (void)n;
    return (double)row[i].wrong;
}

static const struct column timed[] = {{"dispatch", "us", 1, dispatch_us},
                                      {"combine", "us", 1, combine_us},
                                      {"total", "us", 1, total_us},
                                      {"ratio", "", 2, report_ratio},
                                      {0}};
static const struct column timed_experts[] = {
    {"dispatch", "us", 1, dispatch_us}, {"experts", "us", 1, experts_us},
    {"combine", "us", 1, combine_us},   {"total", "us", 1, total_us},
    {"ratio", "", 2, report_ratio},     {0}};
static const struct column verified[] = {
    {"iterations", "", 0, iterations}, {"elements", "", 0, elements}, {"wrong", "", 0, wrong}, {0}};

static const struct column *columns_of(const struct report_batch *batch)
{
    if (batch->verb == VERB_VERIFY)
        return verified;
    for (uint32_t i = 0; i < batch->n; i++)
        if (batch->row[i].experts_ns > 0)
            return timed_experts;
    return timed;
}

/* A run that failed may have measured or compared something before. */
static bool has_figures(const struct report_row *row)
{
    return row->end == REPORT_OK ||
           (row->end == REPORT_FAILED && (row->total_ns > 0 || row->compared > 0));
}

/* Times are told alike in all rows: by one digit more where some are short. */
static int more_digits(const struct report_row *row, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (row[i].dispatch_ns < 1e4 || row[i].combine_ns < 1e4 || row[i].total_ns < 1e4)
            return 1;
    return 0;
}

static void add_figure(struct text *out, const struct column *column, int more,
                       const struct report_row *row, uint32_t n, uint32_t i, const char *none)
{
    double value = has_figures(&row[i]) ? column->figure(row, n, i) : NAN;

    if (isfinite(value))
        text_add(out, "%.*f", column->digits + (column->unit[0] != 0 ? more : 0), value);
    else
        text_add(out, "%s", none);
}

/* "failed (timeout): rank 1: ...". */
static void add_end(struct text *out, const struct report_row *row)
{
    text_add(out, "%s", report_end_name(row->end));
    if (row->end == REPORT_FAILED)
        text_add(out, " (%s)", result_status_name(row->status));
    if (row->error[0] != 0 && strcmp(row->error, result_status_name(row->status)) != 0)
        text_add(out, ": %s", row->error);
}

/* ---- text ---- */

/* Labels and sentences come from files: nothing in them moves the cursor. */
static void print_clean(FILE *file, const char *text)
{
    for (; *text != 0; text++)
        fputc((unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text, file);
}

/* Characters, not bytes. */
static int width_of(const char *text)
{
    int n = 0;

    for (; *text != 0; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static int label_width(const struct report_row *row, uint32_t n)
{
    int width = LABEL_LEAST;

    for (uint32_t i = 0; i < n; i++) {
        int mine = width_of(row[i].who);

        if (mine > width)
            width = mine > LABEL_MOST ? LABEL_MOST : mine;
    }
    return width;
}

static void print_heads(FILE *file, const struct column *column, int width)
{
    fprintf(file, "# %-*s", width, "run");
    for (const struct column *c = column; c->name != NULL; c++)
        fprintf(file, " %*s", FIGURE, c->name);
    fputc('\n', file);
    if (column->unit[0] == 0)
        return;
    fprintf(file, "# %-*s", width, "");
    for (const struct column *c = column; c->name != NULL && c->unit[0] != 0; c++)
        fprintf(file, " %*s[%s]", FIGURE - 2 - (int)strlen(c->unit), "", c->unit);
    fputc('\n', file);
}

/* A label that is too long has a line of its own. */
static void print_row(FILE *file, const struct column *column, int width,
                      const struct report_row *row, uint32_t n, uint32_t i)
{
    int mine = width_of(row[i].who), more = more_digits(row, n);
    struct text end = {0};

    fputs("  ", file);
    print_clean(file, row[i].who);
    if (mine > width)
        fprintf(file, "\n  %*s", width, "");
    else
        fprintf(file, "%*s", width - mine, "");
    for (const struct column *c = column; c->name != NULL && has_figures(&row[i]); c++) {
        struct text figure = {0};

        add_figure(&figure, c, more, row, n, i, "-");
        fprintf(file, " %*s", FIGURE, figure.data);
        text_free(&figure);
    }
    if (row[i].end != REPORT_OK) {
        add_end(&end, &row[i]);
        fputs(has_figures(&row[i]) ? "  " : "   ", file);
        print_clean(file, end.data);
        text_free(&end);
    }
    fputc('\n', file);
}

static const char *first_with_total(const struct report_row *row, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (row[i].end != REPORT_NOT_RUN && row[i].total_ns > 0)
            return row[i].who;
    return NULL;
}

void report_batch_text(FILE *file, const struct report_batch *batch)
{
    const struct report_row *row = batch->row;
    uint32_t n = batch->n;
    const struct column *column = columns_of(batch);
    const char *first = first_with_total(row, n);
    int width = label_width(row, n);
    uint32_t ends[4] = {0};

    for (uint32_t i = 0; i < n; i++)
        ends[row[i].end]++;
    fprintf(file, "#\n# %u runs: %u ok, %u failed, %u skipped, %u not run\n", n, ends[REPORT_OK],
            ends[REPORT_FAILED], ends[REPORT_SKIPPED], ends[REPORT_NOT_RUN]);
    if (report_batch_mixed(batch))
        fprintf(file, "# order: %s, by seed %" PRIu64 "\n", batch->order, batch->seed);
    if (batch->verb != VERB_VERIFY && first != NULL) {
        fprintf(file, "# medians; ratio: total over that of ");
        print_clean(file, first);
        fputc('\n', file);
    }
    fprintf(file, "#\n");
    print_heads(file, column, width);
    for (uint32_t i = 0; i < n; i++)
        print_row(file, column, width, row, n, i);
}

/* ---- Markdown and CSV ---- */

static void add_markdown(struct text *out, const char *text)
{
    for (; *text != 0; text++) {
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            text_add(out, " ");
        else if (strchr("|\\`*_<>[]#", *text) != NULL)
            text_add(out, "\\%c", *text);
        else
            text_add_bytes(out, text, 1);
    }
}

void report_batch_markdown(struct text *out, const struct report_batch *batch)
{
    const struct report_row *row = batch->row;
    uint32_t n = batch->n;
    const struct column *column = columns_of(batch);
    int more = more_digits(row, n);

    text_add(out, "| run | id |");
    for (const struct column *c = column; c->name != NULL; c++)
        text_add(out, c->unit[0] == 0 ? " %s |" : " %s [%s] |", c->name, c->unit);
    text_add(out, " end |\n|---|---|");
    for (const struct column *c = column; c->name != NULL; c++)
        text_add(out, "---:|");
    text_add(out, "---|\n");
    for (uint32_t i = 0; i < n; i++) {
        struct text end = {0};

        text_add(out, "| ");
        add_markdown(out, row[i].who);
        text_add(out, " | %s |", row[i].id != NULL ? row[i].id : "-");
        for (const struct column *c = column; c->name != NULL; c++) {
            text_add(out, " ");
            add_figure(out, c, more, row, n, i, "-");
            text_add(out, " |");
        }
        add_end(&end, &row[i]);
        text_add(out, " ");
        add_markdown(out, end.data);
        text_add(out, " |\n");
        text_free(&end);
    }
    for (uint32_t i = 0; i < batch->n_context; i++) {
        text_add(out, i == 0 ? "\nContext: " : ", ");
        add_markdown(out, batch->context[i]);
    }
    if (batch->n_context > 0)
        text_add(out, ".\n");
    if (report_batch_mixed(batch))
        text_add(out, "\nOrder: %s, by seed %" PRIu64 ".\n", batch->order, batch->seed);
}

/* As RFC 4180 has it. */
static void add_csv(struct text *out, const char *text)
{
    if (strpbrk(text, ",\"\r\n") == NULL) {
        text_add(out, "%s", text);
        return;
    }
    text_add(out, "\"");
    for (; *text != 0; text++)
        text_add(out, *text == '"' ? "\"\"" : "%c", *text);
    text_add(out, "\"");
}

/* Samples, why no more, and how wide the median's interval is as a part of it. */
static void add_stop(struct text *out, const struct report_row *row)
{
    const char *why = stop_name(row->stop);

    if (row->samples == 0) {
        text_add(out, ",,,");
        return;
    }
    text_add(out, ",%" PRIu64 ",%s,", row->samples, why != NULL ? why : "");
    if (isfinite(row->ci95))
        text_add(out, "%.6f", row->ci95);
}

void report_batch_csv(struct text *out, const struct report_batch *batch)
{
    const struct report_row *row = batch->row;
    uint32_t n = batch->n;
    const struct column *column = columns_of(batch);
    bool timed_too = batch->verb != VERB_VERIFY;

    text_add(out, "file,label,id");
    for (const struct column *c = column; c->name != NULL; c++)
        text_add(out, c->unit[0] == 0 ? ",%s" : ",%s_%s", c->name, c->unit);
    text_add(out, ",end,status,error%s", timed_too ? ",samples,stop,ci95" : "");
    for (uint32_t i = 0; i < batch->n_context; i++)
        text_add(out, ",context.%.*s", (int)strcspn(batch->context[i], "="), batch->context[i]);
    text_add(out, "\n");
    for (uint32_t i = 0; i < n; i++) {
        add_csv(out, row[i].file);
        text_add(out, ",");
        add_csv(out, row[i].label);
        text_add(out, ",%s", row[i].id != NULL ? row[i].id : "");
        for (const struct column *c = column; c->name != NULL; c++) {
            text_add(out, ",");
            add_figure(out, c, 2, row, n, i, ""); /* whole ns */
        }
        text_add(out, ",%s,%s,", report_end_name(row[i].end),
                 row[i].end == REPORT_NOT_RUN ? "" : result_status_name(row[i].status));
        add_csv(out, row[i].error);
        if (timed_too)
            add_stop(out, &row[i]);
        for (uint32_t k = 0; k < batch->n_context; k++) {
            text_add(out, ",");
            add_csv(out, strchr(batch->context[k], '=') + 1);
        }
        text_add(out, "\n");
    }
}
