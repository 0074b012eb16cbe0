/* Connections between hosts for ranks that the callback of an application has brought together. */
#ifndef MEET_H
#define MEET_H

#include "boot/exchange.h"
#include "boot/star.h"

/* Collective: the exchange distributes address and secret of rank 0, then all ranks connect. *out is
 * NULL on all ranks if a rank cannot connect; `why` then has the reason of the first such rank. Fails
 * only if the exchange fails. `interface`: rank 0 listens there; "": at all interfaces. */
enum epa_status meet_other_hosts(struct exchange *, const char *interface, uint64_t timeout_ns,
                                 struct star **out, struct epa_error *why, struct epa_error *err);

#endif
