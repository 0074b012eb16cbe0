/* Queue pairs between all ranks: create, exchange, connect. */
#ifndef VERBS_CONNECT_H
#define VERBS_CONNECT_H

#include "state.h"

/* Creates the completion queue and a queue pair for each rank, including this one. After a failure
 * the caller calls disconnect_all(). */
enum epa_status connect_create(const struct connect_params *, struct queues *, struct epa_error *);

/* Collective. Returns in `mtu` the smallest MTU of all pairs of ranks. */
enum epa_status connect_all(const struct connect_params *, struct queues *, uint32_t *mtu,
                            struct epa_error *);
void disconnect_all(struct queues *);

#endif
