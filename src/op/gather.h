/* What operations that gather rows have in common, allgather and ag_gemm: counts of rows. */
#ifndef OP_GATHER_H
#define OP_GATHER_H

#include "op/op.h"

/* The first of a slot's arrays: uint32_t [size], the rows of each rank. */
enum { GATHER_ROWS };

static inline struct op_array op_gather_array(const struct experiment *x)
{
    return (struct op_array){"rows", x->ranks * sizeof(uint32_t)};
}

static inline const uint32_t *op_gather_counts(const struct op_slot *s)
{
    return s->array[GATHER_ROWS].here;
}

/* Of all ranks. */
uint64_t op_gather_rows(const struct op_rank *, const struct op_slot *);

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
