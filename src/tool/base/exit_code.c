/* Exit codes of the program and their meanings. */
#include "base/exit_code.h"

#include <signal.h>
#include <stddef.h>

const struct exit_meaning exit_meanings[] = {
    {EXIT_OK, "success"},
    {EXIT_WRONG, "the data is wrong, or a figure misses its bound in `expect`"},
    {EXIT_USAGE, "usage or configuration error"},
    {EXIT_RESOURCE,
     "a resource is missing: memory, a device, a library of a plugin, a file that cannot be "
     "written"},
    {EXIT_TIMEOUT, "timeout: a rank waited longer than the experiment allows"},
    {EXIT_DIED, "a rank died"},
    {EXIT_INTERNAL, "an internal error: please report it"},
    {EXIT_SLOWER, "compare: something became slower"},
    {EXIT_SKIPPED, "all runs were skipped: a plugin or device that they need is missing"},
    {EXIT_SIGINT, "stopped by SIGINT; results so far were written"},
    {EXIT_SIGPIPE, "the reader of standard output closed it, as `head` does"},
    {EXIT_SIGTERM, "stopped by SIGTERM or SIGHUP; results so far were written"},
    {EXIT_OK, NULL},
};

int exit_code(enum epa_status status, int signal)
{
    switch (status) {
    case EPA_OK:
        return EXIT_OK;
    case EPA_ERR_MISMATCH:
        return EXIT_WRONG;
    case EPA_ERR_CONFIG:
        return EXIT_USAGE;
    case EPA_ERR_UNSUPPORTED:
    case EPA_ERR_NOMEM:
    case EPA_ERR_SYSTEM:
        return EXIT_RESOURCE;
    case EPA_ERR_TIMEOUT:
        return EXIT_TIMEOUT;
    case EPA_ERR_DIED:
        return EXIT_DIED;
    case EPA_ERR_INTERRUPTED:
        return signal == SIGTERM ? EXIT_SIGTERM : EXIT_SIGINT;
    case EPA_ERR_ABORTED:
    case EPA_AGAIN:
        break;
    }
    return EXIT_INTERNAL;
}
