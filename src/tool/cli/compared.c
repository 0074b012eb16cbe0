/* The document of a comparison, with a row for each stage, and its table. */
#include "cli/compared.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/documents.h"
#include "report/table.h"
#include "report/lines.h"
#include "report/summary.h"

static const struct table_column columns[] = {
    {"run", "run", .width = 0},        {"stage", "stage", .width = 0},
    {"a_ns", "A", "us", 1e3, 1, 9},    {"b_ns", "B", "us", 1e3, 1, 9},
    {"ratio", "ratio", NULL, 0, 3, 7}, {"low", "from", NULL, 0, 3, 7},
    {"high", "to", NULL, 0, 3, 7},     {"p", "p", NULL, 0, -1, 7},
    {"verdict", "", .width = 0},       {0},
};

json_t *compared_create(const char *a, const char *b, double threshold, double alpha)
{
    return json_object_of("schema", json_integer(1), "program", json_text("epa2a"), "a",
                          json_text(a), "b", json_text(b), "rounds", json_null(), "threshold",
                          json_number(threshold), "alpha", json_number(alpha), "compared",
                          json_array(), NULL);
}

char *compared_name(const struct results_run *run, char *out, size_t room)
{
    size_t bytes = results_label_bytes(run->label);

    snprintf(out, room, "%.*s", bytes > 0 ? (int)bytes : (int)strlen(run->name),
             bytes > 0 ? run->label : run->name);
    return text_clean(out);
}

void compared_add(json_t *compared, const struct results_run *run, const char *stage,
                  const struct comparison *x, enum compare_verdict verdict, bool judged)
{
    static const char *const word[] = {[COMPARE_SAME] = "same",
                                       [COMPARE_SLOWER] = "SLOWER",
                                       [COMPARE_FASTER] = "faster",
                                       [COMPARE_UNCLEAR] = "unclear"};
    char name[200];
    json_t *row = json_object_of(
        "run", json_text(compared_name(run, name, sizeof(name))), "stage", json_text(stage), "a_ns",
        json_whole(x->a), "b_ns", json_whole(x->b), "ratio", json_number(x->ratio), "low",
        json_number(x->low), "high", json_number(x->high), "p", json_number(x->p), "runs_a",
        json_count(x->runs_a), "runs_b", json_count(x->runs_b), "verdict",
        judged ? json_text(word[verdict]) : json_null(), NULL);

    json_array_append_new(json_object_get(compared, "compared"), row);
}

static uint32_t count_verdicts(const json_t *compared, const char *verdict)
{
    uint32_t n = 0;

    for (struct json_walk row = {json_object_get(compared, "compared")}; json_next(&row);)
        n += strcmp(json_text_at(row.value, "verdict"), verdict) == 0;
    return n;
}

bool compared_is_slower(const json_t *compared)
{
    return count_verdicts(compared, "SLOWER") > 0;
}

/* Explains the figures below the table. */
static void add_legend(struct text *out, const json_t *c)
{
    double rounds = json_number_at(c, "rounds"), alpha = json_number_at(c, "alpha"),
           threshold = 100 * json_number_at(c, "threshold");

    if (rounds > 0)
        text_add(out,
                 "ratio is B / A over %.0f rounds of A B or B A; bounds by signed ranks, with "
                 "%g %% confidence over all looks; slower or faster: by more than %g %%",
                 rounds, 100 * (1 - alpha), threshold);
    else
        text_add(out,
                 "ratio is B / A of the medians; 95 %% bounds by bootstrap; p by Mann-Whitney over "
                 "%d or more runs per side; slower or faster: by more than %g %%, with p < %g",
                 COMPARE_RUNS, threshold, alpha);
}

/* Prints the table with a legend, `taken` (a sentence about the turns, or NULL), and a remedy for
 * unclear rows. */
static void compared_text(FILE *file, const json_t *c, const char *taken)
{
    json_auto_t *rows = json_deep_copy(json_object_get(c, "compared"));
    uint32_t unclear = count_verdicts(c, "unclear"), totals = 0;
    text_auto legend = {0};
    double logs = 0;

    add_legend(&legend, c);
    text_comment(file, "%s", legend.data);
    if (taken != NULL)
        text_comment(file, "%s", taken);
    for (struct json_walk row = {rows}; json_next(&row);) {
        const char *stage = json_text_at(row.value, "stage"),
                   *verdict = json_text_at(row.value, "verdict");

        if (strcmp(verdict, "SLOWER") == 0 || strcmp(verdict, "faster") == 0)
            json_object_set_new(row.value, "colour", json_string(*verdict == 'S' ? "bad" : "good"));
        if (strcmp(stage, "total") == 0 || strcmp(stage, "wall") == 0 ||
            strcmp(stage, "latency") == 0) {
            double ratio = json_number_at(row.value, "ratio");

            if (!(ratio > 0)) /* unknown if the clock is too coarse */
                continue;
            logs += log(ratio);
            totals++;
        }
    }
    table_text(file, columns, rows);
    if (totals > 1)
        fprintf(file, "# geometric mean of the %u ratios of totals: %.3f\n", totals,
                exp(logs / totals));
    if (unclear > 0 && json_number_at(c, "rounds") > 0)
        text_comment(
            file, "unclear: the rounds differ too much from each other; use a larger --budget, a "
                  "quieter machine, or real-time priority: chrt -r 1 epa2a compare ...");
    else if (unclear > 0)
        text_comment(
            file,
            "%u unclear: two runs of one program differ by as much. To decide, let the sides take "
            "turns (epa2a compare --run A.yaml B.yaml), or give each side %d runs or more (bench "
            "--set repeat=%d)",
            unclear, COMPARE_RUNS, COMPARE_RUNS + 2);
}

static void compared_markdown(struct text *out, const json_t *c)
{
    table_add(out, TABLE_MARKDOWN, columns, json_object_get(c, "compared"));
    text_add(out, "\nA ");
    text_add_markdown(out, json_text_at(c, "a"));
    text_add(out, ", B ");
    text_add_markdown(out, json_text_at(c, "b"));
    text_add(out, "; ");
    add_legend(out, c);
    text_add(out, ".\n");
}

enum epa_status compare_print(const struct cli *cli, json_t *compared, const char *taken,
                              bool documents, struct epa_error *err)
{
    text_auto markdown = {0};
    enum epa_status status = EPA_OK;

    if (!documents || !cli_has_stdout(cli))
        compared_text(stdout, compared, taken);
    if (documents) {
        compared_markdown(&markdown, compared);
        status = cli_write_documents(cli, compared, &markdown, err);
    } else {
        json_decref(compared);
    }
    return status;
}
