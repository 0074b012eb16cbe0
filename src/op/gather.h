/* What operations that gather rows have in common, allgather and ag_gemm: a rank's slots, counts of
 * rows for the host and where the backend has its memory, and the way there. */
#ifndef OP_GATHER_H
#define OP_GATHER_H

#include "op/op.h"

struct op_slot {
    struct epa_problem problem;
    uint64_t iteration;
    uint32_t *rows;    /* the backend's: [size] */
    uint32_t *counted; /* [size], for the host; `rows` where that is the backend */
    void *in, *out;    /* the backend's, or NULL; so is */
    void *in_scale;
};

/* The first member of an operation's own struct. */
struct op_gather {
    struct op_rank base;
    const struct experiment *x;
    struct epa_world world;
    struct epa_backend *backend;
    uint32_t n_slots;
    struct op_slot *slot;
    char *made; /* a device's: what is on its way there */
};

static inline struct op_gather *op_gather_of(const struct op_rank *rank)
{
    return (struct op_gather *)(uintptr_t)rank; /* base is the first member */
}

static inline bool op_gather_is_host(const struct op_gather *g)
{
    return g->backend->memory == EPA_MEMORY_HOST;
}

/* A state of so many bytes, of which struct op_gather is filled in but for slots' in, in_scale and
 * out; the rest is 0. made_bytes: at most, of what is delivered at a time. */
enum epa_status op_gather_create(const struct op_params *, const struct operation *,
                                 size_t state_bytes, size_t made_bytes, struct op_gather **out,
                                 struct epa_error *);

/* Frees the state, and of slots what is not NULL. */
void op_gather_destroy(struct op_gather *);

/* Memory of the backend; nothing where there are no bytes. */
enum epa_status op_gather_alloc(struct op_gather *, size_t n, void **out, struct epa_error *);
void op_gather_free(struct op_gather *, void *); /* takes NULL */

/* Where something is made: there, or on its way to a device, to which op_gather_deliver() writes
 * it. */
static inline void *op_gather_maker(const struct op_gather *g, void *there)
{
    return op_gather_is_host(g) ? there : g->made;
}
enum epa_status op_gather_deliver(struct op_gather *, void *there, size_t n);

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
