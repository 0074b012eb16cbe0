/* The signals that stop a command. */
#include "run/stop_signals.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/output.h"

void stop_signals_find(sigset_t *out)
{
    static const int unless_ignored[] = {SIGINT, SIGHUP};
    struct sigaction action;

    sigemptyset(out);
    sigaddset(out, SIGTERM);
    for (size_t i = 0; i < sizeof(unless_ignored) / sizeof(unless_ignored[0]); i++)
        if (sigaction(unless_ignored[i], NULL, &action) != 0 || action.sa_handler != SIG_IGN)
            sigaddset(out, unless_ignored[i]);
}

/* Blocks SIGUSR1 rather than ignoring it, so that it stays pending until signalfd reads it.
 * Child processes inherit the mask and ignore the signal: see process_start(). */
void stop_signals_catch(sigset_t *stops)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    stop_signals_find(stops);
}

enum epa_status stop_signals_open(const sigset_t *stops, int *stop_fd, struct epa_error *err)
{
    if (sigprocmask(SIG_BLOCK, stops, NULL) == 0)
        *stop_fd = signalfd(-1, stops, SFD_CLOEXEC | SFD_NONBLOCK);
    if (*stop_fd < 0)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "signalfd: %s", strerror(errno));
    output_guard();
    return EPA_OK;
}

int stop_signals_read(int stop_fd)
{
    struct signalfd_siginfo info;

    if (stop_fd < 0 || read(stop_fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return 0;
    return info.ssi_signo == SIGHUP ? SIGTERM : (int)info.ssi_signo;
}
