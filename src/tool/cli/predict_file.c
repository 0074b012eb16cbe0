/* Reads the file and the settings of `epa2a predict`. */
#include "cli/predict_file.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/predict_plan.h"
#include "config/diag.h"
#include "config/experiment_show.h"
#include "options/option.h"
#include "experiment/operation.h"

/* Least timeout of a measured run: a busy machine slows a run down but must not end it. */
#define TIMEOUT_NS UINT64_C(30000000000)

/* Parses "KEY=N" of --set, where N may exceed the limit of an experiment. Returns false for another
 * key. */
static bool parse_rank_setting(const char *set, const char *key, uint32_t *out,
                               struct epa_error *err)
{
    size_t bytes = strlen(key);
    struct value_error why;
    uint64_t value;

    if (strncmp(set, key, bytes) != 0 || set[bytes] != '=')
        return false;
    if (!value_u64(set + bytes + 1, &value, &why) || value > RANKS_MOST)
        epa_fail(err, EPA_ERR_CONFIG, "--set %s: expected a whole number up to %u", set,
                 RANKS_MOST);
    else
        *out = (uint32_t)value;
    return true;
}

/* Parses --sweep, such as "ranks=8:1024". */
static enum epa_status read_sweep(struct predict_plan *p, const char *sweep)
{
    unsigned low, high;
    char more;

    if (sscanf(sweep, "ranks=%u:%u%c", &low, &high, &more) != 2 || low == 0 || low > high ||
        high > RANKS_MOST)
        return epa_fail(&p->err, EPA_ERR_CONFIG,
                        "--sweep %s: expected ranks=LOW:HIGH with HIGH up to %d, such as --sweep "
                        "ranks=8:1024",
                        sweep, RANKS_MOST);
    p->low = low;
    p->ranks = high;
    return EPA_OK;
}

static enum epa_status check_file(struct predict_plan *p)
{
    const struct experiment *x = p->x;

    p->op = operation_of_experiment(x);
    if (p->op->load == NULL || x->problem.expert.kind == EXPERT_MLP)
        return epa_fail(&p->err, EPA_ERR_CONFIG,
                        "%s: predict covers the communication of moe and allgather, not "
                        "computation%s",
                        p->cli->arg[0],
                        p->op->load != NULL ? ": leave it out by --set expert=scale" : "");
    if (x->problem.tokens.kind == TOKENS_LIST && p->low != p->ranks)
        return epa_fail(&p->err, EPA_ERR_CONFIG,
                        "%s: tokens is a list for %u ranks, but --sweep has other numbers of "
                        "ranks: --set tokens=full",
                        p->cli->arg[0], x->problem.tokens.per_rank.n);
    return EPA_OK;
}

/* Returns ranks_per_node of the file's run. If the file is not valid with its own number of ranks,
 * returns the value at the top level of the file. */
static uint32_t per_node_of_file(struct predict_plan *p, const struct runs_wish *wish)
{
    struct tree tree = {.arena = p->arena, .diag = diag_create()};
    struct epa_error ignored = {EPA_OK, ""};
    struct value_error why;
    const struct node *node;
    struct runs runs = {0};
    uint64_t out = 0;

    if (runs_read(wish, p->registry, tree.diag, &runs, &ignored) == EPA_OK &&
        runs.run[0].x != NULL) {
        out = runs.run[0].x->problem.ranks_per_node;
    } else {
        batch_read_tree(&tree, wish->file[0], wish->set, wish->n_sets);
        node = node_find(tree.root, "ranks_per_node");
        if (node == NULL || node->kind != NODE_SCALAR || !value_u64(node->text, &out, &why))
            out = 0;
    }
    runs_finish(&runs);
    diag_destroy(tree.diag);
    return out < RANKS_MOST ? (uint32_t)out : RANKS_MOST;
}

static bool can_read_runs(const struct predict_plan *p, const struct runs_wish *wish)
{
    struct diag *diag = diag_create();
    struct epa_error ignored = {EPA_OK, ""};
    struct runs runs = {0};
    bool good = runs_read(wish, p->registry, diag, &runs, &ignored) == EPA_OK;

    runs_finish(&runs);
    diag_destroy(diag);
    return good;
}

/* Adds the settings for reading the file if `ranks` ranks are predicted: this number of ranks, so
 * that errors refer to it. An experiment has at most 64 ranks. For more the file is read with its
 * own number of ranks, or with one rank if its own number is not valid, and predict_count_worlds()
 * checks the predicted number. `rest` has room for three more settings. */
static enum epa_status add_ranks(struct predict_plan *p, struct runs_wish *rest, uint32_t ranks)
{
    uint64_t most = option_greatest(option_find(&experiment_options, "ranks"));
    const char **set = rest->set;
    uint32_t n = rest->n_sets;

    if (ranks > most && can_read_runs(p, rest))
        return EPA_OK;
    set[n] = ranks > most ? "ranks=1" : arena_printf(p->arena, "ranks=%u", ranks);
    set[n + 1] = "ranks_per_node=0";
    rest->n_sets += 2;
    if (ranks <= most || can_read_runs(p, rest))
        return EPA_OK;
    set[n + 2] = "tokens=full";
    rest->n_sets++;
    if (can_read_runs(p, rest))
        return epa_fail(&p->err, EPA_ERR_CONFIG,
                        "%s: tokens is a list, which allows up to %u ranks: --set tokens=full",
                        rest->file[0], (unsigned)most);
    rest->n_sets = n + 2;
    return EPA_OK;
}

enum epa_status predict_read_file(struct predict_plan *p)
{
    const struct cli *cli = p->cli;
    struct runs_wish rest = runs_wish(cli); /* without settings of ranks and ranks_per_node */
    const char **set = arena_alloc(p->arena, (cli->n_sets + 3) * sizeof(*set));
    struct text text = {0};
    struct experiment bare;
    uint32_t n = 0, ranks = 0, per_node = UINT32_MAX;
    enum epa_status status;

    for (uint32_t i = 0; i < cli->n_sets; i++)
        if (!parse_rank_setting(cli->set[i], "ranks", &ranks, &p->err) &&
            !parse_rank_setting(cli->set[i], "ranks_per_node", &per_node, &p->err))
            set[n++] = cli->set[i];
    status = p->err.status;
    if (status == EPA_OK && cli->predict.sweep != NULL)
        status = read_sweep(p, cli->predict.sweep);
    rest.set = set;
    rest.n_sets = n;
    if (status == EPA_OK && (p->low != 0 || ranks != 0)) {
        if (per_node == UINT32_MAX)
            per_node = per_node_of_file(p, &rest);
        status = add_ranks(p, &rest, p->low != 0 ? p->low : ranks);
    }
    if (status == EPA_OK)
        status = runs_read_files(&rest, p->registry, "predict", &p->base, &p->err);
    if (status != EPA_OK)
        return status;
    if (p->base.run[0].x == NULL)
        return epa_fail_key(&p->err, p->base.run[0].refused.status, p->base.run[0].refused.key,
                            "%s", p->base.run[0].refused.text);
    p->x = p->base.run[0].x;
    if (cli->predict.sweep == NULL)
        p->ranks = p->low = ranks != 0 ? ranks : p->x->problem.ranks;
    p->per_node = per_node != UINT32_MAX ? per_node : p->x->problem.ranks_per_node;
    p->per_node = p->per_node != 0 ? p->per_node : RANKS_MOST;
    bare = *p->x;
    memcpy(&bare.expect, section_find("expect")->options.defaults, sizeof(bare.expect));
    memcpy(&bare.profile, section_find("profile")->options.defaults, sizeof(bare.profile));
    memcpy(&bare.fault, section_find("fault")->options.defaults, sizeof(bare.fault));
    memcpy(&bare.bench, section_find("bench")->options.defaults, sizeof(bare.bench));
    bare.bench.barrier = p->x->bench.barrier;
    bare.bench.input_sets = p->x->bench.input_sets;
    bare.timeout_ns = p->x->timeout_ns > TIMEOUT_NS ? p->x->timeout_ns : TIMEOUT_NS;
    experiment_show(&bare, false, &text);
    p->text = arena_strndup(p->arena, text.data, text.bytes);
    text_free(&text);
    return check_file(p);
}
