/* `epa2a predict FILE`: predicts the times of a larger cluster. Short runs of small worlds on this
 * machine give the costs of each phase (report/summary.h). The traffic of the predicted world is
 * counted from the routing of all its ranks; no rank of it is started, and no memory of its size is
 * allocated.
 *
 * Small worlds have 2, 4, 8 ... ranks, or the next number that the file allows, each with the file's
 * number of tokens and with one token. All runs take turns in rounds, and the fastest round counts,
 * since other load never makes a run faster. Fits without one of the worlds show the error of the
 * costs. */
#include "cli/cmd_predict.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>

#include "base/exit_code.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/chart_file.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "cli/predict.h"
#include "cli/predict_file.h"
#include "cli/predict_json.h"
#include "cli/predict_measure.h"
#include "cli/predict_world.h"
#include "cli/turns.h"
#include "experiment/check_operation.h"
#include "launch/program_registry.h"
#include "report/predict.h"

enum epa_status cmd_predict_check(const struct cli *cli, struct epa_error *err)
{
    struct predict_link link;

    if (cli->out != NULL && cli->predict.sweep == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--out draws a sweep and needs --sweep, such as --sweep ranks=8:1024");
    if (cli->predict.check && cli->predict.sweep != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--check measures one number of ranks, but --sweep has several");
    if (cli->out != NULL && chart_file_check(cli->out, err) != EPA_OK)
        return err->status;
    return cli->predict.link == NULL ? EPA_OK : predict_link_read(cli->predict.link, &link, err);
}

static enum epa_status prepare_prediction(struct prediction *p)
{
    const struct cli *cli = p->cli;
    enum epa_status status = turns_check_alone("predict", &p->err);
    struct op_advice advice;
    struct experiment x;
    uint32_t planned;
    const char *why;

    if (status == EPA_OK)
        status = program_registry_create(cli->plugin_path, &p->registry, &p->err);
    if (status == EPA_OK)
        status = prediction_read_file(p);
    if (status == EPA_OK && cli->predict.link != NULL) {
        status = predict_link_read(cli->predict.link, &p->link, &p->err);
        p->has_link = true;
    }
    if (status == EPA_OK && !p->has_link && p->ranks > p->per_node)
        status = epa_fail(&p->err, EPA_ERR_CONFIG,
                          "%u ranks on %u nodes need the link between nodes, such as --link "
                          "50GB/s,2us",
                          p->ranks, p->ranks / p->per_node);
    if (status == EPA_OK && (why = prediction_resize(p, p->low, &x, &planned)) != NULL)
        status = epa_fail(&p->err, EPA_ERR_CONFIG, "%s: %u ranks are %s", cli->arg[0], p->low, why);
    advice = (struct op_advice){experiment_takes, p->x};
    if (status == EPA_OK && p->op->source_open != NULL)
        status = p->op->source_open(&p->x->problem, &advice, &p->source, &p->err);
    p->here = (uint32_t)fmax(1, p->machine.cores);
    p->cores = cli->predict.cores != 0 ? cli->predict.cores : p->here;
    if (status == EPA_OK && cli->out != NULL)
        status = chart_file_prepare(cli->out, &p->err);
    return status == EPA_OK ? prediction_choose_worlds(p) : status;
}

static enum epa_status write_outputs(struct prediction *p)
{
    const struct cli *cli = p->cli;
    text_auto markdown = {0}, csv = {0}, document = {0};
    enum epa_status status = EPA_OK;

    if (!cli_has_stdout(cli))
        predict_text(stdout, &p->report);
    predict_markdown(&markdown, &p->report);
    if (cli->csv != NULL) {
        predict_csv(&csv, &p->report);
        status = file_write("--csv", cli->csv, cli->force, &csv, &p->err);
    }
    if (cli->out != NULL && status == EPA_OK) {
        predict_json_text(p, &document);
        status = chart_file_write(cli, &document, &p->err);
    }
    if (status == EPA_OK)
        status = cli_write_documents(cli, predict_json(p), &markdown, &p->err);
    return status;
}

int cmd_predict(const struct cli *cli)
{
    struct prediction p = {.cli = cli, .arena = arena_create()};
    enum epa_status status;
    int code;

    machine_facts_read("", &p.machine);
    status = prepare_prediction(&p);
    code = status == EPA_OK ? prediction_measure(&p) : exit_code(status, SIGINT);

    if (code == EXIT_OK) {
        prediction_fit(&p);
        status = prediction_make(&p);
        if (status == EPA_OK)
            status = write_outputs(&p);
        code = exit_code(status, SIGINT);
    }
    if (p.err.status != EPA_OK)
        code = cli_fail(&p.err);
    if (p.source != NULL)
        p.op->source_close(p.source);
    for (uint32_t i = 0; i < p.n_read; i++)
        runs_finish(&p.read[i]);
    runs_finish(&p.base);
    if (p.registry != NULL)
        registry_destroy(p.registry);
    arena_destroy(p.arena);
    return code;
}
