/* epa2a compare A B, files or folders of results: which runs of B are slower or faster than
 * those of A. Runs are paired by id, those left over by label, and one left over on each side
 * with each other. Several runs of one id or label are one experiment, repeated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "cli/cli.h"
#include "report/compared.h"

#define ALONE UINT32_MAX /* of no pair */

/* Runs that are compared with each other have the number of one pair. */
struct comparing {
    const struct cli *cli;
    struct results a, b;
    uint32_t *of_a, *of_b; /* [a.n], [b.n] the pair of each run, or ALONE */
    uint32_t *first;       /* [pairs] its first run of A */
    bool *met;             /* [pairs] it has a run of B */
    uint32_t pairs;
    struct compared rows;
    FILE *notes; /* where it says what differs: not into a document */
};

static bool is_stdout(const char *path)
{
    return path != NULL && strcmp(path, "-") == 0;
}

static struct comparing begin(const struct cli *cli, const struct results *a,
                              const struct results *b, bool documents)
{
    bool taken = documents && (is_stdout(cli->json) || is_stdout(cli->markdown));

    return (struct comparing){
        .cli = cli,
        .a = *a,
        .b = *b,
        .rows = {.a = a->path, .b = b->path, .threshold = cli->threshold, .alpha = cli->alpha},
        .notes = taken ? stderr : stdout};
}

static void end(struct comparing *c)
{
    free(c->of_a);
    free(c->of_b);
    free(c->first);
    free(c->met);
    compared_free(&c->rows);
}

/* ---- pairing ---- */

static bool alike(const struct results_run *x, const struct results_run *y, bool by_id)
{
    size_t bytes = results_label_bytes(x->label);

    if (by_id)
        return x->id[0] != '\0' && strcmp(x->id, y->id) == 0;
    return bytes == results_label_bytes(y->label) && strncmp(x->label, y->label, bytes) == 0;
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
static void tell_contexts(FILE *notes, const char *name, const struct results_run *of_a,
                          const struct results_run *of_b)
{
    struct text a = {0}, b = {0};

    results_context(of_a, &a);
    results_context(of_b, &b);
    if (strcmp(a.data, b.data) != 0)
        fprintf(notes, "# %s: context: %s in A, %s in B\n", name, a.data, b.data);
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
    compared_name(a, name, sizeof(name));
    if (has_fault(&c->a, c->of_a, pair) || has_fault(&c->b, c->of_b, pair)) {
        if (!c->cli->force)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: a fault was planted in it, so its times are no measurement; "
                            "--force compares all the same",
                            name);
        fprintf(c->notes, "# %s: a fault was planted in it\n", name);
    }
    for (uint32_t i = 0; i < sizeof(must) / sizeof(must[0]); i++) {
        if (!results_differ(a, b, must[i].part, what, sizeof(what)))
            continue;
        if (!c->cli->force)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: the %s differ: %s; --force compares all the same", name,
                            must[i].what, what);
        fprintf(c->notes, "# %s: the %s differ: %s\n", name, must[i].what, what);
    }
    if (results_differ(a, b, RESULTS_MEANS, what, sizeof(what)))
        fprintf(c->notes, "# %s: %s\n", name, what);
    tell_contexts(c->notes, name, a, b);
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

static enum epa_status compare_stage(struct comparing *c, uint32_t pair, const char *name,
                                     struct epa_error *err)
{
    struct compare_run *run = calloc(c->a.n + c->b.n, sizeof(*run));
    struct compare_side a = {run, 0}, b = {run + c->a.n, 0};
    struct comparison x;
    struct compared_row *row;
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
    row = status == EPA_OK ? compared_add(&c->rows) : NULL;
    if (row == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory to compare '%s'", name);
    compared_name(first_of(c, pair), row->run, sizeof(row->run));
    row->stage = name;
    row->x = x;
    row->verdict = compare_judge(&x, c->cli->threshold, c->cli->alpha);
    return EPA_OK;
}

static enum epa_status compare_all(struct comparing *c, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < c->pairs && status == EPA_OK; i++)
        if (c->met[i])
            status = check_pair(c, i, err);
    for (uint32_t i = 0; i < c->pairs && status == EPA_OK; i++) {
        const struct results_run *run = first_of(c, i);

        for (uint32_t s = 0; s < run->n_stages && c->met[i] && status == EPA_OK; s++)
            if (run->stage[s].n > 0)
                status = compare_stage(c, i, run->stage[s].name, err);
    }
    if (status == EPA_OK && c->rows.n == 0)
        status = epa_fail(err, EPA_ERR_CONFIG,
                          "no run of %s has a partner with samples in %s: they are paired by id "
                          "and by label",
                          c->a.path, c->b.path);
    return status;
}

/* rerun has --json and --markdown for what it ran. */
enum epa_status compare_print(const struct cli *cli, const struct compared *c, bool documents,
                              struct epa_error *err)
{
    struct text text = {0};
    enum epa_status status = EPA_OK;

    if (!documents || (!is_stdout(cli->json) && !is_stdout(cli->markdown)))
        compared_text(stdout, c);
    if (documents && cli->json != NULL) {
        status = compared_json(&text, c, err);
        if (status == EPA_OK)
            status = file_write("--json", cli->json, cli->force, &text, err);
        text_free(&text);
    }
    if (documents && cli->markdown != NULL && status == EPA_OK) {
        compared_markdown(&text, c);
        status = file_write("--markdown", cli->markdown, cli->force, &text, err);
    }
    text_free(&text);
    return status;
}

int compare_results(const struct cli *cli, struct results *a, struct results *b, bool documents)
{
    struct comparing c = begin(cli, a, b, documents);
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = make_pairs(&c, &err);
    bool slower;

    if (status == EPA_OK) {
        tell_left_over(&c);
        fprintf(c.notes, "# epa2a compare: A %s, B %s\n", a->path, b->path);
        status = compare_all(&c, &err);
    }
    if (status == EPA_OK)
        status = compare_print(cli, &c.rows, documents, &err);
    slower = compared_count(&c.rows, COMPARE_SLOWER) > 0;
    end(&c);
    results_free(a);
    results_free(b);
    if (status != EPA_OK) {
        fprintf(stderr, "epa2a: %s\n", err.text);
        return exit_code(status, 0);
    }
    return slower ? EXIT_SLOWER : EXIT_OK;
}

enum epa_status compare_check(const struct cli *cli, const struct results *a,
                              const struct results *b, struct epa_error *err)
{
    struct comparing c = begin(cli, a, b, true);
    enum epa_status status = make_pairs(&c, err);

    fprintf(c.notes, "# epa2a compare: A %s, B %s, in turns\n", a->path, b->path);
    if (status == EPA_OK && (c.pairs != 1 || !c.met[0]))
        status = epa_fail(err, EPA_ERR_CONFIG, "%s and %s have no run that ended well", a->path,
                          b->path);
    if (status == EPA_OK)
        status = check_pair(&c, 0, err);
    end(&c);
    return status;
}

enum epa_status cmd_compare_check(const struct cli *cli, struct epa_error *err)
{
    const char *takes = cli->n_sets > 0        ? "--set"
                        : cli->n_only > 0      ? "--only"
                        : cli->timeout_ns != 0 ? "--timeout"
                        : cli->budget_ns != 0  ? "--budget"
                                               : NULL;

    if (!cli->turns && takes != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s is for compare --run, which runs experiments",
                        takes);
    if (is_stdout(cli->json) && is_stdout(cli->markdown))
        return epa_fail(err, EPA_ERR_CONFIG, "--json and --markdown are both standard output");
    if (cli->json != NULL && file_check("--json", cli->json, cli->force, err) != EPA_OK)
        return EPA_ERR_CONFIG;
    if (cli->markdown != NULL && file_check("--markdown", cli->markdown, cli->force, err) != EPA_OK)
        return EPA_ERR_CONFIG;
    return EPA_OK;
}

int cmd_compare(const struct cli *cli)
{
    struct results a, b;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;

    if (cli->turns)
        return compare_turns(cli);
    status = results_read(cli->arg[0], &a, &err);
    if (status == EPA_OK) {
        status = results_read(cli->arg[1], &b, &err);
        if (status == EPA_OK)
            return compare_results(cli, &a, &b, true);
        results_free(&a);
    }
    fprintf(stderr, "epa2a: %s\n", err.text);
    return exit_code(status, 0);
}
