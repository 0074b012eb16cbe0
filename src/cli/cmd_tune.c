/* epa2a tune FILE: which values of the options that tables mark (epa2a/plugin.h, `tune`) are
 * fastest. What a turn of a setting is, and all of the command but its search (tune_search.c) and
 * its report (tune.c). */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <epa2a/wait.h>
#include "base/file.h"
#include "cli/cli.h"
#include "cli/tune.h"
#include "report/result.h"

#define BUDGET_NS UINT64_C(60000000000)

/* ---- turns ---- */

/* What a turn came to, for the journal; NULL: it was interrupted, with *code. */
static json_t *run_turn(const struct tune_search *s, const struct tune_setting *x,
                        enum tune_verb verb, const json_t *what, int *code)
{
    const struct experiment *file = s->base[0].x;
    bool verify = verb == TUNE_VERIFY;
    bool may_stop = file->bench.arrivals == ARRIVALS_CLOSED && file->bench.min_time_ns == 0;
    struct results results = {0};
    const char **set = arena_alloc(s->t.arena, (x->n + 5) * sizeof(*set));
    uint32_t n = x->n;
    uint64_t start = epa_now_ns(), samples = 0;
    char why[CLI_FAILURE] = "";
    double median = NAN, fastest = NAN;
    json_t *turn;

    memcpy(set, x->set, n * sizeof(*set));
    if (verify) {
        set[n++] = arena_printf(s->t.arena, "verify.iterations=%d", TUNE_VERIFIED);
    } else {
        set[n++] = verb == TUNE_CHECKED ? "bench.check=true" : "bench.check=false";
        if (may_stop)
            set[n++] = arena_printf(s->t.arena, "bench.max_time=%" PRIu64 "ns", s->longest_ns);
        if (s->iterations > 0)
            set[n++] = arena_printf(s->t.arena, "bench.iterations=%u", s->iterations);
        if (s->iterations > 0)
            set[n++] = arena_printf(s->t.arena, "bench.warmup=%u", s->warmup);
    }
    *code = turns_run(s->t.cli, verify ? cmd_verify : cmd_bench,
                      &(struct turn){s->base[x->base].text, set, n, s->registry, s->machine, why,
                                     .times_only = true},
                      &results);
    if (tune_is_interrupted(*code)) {
        results_free(&results);
        return NULL;
    }
    if (*code == EXIT_OK && !verify) {
        median = turns_percentile(&results, s->stage, 500, &samples);
        fastest = turns_percentile(&results, s->stage, TURNS_FASTEST, &samples);
    }
    turn = json_object_of("what", json_deep_copy(what), "code", json_integer(*code), "error",
                          json_text(why), "median_ns", json_whole(median), "fastest_ns",
                          json_whole(fastest), "samples", json_count(samples), "took_ns",
                          json_count(epa_now_ns() - start), NULL);
    results_free(&results);
    return turn;
}

/* For struct tune_search: from the journal if it is there. */
static int take_turn(struct tune_search *s, const struct tune_setting *x, enum tune_verb verb,
                     struct tune_turn *out)
{
    static const char *const name[] = {"bench", "check", "verify"};
    bool verify = verb == TUNE_VERIFY;
    json_t *set = json_array(), *what, *made = NULL;
    const json_t *turn = NULL;
    int code = EXIT_OK;

    for (uint32_t i = 0; i < x->n; i++)
        json_array_append_new(set, json_text(x->set[i]));
    what = json_object_of("verb", json_text(name[verb]), "base", json_text(s->base[x->base].name),
                          "set", set, "iterations",
                          json_count(verify ? TUNE_VERIFIED : s->iterations), NULL);
    if (tune_journal_next(&s->journal, what, &turn, &s->err) == EPA_OK && turn == NULL) {
        turn = made = run_turn(s, x, verb, what, &code);
        if (turn != NULL)
            (void)tune_journal_add(&s->journal, turn, &s->err);
    }
    if (turn != NULL) {
        const char *error = json_text_at(turn, "error");

        code = (int)json_integer_value(json_object_get(turn, "code"));
        *out = (struct tune_turn){
            .median_ns = json_number_at(turn, "median_ns"),
            .fastest_ns = json_number_at(turn, "fastest_ns"),
            .took_ns = (uint64_t)json_integer_value(json_object_get(turn, "took_ns")),
            .samples = (uint64_t)json_integer_value(json_object_get(turn, "samples")),
            .why = arena_printf(s->t.arena, "%s: %s", verify ? "verify" : "bench",
                                *error != '\0' ? error : "it failed")};
        if (!verify && code == EXIT_OK && !(out->median_ns > 0))
            code = EXIT_INTERNAL;
    }
    json_decref(what);
    json_decref(made);
    return s->err.status != EPA_OK ? exit_code(s->err.status, SIGINT) : code;
}

/* ---- all of it ---- */

static enum epa_status prepare(struct tune_search *s)
{
    const struct cli *cli = s->t.cli;
    json_auto_t *ids = json_array(), *keys = json_array();
    json_auto_t *head =
        json_object_of("version", json_text(EPA2A_VERSION), "experiments", json_incref(ids), "keys",
                       json_incref(keys), "budget_ns", json_count(s->t.budget_ns), NULL);
    enum epa_status status = turns_check_alone("tune", &s->err);

    if (status == EPA_OK)
        status = registry_create(cli->plugin_path, &s->registry, &s->err);
    if (status == EPA_OK)
        status = tune_read_bases(s);
    if (status == EPA_OK) {
        char why[CLI_FAILURE];

        s->delivers = tune_delivered(s, s->base[0].x);
        if (tune_add_setting(s, 0, NULL, 0, NULL, NULL, 0) == NULL)
            status = epa_fail(&s->err, EPA_ERR_CONFIG, "%s: %s", cli->arg[0],
                              tune_read_runs(s, s->base[0].text, NULL, 0, why) == NULL ? why : "");
        s->stage = s->base[0].x->bench.arrivals != ARRIVALS_CLOSED ? "latency"
                   : s->base[0].x->bench.clock == CLOCK_END_TO_END ? "wall"
                                                                   : "total";
    }
    for (uint32_t i = 0; i < s->n_bases; i++)
        json_array_append_new(ids, json_text(s->base[i].x->id));
    for (uint32_t i = 0; i < cli->n_keys; i++)
        json_array_append_new(keys, json_text(cli->keys[i]));
    for (uint32_t i = 0; i < cli->n_across; i++)
        json_array_append_new(keys, json_text(cli->across[i]));
    return status == EPA_OK ? tune_journal_open(&s->journal, cli, head, &s->err) : status;
}

/* --out: the experiment that won, with what it is for. */
static enum epa_status write_best(struct tune_search *s)
{
    const struct tune_setting *x = s->t.is_better ? s->t.best : s->t.setting[0];
    const struct cli *cli = s->t.cli;
    text_auto yaml = {0}, out = {0};
    char why[CLI_FAILURE] = "";
    const struct runs *runs = tune_read_runs(s, s->base[x->base].whole, x->set, x->n, why);
    enum epa_status status;

    if (runs == NULL)
        return epa_fail(&s->err, EPA_ERR_CONFIG, "%s: %s", x->name, why);
    experiment_show(runs->run[0].x, false, &yaml);
    tune_yaml(&s->t, &yaml, &out);
    status = file_write("--out", cli->out, cli->force, &out, &s->err);
    if (status == EPA_OK && strcmp(cli->out, "-") != 0)
        fprintf(cli_has_stdout(cli) ? stderr : stdout, "# written: %s\n", cli->out);
    return status;
}

int cmd_tune(const struct cli *cli)
{
    struct tune_search s = {.t = {.cli = cli,
                                  .arena = arena_create(),
                                  .not_tried = json_array(),
                                  .budget_ns = cli->budget_ns != 0 ? cli->budget_ns : BUDGET_NS},
                            .machine = facts_collect(""),
                            .take = take_turn,
                            .journal = {.fd = -1, .lock_fd = -1}};
    bool to_stdout = !cli_has_stdout(cli) && (cli->out == NULL || strcmp(cli->out, "-") != 0);
    enum epa_status status;
    int code;

    s.t.setting = arena_alloc(s.t.arena, TUNE_SETTINGS * sizeof(struct tune_setting *));
    status = prepare(&s);
    code = status == EPA_OK ? tune_search(&s) : exit_code(status, SIGINT);
    if (status == EPA_OK && s.err.status == EPA_OK && (code == EXIT_OK || s.t.stopped != 0)) {
        tune_print(to_stdout ? stdout : stderr, &s.t);
        status = cli_write_json(cli, tune_json(&s.t), &s.err);
        if (cli->out != NULL && status == EPA_OK && s.t.stopped == 0)
            status = write_best(&s);
        if (code == EXIT_OK)
            code = exit_code(status, SIGINT);
    }
    if (s.err.status != EPA_OK)
        (void)cli_fail(&s.err);
    tune_journal_close(&s.journal);
    json_decref(s.t.not_tried);
    json_decref(s.delivers);
    json_decref(s.machine);
    for (struct tune_kept *k = s.kept; k != NULL; k = k->next)
        runs_finish(&k->runs);
    registry_destroy(s.registry);
    arena_destroy(s.t.arena);
    return code;
}
