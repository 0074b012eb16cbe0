/* `epa2a tune FILE`: finds the fastest values of the options with candidates (epa2a/plugin.h, `tune`).
 * tune_candidates.c reads the candidates, tune_search.c searches, tune_turn.c takes the turns, and
 * tune_report.c reports. */
#include "cli/cmd_tune.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "run/stop_signals.h"
#include "cli/tune.h"
#include "cli/tune_candidates.h"
#include "cli/tune_json.h"
#include "cli/tune_report.h"
#include "cli/tune_search.h"
#include "cli/tune_tasks.h"
#include "cli/tune_turn.h"
#include "cli/turns.h"
#include "config/experiment_show.h"
#include "launch/program_registry.h"

enum { LEAST_BUDGET_NS = 1000 }; /* budget of a task after other tasks have spent all */

static enum epa_status prepare_search(struct tune_search *s)
{
    const struct cli *cli = s->t.cli;
    enum epa_status status = turns_check_alone("tune", &s->err);

    if (status == EPA_OK && s->registry == NULL)
        status = program_registry_create(cli->plugin_path, &s->registry, &s->err);
    if (status == EPA_OK)
        status = tune_read_bases(s);
    if (status == EPA_OK) {
        char why[RUNS_FAILURE];

        s->n_delivers = tune_delivered(s, s->base[0].x, s->delivers);
        if (tune_add_setting(s, 0, NULL, 0, NULL, 0) == NULL)
            status = epa_fail(&s->err, EPA_ERR_CONFIG, "%s: %s", cli->arg[0],
                              tune_read_runs(s, s->base[0].text, NULL, 0, why) == NULL ? why : "");
    }
    return status;
}

/* Adds the fastest experiment, as `config show` prints it. */
static enum epa_status add_best_experiment(struct tune_search *s, struct text *yaml)
{
    const struct tune_setting *x = s->t.is_better ? s->t.best : s->t.setting[0];
    char why[RUNS_FAILURE] = "";
    const struct runs *runs = tune_read_runs(s, s->base[x->base].whole, x->set, x->n, why);

    if (runs == NULL)
        return epa_fail(&s->err, EPA_ERR_CONFIG, "%s: %s", x->name, why);
    experiment_show(runs->run[0].x, false, yaml);
    return EPA_OK;
}

/* Writes the file of --out. */
static enum epa_status write_out(const struct cli *cli, const struct text *text,
                                 struct epa_error *err)
{
    enum epa_status status = file_write("--out", cli->out, cli->force, text, err);

    if (status == EPA_OK && strcmp(cli->out, "-") != 0)
        fprintf(cli_has_stdout(cli) ? stderr : stdout, "# written: %s\n", cli->out);
    return status;
}

/* Returns standard output for the table, or standard error if a document uses standard output. */
static FILE *table_file(const struct cli *cli)
{
    bool taken = cli_has_stdout(cli) || (cli->out != NULL && strcmp(cli->out, "-") == 0);

    return taken ? stderr : stdout;
}

static void search_init(struct tune_search *s, const struct cli *cli,
                        const struct machine_facts *machine)
{
    *s = (struct tune_search){
        .t = {.cli = cli,
              .machine = machine,
              .arena = arena_create(),
              .budget_ns = cli->budget_ns != 0 ? cli->budget_ns : CLI_BUDGET_NS},
        .take = tune_take_turn,
        .stop_fd = -1};
    s->t.setting = arena_alloc(s->t.arena, TUNE_SETTINGS * sizeof(struct tune_setting *));
}

static void search_finish(struct tune_search *s)
{
    for (struct tune_kept *k = s->kept; k != NULL; k = k->next)
        runs_finish(&k->runs);
    arena_destroy(s->t.arena);
}

static int report_task(struct tune_search *s, int code)
{
    const struct cli *cli = s->t.cli;
    text_auto yaml = {0}, out = {0};
    enum epa_status status;

    tune_print(table_file(cli), &s->t);
    status = cli_write_json(cli, tune_json(&s->t), &s->err);
    if (cli->out != NULL && status == EPA_OK && s->t.stopped == 0) {
        status = add_best_experiment(s, &yaml);
        if (status == EPA_OK) {
            tune_yaml(&s->t, &yaml, &out);
            status = write_out(cli, &out, &s->err);
        }
    }
    return code == EXIT_OK ? exit_code(status, SIGINT) : code;
}

/* Searches task i of the file with an equal share of the remaining budget, and adds it to `all`, which
 * refers to `s`. Sets *stops if the search was interrupted. */
static int search_task(const struct tune_search *first, uint32_t i, struct tune_search *s,
                       struct tune_tasks *all, bool *stops)
{
    uint64_t left = all->budget_ns > all->spent_ns ? all->budget_ns - all->spent_ns : 0;
    uint32_t remaining = first->n_tasks - i;
    text_auto yaml = {0};
    int code;

    search_init(s, first->t.cli, first->t.machine);
    s->registry = first->registry;
    s->stop_fd = first->stop_fd;
    s->shape = first->task[i].shape;
    s->t.budget_ns = left / remaining + LEAST_BUDGET_NS;
    code = prepare_search(s) == EPA_OK ? tune_search(s) : exit_code(s->err.status, SIGINT);
    *stops = s->t.stopped != 0 || tune_is_interrupted(code);
    if (s->err.status == EPA_OK && code == EXIT_OK && !*stops)
        (void)add_best_experiment(s, &yaml);
    if (s->err.status != EPA_OK || code == EXIT_OK || s->t.stopped != 0)
        tune_tasks_add(all, &s->t, first->task[i].name, &yaml,
                       s->err.status != EPA_OK ? s->err.text : NULL);
    if (s->err.status != EPA_OK)
        (void)cli_fail(&s->err);
    return code;
}

static int search_tasks(const struct tune_search *first)
{
    const struct cli *cli = first->t.cli;
    struct arena *arena = first->t.arena;
    struct tune_search *search = arena_alloc(arena, first->n_tasks * sizeof(*search));
    struct tune_tasks all = {.row = arena_alloc(arena, first->n_tasks * sizeof(*all.row)),
                             .budget_ns = first->t.budget_ns,
                             .tasks = first->n_tasks};
    uint32_t begun = 0;
    struct epa_error err = {EPA_OK, ""};
    text_auto out = {0};
    bool stops = false;
    int code = EXIT_OK;

    for (; begun < all.tasks && !stops; begun++) {
        int one = search_task(first, begun, &search[begun], &all, &stops);

        code = code == EXIT_OK ? one : code;
    }
    tune_tasks_print(table_file(cli), &all, cli->arg[0]);
    if (cli_write_json(cli, tune_tasks_json(&all, cli->arg[0], stops), &err) == EPA_OK &&
        cli->out != NULL && all.finished > 0) {
        tune_tasks_yaml(&all, first->t.machine, cli->arg[0], &out);
        (void)write_out(cli, &out, &err);
    }
    for (uint32_t i = 0; i < begun; i++)
        search_finish(&search[i]);
    text_free(&all.runs);
    return err.status != EPA_OK ? cli_fail(&err) : code;
}

int cmd_tune(const struct cli *cli)
{
    struct machine_facts machine;
    struct tune_search s;
    enum epa_status status;
    sigset_t stops;
    int code;

    stop_signals_catch(&stops);
    machine_facts_read("", &machine);
    search_init(&s, cli, &machine);
    status = prepare_search(&s);
    if (status == EPA_OK)
        status = stop_signals_open(&stops, &s.stop_fd, &s.err);
    code = exit_code(status, SIGINT);
    if (status == EPA_OK && s.n_tasks > 1) {
        code = search_tasks(&s);
    } else if (status == EPA_OK) {
        code = tune_search(&s);
        if (s.err.status == EPA_OK && (code == EXIT_OK || s.t.stopped != 0))
            code = report_task(&s, code);
    }
    if (s.err.status != EPA_OK)
        (void)cli_fail(&s.err);
    search_finish(&s);
    registry_destroy(s.registry);
    return code;
}
