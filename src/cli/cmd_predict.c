/* `epa2a predict FILE`: predicts the times of a larger cluster. Short runs of small worlds on this
 * machine give the costs of each phase (report/summary.h). The traffic of the predicted world is
 * counted from the routing of all its ranks; no rank of it is started, and no memory of its size is
 * allocated.
 *
 * Small worlds have 2, 4, 8 ... ranks, or the next number that the file allows, each with the file's
 * number of tokens and with one token. All runs take turns in rounds, and the fastest round counts,
 * since other load never makes a run faster. Fits without one of the worlds show the error of the
 * costs. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/predict.h"
#include "config/options.h"
#include "config/diag.h"
#include "config/experiment_show.h"
#include "config/node.h"
#include "report/results.h"
#include "report/plot.h"
#include "report/result.h"
#include "report/findings.h"
#include "report/origin.h"
#include "report/predict.h"

/* Least timeout of a measured run: a busy machine slows a run down but must not end it. */
#define TIMEOUT_NS UINT64_C(30000000000)

/* ---- the worlds ---- */

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
static enum epa_status read_sweep(struct prediction *p, const char *sweep)
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

static enum epa_status check_file(struct prediction *p)
{
    const struct experiment *x = p->x;

    p->op = operation_of_experiment(x);
    if (p->op->load == NULL || x->expert.kind == EXPERT_MLP)
        return epa_fail(&p->err, EPA_ERR_CONFIG,
                        "%s: predict covers the communication of moe and allgather, not "
                        "computation%s",
                        p->cli->arg[0],
                        p->op->load != NULL ? ": leave it out by --set expert=scale" : "");
    if (x->tokens.kind == TOKENS_LIST && p->low != p->ranks)
        return epa_fail(&p->err, EPA_ERR_CONFIG,
                        "%s: tokens is a list for %u ranks, but --sweep has other numbers of "
                        "ranks: --set tokens=full",
                        p->cli->arg[0], x->tokens.per_rank.n);
    return EPA_OK;
}

/* Returns ranks_per_node of the file's run. If the file is not valid with its own number of ranks,
 * returns the value at the top level of the file. */
static uint32_t per_node_of_file(struct prediction *p, const struct cli *cli)
{
    struct tree tree = {.arena = p->arena, .diag = diag_create()};
    struct epa_error ignored = {EPA_OK, ""};
    struct value_error why;
    const struct node *node;
    struct runs runs = {0};
    uint64_t out = 0;

    if (runs_read(cli, p->registry, tree.diag, &runs, &ignored) == EPA_OK &&
        runs.run[0].x != NULL) {
        out = runs.run[0].x->ranks_per_node;
    } else {
        batch_read_tree(&tree, cli->arg[0], cli->set, cli->n_sets);
        node = node_find(tree.root, "ranks_per_node");
        if (node == NULL || node->kind != NODE_SCALAR || !value_u64(node->text, &out, &why))
            out = 0;
    }
    runs_finish(&runs);
    diag_destroy(tree.diag);
    return out < RANKS_MOST ? (uint32_t)out : RANKS_MOST;
}

static bool can_read_runs(const struct prediction *p, const struct cli *cli)
{
    struct diag *diag = diag_create();
    struct epa_error ignored = {EPA_OK, ""};
    struct runs runs = {0};
    bool good = runs_read(cli, p->registry, diag, &runs, &ignored) == EPA_OK;

    runs_finish(&runs);
    diag_destroy(diag);
    return good;
}

/* Adds the settings for reading the file if `ranks` ranks are predicted: this number of ranks, so
 * that errors refer to it. An experiment has at most 64 ranks. For more the file is read with its
 * own number of ranks, or with one rank if its own number is not valid, and prediction_resize()
 * checks the predicted number. `rest` has room for three more settings. */
static enum epa_status add_ranks(struct prediction *p, struct cli *rest, uint32_t ranks)
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
                        rest->arg[0], (unsigned)most);
    rest->n_sets = n + 2;
    return EPA_OK;
}

/* Reads the file and replaces its bench section, so that runs are a closed loop with stages. */
static enum epa_status read_file(struct prediction *p)
{
    const struct cli *cli = p->cli;
    struct cli rest = *cli; /* without settings of ranks and ranks_per_node */
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
    if (status == EPA_OK && cli->sweep != NULL)
        status = read_sweep(p, cli->sweep);
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
        return epa_fail(&p->err, p->base.run[0].refused.status, "%s", p->base.run[0].refused.text);
    p->x = p->base.run[0].x;
    if (cli->sweep == NULL)
        p->ranks = p->low = ranks != 0 ? ranks : p->x->ranks;
    p->per_node = per_node != UINT32_MAX ? per_node : p->x->ranks_per_node;
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
/* ---- measuring ---- */

bool prediction_is_whole(const struct prediction *p, const struct measured *m)
{
    return m->tokens == p->op->size(p->x) && m->copies == operation_copies(p->x);
}

/* Adds a run of a world. Returns false with the reason in `why` if the run is not valid. */
static bool add_run(struct prediction *p, uint32_t ranks, uint32_t tokens, uint32_t copies,
                    bool checks, char why[CLI_FAILURE])
{
    struct measured *m = &p->run[p->n];
    struct runs *runs = &p->read[p->n_read];
    const char **set = arena_alloc(p->arena, SETS_MOST * sizeof(*set));
    char wrong[CLI_FAILURE];
    uint32_t n = 0;

    set[n++] = arena_printf(p->arena, "ranks=%u", ranks);
    set[n++] = "ranks_per_node=0";
    set[n++] = arena_printf(p->arena, "%s=%u", p->op->size_key, tokens);
    if (tokens != p->op->size(p->x) || (p->x->tokens.kind == TOKENS_LIST && !checks))
        set[n++] = "tokens=full";
    if (p->op->copies_key != NULL)
        set[n++] = arena_printf(p->arena, "%s=%u", p->op->copies_key, copies);
    p->n_read++;
    if (runs_read_text(p->cli, p->registry, p->text, set, n, runs, wrong, &p->err) != EPA_OK) {
        snprintf(why, CLI_FAILURE, "%u ranks cannot be measured here: %.240s", ranks, wrong);
        runs_finish(runs);
        p->n_read--;
        return false;
    }
    *m = (struct measured){.ranks = ranks,
                           .set = set,
                           .n_sets = n,
                           .tokens = tokens,
                           .copies = copies,
                           .checks = checks,
                           .x = runs->run[0].x,
                           .total_ns = INFINITY,
                           .second_ns = INFINITY};
    prediction_count(m->x, p->source, m->load);
    for (uint32_t i = 0; i < p->op->n_phases; i++) {
        m->point[i] = prediction_point(p, m->x, &m->load[i], p->here);
        m->point[i].ns = INFINITY;
        m->point[i].weight = prediction_is_whole(p, m) ? 1 : SIDE_WEIGHT;
    }
    p->n++;
    return true;
}

/* Adds all runs of a world, or none. */
static bool add_world(struct prediction *p, uint32_t ranks, bool checks, char why[CLI_FAILURE])
{
    uint32_t tokens = (uint32_t)p->op->size(p->x), copies = operation_copies(p->x), first = p->n;
    struct measured *all = &p->run[first];
    bool fewer;

    if (!add_run(p, ranks, tokens, copies, checks, why))
        return false;
    fewer = all->load[0].rows < all->load[0].entries && copies > 1 &&
            p->x->routing.kind != ROUTING_FILE;
    if (!checks && tokens > 1 && !add_run(p, ranks, 1, copies, false, why)) {
        p->n = first;
        return false;
    }
    if (!checks && fewer)
        (void)add_run(p, ranks, tokens, copies > 4 ? copies / 4 : 1, false, why);
    if (!checks)
        p->world[p->n_worlds++] = ranks;
    return true;
}

static enum epa_status choose_worlds(struct prediction *p)
{
    double threads = fmax(prediction_threads(p->x), 1);
    char why[CLI_FAILURE] = "", first[CLI_FAILURE] = "";
    bool known = false;

    /* Doubles the ranks after a valid world; else tries the next number, which may divide the
     * experts. */
    for (uint32_t ranks = 2; ranks <= CORES_MOST && p->n_worlds + 1 < WORLDS_MOST;) {
        bool wanted = ranks * threads <= p->here || p->n_worlds < WORLDS_WANTED;

        ranks = wanted && add_world(p, ranks, false, first[0] == '\0' ? first : why) ? ranks * 2
                                                                                     : ranks + 1;
    }
    if (p->n_worlds == 0 && p->err.status == EPA_OK)
        return epa_fail(&p->err, EPA_ERR_CONFIG,
                        "%s: the prediction needs a measured run of 2 to %d ranks: %s",
                        p->cli->arg[0], CORES_MOST, first);
    for (uint32_t i = 0; i < p->n_worlds; i++)
        known = known || (p->world[i] == p->ranks && p->x->tokens.kind != TOKENS_LIST);
    if (p->cli->check && p->ranks > p->per_node)
        return epa_fail(
            &p->err, EPA_ERR_CONFIG,
            "--check: %u ranks on %u nodes cannot run on this single node; compare with "
            "results of the cluster by --measured",
            p->ranks, p->ranks / p->per_node);
    if (p->cli->check && !known && !add_world(p, p->ranks, true, why))
        return epa_fail(&p->err, EPA_ERR_CONFIG, "--check: %s", why);
    return p->err.status;
}

double prediction_phase_ns(const json_t *result, const char *phase)
{
    double ns = 0;

    for (struct json_walk stage = {json_object_get(result, "stages")}; json_next(&stage);) {
        if (strncmp(json_text_at(stage.value, "name"), phase, strlen(phase)) == 0)
            ns += json_number_at(stage.value, "ns.median");
    }
    return ns;
}

/* Runs bench quietly, keeps its results in memory, and returns its exit code. */
static int measure_run(struct prediction *p, struct measured *m)
{
    char why[CLI_FAILURE] = "";
    struct cli run = *p->cli;
    struct results results;
    uint32_t n = m->n_sets;
    double total = 0;
    int code;

    m->set[n++] = "bench.check=false";
    m->set[n++] = "bench.iterations=200";
    m->set[n++] = "bench.max_time=200ms";
    turns_make_quiet(&run);
    run.text = p->text;
    run.set = m->set;
    run.n_sets = n;
    run.n_only = 0;
    run.registry = p->registry;
    run.machine = p->machine;
    run.failure = why;
    code = run_for_results(&run, cmd_bench, p->cli->arg[0], &results);
    if (code == EXIT_OK && results.n != 1)
        code = EXIT_INTERNAL;
    for (uint32_t i = 0; i < p->op->n_phases && code == EXIT_OK; i++) {
        double ns = prediction_phase_ns(results.run[0].json, p->op->phase[i].name);

        if (!(ns > 0)) {
            snprintf(why, sizeof(why), "the result has no stage '%s'", p->op->phase[i].name);
            code = EXIT_USAGE;
        }
        m->point[i].ns = fmin(m->point[i].ns, ns);
        total += ns;
    }
    if (code == EXIT_OK) {
        double signal = json_number_at(results.run[0].json, "machine.links.latency_ns");

        m->second_ns = fmin(m->second_ns, fmax(m->total_ns, total));
        m->total_ns = fmin(m->total_ns, total);
        if (signal > 0 && (p->signal_ns <= 0 || signal < p->signal_ns))
            p->signal_ns = signal;
    }
    results_free(&results);
    if (code != EXIT_OK && code != exit_code(EPA_ERR_INTERRUPTED, SIGINT) &&
        code != exit_code(EPA_ERR_INTERRUPTED, SIGTERM))
        epa_fail(&p->err, EPA_ERR_CONFIG, "%s: %u ranks could not be measured: %s", p->cli->arg[0],
                 m->ranks, why);
    return code;
}

/* Removes a failed world and all larger ones. Returns false if no smaller world is left or --check
 * needs one of them. */
static bool drop_worlds(struct prediction *p, uint32_t ranks)
{
    uint32_t kept = 0;

    if (p->n_worlds == 0 || p->world[0] >= ranks || (p->cli->check && p->ranks >= ranks))
        return false;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->run[i].ranks < ranks)
            p->run[kept++] = p->run[i];
    p->n = kept;
    while (p->world[p->n_worlds - 1] >= ranks)
        p->n_worlds--;
    json_array_append_new(p->notes, json_text(p->err.text));
    p->err = (struct epa_error){EPA_OK, ""};
    return true;
}

static int measure_worlds(struct prediction *p)
{
    bool progress = progress_is_on(p->cli);
    int code = EXIT_OK;

    for (uint32_t round = 0; round < ROUNDS && code == EXIT_OK; round++)
        for (uint32_t i = 0; i < p->n && code == EXIT_OK; i++) {
            if (progress)
                (void)progress_show("round %u of %d: %u ranks", round + 1, ROUNDS, p->run[i].ranks);
            code = measure_run(p, &p->run[i]);
            if (code != EXIT_OK && round == 0 && !p->run[i].checks &&
                drop_worlds(p, p->run[i].ranks)) {
                code = EXIT_OK;
                i--; /* the next run took the place of the removed one */
            }
        }
    if (progress)
        progress_clear();
    return code;
}
/* ---- the command ---- */

enum epa_status cmd_predict_check(const struct cli *cli, struct epa_error *err)
{
    struct predict_link link;

    if (cli->out != NULL && cli->sweep == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--out draws a sweep and needs --sweep, such as --sweep ranks=8:1024");
    if (cli->check && cli->sweep != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--check measures one number of ranks, but --sweep has several");
    return cli->link == NULL ? EPA_OK : predict_link_read(cli->link, &link, err);
}

static enum epa_status prepare_prediction(struct prediction *p)
{
    const struct cli *cli = p->cli;
    enum epa_status status = turns_check_alone("predict", &p->err);
    struct experiment x;
    uint32_t planned;
    const char *why;

    if (status == EPA_OK)
        status = registry_create(cli->plugin_path, &p->registry, &p->err);
    if (status == EPA_OK)
        status = read_file(p);
    if (status == EPA_OK && cli->link != NULL) {
        status = predict_link_read(cli->link, &p->link, &p->err);
        p->has_link = true;
    }
    if (status == EPA_OK && !p->has_link && p->ranks > p->per_node)
        status = epa_fail(&p->err, EPA_ERR_CONFIG,
                          "%u ranks on %u nodes need the link between nodes, such as --link "
                          "50GB/s,2us",
                          p->ranks, p->ranks / p->per_node);
    if (status == EPA_OK && (why = prediction_resize(p, p->low, &x, &planned)) != NULL)
        status = epa_fail(&p->err, EPA_ERR_CONFIG, "%s: %u ranks are %s", cli->arg[0], p->low, why);
    if (status == EPA_OK && p->op->open != NULL)
        status = p->op->open(p->x, &p->source, &p->err);
    p->here = (uint32_t)fmax(1, json_number_at(p->machine, "cores"));
    p->cores = cli->cores != 0 ? cli->cores : p->here;
    return status == EPA_OK ? choose_worlds(p) : status;
}

static enum epa_status write_outputs(struct prediction *p)
{
    const struct cli *cli = p->cli;
    text_auto markdown = {0}, csv = {0}, script = {0}, drawn = {0};
    enum epa_status status = EPA_OK;

    if (!cli_has_stdout(cli))
        predict_text(stdout, p->document);
    predict_markdown(&markdown, p->document);
    if (cli->csv != NULL) {
        predict_csv(&csv, p->document);
        status = file_write("--csv", cli->csv, cli->force, &csv, &p->err);
    }
    if (cli->out != NULL && status == EPA_OK)
        status = plot_prediction(p->document, cli_plot_form(cli->out), cli_plot_columns(cli->out),
                                 &script, &p->err);
    if (cli->out != NULL && status == EPA_OK)
        status = cli_draw(&script, &drawn, &p->err);
    if (cli->out != NULL && status == EPA_OK)
        status = file_write("--out", cli->out, cli->force, &drawn, &p->err);
    if (status == EPA_OK)
        status = cli_write_documents(cli, json_incref(p->document), &markdown, &p->err);
    return status;
}

int cmd_predict(const struct cli *cli)
{
    struct prediction p = {
        .cli = cli, .arena = arena_create(), .machine = facts_collect(""), .notes = json_array()};
    enum epa_status status = prepare_prediction(&p);
    int code = status == EPA_OK ? measure_worlds(&p) : exit_code(status, SIGINT);

    if (code == EXIT_OK) {
        prediction_fit(&p);
        status = prediction_make(&p);
        if (status == EPA_OK)
            status = write_outputs(&p);
        code = exit_code(status, SIGINT);
    }
    if (p.err.status != EPA_OK)
        code = cli_fail(&p.err);
    json_decref(p.document);
    json_decref(p.notes);
    json_decref(p.machine);
    if (p.source != NULL)
        p.op->close(p.source);
    for (uint32_t i = 0; i < p.n_read; i++)
        runs_finish(&p.read[i]);
    runs_finish(&p.base);
    if (p.registry != NULL)
        registry_destroy(p.registry);
    arena_destroy(p.arena);
    return code;
}
