/* epa2a rerun RESULT.json: a result holds its whole experiment; it is written down as YAML
 * again, run by the same verb, and compared with what came of it then. */
#include <fnmatch.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cmd_compare.h"
#include "cli/rerun_yaml.h"
#include "config/experiment.h"

struct rerun {
    const struct cli *cli;
    struct results then;
    struct text text;      /* the experiments */
    char folder[PATH_MAX]; /* of ours, for the new result; "": the user wants to keep it */
    char path[PATH_MAX];   /* of the new result */
    struct stat before;    /* what was there before; 0: nothing */
};

/* ---- which runs ---- */

static bool is_picked(const struct cli *cli, const struct results_run *run)
{
    for (uint32_t i = 0; i < cli->n_only; i++) {
        if (fnmatch(cli->only[i], run->label, 0) == 0 || strcmp(cli->only[i], run->label) == 0 ||
            fnmatch(cli->only[i], run->id, 0) == 0)
            return true;
    }
    return cli->n_only == 0;
}

static enum epa_status pick(struct rerun *r, struct epa_error *err)
{
    const char *verb;

    for (uint32_t i = r->then.n; i > 0; i--) {
        if (!is_picked(r->cli, &r->then.run[i - 1]))
            results_drop(&r->then, i - 1);
    }
    if (r->then.n == 0 && r->cli->n_only > 0)
        return epa_fail(err, EPA_ERR_CONFIG, "--only '%s': no run of %s has that label or id",
                        r->cli->only[0], r->then.path);
    if (r->then.n == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: no run in it", r->then.path);
    verb = r->then.run[0].verb;
    for (uint32_t i = 1; i < r->then.n; i++) {
        if (strcmp(r->then.run[i].verb, verb) != 0)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: runs of %s and of %s; --only picks those of one", r->then.path,
                            verb, r->then.run[i].verb);
    }
    if (strcmp(verb, "run") != 0 && strcmp(verb, "bench") != 0 && strcmp(verb, "verify") != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: there is no verb '%s'", r->then.path, verb);
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

/* Where the new result goes: what is only compared is thrown away again. */
static enum epa_status choose_path(struct rerun *r, struct epa_error *err)
{
    const char *tmp = getenv("TMPDIR");

    if (r->cli->json != NULL && strcmp(r->cli->json, "-") == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "rerun prints a comparison on standard output: give --json a file");
    if (r->cli->json != NULL) {
        snprintf(r->path, sizeof(r->path), "%s", r->cli->json);
        if (stat(r->path, &r->before) != 0)
            r->before = (struct stat){0};
        return EPA_OK;
    }
    if ((size_t)snprintf(r->folder, sizeof(r->folder), "%s/epa2a-rerun-XXXXXX",
                         tmp != NULL && tmp[0] == '/' ? tmp : "/tmp") >= sizeof(r->folder) - 16 ||
        mkdtemp(r->folder) == NULL) {
        r->folder[0] = '\0';
        return epa_fail(err, EPA_ERR_SYSTEM,
                        "no folder for the new result in %s; --json FILE puts it elsewhere",
                        tmp != NULL && tmp[0] == '/' ? tmp : "/tmp");
    }
    snprintf(r->path, sizeof(r->path), "%.*s/now.json", (int)sizeof(r->path) - 16, r->folder);
    return EPA_OK;
}

static int run_again(const struct rerun *r)
{
    struct cli cli = *r->cli;
    const char *verb = r->then.run[0].verb;

    cli.text = r->text.data;
    cli.json = r->path;
    cli.n_only = 0;
    cli.order = RUNS_DECLARED;
    return strcmp(verb, "bench") == 0    ? cmd_bench(&cli)
           : strcmp(verb, "verify") == 0 ? cmd_verify(&cli)
                                         : cmd_run(&cli);
}

/* A new result is a new file, whatever its name had been given to. */
static bool is_written(const struct rerun *r)
{
    struct stat now;

    return stat(r->path, &now) == 0 && S_ISREG(now.st_mode) &&
           (now.st_ino != r->before.st_ino || now.st_dev != r->before.st_dev);
}

static bool has_samples(const struct results *results)
{
    for (uint32_t i = 0; i < results->n; i++) {
        for (uint32_t k = 0; k < results->run[i].n_stages && results->run[i].ok; k++) {
            if (results->run[i].stage[k].n > 0)
                return true;
        }
    }
    return false;
}

/* The exit code of all, where `code` is that of the run. Frees `then`. */
static int compare(struct rerun *r, int code)
{
    struct cli cli = *r->cli;
    struct results now;
    struct epa_error err = {EPA_OK, ""};
    int compared;

    if (!is_written(r)) /* another rank's, or --dry-run, or told already */
        return code;
    if (results_read(r->path, &now, &err) != EPA_OK) {
        fprintf(stderr, "epa2a: %s\n", err.text);
        return code != EXIT_OK ? code : exit_code(err.status, 0);
    }
    if (r->folder[0] != '\0')
        now.path = "now";
    if (now.n > 0)
        tell_differences(&r->then, &now);
    if (!has_samples(&now) || !has_samples(&r->then)) {
        printf("# no times to compare\n");
        results_free(&now);
        return code;
    }
    cli.force = cli.force || cli.n_sets > 0; /* what differs was asked for */
    compared = compare_results(&cli, &r->then, &now);
    r->then = (struct results){0};
    return code == EXIT_OK && r->cli->judges ? compared : code;
}

int cmd_rerun(const struct cli *cli)
{
    struct rerun r = {.cli = cli};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = results_read(cli->arg[0], &r.then, &err);
    int code;

    if (status == EPA_OK)
        status = pick(&r, &err);
    if (status == EPA_OK)
        status = rerun_yaml(&r.then, &r.text, &err);
    if (status == EPA_OK)
        status = choose_path(&r, &err);
    if (status == EPA_OK) {
        code = run_again(&r);
        code = compare(&r, code);
    } else {
        fprintf(stderr, "epa2a: %s\n", err.text);
        code = exit_code(status, 0);
    }
    if (r.folder[0] != '\0') {
        unlink(r.path);
        rmdir(r.folder);
    }
    text_free(&r.text);
    results_free(&r.then);
    return code;
}
