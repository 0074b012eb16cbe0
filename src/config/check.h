/* What checks between values share, for the core's and those of operations. Each error
 * stands at the value that is wrong, with a note where the other was set; a value that was
 * refused already is not complained about again. */
#ifndef CONFIG_CHECK_H
#define CONFIG_CHECK_H

#include <epa2a/status.h>
#include <stdint.h>

struct diag;
struct experiment;

struct config_check {
    const struct experiment *x;
    struct diag *diag;
};

/* "ranks (2, the default)" */
const char *check_value(const struct config_check *, const char *key, uint64_t value);

/* "write 112 or 128" */
const char *check_multiples(const struct config_check *, uint32_t value, uint32_t of);

/* An error at `wrong`, with a note at `other` (NULL: there is none), both keys. Defaults
 * have no place, so the error goes to where the other value was set. */
EPA_PRINTF(5, 6)
void check_conflict(const struct config_check *, const char *wrong, const char *other,
                    const char *hint, const char *fmt, ...);

#endif
