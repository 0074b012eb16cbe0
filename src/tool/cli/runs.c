/* Reads the runs of files and orders them. --only selects runs by label or id, so all runs are read
 * before some are left out. */
#include "cli/runs.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/random.h"
#include "config/diag.h"
#include "report/lines.h"

static void pick_run(const struct batch_pick *pick, const struct batch *batch, uint32_t i,
                     struct runs *runs)
{
    const struct batch_run *of = &batch->run[i];
    struct run *run = &runs->run[runs->n];
    bool labelled = batch->n > 1 || (of->x != NULL && of->x->label != NULL);

    if (!batch_picks(pick, of->label, of->id))
        return;
    *run = (struct run){.batch = batch,
                        .x = of->x,
                        .id = of->id,
                        .label = of->label,
                        .repetition = of->repetition,
                        .baseline = of->baseline,
                        .variant = of->variant,
                        .skips = batch->n > 1 || runs->n_batches > 1,
                        .refused = of->absent};
    run->who =
        memory_printf("%s%s%s", batch->file, labelled ? ": " : "", labelled ? of->label : "");
    run->name = runs->n_batches > 1 ? run->who : run->label;
    runs->n++;
}

/* Shuffles by Fisher and Yates. The random numbers of a seed are the same on all machines. */
static void shuffle_order(struct random *random, uint32_t *order, uint32_t n)
{
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = random_below(random, i), last = order[i - 1];

        order[i - 1] = order[j];
        order[j] = last;
    }
}

bool runs_repeat(const struct runs *runs)
{
    for (uint32_t i = 0; i < runs->n; i++)
        if (runs->run[i].repetition > 1)
            return true;
    return false;
}

const char *runs_order_name(enum runs_order how)
{
    return how == RUNS_SHUFFLED ? "shuffled" : how == RUNS_INTERLEAVED ? "interleaved" : "declared";
}

void runs_order(struct runs *runs, enum runs_order how, uint64_t seed)
{
    struct random random = {random_mix(seed), 0};
    uint32_t n = 0;

    runs->how = how;
    runs->seed = seed;
    for (uint32_t k = 1; how == RUNS_INTERLEAVED && n < runs->n; k++) {
        uint32_t from = n;

        for (uint32_t i = 0; i < runs->n; i++)
            if (runs->run[i].repetition == k)
                runs->order[n++] = i;
        shuffle_order(&random, runs->order + from, n - from);
    }
    if (how == RUNS_SHUFFLED)
        shuffle_order(&random, runs->order, runs->n);
}

static enum epa_status collect_runs(const struct runs_wish *wish, struct runs *out,
                                    struct epa_error *err)
{
    const struct batch_pick pick = {wish->only, wish->n_only};
    uint32_t n = 0;

    for (uint32_t i = 0; i < out->n_batches; i++)
        n += out->batch[i]->n;
    out->run = memory_alloc(n, sizeof(*out->run));
    out->order = memory_alloc(n, sizeof(*out->order));
    for (uint32_t i = 0; i < out->n_batches; i++)
        for (uint32_t k = 0; k < out->batch[i]->n; k++)
            pick_run(&pick, out->batch[i], k, out);
    if (out->n == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--only '%s': no run has that label or id; --dry-run lists them",
                        wish->only[0]);
    for (uint32_t i = 0; i < out->n; i++)
        out->order[i] = i;
    out->how = RUNS_DECLARED;
    return EPA_OK;
}

struct runs_wish runs_wish(const struct cli *cli)
{
    return (struct runs_wish){.file = cli->arg,
                              .n_files = cli->n_args,
                              .set = cli->set,
                              .n_sets = cli->n_sets,
                              .only = cli->only,
                              .n_only = cli->n_only,
                              .max_runs = cli->max_runs,
                              .thorough = cli->batch.thorough};
}

enum epa_status runs_read(const struct runs_wish *wish, struct registry *registry,
                          struct diag *diag, struct runs *out, struct epa_error *err)
{
    const struct batch_pick pick = {wish->only,        wish->n_only, wish->thorough,
                                    wish->n_files > 1, wish->passes, wish->passes_arg};
    enum epa_status status = EPA_OK;

    out->batch = memory_alloc(wish->n_files, sizeof(struct batch *));
    for (uint32_t i = 0; i < wish->n_files; i++) {
        enum epa_status one =
            batch_read(wish->file[i], wish->text, wish->set, wish->n_sets, &pick, wish->max_runs,
                       registry, diag, &out->batch[out->n_batches]);

        if (one == EPA_OK)
            out->n_batches++;
        else
            status = one;
    }
    return status == EPA_OK ? collect_runs(wish, out, err) : status;
}

enum epa_status runs_read_files(const struct runs_wish *wish, struct registry *registry,
                                const char *command, struct runs *out, struct epa_error *err)
{
    struct diag *diag = diag_create();
    enum epa_status status = runs_read(wish, registry, diag, out, err);

    diag_print(diag, stderr);
    diag_destroy(diag);
    if (status == EPA_OK && command != NULL && out->n != 1)
        status = epa_fail(
            err, EPA_ERR_CONFIG,
            "%s: %s takes a file with one run, but this file has %u; --only selects one, and bench "
            "--dry-run lists them",
            wish->file[0], command, out->n);
    return status;
}

enum epa_status runs_read_text(const struct cli *cli, struct registry *registry, const char *text,
                               const char **set, uint32_t n_sets, struct runs *out,
                               char why[RUNS_FAILURE], struct epa_error *err)
{
    struct diag *diag = diag_create();
    struct runs_wish one = runs_wish(cli);
    enum epa_status status;

    one.text = text;
    one.n_only = 0;
    one.set = set;
    one.n_sets = n_sets;
    status = runs_read(&one, registry, diag, out, err);
    if (diag_first_text(diag) != NULL) {
        snprintf(why, RUNS_FAILURE, "%.290s", diag_first_text(diag));
    } else if (status == EPA_OK && out->run[0].x == NULL) {
        status = out->run[0].refused.status;
        snprintf(why, RUNS_FAILURE, "%.290s", out->run[0].refused.text);
    }
    diag_destroy(diag);
    return status;
}

void runs_finish(struct runs *runs)
{
    for (uint32_t i = 0; i < runs->n; i++)
        free(runs->run[i].who);
    for (uint32_t i = 0; i < runs->n_batches; i++)
        batch_destroy(runs->batch[i]);
    free(runs->batch);
    free(runs->run);
    free(runs->order);
    *runs = (struct runs){0};
}

void runs_list(const struct runs *runs)
{
    for (uint32_t i = 0; i < runs->n; i++) {
        const struct run *run = &runs->run[runs->order[i]];
        bool skipped = run->refused.status == EPA_ERR_UNSUPPORTED;

        printf("%-12s  ", run->id != NULL ? run->id : "-");
        text_print_clean(stdout, run->name);
        if (run->done != NULL)
            printf("  (done)");
        if (run->refused.status != EPA_OK) {
            printf("\n              %s: ", skipped ? "skipped here" : "cannot run");
            text_print_clean(stdout, run->refused.text);
        }
        putchar('\n');
    }
}
