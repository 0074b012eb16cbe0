/* Status names, and the error message that each thread keeps from its last failed call. */
#include "api/error.h"

#include <epa2a.h>

#include <stdio.h>

#define SAME(name) _Static_assert((int)EPA2A_##name == (int)EPA_##name, "same value in both")
SAME(OK);
SAME(ERR_CONFIG);
SAME(ERR_UNSUPPORTED);
SAME(ERR_NOMEM);
SAME(ERR_SYSTEM);
SAME(ERR_TIMEOUT);
SAME(ERR_ABORTED);
SAME(ERR_DIED);

static _Thread_local struct epa_error last;

/* EPA_ERR_MISMATCH and EPA_ERR_INTERRUPTED belong to the program, and EPA_AGAIN to transports. */
static int public_status(enum epa_status status)
{
    switch (status) {
    case EPA_OK:
    case EPA_ERR_CONFIG:
    case EPA_ERR_UNSUPPORTED:
    case EPA_ERR_NOMEM:
    case EPA_ERR_SYSTEM:
    case EPA_ERR_TIMEOUT:
    case EPA_ERR_ABORTED:
    case EPA_ERR_DIED:
        return (int)status;
    case EPA_AGAIN:
    case EPA_ERR_MISMATCH:
    case EPA_ERR_INTERRUPTED:
        break;
    }
    return EPA2A_ERR_SYSTEM;
}

int api_fail(const struct epa_error *err)
{
    last = *err;
    return public_status(err->status);
}

const char *epa2a_last_error(void)
{
    return last.text;
}

const struct epa_error *api_last_failure(void)
{
    return &last;
}

const char *epa2a_status_name(int status)
{
    switch (status) {
    case EPA2A_OK:
        return "EPA2A_OK";
    case EPA2A_NOT_YET:
        return "EPA2A_NOT_YET";
    case EPA2A_ERR_CONFIG:
        return "EPA2A_ERR_CONFIG";
    case EPA2A_ERR_UNSUPPORTED:
        return "EPA2A_ERR_UNSUPPORTED";
    case EPA2A_ERR_NOMEM:
        return "EPA2A_ERR_NOMEM";
    case EPA2A_ERR_SYSTEM:
        return "EPA2A_ERR_SYSTEM";
    case EPA2A_ERR_TIMEOUT:
        return "EPA2A_ERR_TIMEOUT";
    case EPA2A_ERR_ABORTED:
        return "EPA2A_ERR_ABORTED";
    case EPA2A_ERR_DIED:
        return "EPA2A_ERR_DIED";
    default:
        return "unknown status";
    }
}
