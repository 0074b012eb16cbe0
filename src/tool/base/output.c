/* A timer interrupts blocked writes four times a second. Its handler replaces the descriptor of an
 * output that has no reader, and SA_RESTART repeats the write, on the new file. No write fails with
 * EINTR, which would lose text of stdio. */
#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/terminal.h"

enum { OUTPUT_WAIT_MS = 500, TICK_US = 250000 };

/* The handler needs them; the main thread writes them. */
static volatile sig_atomic_t stop_is_seen, stream_fd = -1;

static bool stop_is_pending(void)
{
    sigset_t pending;

    return sigpending(&pending) == 0 &&
           (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1 ||
            sigismember(&pending, SIGHUP) == 1);
}

/* Returns the time that is left for other outputs. Without a free descriptor the output becomes
 * standard input, and writes to it fail. */
static int drop_unread(int fd, int wait_ms)
{
    struct pollfd out = {.fd = fd, .events = POLLOUT};
    int null;

    if (fd < 0 || poll(&out, 1, wait_ms) != 0)
        return wait_ms;
    null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    (void)dup3(null >= 0 ? null : STDIN_FILENO, fd, fd > STDERR_FILENO ? O_CLOEXEC : 0);
    if (null >= 0)
        close(null);
    return 0;
}

static void handle_tick(int number)
{
    int before = errno, wait_ms = OUTPUT_WAIT_MS;

    (void)number;
    if (stop_is_seen || stop_is_pending()) {
        wait_ms = drop_unread(stream_fd, wait_ms);
        wait_ms = drop_unread(stdout_descriptor(), wait_ms);
        wait_ms = drop_unread(STDOUT_FILENO, wait_ms);
        (void)drop_unread(STDERR_FILENO, wait_ms);
    }
    errno = before;
}

void output_guard(void)
{
    const struct itimerval each = {{0, TICK_US}, {0, TICK_US}};
    struct sigaction action = {.sa_handler = handle_tick, .sa_flags = SA_RESTART};
    sigset_t alarm;

    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    if (sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &each, NULL) == 0)
        (void)sigprocmask(SIG_UNBLOCK, &alarm, NULL);
}

void output_stop(void)
{
    stop_is_seen = 1;
}

void output_begin(int fd)
{
    stream_fd = fd;
}

void output_end(void)
{
    stream_fd = -1;
}
