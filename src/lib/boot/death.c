/* The kernel tells the exit code of a foreign process at two places: in /proc/PID/stat until the parent
 * reaps the process, and by a pidfd afterwards (Linux 6.15). */
#include "boot/death.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* As in <linux/pidfd.h>, which older systems lack. */
struct pidfd_info_v0 {
    uint64_t mask, cgroup;
    uint32_t pid, tgid, ppid, uid[8];
    int32_t exit_code;
};
#define PIDFD_GET_INFO_V0 _IOWR(0xFF, 11, struct pidfd_info_v0)

enum { INFO_EXIT = 1 << 3, PAUSE_MS = 1, REAP_TRIES = 20, CODE_FIELD = 52, STATE_FIELD = 3 };

_Static_assert(sizeof(struct pidfd_info_v0) == 64, "the size selects the version of the struct");

int death_watch(int32_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

static void send_signal(int pidfd, int number)
{
    if (pidfd >= 0)
        (void)syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0);
}

void death_resume(int pidfd)
{
    send_signal(pidfd, SIGCONT);
}

void death_kill(int pidfd)
{
    send_signal(pidfd, SIGKILL);
}

/* Reads the code of a zombie. The name of the program, in parentheses, may contain blanks. */
static bool read_zombie(int32_t pid, int *code)
{
    char path[32], line[1024], *at;
    FILE *file;
    size_t n;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    file = fopen(path, "re");
    if (file == NULL)
        return false;
    n = fread(line, 1, sizeof(line) - 1, file);
    fclose(file);
    line[n] = 0;
    at = strrchr(line, ')');
    if (at == NULL || strncmp(at, ") Z", 3) != 0)
        return false;
    for (int field = STATE_FIELD - 1; field < CODE_FIELD && at != NULL; field++)
        at = strchr(at + 1, ' ');
    return at != NULL && sscanf(at, "%d", code) == 1;
}

static bool read_reaped(int pidfd, int *code)
{
    struct pidfd_info_v0 info = {.mask = INFO_EXIT};

    if (ioctl(pidfd, PIDFD_GET_INFO_V0, &info) != 0 || (info.mask & INFO_EXIT) == 0)
        return false;
    *code = info.exit_code;
    return true;
}

bool death_find_code(int pidfd, int32_t pid, int wait_ms, int *code)
{
    struct pollfd fd = {.fd = pidfd, .events = POLLIN};

    if (pidfd < 0 || poll(&fd, 1, wait_ms) <= 0)
        return false;
    for (int i = 0; i < REAP_TRIES; i++) { /* the parent may reap the process between both reads */
        if (read_reaped(pidfd, code) || read_zombie(pid, code))
            return true;
        (void)poll(NULL, 0, PAUSE_MS);
    }
    return false;
}

void death_describe(int code, char out[DEATH_TEXT])
{
    if (WIFSIGNALED(code))
        snprintf(out, DEATH_TEXT, "was killed by signal %d (%.40s)", WTERMSIG(code),
                 strsignal(WTERMSIG(code)));
    else
        snprintf(out, DEATH_TEXT, "exited without a status (exit code %d)", WEXITSTATUS(code));
}
