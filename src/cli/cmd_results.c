/* `epa2a best RESULTS...`: the fastest run of each problem. `epa2a plot RESULTS...`: charts by
 * gnuplot; the ending of --out selects SVG, PNG or text. The standard files of gnuplot are in
 * memory, so that neither process waits for the other and a failed chart leaves no file. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "base/file.h"
#include "cli/cli.h"
#include "config/experiment.h"
#include "op/op.h"
#include "report/results.h"
#include "report/import.h"
#include "report/plot.h"
#include "report/best.h"
#include "report/summary.h"
#include "report/export.h"
#include "report/fill.h"
#include "trace/trace.h"
#include "trace/read.h"
#include "trace/summary.h"

enum { GNUPLOT_S = 60, GNUPLOT_LOOK_MS = 5 };

int cmd_best(const struct cli *cli)
{
    const struct best_wish wish = {.which = {cli->stage, cli->only, cli->n_only},
                                   .across = cli->across,
                                   .n_across = cli->n_across,
                                   .close = cli->threshold};
    struct results results = {0};
    struct epa_error err = {EPA_OK, ""};
    struct best *best = NULL;
    text_auto markdown = {0};
    enum epa_status status = results_read_all(cli->arg, cli->n_args, &results, &err);
    if (status == EPA_OK)
        status = best_create(&results, &wish, &best, &err);
    if (status == EPA_OK && !cli_has_stdout(cli))
        best_text(stdout, best);
    if (status == EPA_OK) {
        best_markdown(&markdown, best);
        status = cli_write_documents(cli, best_json(best), &markdown, &err);
    }
    best_destroy(best);
    results_free(&results);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}

/* ---- import ---- */

static void print_imported(const json_t *results)
{
    static const struct table_column columns[] = {{"name", "run", .width = 0},
                                                  {"size", "size", NULL, 0, 0, 11},
                                                  {"dispatch", "dispatch", "us", 1e3, 2, 10},
                                                  {"combine", "combine", "us", 1e3, 2, 10},
                                                  {"total", "total", "us", 1e3, 2, 10},
                                                  {"at", "", .width = 0},
                                                  {0}};
    json_auto_t *rows = json_array();

    for (struct json_walk run = {results}; json_next(&run);) {
        double bytes = json_number_at(run.value, "experiment.collective.bytes");
        double size = bytes > 0 ? bytes : json_number_at(run.value, "experiment.moe.max_tokens");
        json_t *row = json_object_of("name", json_text(json_text_at(run.value, "label")), "size",
                                     json_number(size), "at",
                                     json_sprintf("%s:%.0f", json_text_at(run.value, "file"),
                                                  json_number_at(run.value, "source.line")),
                                     NULL);

        for (struct json_walk stage = {json_object_get(run.value, "stages")}; json_next(&stage);)
            json_object_set_new(row, json_text_at(stage.value, "name"),
                                json_number(json_number_at(stage.value, "samples_ns.0")));
        json_array_append_new(rows, row);
    }
    text_comment(stdout, "epa2a import: %zu results; size: bytes, or tokens of a rank",
                 json_array_size(results));
    table_text(stdout, columns, rows);
}

int cmd_import(const struct cli *cli)
{
    json_auto_t *results = json_array();
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < cli->n_args && status == EPA_OK; i++) {
        text_auto text = {0}, unread = {0};

        status = file_read_text(cli->arg[i], FILE_MOST, &text, &err);
        text_add(&text, "%s", ""); /* makes text.data a string if the file is empty */
        if (status == EPA_OK)
            status =
                import_text(cli->arg[i], text.data, cli->set, cli->n_sets, results, &unread, &err);
        if (unread.bytes > 0)
            text_warn("%s", unread.data);
    }
    if (status == EPA_OK && !cli_has_stdout(cli))
        print_imported(results);
    if (status == EPA_OK)
        status = cli_write_json(cli, report_document(json_incref(results), NULL), &err);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}

/* ---- plot ---- */

static const char *file_ending(const char *path)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');

    return dot == NULL || (slash != NULL && dot < slash) ? "" : dot;
}

static const char *plot_path(const struct cli *cli)
{
    return cli->out != NULL ? cli->out : "-";
}

enum epa_status cmd_plot_check(const struct cli *cli, struct epa_error *err)
{
    const char *path = plot_path(cli), *end = file_ending(path);
    bool text = strcmp(path, "-") == 0 || strcasecmp(end, ".txt") == 0;

    if (!text && strcasecmp(end, ".svg") != 0 && strcasecmp(end, ".png") != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--out %s: a chart ends in .svg, .png or .txt, or is - for standard "
                        "output",
                        path);
    return EPA_OK;
}

/* Waits until gnuplot has ended. Kills it after a minute, or if a signal that this command blocks
 * asks for an end. */
static int wait_for_gnuplot(pid_t pid, int *code)
{
    uint64_t limit_ns = GNUPLOT_S * UINT64_C(1000000000), begun_ns = 0, waited_ns = 0;
    bool killed = false;
    sigset_t pending;
    pid_t got;

    while ((got = waitpid(pid, code, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        waited_ns = epa_waited_ns(&begun_ns, waited_ns, limit_ns);
        if (waited_ns > limit_ns ||
            (sigpending(&pending) == 0 &&
             (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1))) {
            killed = true;
            kill(pid, SIGKILL);
        }
        (void)poll(NULL, 0, GNUPLOT_LOOK_MS);
    }
    if (got < 0)
        return errno;
    return killed && WIFSIGNALED(*code) ? ETIMEDOUT : 0;
}

/* Variables that change the charts of gnuplot, or the files that it reads: GNUTERM=x11 fails where
 * that terminal is missing. The script sets all it needs. */
static bool changes_gnuplot(const char *variable)
{
    static const char *const prefix[] = {
        "GNUTERM=", "GNUPLOT_", "GNUHELP=", "GDFONTPATH=", "FIT_", "LC_", "LANG=", "LANGUAGE="};

    for (size_t i = 0; i < sizeof(prefix) / sizeof(prefix[0]); i++)
        if (strncmp(variable, prefix[i], strlen(prefix[i])) == 0)
            return true;
    return false;
}

/* Makes the environment of gnuplot. The caller frees the list; the strings belong to this process. */
static char **make_environment(void)
{
    extern char **environ;
    static char locale[] = "LC_ALL=C.UTF-8";
    char **out;
    size_t n = 0, kept = 0;

    while (environ != NULL && environ[n] != NULL)
        n++;
    out = memory_alloc(n + 2, sizeof(*out));
    for (size_t i = 0; i < n; i++)
        if (!changes_gnuplot(environ[i]))
            out[kept++] = environ[i];
    out[kept++] = locale;
    out[kept] = NULL;
    return out;
}

/* Runs gnuplot with standard input, output and error fd[0], fd[1] and fd[2]; -d: no settings files. */
static int run_gnuplot(const int fd[3], int *code)
{
    char *const argv[] = {(char[]){"gnuplot"}, (char[]){"-d"}, NULL};
    char **variables = make_environment();
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int failed = posix_spawn_file_actions_init(&actions);

    for (int i = 0; i < 3 && failed == 0; i++)
        failed = posix_spawn_file_actions_adddup2(&actions, fd[i], i);
    if (failed == 0)
        failed = posix_spawnp(&pid, argv[0], &actions, NULL, argv, variables);
    posix_spawn_file_actions_destroy(&actions);
    free(variables);
    return failed != 0 ? failed : wait_for_gnuplot(pid, code);
}

/* Reads the output of gnuplot. */
static void read_descriptor(int fd, struct text *out)
{
    struct epa_error ignored = {EPA_OK, ""};
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    (void)file_read(path, FILE_MOST, out, &ignored);
}

enum epa_status cli_draw(const struct text *script, struct text *out, struct epa_error *err)
{
    int fd[3], code = 0, failed = 0;
    text_auto why = {0};
    enum epa_status status = EPA_ERR_SYSTEM;

    for (int i = 0; i < 3; i++) {
        fd[i] = memfd_create("epa2a-plot", MFD_CLOEXEC);
        failed = fd[i] < 0 ? errno : failed;
    }
    if (failed == 0 && (write(fd[0], script->data, script->bytes) != (ssize_t)script->bytes ||
                        lseek(fd[0], 0, SEEK_SET) != 0))
        failed = errno;
    if (failed == 0)
        failed = run_gnuplot(fd, &code);
    if (failed == 0) {
        read_descriptor(fd[1], out);
        read_descriptor(fd[2], &why);
    }
    if (failed == ENOENT)
        status = epa_fail(err, EPA_ERR_UNSUPPORTED,
                          "charts need gnuplot, which is not on PATH: install it (Debian: apt "
                          "install gnuplot-nox)");
    else if (failed == ETIMEDOUT)
        epa_fail(err, status, "gnuplot was killed after %d s, or after a signal to epa2a",
                 GNUPLOT_S);
    else if (failed != 0)
        epa_fail(err, status, "gnuplot: %s", strerror(failed));
    else if (WIFSIGNALED(code))
        epa_fail(err, status, "gnuplot was ended by signal %d", WTERMSIG(code));
    else if (WEXITSTATUS(code) != 0)
        epa_fail(err, status, "gnuplot failed with exit code %d:%.400s", WEXITSTATUS(code),
                 why.data != NULL ? text_clean(why.data) : "");
    else if (out->bytes == 0)
        epa_fail(err, status, "gnuplot printed no chart");
    else
        status = EPA_OK;
    for (int i = 0; i < 3; i++)
        if (fd[i] >= 0)
            close(fd[i]);
    return status;
}

enum plot_form cli_plot_form(const char *path)
{
    const char *end = file_ending(path);

    return strcasecmp(end, ".svg") == 0   ? PLOT_SVG
           : strcasecmp(end, ".png") == 0 ? PLOT_PNG
                                          : PLOT_TEXT;
}

uint32_t cli_plot_columns(const char *path)
{
    return file_is_stdout(path) ? terminal_columns() : TERMINAL_COLUMNS;
}

int cmd_plot(const struct cli *cli)
{
    const struct plot_wish wish = {.kind = (enum plot_kind)cli->kind,
                                   .form = cli_plot_form(plot_path(cli)),
                                   .columns = cli_plot_columns(plot_path(cli)),
                                   .which = {cli->stage, cli->only, cli->n_only}};
    struct results results = {0};
    text_auto script = {0}, out = {0};
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = results_read_all(cli->arg, cli->n_args, &results, &err);

    if (status == EPA_OK)
        status = plot_script(&results, &wish, &script, &err);
    if (status == EPA_OK)
        status = cli_draw(&script, &out, &err);
    if (status == EPA_OK)
        status = file_write("--out", plot_path(cli), cli->force, &out, &err);
    results_free(&results);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}

/* ---- trace: checks, merges, summarizes and draws the traces of `profile:`; routing stats: describes
 * a captured routing ---- */

enum epa_status cmd_trace_check(const struct cli *cli, struct epa_error *err)
{
    const char *word = cli->arg[0];
    bool view = strcmp(word, "view") == 0, writes = view || strcmp(word, "merge") == 0;

    if (view && cli->n_args > 2)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "trace %s takes one file; 'epa2a trace merge' merges several", word);
    if (writes && cli->out == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "trace %s needs --out FILE; - is standard output",
                        word);
    if (cli->stage != NULL && strcmp(word, "merge") != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "trace %s does not take --stage", word);
    if (!writes && cli->out != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "trace %s prints to standard output and does not take --out", word);
    return EPA_OK;
}

static bool print_trace_flaws(const struct trace_file *f, bool quiet)
{
    fputs(f->flaws.data != NULL ? f->flaws.data : "", stdout);
    if (!quiet)
        printf("%s: %zu events, %u finding%s\n", f->path, f->n, f->n_flaws,
               f->n_flaws == 1 ? "" : "s");
    return f->n_flaws == 0;
}

/* Rejects traces of other programs: they have no iterations and stages to summarize. */
static enum epa_status check_written_by_epa2a(const struct trace_file *f, uint32_t n,
                                              struct epa_error *err)
{
    for (uint32_t i = 0; i < n; i++)
        if (!f[i].ours)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: not written by epa2a, so it has no iterations to summarize; trace "
                            "check and trace view take Chrome traces of any program",
                            f[i].path);
    return EPA_OK;
}

/* Runs the subcommand and writes to --out or standard output. Sets *sound to false if check has
 * findings. */
static enum epa_status run_trace_command(const struct cli *cli, struct trace_file *f, uint32_t n,
                                         bool *sound, struct epa_error *err)
{
    const char *word = cli->arg[0];
    text_auto out = {0};

    if (strcmp(word, "view") == 0)
        trace_view(f, &out);
    else if (strcmp(word, "merge") == 0 && trace_merge(f, n, cli->stage, &out, err) != EPA_OK)
        return err->status;
    else if (strcmp(word, "summary") == 0 && check_written_by_epa2a(f, n, err) != EPA_OK)
        return err->status;
    for (uint32_t i = 0; i < n && strcmp(word, "summary") == 0; i++)
        trace_summary(&f[i], &out);
    for (uint32_t i = 0; i < n && strcmp(word, "check") == 0; i++)
        *sound = print_trace_flaws(&f[i], cli->quiet) && *sound;
    return file_write("--out", cli->out != NULL ? cli->out : "-", cli->force, &out, err);
}

int cmd_trace(const struct cli *cli)
{
    uint32_t n = cli->n_args - 1;
    struct trace_file *f = memory_alloc(n, sizeof(*f));
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = EPA_OK;
    bool sound = true;

    for (uint32_t i = 0; i < n && status == EPA_OK; i++)
        status = trace_read(cli->arg[i + 1], &f[i], &err);
    if (status == EPA_OK)
        status = run_trace_command(cli, f, n, &sound, &err);
    for (uint32_t i = 0; i < n; i++)
        trace_free(&f[i]);
    free(f);
    if (status != EPA_OK)
        return cli_fail(&err);
    return sound ? EXIT_OK : EXIT_WRONG;
}

int cmd_routing(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};
    text_auto out = {0};
    json_t *json = NULL;
    enum epa_status status =
        op_describe_routing(cli->arg[1], cli->layer, cli->experts, &out, &json, &err);

    if (status == EPA_OK && !cli_has_stdout(cli))
        fputs(out.data, stdout);
    if (status == EPA_OK)
        status = cli_write_json(cli, json, &err);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}

/* ---- rerun: runs the experiments of a result again by the same verb, and compares the two ---- */

static enum epa_status select_runs(const struct cli *cli, struct results *then,
                                   struct epa_error *err)
{
    const struct results_wish wish = {.only = cli->only, .n_only = cli->n_only};
    const char *verb;
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
    verb = then->run[0].verb;
    for (uint32_t i = 1; i < then->n; i++)
        if (strcmp(then->run[i].verb, verb) != 0)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: runs of both %s and %s; select one kind by --only", then->path,
                            verb, then->run[i].verb);
    if (strcmp(verb, "run") != 0 && strcmp(verb, "bench") != 0 && strcmp(verb, "verify") != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: unknown verb '%s'", then->path, verb);
    return EPA_OK;
}

/* Replaces a launcher that auto may have selected by auto, with the options that all launchers
 * share: today auto may select another launcher. */
static void reset_launcher(json_t *x)
{
    static const char *const selected[] = {"fork", "env", "mpi"};
    static const char *const shared[] = {"pin", "prefix"};
    const json_t *old = json_object_get(x, "launcher");
    json_t *launcher;

    for (size_t i = 0; i < sizeof(selected) / sizeof(selected[0]); i++) {
        if (strcmp(json_text_at(old, "name"), selected[i]) != 0)
            continue;
        launcher = json_pack("{s:s}", "name", "auto");
        for (size_t k = 0; k < sizeof(shared) / sizeof(shared[0]); k++)
            if (json_object_get(old, shared[k]) != NULL)
                json_object_set(launcher, shared[k], json_object_get(old, shared[k]));
        json_object_set_new(x, "launcher", launcher);
        return;
    }
}

/* Writes the experiments as a file in JSON, which is YAML. A single experiment without a label is the
 * whole file; several, or one with a label, become `runs:` with distinct labels. */
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

    fputs("# rerun of ", stdout);
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

static bool has_samples(const struct results *results)
{
    for (uint32_t i = 0; i < results->n; i++)
        for (uint32_t k = 0; k < results->run[i].n_stages && results->run[i].ok; k++)
            if (results->run[i].stage[k].n > 0)
                return true;
    return false;
}

static int run_and_compare(const struct cli *cli, const struct results *then,
                           const char *experiments)
{
    const char *verb = then->run[0].verb;
    struct cli run = *cli, comparing = *cli;
    struct results now;
    int code, compared = EXIT_OK;

    run.text = experiments;
    run.n_only = 0;
    code = run_for_results(&run,
                           strcmp(verb, "bench") == 0    ? cmd_bench
                           : strcmp(verb, "verify") == 0 ? cmd_verify
                                                         : cmd_run,
                           cli->json != NULL ? cli->json : "now", &now);
    /* --set changes the experiment on request, so the comparison accepts the difference. */
    comparing.force = cli->force || cli->n_sets > (cli->timeout_ns != 0);
    if (now.n > 0)
        print_differences(then, &now);
    if (has_samples(&now) && has_samples(then))
        compared = compare_results(&comparing, then, &now, false);
    else if (now.root != NULL)
        printf("# no times to compare\n");
    results_free(&now);
    return code == EXIT_OK && cli->judges ? compared : code;
}

int cmd_rerun(const struct cli *cli)
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
    if (status == EPA_OK && cli->json != NULL && strcmp(cli->json, "-") == 0)
        status = epa_fail(&err, EPA_ERR_CONFIG,
                          "rerun prints a comparison to standard output: give --json a file");
    code = status == EPA_OK ? run_and_compare(cli, &then, experiments.data) : cli_fail(&err);
    results_free(&then);
    return code;
}
