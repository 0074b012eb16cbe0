/* The table of a comparison. */
#include "cli/compared.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/compared_json.h"
#include "cli/documents.h"
#include "report/figure_column.h"
#include "report/table.h"
#include "report/lines.h"
#include "report/summary.h"

/* Words for verdicts: on times of samples, and on other figures. */
static const struct {
    const char *time, *figure;
    enum table_colour colour; /* of the row */
} words[] = {
    [COMPARE_SAME] = {"same", "same", TABLE_PLAIN},
    [COMPARE_SLOWER] = {"SLOWER", "WORSE", TABLE_BAD},
    [COMPARE_FASTER] = {"faster", "better", TABLE_GOOD},
    [COMPARE_UNCLEAR] = {"unclear", "unclear", TABLE_PLAIN},
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
bool compared_is_by_samples(const struct compared *c)
{
    return c->figure == figure_default();
}

const char *compared_word(const struct compared *c, const struct compared_row *row)
{
    return compared_is_by_samples(c) ? words[row->verdict].time : words[row->verdict].figure;
}

double compared_value(const struct compared *c, double value)
{
    return c->figure->kind == FIGURE_NS ? round(value) : value;
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

enum { COLUMNS = sizeof(struct compared_columns) / sizeof(struct table_column) };

/* The rows of the table, and their cells. */
struct compared_table {
    struct table_row *row; /* [n] */
    struct table_cell (*cell)[COLUMNS];
};

static struct compared_table table_of(const struct compared *c)
{
    struct compared_table t = {memory_alloc(c->n, sizeof(*t.row)),
                               memory_alloc(c->n, sizeof(*t.cell))};

    for (uint32_t i = 0; i < c->n; i++) {
        const struct compared_row *row = &c->row[i];
        const struct comparison *of = &row->of;
        const double number[] = {compared_value(c, of->a),
                                 compared_value(c, of->b),
                                 of->ratio,
                                 of->low,
                                 of->high,
                                 of->p};
        uint32_t n = 0;

        t.cell[i][n++].text = row->run;
        t.cell[i][n++].text = row->stage;
        for (size_t k = 0; k < sizeof(number) / sizeof(number[0]); k++)
            t.cell[i][n++].number = number[k];
        t.cell[i][n].text = row->judged ? compared_word(c, row) : "";
        t.row[i] =
            (struct table_row){t.cell[i], row->judged ? words[row->verdict].colour : TABLE_PLAIN};
    }
    return t;
}

static void table_free(struct compared_table *t)
{
    free(t->row);
    free(t->cell);
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
    else if (compared_is_by_samples(c))
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
    else if (unclear > 0 && compared_is_by_samples(c))
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
    struct compared_table table = table_of(c);
    text_auto legend = {0};

    add_legend(&legend, c);
    text_comment(file, "%s", legend.data);
    if (c->turns.taken != NULL)
        text_comment(file, "%s", c->turns.taken);
    table_text(file, columns_of(c).column, table.row, c->n);
    table_free(&table);
    print_mean_ratio(file, c);
    print_remedy(file, c);
}

static void add_markdown(struct text *out, const struct compared *c)
{
    struct compared_table table = table_of(c);

    table_add(out, TABLE_MARKDOWN, columns_of(c).column, table.row, c->n);
    table_free(&table);
    text_add(out, "\nA ");
    text_add_markdown(out, c->a);
    text_add(out, ", B ");
    text_add_markdown(out, c->b);
    text_add(out, "; ");
    add_legend(out, c);
    text_add(out, ".\n");
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
    return cli_write_documents(cli, compared_json(c), &markdown, err);
}
