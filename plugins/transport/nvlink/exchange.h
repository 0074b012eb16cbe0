/* File descriptors passed between the ranks of one host. Knows nothing of what they are
 * for. */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include <epa2a/world.h>

enum { EXCHANGE_FDS = 2, EXCHANGE_RANKS = 64 };

/* Collective. Every rank gives the same number of descriptors, and keeps them;
 * out[r * n + i] is this rank's own copy, close-on-exec, of descriptor i of rank r, and -1 where r
 * is itself. same[r]: rank r is a thread of this very process. */
enum epa_status exchange_fds(struct epa_bootstrap *, const int *mine, uint32_t n,
                             uint64_t timeout_ns, int *out, bool *same, struct epa_error *);

#endif
