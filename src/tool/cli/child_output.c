/* Runs a program. Its standard files are in memory, so that neither process waits for the other and a
 * failed program leaves no file. */
#include "cli/child_output.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <epa2a/wait.h>

#include "base/file.h"

enum { LOOK_MS = 5 };

extern char **environ;

/* Waits until the child has ended. Kills it after the limit, or if a signal that this command blocks
 * asks for an end. */
static int wait_for_child(pid_t pid, uint64_t limit_ns, int *code)
{
    uint64_t begun_ns = 0, waited_ns = 0;
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
        (void)poll(NULL, 0, LOOK_MS);
    }
    if (got < 0)
        return errno;
    return killed && WIFSIGNALED(*code) ? ETIMEDOUT : 0;
}

/* Runs the child with standard input, output and error fd[0], fd[1] and fd[2]. */
static int run_child(const struct child *child, const int fd[3], int *code)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int failed = posix_spawn_file_actions_init(&actions);

    for (int i = 0; i < 3 && failed == 0; i++)
        failed = posix_spawn_file_actions_adddup2(&actions, fd[i], i);
    if (failed == 0)
        failed = posix_spawnp(&pid, child->word[0], &actions, NULL, child->word,
                              child->variables != NULL ? child->variables : environ);
    posix_spawn_file_actions_destroy(&actions);
    return failed != 0 ? failed : wait_for_child(pid, child->limit_ns, code);
}

static int write_input(int fd, const struct text *input)
{
    for (size_t at = 0; at < input->bytes;) {
        ssize_t n = write(fd, input->data + at, input->bytes - at);

        if (n < 0)
            return errno;
        at += (size_t)n;
    }
    return lseek(fd, 0, SEEK_SET) < 0 ? errno : 0;
}

static void read_descriptor(int fd, struct text *out)
{
    struct epa_error ignored = {EPA_OK, ""};
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    (void)file_read(path, FILE_MOST, out, &ignored);
}

int child_run(const struct child *child, const struct text *input, struct text *out,
              struct text *messages, int *code)
{
    int fd[3], failed = 0;

    for (int i = 0; i < 3; i++) {
        fd[i] = memfd_create("epa2a-child", MFD_CLOEXEC);
        failed = fd[i] < 0 ? errno : failed;
    }
    if (failed == 0)
        failed = write_input(fd[0], input);
    if (failed == 0)
        failed = run_child(child, fd, code);
    if (failed == 0) {
        read_descriptor(fd[1], out);
        read_descriptor(fd[2], messages);
    }
    for (int i = 0; i < 3; i++)
        if (fd[i] >= 0)
            close(fd[i]);
    return failed;
}
