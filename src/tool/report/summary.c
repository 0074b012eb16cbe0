/* The summary of a batch: one row for each run, for comparison. In tables, the repetitions of a run
 * share one row with their medians and spread. Figures equal the figures in the table of each run;
 * unmeasured figures stay empty. */
#include "report/summary.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/stats.h"
#include "base/text.h"
#include "report/csv_cells.h"
#include "report/lines.h"
#include "report/means.h"
#include "report/results.h"
#include "report/table.h"

/* ---- the row of a run ---- */

/* Places where a figure is shown: tables of text and Markdown, CSV, "summary" of JSON; for
 * timed runs, and for verified runs. */
enum {
    TEXT = 1,
    MARKDOWN = 2,
    CSV = 4,
    JSON = 8,
    TABLES = TEXT | MARKDOWN,
    TIMED = 16,
    VERIFIED = 32,
    BOTH = TIMED | VERIFIED,
    OPTIONAL = 64, /* no column if no row has a value */
};

#define WORD(member) .at = offsetof(struct report_row, member), .is_text = true
#define NUMBER(member) .at = offsetof(struct report_row, member)

/* Fields of a row, in the order of columns. */
static const struct field {
    struct table_column is;
    const char *csv; /* name in CSV; NULL: the key */
    int digits;      /* in CSV */
    unsigned where;
    size_t at; /* in struct report_row: a text if is_text, otherwise a double */
    bool is_text;
} fields[] = {
    {{"who", "run"}, .where = TABLES | BOTH, WORD(who)},
    {{"file"}, .where = CSV | JSON | BOTH, WORD(file)},
    {{"label"}, .where = CSV | JSON | BOTH, WORD(label)},
    {{"id", "id"}, .where = MARKDOWN | CSV | JSON | BOTH, WORD(id)},
    {{"dispatch_ns", "dispatch", "us", 1e3, 1, 10},
     "dispatch_us",
     3,
     TABLES | CSV | JSON | TIMED,
     NUMBER(time_ns[ROW_DISPATCH])},
    {{"experts_ns", "experts", "us", 1e3, 1, 10},
     "experts_us",
     3,
     TABLES | CSV | JSON | TIMED | OPTIONAL,
     NUMBER(time_ns[ROW_EXPERTS])},
    {{"combine_ns", "combine", "us", 1e3, 1, 10},
     "combine_us",
     3,
     TABLES | CSV | JSON | TIMED,
     NUMBER(time_ns[ROW_COMBINE])},
    {{"total_ns", "total", "us", 1e3, 1, 10},
     "total_us",
     3,
     TABLES | CSV | JSON | TIMED,
     NUMBER(time_ns[ROW_TOTAL])},
    {{"limit_ns", "limit", "us", 1e3, 1, 10},
     NULL,
     0,
     MARKDOWN | TIMED | OPTIONAL,
     NUMBER(limit_ns)},
    {{"ratio", "ratio", NULL, 0, 2, 10},
     NULL,
     2,
     TABLES | CSV | JSON | TIMED | OPTIONAL,
     NUMBER(ratio)},
    {{"spread", "spread", "%", 0.01, 1, 10}, NULL, 0, TABLES | TIMED | OPTIONAL, NUMBER(spread)},
    {{"iterations", "iterations", NULL, 0, 0, 10},
     NULL,
     0,
     TABLES | CSV | VERIFIED,
     NUMBER(count[ROW_ITERATIONS])},
    {{"elements", "elements", NULL, 0, 0, 10},
     NULL,
     0,
     TABLES | CSV | VERIFIED,
     NUMBER(count[ROW_ELEMENTS])},
    {{"wrong", "wrong", NULL, 0, 0, 10},
     NULL,
     0,
     TABLES | CSV | VERIFIED,
     NUMBER(count[ROW_WRONG])},
    {{"end"}, .where = CSV | JSON | BOTH, WORD(end)},
    {{"status"}, .where = CSV | BOTH, WORD(status)},
    {{"error"}, .where = CSV | JSON | BOTH, WORD(error)},
    {{"samples", .width = 1}, NULL, 0, CSV | TIMED, NUMBER(samples)},
    {{"stop"}, NULL, 0, CSV | TIMED, WORD(stop)},
    {{"ci95", .width = 1}, NULL, 6, CSV | TIMED, NUMBER(ci95)},
    {{"ended"}, .where = TABLES | BOTH | OPTIONAL, WORD(ended)},
    {{0}},
};

/* Returns the text of a field, or its number. */
static struct table_cell cell_of(const struct field *f, const struct report_row *row)
{
    struct table_cell cell = {.number = NAN};
    const char *at = (const char *)row + f->at;

    if (f->is_text)
        memcpy(&cell.text, at, sizeof(cell.text));
    else
        memcpy(&cell.number, at, sizeof(cell.number));
    return cell;
}

static bool ended(const struct report_row *row, const char *end)
{
    return strcmp(row->end, end) == 0;
}

_Static_assert((int)ROW_DISPATCH == (int)RUN_DISPATCH && (int)ROW_EXPERTS == (int)RUN_EXPERTS &&
                   (int)ROW_COMBINE == (int)RUN_COMBINE,
               "times of kinds");

void report_row(struct report_row *row, const char *who, const char *file, const char *label,
                const char *id)
{
    *row = (struct report_row){.who = who, .file = file, .label = label, .id = id};
    report_row_end(row, REPORT_NOT_RUN, EPA_OK, "");
    row->status = "";
    row->mean_ns = row->limit_ns = row->samples = row->ci95 = row->partial = row->elapsed_s = NAN;
    row->ratio = row->spread = NAN;
    for (uint32_t i = 0; i < ROW_TIMES; i++)
        row->time_ns[i] = NAN;
    for (uint32_t i = 0; i < ROW_COUNTS; i++)
        row->count[i] = NAN;
}

void report_row_end(struct report_row *row, const char *end, enum epa_status status,
                    const char *error)
{
    row->end = end;
    row->status = status_name(status);
    row->error = error != NULL && error[0] != '\0' ? error : NULL;
}

/* Copies figures of the result. The limit is the largest of the minimum times of products, weights
 * and links. */
static void copy_run_figures(struct report_row *row, const struct run_figures *run,
                             struct arena *arena)
{
    const struct run_stop *stop = &run->stop;
    struct run_stage *stage = arena_alloc(arena, run->n_stages * sizeof(*stage));
    bool any = stop->samples > 0;

    for (uint32_t i = 0; i < run->n_stages; i++)
        stage[i] = (struct run_stage){.name = arena_printf(arena, "%s", run->stage[i].name),
                                      .figures = run->stage[i].figures};
    row->stage = stage;
    row->n_stages = run->n_stages;
    row->count[ROW_ITERATIONS] = (double)run->verify.iterations;
    row->count[ROW_ELEMENTS] = (double)run->verify.compared;
    row->count[ROW_WRONG] = (double)run->verify.wrong;
    row->samples = any ? (double)stop->samples : NAN;
    row->stop = any ? stop_name(stop->reason) : NULL;
    row->ci95 = any ? stop->ci95 : NAN;
    row->partial = run->partial ? (double)stop->samples : NAN;
    if (run->n_stages > 0)
        row->mean_ns = run_total(run)->figures.ns.mean;
    if (run->n_stages > 0 && run->compute.flops > 0 && isfinite(run->compute.flops_ns))
        row->limit_ns = run_total(run)->figures.peak_ns;
}

static void copy_row_keys(struct report_row *row, const struct results_key *key, uint32_t n,
                          struct arena *arena)
{
    struct results_key *copy = arena_alloc(arena, n * sizeof(*copy));

    for (uint32_t i = 0; i < n; i++)
        copy[i] = (struct results_key){arena_printf(arena, "%s", key[i].path),
                                       arena_printf(arena, "%s", key[i].value),
                                       arena_printf(arena, "%s", key[i].shown), key[i].is_means};
    row->key = copy;
    row->n_keys = n;
}

void report_row_fill(struct report_row *row, const struct result *result, struct arena *arena)
{
    const struct run_figures *run = result->figures;
    bool ok = strcmp(run->status, "ok") == 0, missed = strcmp(run->status, "missed") == 0;

    report_row_end(row, ok ? REPORT_OK : REPORT_FAILED, EPA_OK,
                   run->error != NULL ? arena_printf(arena, "%s", run->error_text) : NULL);
    if (!ok)
        row->status = missed ? status_name(EPA_ERR_MISMATCH) : run->error;
    copy_run_figures(row, run, arena);
    for (uint32_t i = 0; i < RUN_KINDS; i++)
        row->time_ns[i] = round(run->kind_ns[i]);
    row->elapsed_s = result->elapsed_s;
    row->time_ns[ROW_TOTAL] = run_total(run)->figures.ns.median;
}

void report_row_read(struct report_row *row, const struct results_run *was, struct arena *arena)
{
    report_row_end(row, REPORT_OK, EPA_OK, NULL);
    copy_run_figures(row, &was->figures, arena);
    copy_row_keys(row, was->key, was->n_keys, arena);
    row->elapsed_s = was->elapsed_s;
    memcpy(row->time_ns, was->time_ns, sizeof(row->time_ns));
}

/* Returns true if the row has figures; a failed run may have some. */
static bool has_figures(const struct report_row *row)
{
    return ended(row, REPORT_OK) || (ended(row, REPORT_FAILED) &&
                                     (row->time_ns[ROW_TOTAL] > 0 || row->count[ROW_ELEMENTS] > 0));
}

/* ---- repetitions ---- */

static bool is_repetition(const struct report_row *row, const struct report_row *before)
{
    size_t bytes = results_label_bytes(row->label);

    return row->repetition > before->repetition && strcmp(row->file, before->file) == 0 &&
           bytes == results_label_bytes(before->label) &&
           strncmp(row->label, before->label, bytes) == 0;
}

/* Returns the median of the double at an offset of `n` rows, nearest rank; NaN: no row has it.
 * *spread: (maximum - minimum) / median; NaN: fewer than two rows have it. */
static double merge_figure(const struct report_row *row, uint32_t n, size_t at, double *spread)
{
    double *value = memory_alloc(n, sizeof(*value)), median;
    uint32_t known = 0;

    for (uint32_t i = 0; i < n; i++) {
        double x;

        memcpy(&x, (const char *)&row[i] + at, sizeof(x));
        if (has_figures(&row[i]) && !isnan(x))
            value[known++] = x;
    }
    median = stats_quantile(value, known, 500);
    *spread = known > 1 ? (value[known - 1] - value[0]) / median : NAN;
    free(value);
    return median;
}

/* Returns "failed (timeout): rank 1: ...", "2 of 3 ok, failed ..."; NULL: all runs were
 * successful. */
static const char *describe_end(const struct report_row *row, uint32_t good, uint32_t n,
                                struct arena *arena)
{
    text_auto out = {0};

    if (ended(row, REPORT_OK))
        return NULL;
    if (good > 0)
        text_add(&out, "%u of %u ok, ", good, n);
    text_add(&out, "%s", row->end);
    if (ended(row, REPORT_FAILED))
        text_add(&out, " (%s)", row->status);
    if (row->error != NULL && strcmp(row->error, row->status) != 0)
        text_add(&out, ": %s", row->error);
    if (!isnan(row->partial))
        text_add(&out, "; partial: %.0f samples", row->partial);
    return arena_printf(arena, "%s", out.data);
}

/* Returns `n` rows, a run and its repetitions, as one row: medians of rows with figures, sums of
 * counts, the end of the first failed run. */
static struct report_row line_of(const struct report_row *row, uint32_t n, struct arena *arena)
{
    struct report_row line = row[0];
    size_t bytes = n > 1 ? results_label_bytes(line.who) : strlen(line.who);
    double unused, sum[ROW_COUNTS] = {0};
    uint32_t good = 0;

    for (uint32_t i = 0; i < n; i++) {
        good += ended(&row[i], REPORT_OK);
        for (uint32_t k = 0; k < ROW_COUNTS; k++)
            sum[k] += isnan(row[i].count[k]) ? 0 : row[i].count[k];
        if (ended(&line, REPORT_OK) && !ended(&row[i], REPORT_OK)) {
            line.end = row[i].end;
            line.status = row[i].status;
            line.error = row[i].error;
        }
    }
    line.mean_ns = merge_figure(row, n, offsetof(struct report_row, mean_ns), &unused);
    for (uint32_t i = 0; i < ROW_TIMES; i++) /* the total is the last */
        line.time_ns[i] = merge_figure(
            row, n, offsetof(struct report_row, time_ns) + i * sizeof(double), &line.spread);
    for (uint32_t k = 0; k < ROW_COUNTS; k++)
        line.count[k] = sum[k];
    for (uint32_t k = 0; k < ROW_COUNTS && !has_figures(&line); k++)
        line.count[k] = NAN;
    line.who = bytes > 0 ? arena_strndup(arena, line.who, bytes) : line.file;
    line.ended = describe_end(&line, good < n ? good : 0, n, arena);
    return line;
}

/* Rows of a table. */
struct lines {
    struct arena *arena;
    struct report_row *row;
    uint32_t n;
};

/* Adds the ratios over the totals of `lines`. */
static void add_ratios(const struct lines *lines, struct lines *rows)
{
    for (uint32_t i = 0; i < rows->n; i++) {
        const struct report_row *base = report_base(lines->row, lines->n, rows->row[i].question);

        rows->row[i].ratio =
            base != NULL ? rows->row[i].time_ns[ROW_TOTAL] / base->time_ns[ROW_TOTAL] : NAN;
    }
}

/* Returns the rows, repetitions merged into one line. */
static struct lines lines_of(const struct report_batch *batch)
{
    struct lines out = {.arena = arena_create()};

    out.row = arena_alloc(out.arena, batch->n * sizeof(*out.row));
    for (uint32_t i = 0, end; i < batch->n; i = end) {
        for (end = i + 1; end < batch->n && is_repetition(&batch->row[end], &batch->row[end - 1]);)
            end++;
        out.row[out.n++] = line_of(&batch->row[i], end - i, out.arena);
    }
    add_ratios(&out, &out);
    return out;
}

/* Returns a row for each repetition, with ratios over lines. */
static struct lines single_rows(const struct report_batch *batch)
{
    struct lines lines = lines_of(batch), out = {.arena = arena_create(), .n = batch->n};

    out.row = arena_alloc(out.arena, batch->n * sizeof(*out.row));
    for (uint32_t i = 0; i < batch->n; i++)
        out.row[i] = line_of(&batch->row[i], 1, out.arena);
    add_ratios(&lines, &out);
    arena_destroy(lines.arena);
    return out;
}

/* ---- tables ---- */

enum { SUMMARY_COLUMNS = 16 };

struct layout {
    struct lines lines;
    const struct field *field[SUMMARY_COLUMNS];
    struct table_column column[SUMMARY_COLUMNS];
    struct table_row *row;
    bool ratios, repeated;
};

/* Returns true if a row has the figure; for a ratio: if a problem has several runs. */
static bool has_figure(const struct lines *lines, const struct field *f)
{
    for (uint32_t i = 0; i < lines->n; i++) {
        const struct report_row *row = &lines->row[i];
        struct table_cell cell = cell_of(f, row);

        if (strcmp(f->is.key, "ratio") != 0
                ? cell.text != NULL || isfinite(cell.number)
                : row->time_ns[ROW_TOTAL] > 0 &&
                      report_base(lines->row, lines->n, row->question) != row)
            return true;
    }
    return false;
}

/* Returns the rows of the table. */
static struct table_row *rows_of(const struct layout *layout, uint32_t n)
{
    const struct lines *lines = &layout->lines;
    struct table_row *out = arena_alloc(lines->arena, lines->n * sizeof(*out));

    for (uint32_t i = 0; i < lines->n; i++) {
        struct table_cell *cell = arena_alloc(lines->arena, n * sizeof(*cell));

        for (uint32_t k = 0; k < n; k++)
            cell[k] = cell_of(layout->field[k], &lines->row[i]);
        out[i].cell = cell;
    }
    return out;
}

static struct layout layout_of(const struct report_batch *batch, unsigned where)
{
    struct layout out = {.lines = lines_of(batch)};
    unsigned verb = batch->verb == VERB_VERIFY ? VERIFIED : TIMED;
    bool is_short = false;
    uint32_t n = 0;

    for (uint32_t i = 0; i < out.lines.n; i++) {
        for (uint32_t k = 0; k < ROW_TIMES; k++)
            is_short = is_short || (k != ROW_EXPERTS && out.lines.row[i].time_ns[k] < 1e4);
    }
    for (const struct field *f = fields; f->is.key != NULL; f++) {
        if ((f->where & where) == 0 || (f->where & verb) == 0 ||
            ((f->where & OPTIONAL) != 0 && !has_figure(&out.lines, f)))
            continue;
        out.ratios = out.ratios || strcmp(f->is.key, "ratio") == 0;
        out.field[n] = f;
        out.column[n] = f->is;
        if (where == MARKDOWN && f[1].is.key == NULL)
            out.column[n].name = "end";
        out.column[n++].digits += f->is.scale > 1 && is_short;
    }
    for (uint32_t i = 0; i < out.lines.n && where == MARKDOWN; i++)
        if (out.lines.row[i].ended == NULL)
            out.lines.row[i].ended = "ok";
    out.row = rows_of(&out, n);
    out.repeated = out.lines.n < batch->n;
    return out;
}

/* Describes the baseline of the ratios; adds nothing if there are no ratios. */
static void describe_base(const struct layout *layout, struct text *out)
{
    const struct lines *lines = &layout->lines;
    const struct report_row *base = NULL;
    bool several = false, asked = false;

    for (uint32_t i = 0; i < lines->n; i++) {
        const struct report_row *mine = report_base(lines->row, lines->n, lines->row[i].question);

        several = several || (base != NULL && mine != NULL && mine != base);
        base = base != NULL ? base : mine;
        asked = asked || lines->row[i].baseline;
    }
    if (base == NULL || !layout->ratios)
        return;
    text_add(out, "ratio: total / total of %s",
             !several ? base->who
             : asked  ? "the baseline, of runs that differ only in algorithm, transport, backend "
                        "or launcher"
                      : "the first run that differs only in algorithm, transport, backend or "
                        "launcher");
}

void report_batch_text(FILE *file, const struct report_batch *batch)
{
    struct layout layout = layout_of(batch, TEXT);
    text_auto base = {0}, means = {0};
    static const char *const ends[] = {REPORT_OK, REPORT_FAILED, REPORT_SKIPPED, REPORT_NOT_RUN};

    describe_base(&layout, &base);
    fprintf(file, "#\n# %u runs", batch->n);
    for (size_t k = 0; k < sizeof(ends) / sizeof(ends[0]); k++) {
        uint32_t n = 0;

        for (uint32_t i = 0; i < batch->n; i++)
            n += ended(&batch->row[i], ends[k]);
        fprintf(file, "%s %u %s", k == 0 ? ":" : ",", n, ends[k]);
    }
    fprintf(file, "\n");
    if (!report_is_declared(batch))
        fprintf(file, "# order: %s, by seed %" PRIu64 "\n", batch->order, batch->seed);
    if (batch->verb != VERB_VERIFY && layout.repeated)
        fprintf(file, "# medians of repetitions; spread: of their totals, most - least\n");
    if (base.bytes > 0)
        text_comment(file, "%s%s", layout.repeated ? "" : "medians; ", base.data);
    fprintf(file, "#\n");
    table_text(file, layout.column, layout.row, layout.lines.n);
    for (int of = 0; of < MEANS_OF; of++) {
        report_means(layout.lines.row, layout.lines.n, (enum means_of)of, &means);
        if (means.bytes > 0)
            text_comment(file, "%s", means.data);
        text_free(&means);
    }
    arena_destroy(layout.lines.arena);
}

/* Adds a paragraph, unless the note is empty. */
static void add_note(struct text *out, struct text *note)
{
    if (note->bytes == 0)
        return;
    note->data[0] = (char)toupper((unsigned char)note->data[0]);
    text_add(out, "\n");
    text_add_markdown(out, note->data);
    text_add(out, ".\n");
    text_free(note);
}

void report_batch_markdown(struct text *out, const struct report_batch *batch)
{
    struct layout layout = layout_of(batch, MARKDOWN);
    text_auto note = {0};

    table_add(out, TABLE_MARKDOWN, layout.column, layout.row, layout.lines.n);
    describe_base(&layout, &note);
    add_note(out, &note);
    for (int of = 0; of < MEANS_OF; of++) {
        report_means(layout.lines.row, layout.lines.n, (enum means_of)of, &note);
        add_note(out, &note);
    }
    for (uint32_t i = 0; i < batch->n_context; i++)
        text_add(&note, "%s%s", i == 0 ? "context: " : ", ", batch->context[i]);
    add_note(out, &note);
    if (!report_is_declared(batch))
        text_add(&note, "order: %s, by seed %" PRIu64, batch->order, batch->seed);
    add_note(out, &note);
    arena_destroy(layout.lines.arena);
}

/* Adds the columns of CSV and the cells of all rows: fields, figures of stages and keys of the
 * experiment, and the notes of the user. */
void report_batch_csv(struct text *out, const struct report_batch *batch)
{
    unsigned verb = batch->verb == VERB_VERIFY ? VERIFIED : TIMED;
    struct lines rows = single_rows(batch);
    struct csv_cells more = export_cells(rows.arena, rows.row, rows.n, verb == TIMED);
    uint32_t room = (uint32_t)(sizeof(fields) / sizeof(fields[0])) + more.n + batch->n_context + 1;
    struct table_column *column = arena_alloc(rows.arena, room * sizeof(*column));
    struct table_cell *cell = arena_alloc(rows.arena, (size_t)room * rows.n * sizeof(*cell));
    struct table_row *row = arena_alloc(rows.arena, rows.n * sizeof(*row));
    uint32_t n = 0;

    for (uint32_t i = 0; i < rows.n; i++)
        row[i].cell = &cell[(size_t)i * room];
    for (const struct field *f = fields; f->is.key != NULL; f++) {
        if ((f->where & CSV) == 0 || (f->where & verb) == 0)
            continue;
        for (uint32_t i = 0; i < rows.n; i++)
            cell[(size_t)i * room + n] = cell_of(f, &rows.row[i]);
        column[n++] = (struct table_column){f->is.key, f->csv != NULL ? f->csv : f->is.key,
                                            NULL,      f->is.scale,
                                            f->digits, f->is.width};
    }
    for (uint32_t k = 0; k < more.n; k++) {
        for (uint32_t i = 0; i < rows.n; i++)
            cell[(size_t)i * room + n].text = more.cell[(size_t)i * more.n + k];
        column[n++] = (struct table_column){more.name[k], more.name[k]};
    }
    for (uint32_t k = 0; k < batch->n_context; k++) {
        int bytes = (int)strcspn(batch->context[k], "=");
        char *name = arena_printf(rows.arena, "context.%.*s", bytes, batch->context[k]);

        for (uint32_t i = 0; i < rows.n; i++)
            cell[(size_t)i * room + n].text = batch->context[k] + bytes + 1;
        column[n++] = (struct table_column){name, name};
    }
    table_add(out, TABLE_CSV, column, row, rows.n);
    arena_destroy(rows.arena);
}

/* ---- documents ---- */

void summary_visit(const struct report_batch *batch,
                   void (*fn)(void *arg, uint32_t row, const struct summary_value *), void *arg)
{
    struct lines rows = single_rows(batch);

    for (uint32_t i = 0; i < rows.n; i++)
        for (const struct field *f = fields; f->is.key != NULL; f++)
            if ((f->where & JSON) != 0)
                fn(arg, i,
                   &(struct summary_value){f->is.key, f->is_text, cell_of(f, &rows.row[i])});
    arena_destroy(rows.arena);
}
