/* epa2a rerun RESULTS: a result holds its whole experiment, as JSON, which is YAML. It is run by
 * the same verb, and compared with what came of it then. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"
#include "config/experiment.h"
#include "report/results.h"

/* ---- which runs ---- */

static enum epa_status pick(const struct cli *cli, struct results *then, struct epa_error *err)
{
    const char *verb;

    for (uint32_t i = then->n; i > 0; i--)
        if (!results_picked(&then->run[i - 1], cli->only, cli->n_only))
            results_drop(then, i - 1);
    if (then->n == 0 && cli->n_only > 0)
        return epa_fail(err, EPA_ERR_CONFIG, "--only '%s': no run of %s has that label or id",
                        cli->only[0], then->path);
    if (then->n == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: no run in it", then->path);
    verb = then->run[0].verb;
    for (uint32_t i = 1; i < then->n; i++)
        if (strcmp(then->run[i].verb, verb) != 0)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: runs of %s and of %s; --only picks those of one", then->path, verb,
                            then->run[i].verb);
    if (strcmp(verb, "run") != 0 && strcmp(verb, "bench") != 0 && strcmp(verb, "verify") != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: there is no verb '%s'", then->path, verb);
    return EPA_OK;
}

/* One experiment stands as it is; several, or one with a label, are `runs:` of those labels, which
 * differ. */
static enum epa_status write_experiments(const struct results *then, struct text *out,
                                         struct epa_error *err)
{
    bool one = then->n == 1 && strcmp(then->run[0].label, then->run[0].name) == 0;
    json_t *runs = json_object(), *root;
    char *dump;

    for (uint32_t i = 0; i < then->n; i++) {
        const struct results_run *run = &then->run[i];
        json_t *x = json_copy(json_object_get(run->json, "experiment"));
        json_int_t version = json_integer_value(json_object_get(x, "version"));
        struct text label = {0};

        if (x == NULL || version != EXPERIMENT_VERSION) {
            json_decref(runs);
            json_decref(x);
            if (x == NULL)
                return epa_fail(err, EPA_ERR_CONFIG, "%s: '%s' does not hold its experiment",
                                then->path, run->label);
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: '%s' has an experiment of version %lld; this program runs %d",
                            then->path, run->label, (long long)version, EXPERIMENT_VERSION);
        }
        if (!one)
            json_object_del(x, "version");
        text_add(&label, "%s", run->label);
        for (uint32_t k = 2; json_object_get(runs, label.data) != NULL; k++) {
            text_free(&label);
            text_add(&label, "%s #%u", run->label, k);
        }
        json_put(&runs, label.data, x);
        text_free(&label);
    }
    root = one ? json_incref(json_object_get(runs, then->run[0].label))
               : json_object_of("version", json_count(EXPERIMENT_VERSION), "runs",
                                json_incref(runs), NULL);
    dump = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
    json_decref(root);
    json_decref(runs);
    if (dump == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for an experiment", then->path);
    text_add(out, "%s\n", dump);
    free(dump);
    return EPA_OK;
}

/* ---- what is not as it was ---- */

static const json_t *at(const json_t *run, const char *path)
{
    for (const char *dot; (dot = strchr(path, '.')) != NULL; path = dot + 1)
        run = json_object_getn(run, path, (size_t)(dot - path));
    return json_object_get(run, path);
}

static void tell_difference(const char *key, const json_t *then, const json_t *now)
{
    char *a = then == NULL ? NULL : json_dumps(then, JSON_ENCODE_ANY | JSON_COMPACT);
    char *b = now == NULL ? NULL : json_dumps(now, JSON_ENCODE_ANY | JSON_COMPACT);

    if (then == NULL ? now != NULL : !json_equal(then, now))
        printf("#   %s: %s then, %s now\n", key, a == NULL ? "not recorded" : a,
               b == NULL ? "not recorded" : b);
    free(a);
    free(b);
}

/* Of the first run: all have one machine. */
static void tell_differences(const struct results *then, const struct results *now)
{
    static const char *const keys[] = {"machine.build.version",  "machine.build.git",
                                       "machine.build.compiler", "machine.build.type",
                                       "machine.build.isa",      "machine.build.libc",
                                       "machine.host",           "machine.cpu",
                                       "machine.cores",          "machine.kernel",
                                       "machine.governor",       "machine.device",
                                       "machine.environment",    "plugins.launcher.hash",
                                       "plugins.backend.hash",   "plugins.transport.hash",
                                       "plugins.algorithm.hash", "world.started_by"};

    printf("# rerun of %s, from %s\n", then->path,
           json_string_value(at(then->run[0].json, "started")) == NULL
               ? "a time that it does not tell"
               : json_string_value(at(then->run[0].json, "started")));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        tell_difference(keys[i], at(then->run[0].json, keys[i]), at(now->run[0].json, keys[i]));
}

/* ---- running ---- */

static int run_again(const struct cli *cli, const char *verb, const struct text *experiments,
                     struct text *now)
{
    struct cli run = *cli;

    run.text = experiments->data;
    run.results_out = now;
    run.n_only = 0;
    run.order = RUNS_DECLARED;
    return strcmp(verb, "bench") == 0    ? cmd_bench(&run)
           : strcmp(verb, "verify") == 0 ? cmd_verify(&run)
                                         : cmd_run(&run);
}

static bool has_samples(const struct results *results)
{
    for (uint32_t i = 0; i < results->n; i++)
        for (uint32_t k = 0; k < results->run[i].n_stages && results->run[i].ok; k++)
            if (results->run[i].stage[k].n > 0)
                return true;
    return false;
}

/* The exit code of all, where `code` is that of the run. Frees `then`. */
static int compare(const struct cli *cli, struct results *then, const struct text *document,
                   int code)
{
    struct cli comparing = *cli;
    struct results now;
    struct epa_error err = {EPA_OK, ""};
    int compared;

    if (document->bytes == 0) /* another rank's, or --dry-run, or reported already */
        return code;
    if (results_parse(cli->json != NULL ? cli->json : "now", document, &now, &err) != EPA_OK) {
        fprintf(stderr, "epa2a: %s\n", err.text);
        return code != EXIT_OK ? code : exit_code(err.status, 0);
    }
    if (now.n > 0)
        tell_differences(then, &now);
    if (!has_samples(&now) || !has_samples(then)) {
        printf("# no times to compare\n");
        results_free(&now);
        return code;
    }
    comparing.force = cli->force || cli->n_sets > 0; /* what differs was asked for */
    compared = compare_results(&comparing, then, &now, false);
    *then = (struct results){0};
    return code == EXIT_OK && cli->judges ? compared : code;
}

int cmd_rerun(const struct cli *cli)
{
    struct results then;
    struct text experiments = {0}, now = {0};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = results_read(cli->arg[0], &then, &err);
    int code;

    if (status == EPA_OK)
        status = pick(cli, &then, &err);
    if (status == EPA_OK)
        status = write_experiments(&then, &experiments, &err);
    if (status == EPA_OK && cli->json != NULL && strcmp(cli->json, "-") == 0)
        status = epa_fail(&err, EPA_ERR_CONFIG,
                          "rerun prints a comparison on standard output: give --json a file");
    if (status == EPA_OK) {
        code = run_again(cli, then.run[0].verb, &experiments, &now);
        code = compare(cli, &then, &now, code);
    } else {
        code = cli_fail(&err);
    }
    text_free(&experiments);
    text_free(&now);
    results_free(&then);
    return code;
}
