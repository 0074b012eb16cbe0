/* Starting a rank's process, passing on what it prints, and judging its end. Ranks die with who started them
 * (PR_SET_PDEATHSIG), leave no file, and give their status as a last word in the control
 * page, so that one which exits without a word is known to have died whatever its code.
 *
 * A line of a rank goes out in one write, so that lines of ranks do not mix; one longer than the
 * buffer is cut. A pipe holds what was written to it after its writer died, so the last words of
 * a killed rank are here, too. */
#include "launch/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/terminal.h"

enum {
    TURN_READS = 16,    /* of one rank at a time: it may write faster than we read */
    FINISH_READS = 256, /* more than a pipe holds: someone it left behind may write on */
    FULL_WAIT_MS = 100,
};

/* ---- output ---- */

static void pass_on(const struct relay *relay, char *data, size_t bytes)
{
    if (isatty(
            STDERR_FILENO)) /* what libraries of a rank print is no more to be trusted than files */
        bytes = terminal_clean(data, bytes, true);
    if (relay->before != NULL)
        relay->before(relay->arg);
    while (bytes > 0) {
        ssize_t n = write(STDERR_FILENO, data, bytes);

        if (n > 0) {
            data += n;
            bytes -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            struct pollfd full = {.fd = STDERR_FILENO, .events = POLLOUT};

            if (poll(&full, 1, FULL_WAIT_MS) <= 0)
                return; /* nobody reads; ranks matter more than their words */
        } else if (n == 0 || errno != EINTR) {
            return;
        }
    }
}

static void put_line(struct relay *relay)
{
    size_t bytes = relay->head + relay->held;

    relay->line[bytes] = '\n';
    pass_on(relay, relay->line, bytes + 1);
    relay->held = 0;
}

static void add(struct relay *relay, const char *data, size_t bytes)
{
    size_t room = sizeof(relay->line) - 1 - relay->head;

    while (bytes > 0) {
        const char *end = memchr(data, '\n', bytes);
        size_t n = end != NULL ? (size_t)(end - data) : bytes;
        bool whole = n <= room - relay->held;

        if (!whole)
            n = room - relay->held;
        memcpy(relay->line + relay->head + relay->held, data, n);
        relay->held += n;
        data += n;
        bytes -= n;
        if (whole && end == NULL)
            return;
        put_line(relay);
        if (whole) {
            data++;
            bytes--;
        }
    }
}

static void read_some(struct relay *relay, uint32_t reads)
{
    char data[4096];

    for (uint32_t i = 0; i < reads && relay->from >= 0; i++) {
        ssize_t n = read(relay->from, data, sizeof(data));

        if (n > 0 && relay->prefix) {
            add(relay, data, (size_t)n);
        } else if (n > 0) {
            pass_on(relay, data, (size_t)n);
        } else if (n < 0 && errno == EAGAIN) {
            return;
        } else if (n == 0 || errno != EINTR) {
            close(relay->from);
            relay->from = -1;
        }
    }
}

void relay_init(struct relay *out, int from, uint32_t rank, bool prefix)
{
    out->from = from;
    out->prefix = prefix;
    out->held = 0;
    out->before = NULL;
    out->head = (size_t)snprintf(out->line, sizeof(out->line), "[rank %u] ", rank);
}

void relay_turn(struct relay *relay)
{
    read_some(relay, TURN_READS);
}

void relay_finish(struct relay *relay)
{
    read_some(relay, FINISH_READS);
    if (relay->held > 0)
        put_line(relay);
    if (relay->from >= 0)
        close(relay->from);
    relay->from = -1;
}

/* ---- life ---- */

/* In builds with LeakSanitizer only: _exit() would skip its check. */
extern void __lsan_do_leak_check(void) __attribute__((weak));

int process_code(enum epa_status status)
{
    return -(int)status & 0xff;
}

/* Output goes to the parent, input comes from nowhere, and signals of the terminal, which
 * reach ranks as well, are the parent's to judge. */
static void detach(int output)
{
    int null;

    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    if (output > STDERR_FILENO)
        close(output);
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0)
        close(STDIN_FILENO);
    if (null > STDERR_FILENO)
        close(null);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGUSR1, SIG_IGN); /* which asks the parent where its ranks are */
}

_Noreturn static void child(int (*run)(void *arg), void *arg, int output, pid_t parent)
{
    int code;

    /* A parent that died before prctl() sends nothing; then we have another one already. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(1);
    detach(output);
    code = run(arg);
    fflush(stdout);
    fflush(stderr);
    if (__lsan_do_leak_check != NULL)
        __lsan_do_leak_check();
    _exit(code); /* not exit(): what the parent registered is the parent's */
}

void process_init(struct process *out)
{
    *out = (struct process){.pidfd = -1};
    out->relay.from = -1;
}

enum epa_status process_start(struct process *process, uint32_t rank, bool prefix,
                              int (*run)(void *arg), void *arg, struct epa_error *err)
{
    pid_t parent = getpid(), pid;
    int ends[2], failed;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "pipe for the output of rank %u: %s", rank,
                        strerror(errno));
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    process_init(process);
    relay_init(&process->relay, ends[0], rank, prefix);
    pid = fork();
    failed = errno;
    if (pid == 0)
        child(run, arg, ends[1], parent);
    close(ends[1]);
    if (pid < 0) {
        relay_finish(&process->relay);
        return epa_fail(err, EPA_ERR_SYSTEM, "fork of rank %u: %s", rank, strerror(failed));
    }
    process->pid = pid;
    process->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return EPA_OK;
}

void process_close_inherited(const struct process *process)
{
    if (process->pidfd >= 0)
        close(process->pidfd);
    if (process->relay.from >= 0)
        close(process->relay.from);
}

void process_kill(struct process *process)
{
    if (process->pid != 0 && !process->killed)
        process->killed = kill(process->pid, SIGKILL) == 0;
}

bool process_ended(struct process *process, enum epa_status word, int *code)
{
    pid_t got = waitpid(process->pid, code, WNOHANG);

    if (got == 0 || (got < 0 && errno == EINTR))
        return false;
    if (got < 0) /* SIGCHLD is ignored and the kernel has reaped it: the word remains */
        *code = process_code(word) << 8;
    return true;
}

void process_finish(struct process *process)
{
    relay_finish(&process->relay);
    if (process->pidfd >= 0)
        close(process->pidfd);
    process_init(process);
}

enum epa_status process_judge(const struct process *process, int code, bool has_word,
                              enum epa_status word, const char *who, char *out, size_t room)
{
    if (WIFSIGNALED(code) && process->killed)
        return EPA_ERR_TIMEOUT; /* watch_gave_up() has the words */
    if (WIFSIGNALED(code))
        snprintf(out, room, "%s was killed by signal %d (%s)", who, WTERMSIG(code),
                 strsignal(WTERMSIG(code)));
    else if (!has_word)
        snprintf(out, room, "%s left without a word (exit code %d)", who, WEXITSTATUS(code));
    else if (WEXITSTATUS(code) != process_code(word))
        snprintf(out, room, "%s was done and then left with exit code %d", who, WEXITSTATUS(code));
    else
        return EPA_OK;
    return EPA_ERR_DIED;
}
