/* What operations that gather rows have in common, allgather and ag_gemm: a rank's slots, and
 * counts of rows. */
#ifndef OP_GATHER_H
#define OP_GATHER_H

#include "op/op.h"

struct op_slot {
    struct epa_problem problem;
    uint64_t iteration;
    struct op_buffer rows;              /* uint32_t [size] */
    const uint32_t *counted;            /* the host's */
    struct op_buffer in, in_scale, out; /* where the operation has such */
};

/* The first member of an operation's own struct. */
struct op_gather {
    struct op_rank base;
    const struct experiment *x;
    struct epa_world world;
    struct epa_backend *backend;
    uint32_t n_slots;
    struct op_slot *slot;
};

static inline struct op_gather *op_gather_of(const struct op_rank *rank)
{
    return (struct op_gather *)(uintptr_t)rank; /* base is the first member */
}

/* A state of so many bytes, of which struct op_gather is filled in but for slots' in, in_scale and
 * out; the rest is 0. */
enum epa_status op_gather_create(const struct op_params *, const struct operation *,
                                 size_t state_bytes, struct op_gather **out, struct epa_error *);

/* Frees the state, and what slots have. */
void op_gather_destroy(struct op_gather *);

/* An iteration begins in a slot: what each rank has. */
enum epa_status op_gather_count(struct op_gather *, uint32_t slot, uint64_t iteration,
                                uint32_t (*rows_of)(const struct experiment *, uint32_t rank,
                                                    uint64_t iteration));

/* Of all ranks. */
uint64_t op_gather_rows(const struct op_gather *, const struct op_slot *);

/* operation.problem, operation.units */
struct epa_problem *op_gather_problem(struct op_rank *, uint32_t slot);
uint32_t op_gather_units(struct op_rank *, uint32_t slot);

#endif
