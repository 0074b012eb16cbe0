/* Error message of the last failed call of each thread. */
#ifndef API_ERROR_H
#define API_ERROR_H

#include <epa2a/status.h>

/* Stores the message for epa2a_last_error() of the calling thread, and returns the enum
 * epa2a_status of `err`. */
int api_fail(const struct epa_error *err);

/* Returns the error of the last failed call of the calling thread, with its stage. */
const struct epa_error *api_last_failure(void);

#endif
