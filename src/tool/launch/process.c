/* Starts a rank's process. A rank dies with its parent (PR_SET_PDEATHSIG), leaves no file, and records
 * its status in the control page: a rank that exits without this record has died, for any exit code. */
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

#include <epa2a/wait.h>
#include "base/terminal.h"
#include "base/text.h"
#include "boot/close_open.h"

/* Exists in builds with LeakSanitizer only: _exit() would skip its check. */
extern void __lsan_do_leak_check(void) __attribute__((weak));

int process_code(enum epa_status status)
{
    return (int)((0u - (unsigned)status) & 0xffu);
}

/* Sends the output to the parent, closes the input, and ignores the signals of the terminal: they reach
 * ranks as well, but the parent handles them. */
static void detach_child(int output)
{
    int null;

    stdout_leave();
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
    signal(SIGUSR1, SIG_IGN); /* requests the status of ranks from the parent */
}

_Noreturn static void run_child(int (*run)(void *arg), void *arg, int output, pid_t parent)
{
    int code;

    /* A parent that died before prctl() sends no signal; getppid() then returns another process. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(1);
    detach_child(output);
    code = run(arg);
    fflush(stdout);
    fflush(stderr);
    if (__lsan_do_leak_check != NULL)
        __lsan_do_leak_check();
    _exit(code); /* not exit(): the exit handlers belong to the parent */
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
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "pipe for the output of rank %u: %s",
                              rank, strerror(errno));
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    process_init(process);
    relay_init(&process->relay, ends[0], rank, prefix);
    pid = fork();
    failed = errno;
    if (pid == 0)
        run_child(run, arg, ends[1], parent);
    close(ends[1]);
    if (pid < 0) {
        relay_finish(&process->relay);
        return epa_fail(err, EPA_ERR_SYSTEM, "fork of rank %u: %s%s", rank, strerror(failed),
                        process_limit(failed));
    }
    process->pid = pid;
    process->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return EPA_OK;
}

void process_close_inherited(const struct process *process)
{
    close_open(process->pidfd);
    close_open(process->relay.from);
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
    if (got < 0) /* with SIGCHLD ignored the kernel has reaped it: the recorded status remains */
        *code = process_code(word) << 8;
    return true;
}

bool process_wait(struct process *process, uint32_t ms)
{
    uint64_t limit_ns = ms * UINT64_C(1000000), begun_ns = 0, waited_ns = 0;
    int code;

    while (!process_ended(process, EPA_OK, &code)) {
        relay_turn(&process->relay);
        waited_ns = epa_waited_ns(&begun_ns, waited_ns, limit_ns);
        if (waited_ns > limit_ns)
            process_kill(process);
        (void)poll(NULL, 0, 1);
    }
    return !process->killed;
}

void process_finish(struct process *process)
{
    relay_finish(&process->relay);
    close_open(process->pidfd);
    process_init(process);
}
