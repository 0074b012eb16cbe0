/* Files to runs. A run is picked by label or id, so all are read before some are left out. */
#include "cli/run_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

bool run_is_of_several(const struct run *run)
{
    return run->batch->n > 1;
}

static bool add_run(const struct batch_pick *pick, const struct batch *batch, uint32_t i,
                    struct runs *runs)
{
    const struct batch_run *of = &batch->run[i];
    struct run *run = &runs->run[runs->n];
    bool labelled = batch->n > 1 || (of->x != NULL && of->x->label != NULL);

    if (!batch_picks(pick, of->label, of->x != NULL ? of->x->id : NULL))
        return true;
    *run = (struct run){.batch = batch,
                        .x = of->x,
                        .label = of->label,
                        .repetition = of->repetition,
                        .baseline = of->baseline,
                        .refused = of->absent};
    if (asprintf(&run->who, "%s%s%s", batch->file, labelled ? ": " : "",
                 labelled ? of->label : "") < 0)
        return false;
    run->name = runs->n_batches > 1 ? run->who : run->label;
    runs->n++;
    return true;
}

/* Fisher and Yates, by numbers that follow from the seed on any machine. */
static void shuffle(struct random *random, uint32_t *order, uint32_t n)
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

bool runs_order_find(const char *name, enum runs_order *out)
{
    for (enum runs_order how = RUNS_DECLARED; how <= RUNS_SHUFFLED; how++) {
        if (strcmp(name, runs_order_name(how)) != 0)
            continue;
        *out = how;
        return true;
    }
    return false;
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
        shuffle(&random, runs->order + from, n - from);
    }
    if (how == RUNS_SHUFFLED)
        shuffle(&random, runs->order, runs->n);
}

static enum epa_status collect(const struct cli *cli, struct runs *out, struct epa_error *err)
{
    const struct batch_pick pick = {cli->only, cli->n_only};
    uint32_t n = 0;
    bool fits;

    for (uint32_t i = 0; i < out->n_batches; i++)
        n += out->batch[i]->n;
    out->run = calloc(n + 1, sizeof(*out->run));
    out->order = calloc(n + 1, sizeof(*out->order));
    fits = out->run != NULL && out->order != NULL;
    for (uint32_t i = 0; i < out->n_batches && fits; i++)
        for (uint32_t k = 0; k < out->batch[i]->n && fits; k++)
            fits = add_run(&pick, out->batch[i], k, out);
    if (!fits)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u runs", n);
    if (out->n == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--only '%s': no run has that label or id; --dry-run lists them",
                        cli->only[0]);
    for (uint32_t i = 0; i < out->n; i++)
        out->order[i] = i;
    out->how = RUNS_DECLARED;
    return EPA_OK;
}

enum epa_status runs_read(const struct cli *cli, const char *const *sets, uint32_t n_sets,
                          struct registry *registry, struct diag *diag, struct runs *out,
                          struct epa_error *err)
{
    const struct batch_pick pick = {cli->only, cli->n_only};
    enum epa_status status = EPA_OK;

    out->batch = calloc(cli->n_args + 1, sizeof(struct batch *));
    if (out->batch == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u files", cli->n_args);
    for (uint32_t i = 0; i < cli->n_args; i++) {
        enum epa_status one =
            batch_read_some(cli->arg[i], cli->text, sets, n_sets, &pick, cli->max_runs, registry,
                            diag, &out->batch[out->n_batches]);

        if (one == EPA_OK)
            out->n_batches++;
        else
            status = one;
    }
    return status == EPA_OK ? collect(cli, out, err) : status;
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

        printf("%-12s  ", run->x != NULL ? run->x->id : "-");
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
