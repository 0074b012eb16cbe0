/* See probe_run.h. */
#include "probe_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int probe_status(void (*probe)(void), char said[PROBE_SAID])
{
    size_t n = 0;
    ssize_t got;
    int fd[2], status;
    pid_t child;

    assert_int_equal(pipe(fd), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)dup2(fd[1], STDERR_FILENO);
        probe();
        _exit(0);
    }
    close(fd[1]);
    while (n < PROBE_SAID - 1 && (got = read(fd[0], said + n, PROBE_SAID - 1 - n)) > 0)
        n += (size_t)got;
    said[n] = '\0';
    close(fd[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

void probe_expect(void (*probe)(void), const char *words)
{
    static char said[PROBE_SAID];
    int status = probe_status(probe, said);

    if (strstr(said, words) == NULL)
        fail_msg("expected \"%s\", it says: %s", words, said);
    assert_int_not_equal(status, 0);
}
