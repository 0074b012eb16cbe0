/* epa2a compare A B, files or folders of results: which runs of B are slower or faster than
 * those of A. Runs are paired by id, those left over by label, and one left over on each side
 * with each other. Several runs of one id or label are one experiment, repeated. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"
#include "base/stats.h"
#include "report/results.h"

enum verdict { SAME, SLOWER, FASTER, UNCLEAR };

#define ALONE UINT32_MAX /* of no pair */

/* Runs that are compared with each other have the number of one pair. */
struct comparing {
    const struct cli *cli;
    struct results a, b;
    uint32_t *of_a, *of_b; /* [a.n], [b.n] the pair of each run, or ALONE */
    uint32_t *first;       /* [pairs] its first run of A */
    bool *met;             /* [pairs] it has a run of B */
    uint32_t pairs;
    uint32_t slower, rows;
    double log_ratios; /* of totals */
    uint32_t totals;
};

/* ---- pairing ---- */

/* How many bytes of a label say what was run: without the number of a repetition. */
static int label_bytes(const char *label)
{
    const char *hash = strrchr(label, '#');
    bool number =
        hash != NULL && hash[1] != '\0' && strspn(hash + 1, "0123456789") == strlen(hash + 1);
    size_t bytes = number ? (size_t)(hash - label) : strlen(label);

    while (bytes > 0 && label[bytes - 1] == ' ')
        bytes--;
    return (int)bytes;
}

static bool alike(const struct results_run *x, const struct results_run *y, bool by_id)
{
    int bytes = label_bytes(x->label);

    if (by_id)
        return x->id[0] != '\0' && strcmp(x->id, y->id) == 0;
    return bytes == label_bytes(y->label) && strncmp(x->label, y->label, (size_t)bytes) == 0;
}

/* What a run is called here. */
static void call(const struct results_run *run, char *out, size_t room)
{
    int bytes = label_bytes(run->label);

    if (bytes > 0)
        snprintf(out, room, "%.*s", bytes, run->label);
    else
        snprintf(out, room, "%s", run->name);
}

static const struct results_run *first_of(const struct comparing *c, uint32_t pair)
{
    return &c->a.run[c->first[pair]];
}

/* Runs of B that nobody has, to pairs that have none yet. */
static void take(struct comparing *c, bool by_id)
{
    for (uint32_t k = 0; k < c->b.n; k++)
        for (uint32_t i = 0; i < c->pairs && c->b.run[k].ok && c->of_b[k] == ALONE; i++)
            if ((by_id || !c->met[i]) && alike(first_of(c, i), &c->b.run[k], by_id))
                c->of_b[k] = i;
    for (uint32_t k = 0; k < c->b.n; k++)
        if (c->of_b[k] != ALONE)
            c->met[c->of_b[k]] = true;
}

/* The only pair that found nobody, with the only run that nobody took. */
static void pair_the_last(struct comparing *c)
{
    uint32_t pair = ALONE, pairs = 0, run = ALONE, runs = 0;

    for (uint32_t i = 0; i < c->pairs; i++) {
        pair = !c->met[i] ? i : pair;
        pairs += !c->met[i];
    }
    for (uint32_t k = 0; k < c->b.n; k++) {
        bool left = c->b.run[k].ok && c->of_b[k] == ALONE;

        run = left ? k : run;
        runs += left;
    }
    if (pairs != 1 || runs != 1)
        return;
    c->of_b[run] = pair;
    c->met[pair] = true;
}

static enum epa_status make_pairs(struct comparing *c, struct epa_error *err)
{
    c->of_a = malloc((c->a.n + 1) * sizeof(*c->of_a));
    c->of_b = malloc((c->b.n + 1) * sizeof(*c->of_b));
    c->first = calloc(c->a.n + 1, sizeof(*c->first));
    c->met = calloc(c->a.n + 1, sizeof(*c->met));
    if (c->of_a == NULL || c->of_b == NULL || c->first == NULL || c->met == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u runs", c->a.n);
    memset(c->of_b, 0xff, (c->b.n + 1) * sizeof(*c->of_b));
    for (uint32_t i = 0; i < c->a.n; i++) {
        const struct results_run *run = &c->a.run[i];

        c->of_a[i] = ALONE;
        for (uint32_t k = 0; k < c->pairs && run->ok && c->of_a[i] == ALONE; k++)
            if (alike(first_of(c, k), run, run->id[0] != '\0'))
                c->of_a[i] = k;
        if (run->ok && c->of_a[i] == ALONE) {
            c->of_a[i] = c->pairs;
            c->first[c->pairs++] = i;
        }
    }
    take(c, true);
    take(c, false);
    pair_the_last(c);
    return EPA_OK;
}

/* ---- what may be compared ---- */

static bool has_fault(const struct results *of, const uint32_t *pair_of, uint32_t pair)
{
    for (uint32_t i = 0; i < of->n; i++)
        if (pair_of[i] == pair && of->run[i].fault)
            return true;
    return false;
}

/* What the user noted is no reason not to compare. */
static void tell_contexts(const char *name, const struct results_run *of_a,
                          const struct results_run *of_b)
{
    struct text a = {0}, b = {0};

    results_context(of_a, &a);
    results_context(of_b, &b);
    if (strcmp(a.data, b.data) != 0)
        printf("# %s: context: %s in A, %s in B\n", name, a.data, b.data);
    text_free(&a);
    text_free(&b);
}

/* Who is compared without a partner is told; so is what differs and may not. */
static enum epa_status check_pair(const struct comparing *c, uint32_t pair, struct epa_error *err)
{
    static const struct {
        enum results_part part;
        const char *what;
    } must[] = {{RESULTS_SHAPE, "experiments"}, {RESULTS_MACHINE, "machines"}};
    const struct results_run *a = first_of(c, pair), *b = c->b.run;
    char what[300], name[200];

    while (c->of_b[b - c->b.run] != pair)
        b++;
    call(a, name, sizeof(name));
    if (has_fault(&c->a, c->of_a, pair) || has_fault(&c->b, c->of_b, pair)) {
        if (!c->cli->force)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: a fault was planted in it, so its times are no measurement; "
                            "--force compares all the same",
                            name);
        printf("# %s: a fault was planted in it\n", name);
    }
    for (uint32_t i = 0; i < sizeof(must) / sizeof(must[0]); i++) {
        if (!results_differ(a, b, must[i].part, what, sizeof(what)))
            continue;
        if (!c->cli->force)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: the %s differ: %s; --force compares all the same", name,
                            must[i].what, what);
        printf("# %s: the %s differ: %s\n", name, must[i].what, what);
    }
    if (results_differ(a, b, RESULTS_MEANS, what, sizeof(what)))
        printf("# %s: %s\n", name, what);
    tell_contexts(name, a, b);
    return EPA_OK;
}

static void tell_lonely(const struct results_run *run, const char *path)
{
    fprintf(stderr, "epa2a: %swarning:%s '%s' is only in %s\n", colour_on(stderr, COLOUR_WARNING),
            colour_off(stderr), run->label, path);
}

static void tell_left_over(const struct comparing *c)
{
    results_tell_failed(&c->a);
    for (uint32_t i = 0; i < c->pairs; i++)
        if (!c->met[i])
            tell_lonely(first_of(c, i), c->a.path);
    results_tell_failed(&c->b);
    for (uint32_t k = 0; k < c->b.n; k++)
        if (c->b.run[k].ok && c->of_b[k] == ALONE)
            tell_lonely(&c->b.run[k], c->b.path);
}

/* ---- comparing ---- */

static uint32_t collect(const struct results *of, const uint32_t *pair_of, uint32_t pair,
                        const char *name, struct compare_run *out)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < of->n; i++) {
        const struct results_stage *stage =
            pair_of[i] == pair ? results_stage(&of->run[i], name) : NULL;

        if (stage != NULL)
            out[found++] = (struct compare_run){stage->sample, stage->n};
    }
    return found;
}

static void print_row(const struct results_run *run, const char *stage, const struct comparison *x,
                      enum verdict verdict)
{
    static const char *const words[] = {"same", "SLOWER", "faster", "unclear"};
    bool counts = verdict == SLOWER || verdict == FASTER;
    enum colour colour = verdict == SLOWER ? COLOUR_BAD : COLOUR_GOOD;
    char name[200];

    call(run, name, sizeof(name));
    printf("  %-28s %-16s %10.1f %10.1f %7.3f  %.3f to %.3f %8.2g  %s%s%s\n", name, stage,
           x->a / 1e3, x->b / 1e3, x->ratio, x->low, x->high, x->p,
           counts ? colour_on(stdout, colour) : "", words[verdict],
           counts ? colour_off(stdout) : "");
}

/* Far enough from 1, and not by chance. */
static enum verdict judge(const struct cli *cli, const struct comparison *x)
{
    bool far_up = x->ratio > 1 + cli->threshold;
    bool far_down = x->ratio < 1 / (1 + cli->threshold);

    if (!far_up && !far_down)
        return SAME;
    if (x->p > cli->alpha || (x->low <= 1 && x->high >= 1))
        return UNCLEAR;
    return far_up ? SLOWER : FASTER;
}

static enum epa_status compare_stage(struct comparing *c, uint32_t pair, const char *name,
                                     struct epa_error *err)
{
    struct compare_run *run = calloc(c->a.n + c->b.n, sizeof(*run));
    struct compare_side a = {run, 0}, b = {run + c->a.n, 0};
    struct comparison x;
    enum verdict verdict;
    enum epa_status status = run == NULL ? EPA_ERR_NOMEM : EPA_OK;

    if (status == EPA_OK) {
        a.n = collect(&c->a, c->of_a, pair, name, run);
        b.n = collect(&c->b, c->of_b, pair, name, run + c->a.n);
        if (b.n == 0) {
            free(run);
            return EPA_OK;
        }
        status = compare_sides(&a, &b, &x);
    }
    free(run);
    if (status != EPA_OK)
        return epa_fail(err, status, "no memory to compare '%s'", name);
    verdict = judge(c->cli, &x);
    print_row(first_of(c, pair), name, &x, verdict);
    c->rows++;
    c->slower += verdict == SLOWER;
    if (strcmp(name, "total") == 0 || strcmp(name, "wall") == 0 || strcmp(name, "latency") == 0) {
        c->log_ratios += log(x.ratio);
        c->totals++;
    }
    return EPA_OK;
}

static enum epa_status compare_all(struct comparing *c, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    printf("# epa2a compare: A %s, B %s\n", c->a.path, c->b.path);
    for (uint32_t i = 0; i < c->pairs && status == EPA_OK; i++)
        if (c->met[i])
            status = check_pair(c, i, err);
    if (status != EPA_OK)
        return status;
    printf("# ratio is B / A of the medians, 95 %% by bootstrap, p by Mann and Whitney; slower or\n"
           "# faster: by more than %g %%, with p < %g\n",
           c->cli->threshold * 100, c->cli->alpha);
    printf("# %-28s %-16s %10s %10s %7s  %-14s %8s\n", "run", "stage", "A [us]", "B [us]", "ratio",
           "95 %", "p");
    for (uint32_t i = 0; i < c->pairs; i++) {
        const struct results_run *run = first_of(c, i);

        for (uint32_t s = 0; s < run->n_stages && c->met[i]; s++) {
            if (run->stage[s].n == 0)
                continue;
            status = compare_stage(c, i, run->stage[s].name, err);
            if (status != EPA_OK)
                return status;
        }
    }
    if (c->rows == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "no run of %s has a partner with samples in %s: they are paired by id "
                        "and by label",
                        c->a.path, c->b.path);
    if (c->totals > 1)
        printf("# geometric mean of the %u ratios of totals: %.3f\n", c->totals,
               exp(c->log_ratios / c->totals));
    return EPA_OK;
}

int compare_results(const struct cli *cli, struct results *a, struct results *b)
{
    struct comparing c = {.cli = cli, .a = *a, .b = *b};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = make_pairs(&c, &err);

    if (status == EPA_OK) {
        tell_left_over(&c);
        status = compare_all(&c, &err);
    }
    free(c.of_a);
    free(c.of_b);
    free(c.first);
    free(c.met);
    results_free(&c.a);
    results_free(&c.b);
    if (status != EPA_OK) {
        fprintf(stderr, "epa2a: %s\n", err.text);
        return exit_code(status, 0);
    }
    return c.slower > 0 ? EXIT_SLOWER : EXIT_OK;
}

int cmd_compare(const struct cli *cli)
{
    struct results a, b;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = results_read(cli->arg[0], &a, &err);

    if (status == EPA_OK) {
        status = results_read(cli->arg[1], &b, &err);
        if (status == EPA_OK)
            return compare_results(cli, &a, &b);
        results_free(&a);
    }
    fprintf(stderr, "epa2a: %s\n", err.text);
    return exit_code(status, 0);
}
