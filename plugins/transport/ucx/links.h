/* Addresses, keys, endpoints and pointers of peers. */
#ifndef UCX_LINKS_H
#define UCX_LINKS_H

#include "ucx.h"

/* links.c: collective. After a failure the caller calls links_finish(). */
enum epa_status links_init(struct ucx *, struct epa_error *);
void links_finish(struct ucx *);
/* Records the loss of a peer. The caller holds the lock. */
void links_lose(struct peer *, ucs_status_t);

#endif
