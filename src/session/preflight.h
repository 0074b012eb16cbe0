/* Refuses, by arithmetic and before a rank exists, what this machine cannot hold. */
#ifndef PREFLIGHT_H
#define PREFLIGHT_H

#include "session/session.h"

/* EPA_ERR_NOMEM with the sum in words: ranks x (heap + inputs + reference) against what is
 * available and why that is the limit. */
enum epa_status preflight_memory(const struct session *, struct epa_error *);

/* The same for what the algorithm takes of a rank's device, of which so much is free; 0: not
 * known, nothing is refused. */
enum epa_status preflight_device(const struct session *, uint64_t free_bytes, struct epa_error *);

/* `root` stands before /proc and /sys: "" but in tests. */
enum epa_status preflight_memory_from(const char *root, const struct session *, struct epa_error *);

#endif
