/* Stages of one rank: running, waiting, timing and checking. */
#ifndef RANK_STAGES_H
#define RANK_STAGES_H

#include "session/rank.h"

/* Publish the position of this rank for observers (status, time-outs). Relaxed: no other data depends
 * on the order. */
void rank_at_stage(struct rank *, uint32_t stage);
void rank_at(struct rank *, uint64_t iteration, uint32_t stage);

/* Runs a stage on the problem of a slot; on a device it only queues the stage. */
void rank_stage(struct rank *, uint32_t stage, uint32_t slot);

/* Runs a stage or part of the algorithm without a note in the trace. */
void rank_call(struct rank *, const struct epa_stage *, uint32_t slot);
/* Discards the last dispatch. */
void rank_discard(struct rank *, uint32_t slot);

/* Completes the views of a dispatch through the public interface. Untimed, before experts and
 * checks. */
void rank_complete(struct rank *, uint32_t stage, uint32_t slot);

/* Waits until all queued work is done. */
void rank_sync(struct rank *);
void rank_barrier(struct rank *);      /* of the transport */
void rank_boot_barrier(struct rank *); /* of the bootstrap */
void rank_mark(struct rank *, uint32_t mark);
void rank_flush(struct rank *); /* caches */
double rank_elapsed(struct rank *, uint32_t from_mark, uint32_t to_mark);

/* Writes the inputs of an iteration and overwrites `out` with invalid values. */
void rank_make(struct rank *, uint32_t slot, uint64_t iteration);
/* Calls rank_make() and adds the bytes of the iteration to the traffic of the rank. */
void rank_inputs(struct rank *, uint32_t slot, uint64_t iteration);

/* Runs the untimed work of the core after a stage, such as synthetic experts after a dispatch. */
void rank_between(struct rank *, uint32_t stage, uint32_t slot);

/* Compares the outputs of a stage of this kind. */
void rank_check(struct rank *, enum epa_stage_kind, uint32_t slot);

/* Compares the outputs of the first phase again after the last stage: they must equal the values that
 * rank_check() read. Collective. */
void rank_check_kept(struct rank *, uint32_t slot);

/* Runs one iteration with a mark before and after each stage. apart: a barrier before and after each
 * stage. check: compares every element after each stage. */
void rank_iteration(struct rank *, uint32_t slot, bool apart, bool check);

/* Times from the marks of the last iteration: of one stage, and of all stages. */
double rank_stage_ns(struct rank *, uint32_t stage);
double rank_total_ns(struct rank *);

#endif
