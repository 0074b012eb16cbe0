/* Reports of a search: a table, and the fastest experiment. */
#include "cli/tune_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "cli/tune.h"
#include "cli/turns.h"
#include "report/table.h"
#include "report/lines.h"
#include "result/machine_facts.h"

static double median_of(const double *x, uint32_t n)
{
    double sorted[TUNE_ROUNDS];

    memcpy(sorted, x, n * sizeof(*x));
    return stats_quantile(sorted, n, 500);
}

double tune_median(const struct tune_setting *s)
{
    return s->rounds > 0 ? median_of(s->ns, s->rounds) : NAN;
}

/* Returns the word for the end of a setting's turns. */
const char *tune_outcome(const struct tune *t, const struct tune_setting *s)
{
    if (s == t->best && s != t->setting[0])
        return "best";
    return s->why != NULL ? s->why : "kept";
}

double tune_ratio(const struct tune_setting *s)
{
    return s->rounds > 0 ? exp(median_of(s->log_ratio, s->rounds)) : NAN;
}

double tune_estimate(const struct tune *t, const struct tune_setting *s)
{
    return s->rounds > 0 ? exp(s->log - t->setting[0]->log) : NAN;
}

void tune_verdict(const struct tune *t, struct text *out)
{
    const struct comparison *x = &t->last;
    double mean_turn = t->turns > 0 ? (double)t->spent_ns / t->turns : 0;
    bool missed = false;

    for (uint32_t i = 1; i < t->n; i++)
        missed = missed || (t->setting[i]->rounds == 0 && t->setting[i]->why != NULL &&
                            !t->setting[i]->dropped);
    if (t->stopped != EXIT_OK)
        text_add(out, "the search was interrupted; best so far, not compared in turns: %s",
                 t->best->name);
    else if (t->best == t->setting[0])
        text_add(out, "no setting was faster: the file's settings stay%s",
                 missed ? "; some settings were not reached: a larger --budget tries them" : "");
    else if (t->rounds == 0 || isnan(x->low))
        text_add(out,
                 "%s was faster, but %u rounds in turns with the file's settings are not enough "
                 "for a verdict: the file's settings stay; use --budget %.0fs",
                 t->best->name, t->rounds,
                 ceil(2 * turns_look(1) * mean_turn / TUNE_LAST_MOST / 1e9));
    else
        text_add(out,
                 "%s%s: %.3f of the median of the file's settings, %.3f to %.3f (%g %%), %u "
                 "rounds of A B or B A%s",
                 t->is_better ? "best: " : "", t->best->name, x->ratio, x->low, x->high,
                 100 * (1 - t->cli->alpha), t->rounds,
                 t->is_better ? "" : "; not clearly faster, so the file's settings stay");
}

static void add_summary(const struct tune *t, struct text *out)
{
    text_add(out, "%u settings in %u turns of %llu samples, %.1f s of %.1f s", t->n, t->turns,
             (unsigned long long)t->samples, (double)t->spent_ns / 1e9, (double)t->budget_ns / 1e9);
    if (t->permille == TURNS_FASTEST)
        text_add(out, "; other programs use the cores, so the fastest 1 %% of a turn counts "
                      "instead of its median");
}

enum { REPORT_COLUMNS = 6 };

/* Fills the cells of a setting. */
static void fill_cells(const struct tune *t, const struct tune_setting *s,
                       struct table_cell cell[REPORT_COLUMNS])
{
    cell[0].text = s->name;
    cell[1].number = s->rounds;
    cell[2].number = round(tune_median(s));
    cell[3].number = tune_ratio(s);
    cell[4].number = tune_estimate(t, s);
    cell[5].text = tune_outcome(t, s);
}

/* Fills a line above settings of the same pass. */
static void fill_heading(uint32_t pass, struct table_cell cell[REPORT_COLUMNS])
{
    for (uint32_t i = 0; i < REPORT_COLUMNS; i++)
        cell[i].text = "";
    cell[0].text = pass == 1 ? "alone:" : "together:";
}

static void print_settings(FILE *file, const struct tune *t)
{
    static const struct table_column columns[] = {{"setting", "setting", .width = 0},
                                                  {"rounds", "rounds", NULL, 0, 0, 6},
                                                  {"median_ns", "time", "us", 1e3, 2, 10},
                                                  {"ratio", "ratio", NULL, 0, 3, 7},
                                                  {"estimate", "estimate", NULL, 0, 3, 8},
                                                  {"outcome", "", .width = 0},
                                                  {0}};
    uint32_t room = 2 * t->n, n = 0, pass = 0;
    struct table_cell(*cell)[REPORT_COLUMNS] = memory_alloc(room, sizeof(*cell));
    struct table_row *row = memory_alloc(room, sizeof(*row));

    for (uint32_t i = 0; i < room; i++)
        row[i].cell = cell[i];
    for (uint32_t k = 0; k < t->n; k++) {
        const struct tune_setting *x = t->setting[k];

        if (x->pass == 2 && x->rounds < TUNE_SHOWN && x != t->best)
            continue;
        if (x->pass != pass)
            fill_heading(x->pass, cell[n++]);
        pass = x->pass;
        fill_cells(t, x, cell[n++]);
    }
    table_text(file, columns, row, n);
    free(row);
    free(cell);
}

void tune_print(FILE *file, const struct tune *t)
{
    text_auto text = {0}, verdict = {0};

    add_summary(t, &text);
    text_comment(file, "epa2a tune: %s: %s", t->cli->arg[0], text.data);
    text_comment(file,
                 "ratio: median ratio to the file's settings in the same rounds; estimate: mean "
                 "ratio");
    print_settings(file, t);
    for (const struct tune_skipped *one = t->not_tried; one != NULL; one = one->next)
        text_comment(file, "not tried: %s: %s", one->setting, one->why);
    tune_verdict(t, &verdict);
    text_comment(file, "%s", verdict.data);
}

void tune_origin(const char *what, const struct machine_facts *machine, const char *from,
                 const char *how, struct text *out)
{
    text_auto line = {0};
    char date[32] = "";
    time_t now = time(NULL);
    struct tm utc;

    if (gmtime_r(&now, &utc) != NULL)
        strftime(date, sizeof(date), "%Y-%m-%d", &utc);
    text_add(&line, "%s by epa2a %s tune, %s, on %s: %s, %u cores, %s", what, EPA2A_RELEASE, date,
             machine->host, machine->cpu, machine->cores, machine->kernel);
    text_add(out, "# %s\n", text_clean(line.data));
    text_free(&line);
    text_add(&line, "From %s; %s", from, how);
    text_add(out, "# %s\n", text_clean(line.data));
}

void tune_yaml(const struct tune *t, const struct text *yaml, struct text *out)
{
    text_auto head = {0}, verdict = {0};

    add_summary(t, &head);
    tune_origin(t->is_better ? "Tuned" : "Unchanged: searched", t->machine, t->cli->arg[0],
                head.data, out);
    tune_verdict(t, &verdict);
    text_add(out, "# %s\n", text_clean(verdict.data));
    if (t->rounds > 0)
        text_add(out, "# Times in turns: %.2f us with the file's settings, %.2f us with %s\n",
                 t->last.a / 1e3, t->last.b / 1e3, t->best->name);
    text_add(out, "%s", yaml->data);
}
