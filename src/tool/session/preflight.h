/* Memory that an experiment needs, compared with the memory of this machine before a rank starts. */
#ifndef PREFLIGHT_H
#define PREFLIGHT_H

#include "session/session.h"

/* Fails with EPA_ERR_NOMEM and the sum: ranks x (heap + inputs + reference), the available memory and
 * the limit. Tests pass a folder as `root`, the prefix of /proc and /sys; others pass "". */
enum epa_status preflight_memory(const char *root, const struct session *, struct epa_error *);

/* Corrects the footprint's scratch memory on the device for ranks of other hosts. The process launcher
 * knows the number of ranks on this host. Called before the checks. */
void preflight_scratch(struct session *);
/* Checks the memory that the algorithm needs on a rank's device. free_bytes 0: unknown, no check. */
enum epa_status preflight_device(const struct session *, uint64_t free_bytes, struct epa_error *);

#endif
