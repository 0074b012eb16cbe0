/* Compares two results. Runs are paired by id, then by label; a single remaining run of each side is
 * paired as well. Several runs of one id or label are repetitions of one experiment. */
#include "cli/compare_results.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/compared.h"
#include "cli/documents.h"
#include "report/lines.h"

/* ---- pairs ---- */

#define ALONE UINT32_MAX /* the run has no pair */

/* Pairs of runs of A and B that are compared with each other. */
struct pairs {
    const struct results *side[2];
    uint32_t *of[2];         /* [side[i]->n] pair of each run, or ALONE */
    uint32_t *first;         /* [n] first run of A in the pair */
    bool *met;               /* [n] the pair has a run of B */
    struct compare_run *run; /* [side[0]->n + side[1]->n] scratch */
    double *value;           /* [side[0]->n + side[1]->n] scratch: figures of runs */
    uint32_t n;
};

static const struct results_run *first_of(const struct pairs *p, uint32_t pair)
{
    return &p->side[0]->run[p->first[pair]];
}

/* Criteria for two runs of one experiment. Runs of one id may have different launchers. */
enum run_match { MATCH_BY_LABEL, MATCH_BY_ID, MATCH_BY_ID_AND_LAUNCHER };

static bool is_same_experiment(const struct results_run *x, const struct results_run *y,
                               enum run_match how)
{
    size_t bytes = results_label_bytes(x->label);
    char ignored[80];

    if (how != MATCH_BY_LABEL)
        return x->id[0] != '\0' && strcmp(x->id, y->id) == 0 &&
               (how == MATCH_BY_ID ||
                !results_differ(x, y, RESULTS_MEANS, ignored, sizeof(ignored)));
    return bytes == results_label_bytes(y->label) && strncmp(x->label, y->label, bytes) == 0;
}

/* Assigns runs of B without a pair to pairs without a run of B. */
static void pair_matching_runs(struct pairs *p, enum run_match how)
{
    const struct results *b = p->side[1];

    for (uint32_t k = 0; k < b->n; k++)
        for (uint32_t i = 0; i < p->n && b->run[k].ok && p->of[1][k] == ALONE; i++)
            if (!p->met[i] && is_same_experiment(first_of(p, i), &b->run[k], how))
                p->of[1][k] = i;
    for (uint32_t k = 0; k < b->n; k++)
        if (p->of[1][k] != ALONE)
            p->met[p->of[1][k]] = true;
}

/* If one pair has no run of B and one run of B has no pair, joins the two. */
static void pair_remaining_runs(struct pairs *p)
{
    uint32_t pair = ALONE, pairs = 0, run = ALONE, runs = 0;

    for (uint32_t i = 0; i < p->n; i++) {
        pair = !p->met[i] ? i : pair;
        pairs += !p->met[i];
    }
    for (uint32_t k = 0; k < p->side[1]->n; k++) {
        bool left = p->side[1]->run[k].ok && p->of[1][k] == ALONE;

        run = left ? k : run;
        runs += left;
    }
    if (pairs != 1 || runs != 1)
        return;
    p->of[1][run] = pair;
    p->met[pair] = true;
}

static struct pairs pairs_make(struct arena *arena, const struct results *a,
                               const struct results *b)
{
    struct pairs p = {.side = {a, b},
                      .of = {arena_alloc(arena, a->n * sizeof(uint32_t)),
                             arena_alloc(arena, b->n * sizeof(uint32_t))},
                      .first = arena_alloc(arena, a->n * sizeof(*p.first)),
                      .met = arena_alloc(arena, a->n * sizeof(*p.met)),
                      .run = arena_alloc(arena, (a->n + b->n) * sizeof(*p.run)),
                      .value = arena_alloc(arena, (a->n + b->n) * sizeof(*p.value))};

    memset(p.of[1], 0xff, b->n * sizeof(uint32_t));
    for (uint32_t i = 0; i < a->n; i++) {
        const struct results_run *run = &a->run[i];

        p.of[0][i] = ALONE;
        for (uint32_t k = 0; k < p.n && run->ok && p.of[0][i] == ALONE; k++)
            if (is_same_experiment(first_of(&p, k), run,
                                   run->id[0] != '\0' ? MATCH_BY_ID_AND_LAUNCHER : MATCH_BY_LABEL))
                p.of[0][i] = k;
        if (run->ok && p.of[0][i] == ALONE) {
            p.of[0][i] = p.n;
            p.first[p.n++] = i;
        }
    }
    pair_matching_runs(&p, MATCH_BY_ID_AND_LAUNCHER);
    pair_matching_runs(&p, MATCH_BY_ID);
    pair_matching_runs(&p, MATCH_BY_LABEL);
    pair_remaining_runs(&p);
    return p;
}

/* Warns about runs without a partner on the other side. */
static void warn_about_unpaired(const struct pairs *p)
{
    for (uint32_t side = 0; side < 2; side++) {
        const struct results *of = p->side[side];

        results_warn_failed(of);
        for (uint32_t i = 0; i < of->n; i++) {
            uint32_t pair = p->of[side][i];

            if (of->run[i].ok && (pair == ALONE || (p->first[pair] == i && !p->met[pair])))
                text_warn("'%s' is only in %s", of->run[i].label, of->path);
        }
    }
}

/* ---- checks ---- */

/* Prints the contexts of two runs if they differ. Different contexts are no error. */
static void print_contexts(FILE *notes, const char *name, const struct results_run *of_a,
                           const struct results_run *of_b)
{
    if (strcmp(of_a->context, of_b->context) != 0)
        fprintf(notes, "# %s: context: %s in A, %s in B\n", name, of_a->context, of_b->context);
}

/* Fails if experiments or machines differ, or a fault was injected. With `different` prints the
 * difference instead. */
static enum epa_status check_comparable(bool different, FILE *notes, const struct results_run *a,
                                        const struct results_run *b, bool fault,
                                        struct epa_error *err)
{
    static const struct {
        enum results_part part;
        const char *what;
    } must[] = {{RESULTS_SHAPE, "experiments"}, {RESULTS_MACHINE, "machines"}};
    char what[300], name[200];

    compared_name(a, name, sizeof(name));
    if (fault && !different)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: the run had an injected fault, so its times are no measurement; "
                        "--allow-different compares them anyway",
                        name);
    if (fault)
        fprintf(notes, "# %s: the run had an injected fault\n", name);
    for (uint32_t i = 0; i < sizeof(must) / sizeof(must[0]); i++) {
        if (!results_differ(a, b, must[i].part, what, sizeof(what)))
            continue;
        if (!different)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: the %s differ: %s; --allow-different compares them anyway", name,
                            must[i].what, what);
        fprintf(notes, "# %s: the %s differ: %s\n", name, must[i].what, what);
    }
    if (results_differ(a, b, RESULTS_MEANS, what, sizeof(what)))
        fprintf(notes, "# %s: %s\n", name, what);
    print_contexts(notes, name, a, b);
    return EPA_OK;
}

enum epa_status compare_check(bool different, FILE *notes, const struct results *a,
                              const struct results *b, struct epa_error *err)
{
    if (a->n != 1 || b->n != 1 || !a->run[0].ok || !b->run[0].ok)
        return epa_fail(err, EPA_ERR_CONFIG, "%s and %s have no successful run", a->path, b->path);
    return check_comparable(different, notes, &a->run[0], &b->run[0],
                            a->run[0].fault || b->run[0].fault, err);
}

static enum epa_status check_pair_comparable(bool different, FILE *notes, const struct pairs *p,
                                             uint32_t pair, struct epa_error *err)
{
    const struct results_run *b = NULL;
    bool fault = false;

    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t i = p->side[side]->n; i-- > 0;) {
            if (p->of[side][i] != pair)
                continue;
            b = &p->side[side]->run[i];
            fault = fault || b->fault;
        }
    return check_comparable(different, notes, first_of(p, pair), b, fault, err);
}

/* ---- comparing ---- */

/* Collects the samples of a stage, or the figure of each run, from all runs of a pair on one side,
 * as entries `at` and up of the scratch. Returns the side. */
static struct compare_side collect_side(const struct pairs *p, const struct figure *figure,
                                        uint32_t side, uint32_t at, uint32_t pair,
                                        const char *stage)
{
    struct compare_side out = {p->run + at, 0};

    for (uint32_t i = 0; i < p->side[side]->n; i++) {
        const struct run_stage *of =
            p->of[side][i] == pair ? results_stage(&p->side[side]->run[i], stage) : NULL;
        double value = of != NULL ? figure_value(figure, &of->figures) : NAN;

        if (of != NULL && figure == figure_default()) {
            p->run[at + out.n++] = (struct compare_run){of->sample, of->n};
        } else if (!isnan(value)) {
            p->value[at + out.n] = value;
            p->run[at + out.n] = (struct compare_run){&p->value[at + out.n], 1};
            out.n++;
        }
    }
    return out;
}

/* Compares a stage of a pair. A single run does not show how much a figure varies: the bounds of the
 * ratio are then unknown. */
static void compare_stage(const struct pairs *p, uint32_t pair, const char *stage,
                          struct compared *out)
{
    const struct figure *figure = out->figure;
    struct compare_side a = collect_side(p, figure, 0, 0, pair, stage);
    struct compare_side b = collect_side(p, figure, 1, a.n, pair, stage);
    enum compare_verdict verdict;
    struct comparison x;

    if (a.n == 0 || b.n == 0)
        return;
    x = compare_sides(&a, &b);
    if (figure != figure_default() && (a.n == 1 || b.n == 1))
        x.low = x.high = NAN;
    verdict = compare_judge(&x, out->threshold, out->alpha);
    if (figure->better == FIGURE_LARGER && verdict == COMPARE_SLOWER)
        verdict = COMPARE_FASTER;
    else if (figure->better == FIGURE_LARGER && verdict == COMPARE_FASTER)
        verdict = COMPARE_SLOWER;
    compared_add(out, first_of(p, pair), stage, &x, verdict, true);
}

static enum epa_status compare_pairs(bool different, FILE *notes, const struct pairs *p,
                                     struct compared *out, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < p->n && status == EPA_OK; i++)
        if (p->met[i])
            status = check_pair_comparable(different, notes, p, i, err);
    for (uint32_t i = 0; i < p->n && status == EPA_OK; i++) {
        const struct results_run *run = first_of(p, i);

        for (uint32_t s = 0; s < run->n_stages && p->met[i]; s++)
            if (run->stage[s].n > 0)
                compare_stage(p, i, run->stage[s].name, out);
    }
    if (status == EPA_OK && out->n == 0)
        status = epa_fail(err, EPA_ERR_CONFIG,
                          "no run of %s has a partner with %s%s in %s; runs are paired by id "
                          "and by label",
                          p->side[0]->path, out->figure == figure_default() ? "samples" : "figure ",
                          out->figure == figure_default() ? "" : figure_name(out->figure),
                          p->side[1]->path);
    return status;
}

int compare_results(const struct cli *cli, const struct results *a, const struct results *b,
                    bool different, bool documents)
{
    FILE *notes = documents && cli_has_stdout(cli) ? stderr : stdout;
    struct arena *arena = arena_create();
    struct compared compared = {.a = a->path,
                                .b = b->path,
                                .threshold = cli->threshold,
                                .alpha = cli->alpha,
                                .arena = arena};
    struct epa_error err = {EPA_OK, ""};
    struct pairs pairs = pairs_make(arena, a, b);
    enum epa_status status = figure_select(cli->figure, &compared.figure, &err);
    bool slower;

    if (status == EPA_OK) {
        warn_about_unpaired(&pairs);
        fputs("# epa2a compare: A ", notes);
        text_print_clean(notes, a->path);
        fputs(", B ", notes);
        text_print_clean(notes, b->path);
        fputc('\n', notes);
        status = compare_pairs(different, notes, &pairs, &compared, &err);
    }
    if (status == EPA_OK)
        status = compare_print(cli, &compared, documents, &err);
    slower = compared_is_slower(&compared);
    arena_destroy(arena);
    return status != EPA_OK ? cli_fail(&err) : slower ? EXIT_SLOWER : EXIT_OK;
}
