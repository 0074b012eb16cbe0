/* Status to exit code. */
#include "base/exit_code.h"

#include <signal.h>

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
