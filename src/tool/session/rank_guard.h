/* verify.guard: writes outside the algorithm's memory. The functions have an effect only if verify.guard
 * or verify.epoch is set. */
#ifndef RANK_GUARD_H
#define RANK_GUARD_H

#include "session/rank.h"

bool rank_is_guarded(const struct rank *);
/* Adds the guard areas around the algorithm's part of heap and signals, and sets the offset of the
 * part. */
void rank_guard_room(struct rank *, uint64_t *heap_bytes, uint32_t *signals);
/* Fills the guard areas of the heap; called before the creation of an algorithm with this footprint.
 * All bytes of the heap are 0 before. */
void rank_guard_heap(struct rank *, const struct epa_footprint *);
/* Hashes the inputs of an iteration after they are made, and checks inputs and guard areas at the end
 * of the iteration. */
void rank_guard_inputs(struct rank *, uint32_t slot);
void rank_guard_check(struct rank *, uint32_t slot);
/* Fails with EPA_ERR_UNSUPPORTED if the algorithm ignored verify.epoch. */
void rank_guard_end(struct rank *);

#endif
