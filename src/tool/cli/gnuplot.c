/* Runs gnuplot. Its standard files are in memory, so that neither process waits for the other and a
 * failed chart leaves no file. */
#include "cli/gnuplot.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <epa2a/wait.h>

#include "base/file.h"
#include "base/memory.h"

enum { GNUPLOT_S = 60, GNUPLOT_LOOK_MS = 5 };

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
        epa_fail_errno(err, status, failed, "gnuplot: %s", strerror(failed));
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
