/* Addresses, keys, endpoints and pointers of peers. */
#ifndef UCX_LINKS_H
#define UCX_LINKS_H

#include "state.h"

/* Collective. After a failure the caller calls links_finish(). */
enum epa_status links_init(struct ucx *, struct epa_error *);
void links_finish(struct ucx *);

#endif
