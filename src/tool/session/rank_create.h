/* Operation and algorithm of a rank. */
#ifndef RANK_CREATE_H
#define RANK_CREATE_H

#include "session/rank.h"

/* Creates the operation and the algorithm over the present `transport`. After rank_destroy() the call
 * may be repeated with another plan. */
void rank_create(struct rank *, const struct epa_footprint *, uint32_t transport_flags);
void rank_destroy(struct rank *);

/* Lists the stages of the present algorithm, with the timed experts. Returns the number of stages; the
 * list contains the first SESSION_STAGES. */
uint32_t rank_list_stages(struct rank *);

/* Destroys the algorithm only; the heap is free then. */
void rank_destroy_algorithm(struct rank *);

/* Resets heap and signals to their state after open(). */
void rank_clear_heap(struct rank *);

#endif
