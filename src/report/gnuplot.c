/* gnuplot, run on a script. All three of its standard files are memory of ours, so that
 * nobody waits for anybody, and nothing of a chart that failed is left anywhere. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "report/plot.h"

enum { LIMIT_MS = 60000, POLL_MS = 5, NOT_THERE = 127 };

struct child {
    int fd[3]; /* its input, output and errors; -1: not made */
    pid_t pid;
};

static void child_finish(struct child *c)
{
    for (int i = 0; i < 3; i++) {
        if (c->fd[i] >= 0)
            close(c->fd[i]);
    }
}

static bool write_all(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);

        if (n < 0 && errno != EINTR)
            return false;
        data += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return lseek(fd, 0, SEEK_SET) == 0;
}

/* What the child has left, from the start; false: it cannot be read. */
static bool read_all(int fd, struct text *out)
{
    char piece[4096];
    ssize_t n = lseek(fd, 0, SEEK_SET) == 0 ? 1 : -1;

    while (n > 0) {
        n = read(fd, piece, sizeof(piece));
        if (n > 0)
            text_add_bytes(out, piece, (size_t)n);
    }
    return n == 0;
}

static enum epa_status make_files(const struct text *script, struct child *c, struct epa_error *err)
{
    for (int i = 0; i < 3; i++) {
        c->fd[i] = memfd_create("epa2a-plot", MFD_CLOEXEC);
        if (c->fd[i] < 0)
            return epa_fail(err, EPA_ERR_SYSTEM, "memory for gnuplot: %s", strerror(errno));
    }
    if (!write_all(c->fd[0], script->data, script->bytes))
        return epa_fail(err, EPA_ERR_SYSTEM, "memory for gnuplot's script: %s", strerror(errno));
    return EPA_OK;
}

/* In the child. -d: without the settings of whoever runs it. */
static void become_gnuplot(const struct child *c)
{
    static const char *const argv[] = {"gnuplot", "-d", NULL};
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    for (int i = 0; i < 3; i++) {
        if (dup2(c->fd[i], i) < 0)
            _exit(NOT_THERE);
    }
    execvp(argv[0], (char *const *)argv);
    dprintf(2, "%s", strerror(errno));
    _exit(NOT_THERE);
}

/* Waits, and no longer than the limit; `code` as of waitpid(). */
static enum epa_status wait_for(struct child *c, int *code, struct epa_error *err)
{
    const struct timespec pause = {0, POLL_MS * 1000000L};

    for (int waited = 0; waited < LIMIT_MS; waited += POLL_MS) {
        pid_t gone = waitpid(c->pid, code, WNOHANG);

        if (gone == c->pid)
            return EPA_OK;
        if (gone < 0 && errno != EINTR)
            return epa_fail(err, EPA_ERR_SYSTEM, "gnuplot: waitpid: %s", strerror(errno));
        nanosleep(&pause, NULL);
    }
    kill(c->pid, SIGKILL);
    waitpid(c->pid, code, 0);
    return epa_fail(err, EPA_ERR_TIMEOUT, "gnuplot did not end within %d s", LIMIT_MS / 1000);
}

static enum epa_status judge(const struct child *c, int code, struct text *out,
                             struct epa_error *err)
{
    struct text said = {0};

    if (WIFEXITED(code) && WEXITSTATUS(code) == NOT_THERE)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "charts as svg or png are drawn by gnuplot, which is not on PATH: "
                        "install it (Debian: apt install gnuplot-nox), or write a .txt");
    if (WIFEXITED(code) && WEXITSTATUS(code) == 0) {
        if (!read_all(c->fd[1], out) || out->bytes == 0)
            return epa_fail(err, EPA_ERR_SYSTEM, "gnuplot has drawn nothing");
        return EPA_OK;
    }
    (void)read_all(c->fd[2], &said);
    for (char *at = said.data; at != NULL && *at != '\0'; at++)
        *at = (unsigned char)*at < ' ' ? ' ' : *at;
    if (WIFEXITED(code))
        epa_fail(err, EPA_ERR_SYSTEM, "gnuplot failed with exit code %d:%.400s", WEXITSTATUS(code),
                 said.data == NULL ? "" : said.data);
    else
        epa_fail(err, EPA_ERR_SYSTEM, "gnuplot was ended by signal %d", WTERMSIG(code));
    text_free(&said);
    return EPA_ERR_SYSTEM;
}

enum epa_status gnuplot_run(const struct text *script, struct text *out, struct epa_error *err)
{
    struct child c = {.fd = {-1, -1, -1}};
    enum epa_status status = make_files(script, &c, err);
    int code = 0;

    if (status == EPA_OK) {
        fflush(NULL);
        c.pid = fork();
        if (c.pid == 0)
            become_gnuplot(&c);
        if (c.pid < 0)
            status = epa_fail(err, EPA_ERR_SYSTEM, "fork: %s", strerror(errno));
    }
    if (status == EPA_OK)
        status = wait_for(&c, &code, err);
    if (status == EPA_OK)
        status = judge(&c, code, out, err);
    child_finish(&c);
    return status;
}
