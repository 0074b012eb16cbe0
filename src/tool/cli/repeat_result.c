/* `epa2a bench RESULT.json`: runs the experiments of a result again and compares the two. `run`
 * and `verify` take a result, too; their times are compared only with times of the same command. */
#include "cli/repeat_result.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/exit_code.h"
#include "base/file.h"
#include "base/sysfile.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/compare_results.h"
#include "cli/documents.h"
#include "cli/run_experiments.h"
#include "config/experiment.h"
#include "report/lines.h"
#include "report/results.h"

enum { HEAD = 256 }; /* a document of epa2a names its program in these first bytes */

static bool is_results_folder(const char *path)
{
    struct stat at;
    text_auto file = {0};

    text_add(&file, "%s/results.jsonl", path);
    return stat(file.data, &at) == 0 && S_ISREG(at.st_mode);
}

/* Returns true if a text is a document of results, or the damaged beginning of one. An
 * experiment may also be JSON, but has no results. */
static bool is_result_text(const struct text *text)
{
    const char *begin = text->data + strspn(text->data, " \t\r\n");
    char head[HEAD + 1];
    json_auto_t *root = NULL;

    if (*begin != '{')
        return false;
    root = json_loads(begin, JSON_DISABLE_EOF_CHECK, NULL);
    if (root != NULL)
        return json_is_array(json_object_get(root, "results"));
    snprintf(head, sizeof(head), "%s", begin);
    return strstr(head, "\"program\": \"epa2a\"") != NULL ||
           strstr(head, "\"program\":\"epa2a\"") != NULL;
}

bool is_result(const char *path)
{
    struct epa_error ignored = {EPA_OK, ""};
    text_auto text = {0};
    struct stat at;

    if (stat(path, &at) != 0)
        return false;
    if (S_ISDIR(at.st_mode))
        return is_results_folder(path);
    /* Only a regular file can be read twice. */
    return S_ISREG(at.st_mode) && file_read_text(path, FILE_MOST, &text, &ignored) == EPA_OK &&
           text.bytes > 0 && is_result_text(&text);
}

/* Keeps the runs of --only. */
static enum epa_status select_runs(const struct cli *cli, struct results *then,
                                   struct epa_error *err)
{
    const struct results_wish wish = {.only = cli->only, .n_only = cli->n_only};
    uint32_t kept = 0;

    for (uint32_t i = 0; i < then->n; i++)
        if (results_picked(&then->run[i], &wish))
            then->run[kept++] = then->run[i];
    then->n = kept;
    if (then->n == 0 && cli->n_only > 0)
        return epa_fail(err, EPA_ERR_CONFIG, "--only '%s': no run of %s has that label or id",
                        cli->only[0], then->path);
    if (then->n == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: the result has no runs", then->path);
    return EPA_OK;
}

/* Replaces a launcher that auto may have selected by auto, with the option that all launchers
 * share: today auto may select another launcher. */
static void reset_launcher(json_t *x)
{
    static const char *const selected[] = {"fork", "env", "mpi"};
    const json_t *old = json_object_get(x, "launcher");
    json_t *launcher;

    for (size_t i = 0; i < sizeof(selected) / sizeof(selected[0]); i++) {
        if (strcmp(json_text_at(old, "name"), selected[i]) != 0)
            continue;
        launcher = json_pack("{s:s}", "name", "auto");
        if (json_object_get(old, "pin") != NULL)
            json_object_set(launcher, "pin", json_object_get(old, "pin"));
        json_object_set_new(x, "launcher", launcher);
        return;
    }
}

/* Writes the experiments as a file in JSON, which is YAML. A single experiment without a label
 * is the whole file; several, or one with a label, become `runs:` with distinct labels. */
static enum epa_status write_experiments(const struct results *then, struct text *out,
                                         struct epa_error *err)
{
    bool one = then->n == 1 && strcmp(then->run[0].label, then->run[0].name) == 0;
    json_auto_t *runs = json_object();
    json_auto_t *root = json_pack("{s:i, s:O}", "version", EXPERIMENT_VERSION, "runs", runs);

    for (uint32_t i = 0; i < then->n; i++) {
        const struct results_run *run = &then->run[i];
        json_t *x = json_copy(json_object_get(run->json, "experiment"));
        json_int_t version = json_integer_value(json_object_get(x, "version"));
        text_auto label = {0};

        json_object_set_new(runs, "", x); /* owned from here on */
        reset_launcher(x);
        if (x == NULL)
            return epa_fail(err, EPA_ERR_CONFIG, "%s: '%s' does not contain its experiment",
                            then->path, run->label);
        if (version != EXPERIMENT_VERSION)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: '%s' has an experiment of version %lld; this program runs %d",
                            then->path, run->label, (long long)version, EXPERIMENT_VERSION);
        if (!one)
            json_object_del(x, "version");
        text_add(&label, "%s", run->label);
        for (uint32_t k = 2; json_object_get(runs, label.data) != NULL; k++) {
            text_free(&label);
            text_add(&label, "%s #%u", run->label, k);
        }
        json_object_set(runs, label.data, x);
        json_object_del(runs, "");
    }
    json_write(out, one ? json_object_iter_value(json_object_iter(runs)) : root,
               JSON_INDENT(1) | JSON_REAL_PRECISION(15));
    text_add(out, "\n");
    return EPA_OK;
}

/* Prints the differences of build, machine and plugins. Compares the first run only, since all runs
 * of a result have one machine. */
static void print_differences(const struct results *then, const struct results *now)
{
    static const char *const keys[] = {"machine.build.version",  "machine.build.git",
                                       "machine.build.compiler", "machine.build.type",
                                       "machine.build.isa",      "machine.build.libc",
                                       "machine.host",           "machine.cpu",
                                       "machine.cores",          "machine.kernel",
                                       "machine.governor",       "machine.device.device",
                                       "machine.environment",    "plugins.launcher.hash",
                                       "plugins.backend.hash",   "plugins.transport.hash",
                                       "plugins.algorithm.hash", "world.launcher",
                                       "world.started_by"};
    const char *started = json_text_at(then->run[0].json, "started");

    fputs("# repeats ", stdout);
    text_print_clean(stdout, then->path);
    printf(", from %s\n", *started == '\0' ? "an unknown time" : started);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *old = json_at(then->run[0].json, keys[i]);
        const json_t *new = json_at(now->run[0].json, keys[i]);
        text_auto a = {0}, b = {0};

        if (old == NULL ? new == NULL : json_equal(old, new))
            continue;
        json_write(&a, old, JSON_ENCODE_ANY | JSON_COMPACT);
        json_write(&b, new, JSON_ENCODE_ANY | JSON_COMPACT);
        printf("#   %s: %s then, %s now\n", keys[i], a.data == NULL ? "not recorded" : a.data,
               b.data == NULL ? "not recorded" : b.data);
    }
}

/* Keeps the runs of one command, whose times can be compared. */
static void keep_runs_of(struct results *results, const char *verb)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < results->n; i++)
        if (strcmp(results->run[i].verb, verb) == 0)
            results->run[kept++] = results->run[i];
    results->n = kept;
}

static bool has_samples(const struct results *results)
{
    for (uint32_t i = 0; i < results->n; i++)
        for (uint32_t k = 0; k < results->run[i].n_stages && results->run[i].ok; k++)
            if (results->run[i].stage[k].n > 0)
                return true;
    return false;
}

static int run_and_compare(const struct cli *cli, enum verb verb, struct results *then,
                           const char *experiments)
{
    struct results now = {0};
    int code = run_experiments(cli, verb, experiments, &now), compared = EXIT_OK;

    /* Without results another rank has them, or --dry-run was given, or the error has been
     * reported. */
    if (now.n == 0) {
        results_free(&now);
        return code;
    }
    print_differences(then, &now);
    keep_runs_of(then, session_verb_name(verb));
    /* --set changes the experiment on request, so the comparison accepts the difference. */
    if (has_samples(&now) && has_samples(then))
        compared = compare_results(
            cli, then, &now,
            cli->compare.different || cli->n_sets > (cli->settings.timeout_ns != 0), false);
    else
        printf("# no times to compare\n");
    results_free(&now);
    return code == EXIT_OK && cli->judges ? compared : code;
}

static int repeat_result(const struct cli *cli, enum verb verb)
{
    struct results then = {0};
    text_auto experiments = {0};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = results_read(cli->arg[0], &then, &err);
    int code;

    if (status == EPA_OK)
        status = select_runs(cli, &then, &err);
    if (status == EPA_OK)
        status = write_experiments(&then, &experiments, &err);
    if (status == EPA_OK && cli_has_stdout(cli))
        status = epa_fail(&err, EPA_ERR_CONFIG,
                          "%s repeats %s and prints the comparison to standard output: give --json "
                          "and other outputs a file",
                          session_verb_name(verb), cli->arg[0]);
    code = status == EPA_OK ? run_and_compare(cli, verb, &then, experiments.data) : cli_fail(&err);
    results_free(&then);
    return code;
}

int run_or_repeat(const struct cli *cli, enum verb verb)
{
    struct epa_error err = {EPA_OK, ""};
    uint32_t i = 0;

    while (i < cli->n_args && !is_result(cli->arg[i]))
        i++;
    if (i < cli->n_args && cli->n_args == 1)
        return repeat_result(cli, verb);
    if (i < cli->n_args) {
        epa_fail(&err, EPA_ERR_CONFIG, "%s is a result: %s repeats one result, without other files",
                 cli->arg[i], session_verb_name(verb));
        return cli_fail(&err);
    }
    if (cli->judges || cli->compare.different) {
        epa_fail(
            &err, EPA_ERR_CONFIG,
            "--threshold, --alpha and --allow-different compare with a result, such as 'epa2a bench RESULT.json "
            "--threshold 3%%'; %s is an experiment",
            cli->arg[0]);
        return cli_fail(&err);
    }
    return run_experiments(cli, verb, NULL, NULL);
}
