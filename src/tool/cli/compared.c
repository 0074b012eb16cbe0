/* The table of a comparison, and its document for --json. */
#include "cli/compared.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/documents.h"
#include "report/table_json.h"
#include "report/lines.h"
#include "report/summary.h"

/* Words for verdicts: on times of samples, and on other figures. */
static const struct {
    const char *time, *figure;
    const char *colour; /* of the row; NULL: none */
} words[] = {
    [COMPARE_SAME] = {"same", "same", NULL},
    [COMPARE_SLOWER] = {"SLOWER", "WORSE", "bad"},
    [COMPARE_FASTER] = {"faster", "better", "good"},
    [COMPARE_UNCLEAR] = {"unclear", "unclear", NULL},
};

char *compared_name(const struct results_run *run, char *out, size_t room)
{
    size_t bytes = results_label_bytes(run->label);

    snprintf(out, room, "%.*s", bytes > 0 ? (int)bytes : (int)strlen(run->name),
             bytes > 0 ? run->label : run->name);
    return text_clean(out);
}

void compared_add(struct compared *c, const struct results_run *run, const char *stage,
                  const struct comparison *x, enum compare_verdict verdict, bool judged)
{
    struct compared_row *row = arena_alloc(c->arena, (c->n + 1) * sizeof(*row));
    char name[200];

    if (c->n > 0)
        memcpy(row, c->row, c->n * sizeof(*row));
    compared_name(run, name, sizeof(name));
    row[c->n++] = (struct compared_row){arena_printf(c->arena, "%s", name),
                                        arena_printf(c->arena, "%s", stage), *x, verdict, judged};
    c->row = row;
}

static uint32_t count_verdicts(const struct compared *c, enum compare_verdict verdict)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n; i++)
        n += c->row[i].judged && c->row[i].verdict == verdict;
    return n;
}

bool compared_is_slower(const struct compared *c)
{
    return count_verdicts(c, COMPARE_SLOWER) > 0;
}

/* Returns true if the sides are compared by their samples. */
static bool is_by_samples(const struct compared *c)
{
    return c->figure == figure_default();
}

/* ---- the table ---- */

/* Columns in the unit of the figure. */
struct compared_columns {
    struct table_column column[10];
};
static struct compared_columns columns_of(const struct compared *c)
{
    struct compared_columns out = {{{"run", "run", .width = 0},
                                    {"stage", "stage", .width = 0},
                                    figure_column(c->figure, "a", 9),
                                    figure_column(c->figure, "b", 9),
                                    {"ratio", "ratio", NULL, 0, 3, 7},
                                    {"low", "from", NULL, 0, 3, 7},
                                    {"high", "to", NULL, 0, 3, 7},
                                    {"p", "p", NULL, 0, -1, 7},
                                    {"verdict", "", .width = 0}}};

    for (uint32_t i = 2; i < 4; i++) {
        out.column[i].name = i == 2 ? "A" : "B";
        out.column[i].width = 9;
    }
    return out;
}

/* Returns a value of a side; times are whole nanoseconds. */
static json_t *side_json(const struct compared *c, double value)
{
    return c->figure->kind == FIGURE_NS ? json_whole(value) : json_number(value);
}

/* Returns the rows; the values of the sides have the keys `a` and `b`. */
static json_t *rows_json(const struct compared *c, const char *a, const char *b)
{
    json_t *rows = json_array();

    for (uint32_t i = 0; i < c->n; i++) {
        const struct compared_row *row = &c->row[i];
        const char *word = is_by_samples(c) ? words[row->verdict].time : words[row->verdict].figure;

        json_array_append_new(
            rows,
            json_object_of("run", json_text(row->run), "stage", json_text(row->stage), a,
                           side_json(c, row->of.a), b, side_json(c, row->of.b), "ratio",
                           json_number(row->of.ratio), "low", json_number(row->of.low), "high",
                           json_number(row->of.high), "p", json_number(row->of.p), "runs_a",
                           json_count(row->of.runs_a), "runs_b", json_count(row->of.runs_b),
                           "verdict", row->judged ? json_text(word) : json_null(), NULL));
    }
    return rows;
}

/* Explains the figures below the table. */
static void add_legend(struct text *out, const struct compared *c)
{
    bool larger = c->figure->better == FIGURE_LARGER;

    if (c->turns.rounds > 0)
        text_add(out,
                 "ratio is B / A over %u rounds of A B or B A; bounds by signed ranks, with "
                 "%g %% confidence over all looks; slower or faster: by more than %g %%",
                 c->turns.rounds, 100 * (1 - c->alpha), 100 * c->threshold);
    else if (is_by_samples(c))
        text_add(out,
                 "ratio is B / A of the medians; 95 %% bounds by bootstrap; p by Mann-Whitney over "
                 "%d or more runs per side; slower or faster: by more than %g %%, with p < %g",
                 COMPARE_RUNS, 100 * c->threshold, c->alpha);
    else
        text_add(
            out,
            "ratio is B / A of %s, the median of runs, %s is better; 95 %% bounds by bootstrap "
            "of runs; p by Mann-Whitney over %d or more runs per side; worse or better: by "
            "more than %g %%, with p < %g",
            figure_name(c->figure), larger ? "larger" : "smaller", COMPARE_RUNS, 100 * c->threshold,
            c->alpha);
}

/* Prints the geometric mean of ratios of whole iterations. A coarse clock has no ratio. */
static void print_mean_ratio(FILE *file, const struct compared *c)
{
    uint32_t totals = 0;
    double logs = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        const struct compared_row *row = &c->row[i];

        if (!results_is_total(row->stage) || !(row->of.ratio > 0) || !isfinite(row->of.ratio))
            continue;
        logs += log(row->of.ratio);
        totals++;
    }
    if (totals > 1)
        fprintf(file, "# geometric mean of the %u ratios of totals: %.3f\n", totals,
                exp(logs / totals));
}

/* Prints the remedy for unclear rows. */
static void print_remedy(FILE *file, const struct compared *c)
{
    uint32_t unclear = count_verdicts(c, COMPARE_UNCLEAR);

    if (unclear > 0 && c->turns.rounds > 0)
        text_comment(
            file, "unclear: the rounds differ too much from each other; use a larger --budget, a "
                  "quieter machine, or real-time priority: chrt -r 1 epa2a compare ...");
    else if (unclear > 0 && is_by_samples(c))
        text_comment(
            file,
            "%u unclear: two runs of one program differ by as much. To decide, let the sides take "
            "turns (epa2a compare --run A.yaml B.yaml), or give each side %d runs or more (bench "
            "--set repeat=%d)",
            unclear, COMPARE_RUNS, COMPARE_RUNS + 2);
    else if (unclear > 0)
        text_comment(file, "%u unclear: give each side %d runs or more (bench --set repeat=%d)",
                     unclear, COMPARE_RUNS, COMPARE_RUNS + 2);
}

static void print_table(FILE *file, const struct compared *c)
{
    json_auto_t *rows = rows_json(c, "a", "b");
    text_auto legend = {0};

    add_legend(&legend, c);
    text_comment(file, "%s", legend.data);
    if (c->turns.taken != NULL)
        text_comment(file, "%s", c->turns.taken);
    for (struct json_walk row = {rows}; json_next(&row);) {
        const struct compared_row *of = &c->row[row.n - 1];

        if (of->judged && words[of->verdict].colour != NULL)
            json_object_set_new(row.value, "colour", json_string(words[of->verdict].colour));
    }
    table_json_text(file, columns_of(c).column, rows);
    print_mean_ratio(file, c);
    print_remedy(file, c);
}

static void add_markdown(struct text *out, const struct compared *c)
{
    json_auto_t *rows = rows_json(c, "a", "b");

    table_json_add(out, TABLE_MARKDOWN, columns_of(c).column, rows);
    text_add(out, "\nA ");
    text_add_markdown(out, c->a);
    text_add(out, ", B ");
    text_add_markdown(out, c->b);
    text_add(out, "; ");
    add_legend(out, c);
    text_add(out, ".\n");
}

/* ---- the document ---- */

static json_t *document_json(const struct compared *c)
{
    bool samples = is_by_samples(c);
    json_t *out = json_object_of(
        "schema", json_integer(1), "program", json_text("epa2a"), "a", json_text(c->a), "b",
        json_text(c->b), "rounds", json_count_or_null(c->turns.rounds), "threshold",
        json_number(c->threshold), "alpha", json_number(c->alpha), "compared",
        samples ? rows_json(c, "a_ns", "b_ns") : rows_json(c, "a", "b"), NULL);

    if (!samples) {
        json_object_set_new(out, "figure", json_text(figure_name(c->figure)));
        json_object_set_new(out, "unit", json_text(figure_unit(c->figure)));
    }
    if (c->turns.rounds > 0) {
        json_object_set_new(out, "alternated", json_boolean(c->turns.alternated));
        json_object_set_new(out, "percentile", json_number(c->turns.percentile));
    }
    return out;
}

enum epa_status compare_print(const struct cli *cli, const struct compared *c, bool documents,
                              struct epa_error *err)
{
    text_auto markdown = {0};

    if (!documents || !cli_has_stdout(cli))
        print_table(stdout, c);
    if (!documents)
        return EPA_OK;
    add_markdown(&markdown, c);
    return cli_write_documents(cli, document_json(c), &markdown, err);
}
