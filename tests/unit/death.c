/* Tests of the cause of death of processes that are no children: with a parent that reaps them, and
 * with one that does not. */
#include "test.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "boot/death.h"

enum { EXIT_CODE = 7 };

/* Starts a parent and its child. The child waits for a signal; SIGUSR1 lets it exit with EXIT_CODE. */
static pid_t start_parent(bool reaps, pid_t *child)
{
    int ends[2];
    pid_t parent;

    assert_int_equal(pipe(ends), 0);
    parent = fork();
    assert_true(parent >= 0);
    if (parent == 0) {
        sigset_t set;
        int got;

        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        sigprocmask(SIG_BLOCK, &set, NULL);
        *child = fork();
        if (*child == 0) {
            (void)sigwait(&set, &got);
            _exit(EXIT_CODE);
        }
        (void)!write(ends[1], child, sizeof(*child));
        if (reaps)
            (void)waitpid(*child, NULL, 0);
        for (;;)
            (void)pause();
    }
    assert_int_equal(read(ends[0], child, sizeof(*child)), sizeof(*child));
    close(ends[0]);
    close(ends[1]);
    return parent;
}

TEST(a_foreign_process_has_a_cause_of_death)
{
    static const struct {
        int signal;
        const char *words;
    } cases[] = {
        {SIGKILL, "was killed by signal 9 (Killed)"},
        {SIGALRM, "was killed by signal 14 (Alarm clock)"},
        {SIGUSR1, "exited without a status (exit code 7)"},
    };

    for (size_t i = 0; i < 2 * LENGTH(cases); i++) {
        bool reaps = i >= LENGTH(cases), found;
        pid_t child, parent = start_parent(reaps, &child);
        int fd = death_watch(child), code = 0;
        char how[DEATH_TEXT];

        assert_false(death_find_code(fd, child, 0, &code));
        assert_int_equal(kill(child, cases[i % LENGTH(cases)].signal), 0);
        found = death_find_code(fd, child, 10000, &code);
        kill(parent, SIGKILL);
        assert_int_equal(waitpid(parent, NULL, 0), parent);
        close(fd);
        if (fd < 0 || (!found && reaps)) {
            print_message("the kernel does not tell the exit code of a reaped process\n");
            skip();
        }
        assert_true(found);
        death_describe(code, how);
        assert_string_equal(how, cases[i % LENGTH(cases)].words);
    }
}

TEST(a_foreign_process_is_killed)
{
    pid_t child, parent = start_parent(false, &child);
    int fd = death_watch(child), code = 0;

    death_kill(fd);
    if (fd >= 0)
        assert_true(death_find_code(fd, child, 10000, &code));
    kill(parent, SIGKILL);
    assert_int_equal(waitpid(parent, NULL, 0), parent);
    if (fd < 0)
        skip();
    close(fd);
    assert_int_equal(code, SIGKILL);
}
