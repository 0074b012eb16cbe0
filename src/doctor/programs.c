/* Programs that epa2a is started by or that it starts, and what version they say they are. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "doctor/parts.h"

extern char **environ;

static const uint64_t default_timeout_ns = 3000000000u;

/* Where on PATH it is. Relative folders of PATH are left out: whose they are depends on where
 * one stands. */
static bool find(const char *name, char *out, size_t room)
{
    const char *path = getenv("PATH");

    while (path != NULL && *path != 0) {
        size_t n = strcspn(path, ":");

        if (path[0] == '/' && (size_t)snprintf(out, room, "%.*s/%s", (int)n, path, name) < room &&
            access(out, X_OK) == 0)
            return true;
        path += n + (path[n] == ':');
    }
    out[0] = 0;
    return false;
}

/* Reads until the end or until time is up. */
static void read_some(int fd, char *out, size_t room)
{
    uint64_t end = clock_ns() + default_timeout_ns;
    size_t n = 0;

    while (n + 1 < room) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        uint64_t now = clock_ns();
        ssize_t got;

        if (now >= end || poll(&wait, 1, (int)((end - now) / 1000000) + 1) <= 0)
            break;
        got = read(fd, out + n, room - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    out[n] = 0;
}

/* The first line of what `path --version` prints. A program that does not end is killed. */
static void ask_version(const char *path, char *out, size_t room)
{
    char *const argv[] = {(char *)path, (char *)"--version", NULL};
    posix_spawn_file_actions_t actions;
    char text[512] = "";
    int fd[2];
    pid_t pid;

    if (pipe2(fd, O_CLOEXEC) != 0)
        return;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, fd[1], 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    if (posix_spawn(&pid, path, &actions, NULL, argv, environ) == 0) {
        close(fd[1]);
        fd[1] = -1;
        read_some(fd[0], text, sizeof(text));
        kill(pid, SIGKILL); /* if it has not ended; all that is wanted is here */
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    posix_spawn_file_actions_destroy(&actions);
    if (fd[1] >= 0)
        close(fd[1]);
    close(fd[0]);
    text[strcspn(text, "\n")] = 0;
    snprintf(out, room, "%.*s", (int)room - 1, text);
}

void programs_collect(struct machine *out)
{
    static const char *const name[MACHINE_PROGRAMS] = {"mpirun", "srun", "torchrun"};

    for (uint32_t i = 0; i < MACHINE_PROGRAMS; i++) {
        struct machine_program *program = &out->program[out->programs++];

        snprintf(program->name, sizeof(program->name), "%s", name[i]);
        /* What torchrun loads to tell its version takes seconds. */
        if (find(name[i], program->path, sizeof(program->path)) && strcmp(name[i], "torchrun") != 0)
            ask_version(program->path, program->version, sizeof(program->version));
    }
}

const struct machine_program *machine_program(const struct machine *m, const char *name)
{
    for (uint32_t i = 0; i < m->programs; i++) {
        if (strcmp(m->program[i].name, name) == 0)
            return &m->program[i];
    }
    return NULL;
}
