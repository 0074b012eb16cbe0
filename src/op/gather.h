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

/* ---- ag_gemm_check.c: what the matrices of ag_gemm hold, as a function of (seed, rank,
 * iteration), and the check of a row of C ---- */

struct gemm_values {
    uint64_t seed;
    uint32_t n, k;
    int dtype; /* of A and B */
    bool integers, bias;
};

/* Row `row` of A of a rank: k elements, and for FP8 its scales. */
void gemm_make_a(const struct gemm_values *, uint32_t rank, uint64_t iteration, uint32_t row,
                 void *out, float *scale);
/* Row `row` of B of a rank; the scales of all of its blocks; its bias. */
void gemm_make_b(const struct gemm_values *, uint32_t rank, uint32_t row, void *out);
void gemm_make_b_scale(const struct gemm_values *, uint32_t rank, float *out);
void gemm_make_bias(const struct gemm_values *, uint32_t rank, float *out);

/* Of one rank's C. */
struct gemm_reference;

/* rows: most that C can have. */
enum epa_status gemm_reference_create(const struct gemm_values *, uint32_t rank, uint64_t rows,
                                      struct gemm_reference **out, struct epa_error *);
void gemm_reference_destroy(struct gemm_reference *); /* takes NULL */
uint64_t gemm_reference_bytes(const struct gemm_values *, uint64_t rows);

/* A row of C [n], the product with row `row` of A of rank `source`: counts elements, or sums of
 * elements, that are wrong. */
void gemm_check_row(struct gemm_reference *, uint64_t iteration, uint32_t source, uint32_t row,
                    const uint16_t *c, struct op_finding *);

#endif
