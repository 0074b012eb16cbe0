/* `epa2a bench RESULT.json`: runs the experiments of a result again and compares the two. `run`
 * and `verify` take a result, too; their times are compared only with times of the same command. */
#include "cli/repeat_result.h"

#include <math.h>
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
#include "report/results_json.h"

static bool is_results_folder(const char *path)
{
    struct stat at;
    text_auto file = {0};

    text_add(&file, "%s/results.jsonl", path);
    return stat(file.data, &at) == 0 && S_ISREG(at.st_mode);
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
           text.bytes > 0 && results_are_text(&text);
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

/* Copies the keys of an experiment. Replaces a launcher that auto may have selected by auto, with the
 * option that all launchers share: today auto may select another launcher. */
static void add_experiment_keys(struct key_list *out, const struct results_run *run,
                                bool with_version)
{
    static const char *const selected[] = {"fork", "env", "mpi"};
    const char *launcher = results_value(run, "launcher", "name");
    bool resets = false;

    for (size_t i = 0; i < sizeof(selected) / sizeof(selected[0]) && launcher != NULL; i++)
        resets = resets || strcmp(launcher, selected[i]) == 0;
    for (uint32_t i = 0; i < run->n_keys; i++) {
        const struct results_key *key = &run->key[i];
        bool is_launcher = strncmp(key->path, "launcher.", strlen("launcher.")) == 0;

        if (resets && strcmp(key->path, "launcher.name") == 0)
            key_list_add_text(out, key->path, "auto");
        else if ((with_version || strcmp(key->path, "version") != 0) &&
                 !(resets && is_launcher && strcmp(key->path, "launcher.pin") != 0))
            key_list_add(out, key->path, key->value, key->shown);
    }
}

static bool is_taken(const char *const *label, uint32_t n, const char *by)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(label[i], by) == 0)
            return true;
    return false;
}

static enum epa_status compare_experiment(const struct results *then, const struct results_run *run,
                                          struct epa_error *err)
{
    double version = results_key_number(run, "version");

    if (run->n_keys == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: '%s' does not contain its experiment", then->path,
                        run->label);
    if (version != EXPERIMENT_VERSION)
        return epa_fail(
            err, EPA_ERR_CONFIG, "%s: '%s' has an experiment of version %.0f; this program runs %d",
            then->path, run->label, isfinite(version) ? version : 0, EXPERIMENT_VERSION);
    return EPA_OK;
}

/* Writes the experiments as a file in JSON, which is YAML. A single experiment without a label
 * is the whole file; several, or one with a label, become `runs:` with distinct labels. */
static enum epa_status write_experiments(const struct results *then, struct text *out,
                                         struct epa_error *err)
{
    bool one = then->n == 1 && strcmp(then->run[0].label, then->run[0].name) == 0;
    struct arena *arena = arena_create();
    const char **label = arena_alloc(arena, then->n * sizeof(*label));
    enum epa_status status = EPA_OK;

    if (!one)
        text_add(out, "{\n \"version\": %d,\n \"runs\": {", EXPERIMENT_VERSION);
    for (uint32_t i = 0; i < then->n && status == EPA_OK; i++) {
        struct key_list list = {.arena = arena};

        label[i] = then->run[i].label;
        for (uint32_t k = 2; is_taken(label, i, label[i]); k++)
            label[i] = arena_printf(arena, "%s #%u", then->run[i].label, k);
        add_experiment_keys(&list, &then->run[i], one);
        if (!one) {
            text_add(out, "%s\n  ", i > 0 ? "," : "");
            key_add_quoted(out, label[i]);
            text_add(out, ": ");
        }
        keys_add_nested(out, list.key, list.n, one ? 0 : 2);
        status = compare_experiment(then, &then->run[i], err);
    }
    text_add(out, one ? "\n" : "\n }\n}\n");
    arena_destroy(arena);
    return status;
}

/* ---- differences ---- */

/* Adds the facts below a path as an object, "{}" for none. */
static void add_group(const struct results_run *run, const char *before, struct text *out)
{
    size_t bytes = strlen(before);

    text_add(out, "{");
    for (uint32_t i = 0; i < run->n_facts; i++) {
        const struct results_key *fact = &run->fact[i];

        if (strncmp(fact->path, before, bytes) != 0)
            continue;
        text_add(out, "%s", out->data[out->bytes - 1] == '{' ? "" : ",");
        key_add_quoted(out, fact->path + bytes);
        text_add(out, ":%s", fact->shown);
    }
    text_add(out, "}");
}

/* Returns true if each fact of `a` below a path is a fact of `b`. */
static bool has_facts_of(const struct results_run *b, const struct results_run *a,
                         const char *before)
{
    for (uint32_t i = 0; i < a->n_facts; i++) {
        const struct results_key *fact = &a->fact[i], *same;

        if (strncmp(fact->path, before, strlen(before)) != 0)
            continue;
        same = key_find(b->fact, b->n_facts, fact->path);
        if (same == NULL || strcmp(fact->shown, same->shown) != 0)
            return false;
    }
    return true;
}

/* Prints a difference. NULL: not recorded. */
static void print_difference(const char *name, const char *then, const char *now)
{
    printf("#   %s: %s then, %s now\n", name, then == NULL ? "not recorded" : then,
           now == NULL ? "not recorded" : now);
}

/* Prints the differences of build, machine and plugins. Compares the first run only, since all runs
 * of a result have one machine. */
static void print_differences(const struct results *then, const struct results *now)
{
    static const char environment[] = "environment.";
    static const struct {
        const char *name, *path; /* path: of a fact; NULL: the environment */
    } facts[] = {{"machine.build.version", "build.version"},
                 {"machine.build.git", "build.git"},
                 {"machine.build.compiler", "build.compiler"},
                 {"machine.build.type", "build.type"},
                 {"machine.build.isa", "build.isa"},
                 {"machine.build.libc", "build.libc"},
                 {"machine.host", "host"},
                 {"machine.cpu", "cpu"},
                 {"machine.cores", "cores"},
                 {"machine.kernel", "kernel"},
                 {"machine.governor", "governor"},
                 {"machine.device.device", "device.device"},
                 {"machine.environment", NULL},
                 {"plugins.launcher.hash", "plugins.launcher.hash"},
                 {"plugins.backend.hash", "plugins.backend.hash"},
                 {"plugins.transport.hash", "plugins.transport.hash"},
                 {"plugins.algorithm.hash", "plugins.algorithm.hash"},
                 {"world.launcher", "world.launcher"},
                 {"world.started_by", "world.started_by"}};
    const struct results_run *old = &then->run[0], *new = &now->run[0];

    fputs("# repeats ", stdout);
    text_print_clean(stdout, then->path);
    printf(", from %s\n", *old->started == '\0' ? "an unknown time" : old->started);
    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++) {
        text_auto a = {0}, b = {0};

        if (facts[i].path == NULL) {
            add_group(old, environment, &a);
            add_group(new, environment, &b);
            if (!has_facts_of(new, old, environment) || !has_facts_of(old, new, environment))
                print_difference(facts[i].name, a.data, b.data);
        } else {
            const struct results_key *x = key_find(old->fact, old->n_facts, facts[i].path);
            const struct results_key *y = key_find(new->fact, new->n_facts, facts[i].path);

            if (x == NULL ? y != NULL : y == NULL || strcmp(x->shown, y->shown) != 0)
                print_difference(facts[i].name, x != NULL ? x->shown : NULL,
                                 y != NULL ? y->shown : NULL);
        }
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
