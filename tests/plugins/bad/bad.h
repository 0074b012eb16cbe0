/* What the bad plugins share: code that runs when the file is loaded and leaves a mark. A
 * plugin that is refused must not have left one. Where it is asked to, it takes SIGHUP for itself,
 * just as a signal arrives. */
#ifndef BAD_H
#define BAD_H

#include <epa2a/transport.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void leave_mark(void)
{
    const char *path = getenv("EPA2A_TEST_MARK");
    int fd = path == NULL ? -1 : open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    if (fd >= 0)
        close(fd);
}

static void swallow(int signal)
{
}

__attribute__((constructor)) static void take_signal(void)
{
    if (getenv("EPA2A_TEST_TAKE_SIGHUP") == NULL)
        return;
    signal(SIGHUP, swallow);
    raise(SIGHUP);
}

static inline enum epa_status refuse_open(const struct epa_transport_params *params,
                                          struct epa_transport **out, struct epa_error *err)
{
    return epa_fail(err, EPA_ERR_UNSUPPORTED, "this transport is there to be loaded, not used");
}

#endif
