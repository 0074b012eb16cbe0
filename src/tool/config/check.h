/* Checks between values, of the core and of operations. */
#ifndef CONFIG_CHECK_H
#define CONFIG_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "config/diag.h"
#include "config/experiment.h"

struct config_trial;

struct config_check {
    const struct experiment *x;
    struct diag *diag;
    /* The check of the operation, which check_takes() runs on other values; NULL: none. */
    void (*check_operation)(const struct config_check *);
    struct config_trial *trial; /* of check_takes(): records conflicts without a report */
};

/* Returns true if the experiment could have this whole number at `key`: it is in the option's
 * range, and check_operation() finds no conflict of that key. On false sets *why, unless `why` is
 * NULL, to the reason. */
bool check_takes(const struct config_check *, const char *key, uint64_t value, const char **why);

/* Returns "ranks (2, the default)". */
const char *check_value(const struct config_check *, const char *key, uint64_t value);

/* Returns "write 112 or 128": the nearest multiples below and above the value at `key` that
 * check_takes() accepts. NULL: no multiple is accepted. */
const char *check_multiples(const struct config_check *, const char *key, uint32_t of);

/* Reports an error at `wrong`, with a note at `other` (NULL: no note), both keys. Defaults have no
 * source location, so the error then points to the other value. A value that already has an error
 * receives no second one. */
EPA_PRINTF(5, 6)
void check_conflict(const struct config_check *, const char *wrong, const char *other,
                    const char *hint, const char *fmt, ...);

/* Reports options that have no effect with the values of other options, each with its first
 * reason. */
void check_rules(const struct config_check *, const struct section *);

#endif
