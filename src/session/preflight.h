/* Refuses, by arithmetic and before a rank exists, what this machine cannot hold. */
#ifndef PREFLIGHT_H
#define PREFLIGHT_H

#include "session/session.h"

/* EPA_ERR_NOMEM with the sum in words: ranks x (heap + inputs + reference) against what is
 * available and why that is the limit. */
enum epa_status preflight_memory(const struct session *, struct epa_error *);

/* `root` stands before /proc and /sys: "" but in tests. */
enum epa_status preflight_memory_from(const char *root, const struct session *,
                                      struct epa_error *);

#endif
