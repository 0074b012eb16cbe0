/* epa2a plot RESULTS...: charts of results, by gnuplot. What --out ends in says how they are drawn:
 * .svg, .png, or as text. Its three standard files are memory, so that neither side waits for the
 * other and a chart that failed leaves nothing anywhere. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/cli.h"
#include "report/plot.h"

static const char *ending(const char *path)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');

    return dot == NULL || (slash != NULL && dot < slash) ? "" : dot;
}

static const char *path_of(const struct cli *cli)
{
    return cli->out != NULL ? cli->out : "-";
}

enum epa_status cmd_plot_check(const struct cli *cli, struct epa_error *err)
{
    const char *path = path_of(cli), *end = ending(path);
    bool text = strcmp(path, "-") == 0 || strcasecmp(end, ".txt") == 0;

    if (cli->n_args == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "plot needs results: a file that --json wrote, or a folder of them: "
                        "'epa2a plot RESULTS...'");
    if (!text && strcasecmp(end, ".svg") != 0 && strcasecmp(end, ".png") != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--out %s: a chart ends in .svg, .png or .txt, or is - for standard "
                        "output",
                        path);
    return EPA_OK;
}

/* Its input, output and errors. */
static int run_gnuplot(const int fd[3], int *code)
{
    char *const argv[] = {(char[]){"gnuplot"}, (char[]){"-d"}, NULL};
    extern char **environ;
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int failed = posix_spawn_file_actions_init(&actions);

    for (int i = 0; i < 3 && failed == 0; i++)
        failed = posix_spawn_file_actions_adddup2(&actions, fd[i], i);
    if (failed == 0)
        failed = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0)
        return failed;
    while (waitpid(pid, code, 0) < 0)
        if (errno != EINTR)
            return errno;
    return 0;
}

/* What the child has left there. */
static void read_all(int fd, struct text *out)
{
    struct epa_error ignored = {EPA_OK, ""};
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    (void)file_read(path, out, &ignored);
}

/* Runs gnuplot (of PATH, without the user's settings) on a script; `out` gets what it writes. */
static enum epa_status draw(const struct text *script, struct text *out, struct epa_error *err)
{
    int fd[3], code = 0, failed = 0;
    struct text why = {0};
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
        read_all(fd[1], out);
        read_all(fd[2], &why);
    }
    if (failed == ENOENT)
        status = epa_fail(err, EPA_ERR_UNSUPPORTED,
                          "charts are drawn by gnuplot, which is not on PATH: install it (Debian: "
                          "apt install gnuplot-nox)");
    else if (failed != 0)
        epa_fail(err, status, "gnuplot: %s", strerror(failed));
    else if (WIFSIGNALED(code))
        epa_fail(err, status, "gnuplot was ended by signal %d", WTERMSIG(code));
    else if (WEXITSTATUS(code) != 0)
        epa_fail(err, status, "gnuplot failed with exit code %d:%.400s", WEXITSTATUS(code),
                 why.data != NULL ? text_clean(why.data) : "");
    else if (out->bytes == 0)
        epa_fail(err, status, "gnuplot has drawn nothing");
    else
        status = EPA_OK;
    for (int i = 0; i < 3; i++)
        if (fd[i] >= 0)
            close(fd[i]);
    text_free(&why);
    return status;
}

int cmd_plot(const struct cli *cli)
{
    const char *end = ending(path_of(cli));
    const struct plot_wish wish = {.kind = (enum plot_kind)cli->kind,
                                   .form = strcasecmp(end, ".svg") == 0   ? PLOT_SVG
                                           : strcasecmp(end, ".png") == 0 ? PLOT_PNG
                                                                          : PLOT_TEXT,
                                   .stage = cli->stage,
                                   .only = cli->only,
                                   .n_only = cli->n_only};
    struct results *results = calloc(cli->n_args, sizeof(*results));
    struct text script = {0}, out = {0};
    struct epa_error err = {EPA_OK, ""};
    uint32_t n = 0;
    enum epa_status status = EPA_OK;

    if (results == NULL)
        status = epa_fail(&err, EPA_ERR_NOMEM, "no memory for %u files", cli->n_args);
    if (status == EPA_OK)
        status = file_check("--out", path_of(cli), cli->force, &err);
    if (status == EPA_OK)
        status = results_read_all(cli->arg, cli->n_args, results, &n, &err);
    if (status == EPA_OK)
        status = plot_script(results, n, &wish, &script, &err);
    if (status == EPA_OK)
        status = draw(&script, &out, &err);
    if (status == EPA_OK)
        status = file_write("--out", path_of(cli), cli->force, &out, &err);
    text_free(&script);
    text_free(&out);
    for (uint32_t i = 0; i < n; i++)
        results_free(&results[i]);
    free(results);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}
