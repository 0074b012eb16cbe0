/* `epa2a predict FILE`: predicts the times of a larger cluster. The Python package measures, fits and
 * predicts. With --dry-run the program itself lists the runs to measure and counts the traffic of the
 * predicted worlds; the package begins with this document. */
#include "cli/cmd_predict.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "base/object_path.h"
#include "cli/chart_file.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "cli/predict_file.h"
#include "cli/predict_json.h"
#include "cli/predict_plan.h"
#include "cli/predict_runs.h"
#include "cli/predict_table.h"
#include "cli/predict_worlds.h"
#include "cli/python_command.h"
#include "cli/turns.h"
#include "experiment/batch.h"
#include "experiment/check_operation.h"
#include "launch/program_registry.h"

enum epa_status cmd_predict_check(const struct cli *cli, struct epa_error *err)
{
    const struct cli_predict *predict = &cli->predict;

    if (cli->batch.dry_run &&
        (predict->link != NULL || predict->measured != NULL || predict->cores != 0 ||
         cli->out != NULL || cli->csv != NULL || cli->markdown != NULL))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--dry-run counts traffic and predicts no times: leave --link, --cores, "
                        "--measured, --out, --csv and --markdown out");
    if (cli->out != NULL && predict->sweep == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--out draws a sweep and needs --sweep, such as --sweep ranks=8:1024");
    if (predict->check && predict->sweep != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--check measures one number of ranks, but --sweep has several");
    return cli->out == NULL ? EPA_OK : chart_file_check(cli->out, err);
}

/* ---- the plan ---- */

static enum epa_status make_plan(struct predict_plan *p)
{
    const struct cli *cli = p->cli;
    enum epa_status status = turns_check_alone("predict", &p->err);
    struct op_advice advice;

    machine_facts_read("", &p->machine);
    p->cores = (uint32_t)fmax(1, p->machine.cores);
    if (status == EPA_OK)
        status = program_registry_create(cli->plugin_path, &p->registry, &p->err);
    if (status == EPA_OK)
        status = predict_read_file(p);
    advice = (struct op_advice){experiment_takes, p->x};
    if (status == EPA_OK && p->op->source_open != NULL)
        status = p->op->source_open(&p->x->problem, &advice, &p->source, &p->err);
    if (status == EPA_OK)
        status = predict_count_worlds(p);
    return status == EPA_OK ? predict_choose_runs(p) : status;
}

static int show_plan(const struct cli *cli)
{
    struct predict_plan p = {.cli = cli, .arena = arena_create()};
    enum epa_status status = make_plan(&p);

    if (status == EPA_OK && !cli_has_stdout(cli))
        predict_table(stdout, &p);
    if (status == EPA_OK)
        status = cli_write_json(cli, predict_json(&p), &p.err);
    if (p.source != NULL)
        p.op->source_close(p.source);
    runs_finish(&p.base);
    if (p.registry != NULL)
        registry_destroy(p.registry);
    arena_destroy(p.arena);
    return p.err.status != EPA_OK ? cli_fail(&p.err) : exit_code(status, SIGINT);
}

/* ---- the prediction ---- */

static void add_options(struct python_words *words, const struct cli *cli)
{
    static const char *const whens[] = {
        [PROGRESS_AUTO] = "auto", [PROGRESS_ALWAYS] = "always", [PROGRESS_NEVER] = "never"};
    const struct cli_predict *predict = &cli->predict;

    for (uint32_t i = 0; i < cli->n_sets; i++) /* with --model and --timeout */
        python_add_value(words, "--set", cli->set[i]);
    for (uint32_t i = 0; i < cli->n_plugin_paths; i++)
        python_add_value(words, "--plugin-path", cli->plugin_path[i]);
    for (uint32_t i = 0; i < cli->n_only; i++)
        python_add_value(words, "--only", cli->only[i]);
    if (cli->max_runs != BATCH_RUNS_MOST)
        python_add_number(words, "--max-runs", cli->max_runs);
    python_add_value(words, "--link", predict->link);
    python_add_number(words, "--cores", predict->cores);
    python_add_value(words, "--sweep", predict->sweep);
    if (predict->check)
        python_add(words, "--check");
    python_add_value(words, "--measured", predict->measured);
    python_add_value(words, "--json", cli->json);
    python_add_value(words, "--csv", cli->csv);
    python_add_value(words, "--markdown", cli->markdown);
    python_add_value(words, "--out", cli->out);
    python_add_value(words, "--progress", whens[cli->progress]);
}

static int run_python(const struct cli *cli)
{
    struct python_words words = {0};
    struct epa_error err = {EPA_OK, ""};
    char program[PATH_MAX];

    if (!object_path(program, sizeof(program))) {
        (void)epa_fail(&err, EPA_ERR_SYSTEM, "predict cannot find the path of this program");
        return cli_fail(&err);
    }
    python_add(&words, "predict");
    python_add_common(&words, cli);
    add_options(&words, cli);
    python_add_value(&words, "--program", program);
    python_add(&words, "--");
    python_add(&words, cli->arg[0]);
    (void)python_run(&words, &err);
    return cli_fail(&err);
}

int cmd_predict(const struct cli *cli)
{
    return cli->batch.dry_run ? show_plan(cli) : run_python(cli);
}
