/* epa2a compare A B, files or folders of results: which runs of B are slower or faster than
 * those of A. Runs are paired by id, those left over by label, and one left over on each side
 * with each other. Several runs of one id or label are one experiment, repeated. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/colour.h"
#include "base/text.h"
#include "cli/cmd_compare.h"
#include "report/compare.h"
#include "report/results.h"

enum verdict { SAME, SLOWER, FASTER, UNCLEAR };

/* Runs of A and of B that are compared with each other. */
struct pair {
    const struct results_run **a, **b;
    uint32_t n_a, n_b;
};

struct comparing {
    const struct cli *cli;
    struct results a, b;
    struct pair *pair;
    uint32_t n_pairs;
    bool *taken; /* [b.n] */
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

/* Adds run i of A to the pair that it belongs to, if there is one. */
static bool join(struct comparing *c, const struct results_run *run, bool by_id)
{
    for (uint32_t i = 0; i < c->n_pairs; i++) {
        if (alike(c->pair[i].a[0], run, by_id)) {
            c->pair[i].a[c->pair[i].n_a++] = run;
            return true;
        }
    }
    return false;
}

static bool take(struct comparing *c, struct pair *pair, bool by_id)
{
    for (uint32_t k = 0; k < c->b.n; k++) {
        const struct results_run *run = &c->b.run[k];

        if (c->taken[k] || !run->ok || !alike(pair->a[0], run, by_id))
            continue;
        c->taken[k] = true;
        pair->b[pair->n_b++] = run;
    }
    return pair->n_b > 0;
}

static bool new_pair(struct comparing *c, const struct results_run *run)
{
    struct pair *pair = &c->pair[c->n_pairs];

    pair->a = calloc(c->a.n, sizeof(*pair->a));
    pair->b = calloc(c->b.n + 1, sizeof(*pair->b));
    if (pair->a == NULL || pair->b == NULL)
        return false;
    pair->a[pair->n_a++] = run;
    c->n_pairs++;
    return true;
}

/* The only pair that found nobody, with the only run that nobody took. */
static void pair_the_last(struct comparing *c)
{
    struct pair *lonely = NULL;
    uint32_t left = 0, last = 0;

    for (uint32_t i = 0; i < c->n_pairs; i++) {
        if (c->pair[i].n_b != 0)
            continue;
        if (lonely != NULL)
            return;
        lonely = &c->pair[i];
    }
    for (uint32_t k = 0; k < c->b.n; k++) {
        if (!c->taken[k] && c->b.run[k].ok) {
            left++;
            last = k;
        }
    }
    if (lonely == NULL || left != 1)
        return;
    lonely->b[lonely->n_b++] = &c->b.run[last];
    c->taken[last] = true;
}

static enum epa_status make_pairs(struct comparing *c, struct epa_error *err)
{
    c->pair = calloc(c->a.n + 1, sizeof(*c->pair));
    c->taken = calloc(c->b.n + 1, sizeof(*c->taken));
    if (c->pair == NULL || c->taken == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u runs", c->a.n);
    for (uint32_t i = 0; i < c->a.n; i++) {
        const struct results_run *run = &c->a.run[i];

        if (!run->ok || join(c, run, run->id[0] != '\0'))
            continue;
        if (!new_pair(c, run))
            return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u runs", c->a.n);
    }
    for (uint32_t i = 0; i < c->n_pairs; i++)
        (void)take(c, &c->pair[i], true);
    for (uint32_t i = 0; i < c->n_pairs; i++) {
        if (c->pair[i].n_b == 0)
            (void)take(c, &c->pair[i], false);
    }
    pair_the_last(c);
    return EPA_OK;
}

/* ---- what may be compared ---- */

static bool has_fault(const struct results_run **run, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (run[i]->fault)
            return true;
    return false;
}

/* What the user noted is no reason not to compare. */
static void tell_contexts(const char *name, const struct pair *pair)
{
    struct text a = {0}, b = {0};

    results_context(pair->a[0], &a);
    results_context(pair->b[0], &b);
    if (strcmp(a.data, b.data) != 0)
        printf("# %s: context: %s in A, %s in B\n", name, a.data, b.data);
    text_free(&a);
    text_free(&b);
}

/* Who is compared without a partner is told; so is what differs and may not. */
static enum epa_status check_pair(const struct comparing *c, const struct pair *pair,
                                  struct epa_error *err)
{
    static const struct {
        enum results_part part;
        const char *what;
    } must[] = {{RESULTS_SHAPE, "experiments"}, {RESULTS_MACHINE, "machines"}};
    char what[300], name[200];

    call(pair->a[0], name, sizeof(name));
    if (has_fault(pair->a, pair->n_a) || has_fault(pair->b, pair->n_b)) {
        if (!c->cli->force)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: a fault was planted in it, so its times are no measurement; "
                            "--force compares all the same",
                            name);
        printf("# %s: a fault was planted in it\n", name);
    }
    for (uint32_t i = 0; i < sizeof(must) / sizeof(must[0]); i++) {
        if (!results_differ(pair->a[0], pair->b[0], must[i].part, what, sizeof(what)))
            continue;
        if (!c->cli->force)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: the %s differ: %s; --force compares all the same", name,
                            must[i].what, what);
        printf("# %s: the %s differ: %s\n", name, must[i].what, what);
    }
    if (results_differ(pair->a[0], pair->b[0], RESULTS_MEANS, what, sizeof(what)))
        printf("# %s: %s\n", name, what);
    tell_contexts(name, pair);
    return EPA_OK;
}

static void tell_missing(const struct results *results)
{
    if (results->missing > 0)
        fprintf(stderr,
                "epa2a: warning: %s: %u runs have no result; bench --resume runs what is not "
                "done\n",
                results->path, results->missing);
}

static void tell_left_over(const struct comparing *c)
{
    tell_missing(&c->a);
    tell_missing(&c->b);
    for (uint32_t i = 0; i < c->a.n; i++) {
        if (!c->a.run[i].ok)
            fprintf(stderr, "epa2a: %swarning:%s %s: '%s' ended with status %s and is left out\n",
                    colour_on(stderr, COLOUR_WARNING), colour_off(stderr), c->a.path,
                    c->a.run[i].label, c->a.run[i].status);
    }
    for (uint32_t i = 0; i < c->n_pairs; i++) {
        if (c->pair[i].n_b == 0)
            fprintf(stderr, "epa2a: %swarning:%s '%s' is only in %s\n",
                    colour_on(stderr, COLOUR_WARNING), colour_off(stderr), c->pair[i].a[0]->label,
                    c->a.path);
    }
    for (uint32_t k = 0; k < c->b.n; k++) {
        if (!c->b.run[k].ok)
            fprintf(stderr, "epa2a: %swarning:%s %s: '%s' ended with status %s and is left out\n",
                    colour_on(stderr, COLOUR_WARNING), colour_off(stderr), c->b.path,
                    c->b.run[k].label, c->b.run[k].status);
        else if (!c->taken[k])
            fprintf(stderr, "epa2a: %swarning:%s '%s' is only in %s\n",
                    colour_on(stderr, COLOUR_WARNING), colour_off(stderr), c->b.run[k].label,
                    c->b.path);
    }
}

/* ---- comparing ---- */

static const struct results_stage *find_stage(const struct results_run *run, const char *name)
{
    for (uint32_t i = 0; i < run->n_stages; i++) {
        if (strcmp(run->stage[i].name, name) == 0 && run->stage[i].n > 0)
            return &run->stage[i];
    }
    return NULL;
}

static uint32_t collect(const struct results_run **run, uint32_t n, const char *name,
                        struct compare_run *out)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < n; i++) {
        const struct results_stage *stage = find_stage(run[i], name);

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

static enum epa_status compare_stage(struct comparing *c, const struct pair *pair, const char *name,
                                     struct epa_error *err)
{
    struct compare_run *run = calloc(pair->n_a + pair->n_b, sizeof(*run));
    struct compare_side a = {run, 0}, b = {run + pair->n_a, 0};
    struct comparison x;
    enum verdict verdict;
    enum epa_status status = run == NULL ? EPA_ERR_NOMEM : EPA_OK;

    if (status == EPA_OK) {
        a.n = collect(pair->a, pair->n_a, name, run);
        b.n = collect(pair->b, pair->n_b, name, run + pair->n_a);
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
    print_row(pair->a[0], name, &x, verdict);
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
    for (uint32_t i = 0; i < c->n_pairs && status == EPA_OK; i++) {
        if (c->pair[i].n_b > 0)
            status = check_pair(c, &c->pair[i], err);
    }
    if (status != EPA_OK)
        return status;
    printf("# ratio is B / A of the medians, 95 %% by bootstrap, p by Mann and Whitney; slower or\n"
           "# faster: by more than %g %%, with p < %g\n",
           c->cli->threshold * 100, c->cli->alpha);
    printf("# %-28s %-16s %10s %10s %7s  %-14s %8s\n", "run", "stage", "A [us]", "B [us]", "ratio",
           "95 %", "p");
    for (uint32_t i = 0; i < c->n_pairs; i++) {
        const struct pair *pair = &c->pair[i];

        for (uint32_t s = 0; s < pair->a[0]->n_stages && pair->n_b > 0; s++) {
            if (pair->a[0]->stage[s].n == 0)
                continue;
            status = compare_stage(c, pair, pair->a[0]->stage[s].name, err);
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

static void finish(struct comparing *c)
{
    for (uint32_t i = 0; i < c->n_pairs; i++) {
        free(c->pair[i].a);
        free(c->pair[i].b);
    }
    free(c->pair);
    free(c->taken);
    results_free(&c->a);
    results_free(&c->b);
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
    finish(&c);
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
