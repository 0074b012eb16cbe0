/* epa2a compare --run A.yaml B.yaml: both experiments run again and again, in rounds of A B B A and
 * B A A B, until one is known to be slower, faster or the same, or the budget is spent. Each turn is a
 * bench of its own, with ranks of its own: what differs from launch to launch is in the figures. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "cli/run_folder.h"
#include "launch/process_id.h"
#include "report/compared.h"

enum {
    STAGES = 32,
    ROUNDS_WANTED = 12,   /* turns are cut until the budget has room for these, */
    ITERATIONS_LEAST = 20 /* but not below */
};
#define BUDGET_NS UINT64_C(60000000000)

struct turns {
    const struct cli *cli;
    struct results
        first[2]; /* a turn of each side that counts for nothing: files are read by then */
    const char *stage[STAGES];
    uint32_t n_stages, total;  /* which stage is judged */
    double *figure[STAGES];    /* [rounds] logarithms of B / A */
    double *median[STAGES][2]; /* [2 * rounds] ns */
    uint32_t rounds, room;
    uint32_t iterations; /* of a turn; 0: as the files have it */
    uint64_t samples;
};

/* A file must ask for one run, as --only leaves it. */
static enum epa_status check_file(const struct cli *cli, struct registry *registry,
                                  const char *file, struct epa_error *err)
{
    struct cli one = *cli;
    struct diag *diag = diag_create();
    struct runs runs = {0};
    enum epa_status status;

    one.arg = &file;
    one.n_args = 1;
    status = runs_read(&one, cli->set, cli->n_sets, registry, diag, &runs, err);
    diag_print(diag, stderr);
    diag_destroy(diag);
    if (status == EPA_OK && runs.n != 1)
        status = epa_fail(err, EPA_ERR_CONFIG,
                          "%s: compare --run takes one run a side, and this has %u; --only picks "
                          "one, --dry-run of bench lists them",
                          file, runs.n);
    runs_finish(&runs);
    return status;
}

static enum epa_status check_files(const struct cli *cli, struct epa_error *err)
{
    struct process_job job = {0};
    struct registry *registry = NULL;
    enum epa_status status = process_id_find(&job, err);

    if (status == EPA_OK && job.process_id.size > 1)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "compare --run starts ranks itself, and this is one process of %u already "
                        "(%s)",
                        job.process_id.size, job.process_id.source);
    if (status == EPA_OK)
        status = registry_create(cli->plugin_path, &registry, err);
    for (uint32_t i = 0; i < 2 && status == EPA_OK; i++)
        status = check_file(cli, registry, cli->arg[i], err);
    if (registry != NULL)
        registry_destroy(registry);
    return status;
}

/* Runs one side once; its exit code. */
static int take_turn(const struct turns *t, uint32_t side, struct results *out)
{
    struct cli bench = *t->cli;
    struct text document = {0};
    struct epa_error err = {EPA_OK, ""};
    const char **set = calloc(bench.n_sets + 1, sizeof(*set));
    char iterations[64];
    int code = EXIT_RESOURCE;

    if (set == NULL)
        return code;
    memcpy(set, bench.set, bench.n_sets * sizeof(*set));
    snprintf(iterations, sizeof(iterations), "bench.iterations=%u", t->iterations);
    set[bench.n_sets] = iterations;
    bench.n_sets += t->iterations > 0;
    bench.set = set;
    bench.arg = &t->cli->arg[side];
    bench.n_args = 1;
    bench.quiet = true;
    bench.progress = PROGRESS_NEVER;
    bench.json = bench.markdown = NULL;
    bench.order = RUNS_DECLARED;
    bench.results_out = &document;
    code = cmd_bench(&bench);
    free(set);
    if (code == EXIT_OK && results_parse(t->cli->arg[side], &document, out, &err) != EPA_OK) {
        fprintf(stderr, "epa2a: %s\n", err.text);
        code = exit_code(err.status, 0);
    }
    text_free(&document);
    return code;
}

/* The stages that both have. */
static enum epa_status choose_stages(struct turns *t, struct epa_error *err)
{
    const struct results_run *a = &t->first[0].run[0], *b = &t->first[1].run[0];
    const struct results_stage *total = results_total(a);

    for (uint32_t i = 0; i < a->n_stages && t->n_stages < STAGES; i++) {
        if (a->stage[i].n == 0 || results_stage(b, a->stage[i].name) == NULL)
            continue;
        if (&a->stage[i] == total)
            t->total = t->n_stages;
        t->stage[t->n_stages++] = a->stage[i].name;
    }
    if (total == NULL || t->n_stages == 0 || strcmp(t->stage[t->total], total->name) != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s and %s have no total that both measure",
                        t->cli->arg[0], t->cli->arg[1]);
    return EPA_OK;
}

static bool make_room(struct turns *t)
{
    uint32_t room = 2 * t->room + 16;

    if (t->rounds < t->room)
        return true;
    for (uint32_t s = 0; s < t->n_stages; s++) {
        double *figure = realloc(t->figure[s], room * sizeof(*figure));

        if (figure == NULL)
            return false;
        t->figure[s] = figure;
        for (uint32_t side = 0; side < 2; side++) {
            double *median = realloc(t->median[s][side], 2 * room * sizeof(*median));

            if (median == NULL)
                return false;
            t->median[s][side] = median;
        }
    }
    t->room = room;
    return true;
}

/* A B B A, and B A A B every other time: what the turn before leaves is as often on one side. */
static int take_round(struct turns *t)
{
    uint32_t taken[2] = {0, 0};

    if (!make_room(t))
        return EXIT_RESOURCE;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t side = (i == 1 || i == 2) != (t->rounds % 2 == 1);
        struct results results;
        int code = take_turn(t, side, &results);

        if (code != EXIT_OK)
            return code;
        for (uint32_t s = 0; s < t->n_stages && code == EXIT_OK; s++) {
            const struct results_stage *stage = results_stage(&results.run[0], t->stage[s]);
            struct compare_run run = {NULL, 0};
            struct spread spread = {.median = NAN};

            if (stage != NULL)
                run = (struct compare_run){stage->sample, t->samples = stage->n};
            if (stage == NULL || spread_of_side(&(struct compare_side){&run, 1}, &spread) != EPA_OK)
                code = EXIT_RESOURCE;
            t->median[s][side][2 * t->rounds + taken[side]] = spread.median;
        }
        taken[side]++;
        results_free(&results);
        if (code != EXIT_OK)
            return code;
    }
    for (uint32_t s = 0; s < t->n_stages; s++) {
        const double *a = &t->median[s][0][2 * t->rounds], *b = &t->median[s][1][2 * t->rounds];

        t->figure[s][t->rounds] = log(b[0] * b[1] / (a[0] * a[1])) / 2;
    }
    t->rounds++;
    return EXIT_OK;
}

/* Cuts turns that are too long for the budget. */
static void cut_turns(struct turns *t, uint64_t turn_ns, uint64_t budget_ns)
{
    const json_t *run = t->first[0].run[0].json;
    double iterations = (double)json_integer_value(json_object_get(run, "iterations"));
    double part = (double)budget_ns / (4.0 * ROUNDS_WANTED) / (double)turn_ns;

    if (part < 1 && iterations > ITERATIONS_LEAST)
        t->iterations = (uint32_t)fmax(ITERATIONS_LEAST, iterations * part);
}

static void show_progress(const struct turns *t, const struct comparison *x)
{
    if (t->cli->progress == PROGRESS_NEVER ||
        (t->cli->progress == PROGRESS_AUTO && isatty(STDERR_FILENO) == 0))
        return;
    if (x == NULL)
        fprintf(stderr, "\r\033[K");
    else
        fprintf(stderr, "\r\033[Kround %u: B / A %.3f", t->rounds, x->ratio);
    fflush(stderr);
}

/* Rounds until it is decided; the exit code of the turn that failed. */
static int take_rounds(struct turns *t, uint64_t start, uint64_t budget_ns, uint32_t *look,
                       enum compare_verdict *verdict, struct epa_error *err)
{
    struct comparison x = {.ratio = 1};
    uint64_t longest = 0;

    *look = 1;
    for (*verdict = COMPARE_UNCLEAR; *verdict == COMPARE_UNCLEAR;) {
        uint64_t before = clock_ns(), took;
        int code;

        if (before - start + longest > budget_ns)
            return EXIT_OK;
        code = take_round(t);
        if (code != EXIT_OK)
            return code;
        took = clock_ns() - before;
        longest = took > longest ? took : longest;
        if (t->rounds < turns_look(*look)) {
            x.ratio = exp(t->figure[t->total][t->rounds - 1]);
        } else if (turns_judge(t->figure[t->total], t->rounds, *look, t->cli->threshold,
                               t->cli->alpha, &x, verdict) != EPA_OK) {
            epa_fail(err, EPA_ERR_NOMEM, "no memory for %u rounds", t->rounds);
            return EXIT_RESOURCE;
        } else if (*verdict == COMPARE_UNCLEAR) {
            ++*look;
        }
        show_progress(t, &x);
    }
    return EXIT_OK;
}

static enum epa_status fill_rows(struct turns *t, uint32_t look, struct compared *out,
                                 struct epa_error *err)
{
    for (uint32_t s = 0; s < t->n_stages; s++) {
        struct compared_row *row = compared_add(out);

        if (row == NULL || turns_judge(t->figure[s], t->rounds, look, t->cli->threshold,
                                       t->cli->alpha, &row->x, &row->verdict) != EPA_OK)
            return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u rounds", t->rounds);
        compared_name(&t->first[0].run[0], row->run, sizeof(row->run));
        row->stage = t->stage[s];
        row->judged = s == t->total;
        row->x.runs_a = row->x.runs_b = 2 * t->rounds;
        for (uint32_t side = 0; side < 2; side++) {
            stats_sort(t->median[s][side], 2 * (uint64_t)t->rounds);
            *(side == 0 ? &row->x.a : &row->x.b) =
                stats_percentile(t->median[s][side], 2 * (uint64_t)t->rounds, 500);
        }
    }
    return EPA_OK;
}

static int run_turns(struct turns *t, struct compared *rows, struct epa_error *err)
{
    uint64_t start = clock_ns(), warm,
             budget_ns = t->cli->budget_ns != 0 ? t->cli->budget_ns : BUDGET_NS;
    enum compare_verdict verdict;
    uint32_t look;
    static char taken[128];
    int code = EXIT_OK;

    for (uint32_t side = 0; side < 2 && code == EXIT_OK; side++)
        code = take_turn(t, side, &t->first[side]);
    if (code != EXIT_OK)
        return code;
    if (compare_check(t->cli, &t->first[0], &t->first[1], err) != EPA_OK ||
        choose_stages(t, err) != EPA_OK)
        return exit_code(err->status, 0);
    warm = clock_ns() - start;
    cut_turns(t, warm / 2, budget_ns);
    code = take_rounds(t, start, budget_ns, &look, &verdict, err);
    show_progress(t, NULL);
    if (t->rounds == 0 && code == EXIT_OK) {
        epa_fail(err, EPA_ERR_CONFIG,
                 "--budget: a turn takes %.1f s, and a round has four: give more, or take fewer "
                 "bench.iterations",
                 (double)warm / 2e9);
        return EXIT_USAGE;
    }
    if (t->rounds == 0 || fill_rows(t, look, rows, err) != EPA_OK)
        return code != EXIT_OK ? code : EXIT_RESOURCE;
    snprintf(taken, sizeof(taken), "%" PRIu64 " samples a turn, %u turns in %.1f s", t->samples,
             4 * t->rounds, (double)(clock_ns() - start) / 1e9);
    rows->rounds = t->rounds;
    rows->taken = taken;
    return code;
}

int compare_turns(const struct cli *cli)
{
    struct turns t = {.cli = cli};
    struct compared rows = {
        .a = cli->arg[0], .b = cli->arg[1], .threshold = cli->threshold, .alpha = cli->alpha};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = check_files(cli, &err);
    int code = status == EPA_OK ? run_turns(&t, &rows, &err) : exit_code(status, 0);

    if (rows.n > 0 && err.status == EPA_OK)
        status = compare_print(cli, &rows, true, &err);
    if (err.status != EPA_OK)
        fprintf(stderr, "epa2a: %s\n", err.text);
    if (code == EXIT_OK && err.status != EPA_OK)
        code = exit_code(err.status, 0);
    if (code == EXIT_OK && compared_count(&rows, COMPARE_SLOWER) > 0)
        code = EXIT_SLOWER;
    compared_free(&rows);
    for (uint32_t side = 0; side < 2; side++)
        results_free(&t.first[side]);
    for (uint32_t s = 0; s < t.n_stages; s++) {
        free(t.figure[s]);
        free(t.median[s][0]);
        free(t.median[s][1]);
    }
    return code;
}
