/* Rows of a comparison, in three forms. */
#include "report/compared.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/json.h"

static const char *word_of(const struct compared_row *row)
{
    static const char *const words[] = {[COMPARE_SAME] = "same",
                                        [COMPARE_SLOWER] = "SLOWER",
                                        [COMPARE_FASTER] = "faster",
                                        [COMPARE_UNCLEAR] = "unclear"};

    return row->judged ? words[row->verdict] : "";
}

char *compared_name(const struct results_run *run, char *out, size_t room)
{
    size_t bytes = results_label_bytes(run->label);

    snprintf(out, room, "%.*s", bytes > 0 ? (int)bytes : (int)strlen(run->name),
             bytes > 0 ? run->label : run->name);
    return text_clean(out);
}

struct compared_row *compared_add(struct compared *c)
{
    uint32_t room = c->n < c->room ? c->room : 2 * c->room + 8;
    struct compared_row *row = room > c->room ? realloc(c->row, room * sizeof(*row)) : c->row;

    if (row == NULL)
        return NULL;
    c->row = row;
    c->room = room;
    row = &c->row[c->n++];
    *row = (struct compared_row){.judged = true};
    return row;
}

void compared_free(struct compared *c)
{
    free(c->row);
    c->row = NULL;
    c->n = c->room = 0;
}

uint32_t compared_count(const struct compared *c, enum compare_verdict verdict)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n; i++)
        n += c->row[i].judged && c->row[i].verdict == verdict;
    return n;
}

/* Of totals, where there are several; 0: there are not. */
static double geometric_mean(const struct compared *c, uint32_t *n)
{
    double logs = 0;

    *n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const char *stage = c->row[i].stage;

        if (strcmp(stage, "total") != 0 && strcmp(stage, "wall") != 0 &&
            strcmp(stage, "latency") != 0)
            continue;
        logs += log(c->row[i].x.ratio);
        ++*n;
    }
    return *n > 1 ? exp(logs / *n) : 0;
}

/* What the figures are. */
static void add_legend(struct text *out, const struct compared *c)
{
    if (c->rounds > 0)
        text_add(
            out,
            "ratio is B / A over %u rounds of A B B A or B A A B, with bounds by signed ranks that "
            "hold all looks together with %g %%; slower or faster: by more than %g %%",
            c->rounds, 100 * (1 - c->alpha), 100 * c->threshold);
    else
        text_add(out,
                 "ratio is B / A of the medians, 95 %% by bootstrap, p by Mann and Whitney over "
                 "runs, %d or more a side; slower or faster: by more than %g %%, with p < %g",
                 COMPARE_RUNS, 100 * c->threshold, c->alpha);
}

static void add_advice(struct text *out, const struct compared *c)
{
    uint32_t unclear = compared_count(c, COMPARE_UNCLEAR);

    if (unclear > 0 && c->rounds > 0)
        text_add(out,
                 "unclear: the rounds differ too much from each other; a larger --budget, or a "
                 "quieter machine, decides");
    else if (unclear > 0)
        text_add(
            out,
            "%u unclear: two runs of one program differ as much. To decide, let the sides take "
            "turns (epa2a compare --run A.yaml B.yaml), or give each %d runs or more (bench "
            "--set repeat=%d)",
            unclear, COMPARE_RUNS, COMPARE_RUNS + 2);
}

static void print_row(FILE *file, const struct compared_row *row)
{
    bool counts = row->judged && (row->verdict == COMPARE_SLOWER || row->verdict == COMPARE_FASTER);
    enum colour colour = row->verdict == COMPARE_SLOWER ? COLOUR_BAD : COLOUR_GOOD;
    char p[32] = "-", bounds[40] = "-";

    if (!isnan(row->x.p))
        snprintf(p, sizeof(p), "%.2g", row->x.p);
    if (isfinite(row->x.low))
        snprintf(bounds, sizeof(bounds), "%.3f to %.3f", row->x.low, row->x.high);
    fprintf(file, "  %-28s %-16s %10.1f %10.1f %7.3f  %-14s %8s  %s%s%s\n", row->run, row->stage,
            row->x.a / 1e3, row->x.b / 1e3, row->x.ratio, bounds, p,
            counts ? colour_on(file, colour) : "", word_of(row), counts ? colour_off(file) : "");
}

void compared_text(FILE *file, const struct compared *c)
{
    struct text line = {0};
    uint32_t totals;
    double mean = geometric_mean(c, &totals);

    add_legend(&line, c);
    text_comment(file, "%s", line.data);
    text_free(&line);
    if (c->taken != NULL)
        fprintf(file, "# %s\n", c->taken);
    fprintf(file, "# %-28s %-16s %10s %10s %7s  %-14s %8s\n", "run", "stage", "A [us]", "B [us]",
            "ratio", c->rounds > 0 ? "bounds" : "95 %", "p");
    for (uint32_t i = 0; i < c->n; i++)
        print_row(file, &c->row[i]);
    if (mean > 0)
        fprintf(file, "# geometric mean of the %u ratios of totals: %.3f\n", totals, mean);
    add_advice(&line, c);
    if (line.data != NULL)
        text_comment(file, "%s", line.data);
    text_free(&line);
}

void compared_markdown(struct text *out, const struct compared *c)
{
    text_add(out, "| run | stage | A [us] | B [us] | ratio | from | to | |\n"
                  "|---|---|---:|---:|---:|---:|---:|---|\n");
    for (uint32_t i = 0; i < c->n; i++) {
        const struct compared_row *row = &c->row[i];

        text_add(out, "| ");
        text_add_markdown(out, row->run);
        text_add(out, " | %s | %.1f | %.1f | %.3f | %.3f | %.3f | %s |\n", row->stage,
                 row->x.a / 1e3, row->x.b / 1e3, row->x.ratio, row->x.low, row->x.high,
                 word_of(row));
    }
    text_add(out, "\nA ");
    text_add_markdown(out, c->a);
    text_add(out, ", B ");
    text_add_markdown(out, c->b);
    text_add(out, "; ");
    add_legend(out, c);
    text_add(out, ".\n");
}

enum epa_status compared_json(struct text *out, const struct compared *c, struct epa_error *err)
{
    json_t *rows = json_array();

    for (uint32_t i = 0; i < c->n; i++) {
        const struct compared_row *row = &c->row[i];

        json_add(&rows,
                 json_object_of("run", json_text(row->run), "stage", json_text(row->stage), "a_ns",
                                json_whole(row->x.a), "b_ns", json_whole(row->x.b), "ratio",
                                json_number(row->x.ratio), "low", json_number(row->x.low), "high",
                                json_number(row->x.high), "p", json_number(row->x.p), "runs_a",
                                json_count(row->x.runs_a), "runs_b", json_count(row->x.runs_b),
                                "verdict", json_text_or_null(word_of(row)), NULL));
    }
    if (!json_write(out,
                    json_object_of("schema", json_integer(1), "program", json_text("epa2a"), "a",
                                   json_text(c->a), "b", json_text(c->b), "rounds",
                                   json_count_or_null(c->rounds), "threshold",
                                   json_number(c->threshold), "alpha", json_number(c->alpha),
                                   "compared", rows, NULL),
                    JSON_INDENT(1)))
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u rows as JSON", c->n);
    text_add(out, "\n");
    return EPA_OK;
}
