/* One rank's side of the MoE problem: its inputs, the synthetic experts, and the right
 * answer. Everything is a function of (seed, rank, iteration), so any rank knows what any
 * other sent, and a check needs no communication. */
#ifndef OP_MOE_H
#define OP_MOE_H

#include <epa2a/backend.h>
#include <epa2a/algorithm.h>

#include "config/experiment.h"
#include "op/moe/routing.h"

struct op_moe;

/* `slots` problems, each with inputs and outputs of its own: 2 for the pipelined order,
 * bench.input_sets for bench. */
enum epa_status op_moe_create(const struct experiment *, const struct epa_world *,
                              const struct epa_footprint *, const struct routing_source *,
                              struct epa_backend *, uint32_t slots, struct op_moe **out,
                              struct epa_error *);
void op_moe_destroy(struct op_moe *);

/* Bytes of the host that this will take at most for a backend with that memory, with or
 * without the memory of the checks. */
uint64_t op_moe_bytes(const struct experiment *, const struct epa_footprint *,
                      enum epa_memory, uint32_t slots, bool checks);

/* From now on some groups of x are hard for numerics: all zeros, an outlier, denormals,
 * signs of zero. Off after create(); for verify, as denormals cost time that a benchmark
 * would count, but not against the contest, which has none. All ranks must say the same. */
void op_moe_hard_values(struct op_moe *, bool on);

/* Makes the inputs of `iteration` in `slot`: x (or x_fp8 and x_scale, x is NULL then),
 * expert, weight, tokens; poisons out. Fails if the backend does, which memory of the host
 * never does. */
enum epa_status op_moe_inputs(struct op_moe *, uint32_t slot, uint64_t iteration);

/* The problem of `slot`, as op_moe_inputs() made it; always at the same address. */
struct epa_problem *op_moe_problem(struct op_moe *, uint32_t slot);

/* After dispatch: fills y (in_place or apart) of `slot` from recv, as the reference
 * says. Nothing where the algorithm does the experts' work itself. */
enum epa_status op_moe_experts(struct op_moe *, uint32_t slot, struct epa_error *);

/* Adds the traffic of the iteration in `slot` to `sum`. */
void op_moe_traffic(const struct op_moe *, uint32_t slot, struct moe_traffic *sum);

/* Element by element against the reference; adds to *compared and *wrong. EPA_ERR_MISMATCH:
 * err tells the first wrong element in words: iteration, expert, row, origin, column, what
 * is there, what should be. */
enum epa_status op_moe_check_dispatch(struct op_moe *, uint32_t slot, uint64_t *compared,
                                      uint64_t *wrong, struct epa_error *);
enum epa_status op_moe_check_combine(struct op_moe *, uint32_t slot, uint64_t *compared,
                                     uint64_t *wrong, struct epa_error *);

#endif
