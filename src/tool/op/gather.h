/* Counts of rows, for allgather and ag_gemm. */
#ifndef GATHER_H
#define GATHER_H

#include "op/op.h"

/* The first array of a slot: uint32_t [size], the rows of each rank. */
enum { GATHER_ROWS };

static inline struct op_array op_gather_array(const struct problem_params *x)
{
    return (struct op_array){"rows", x->ranks * sizeof(uint32_t)};
}

static inline const uint32_t *op_gather_counts(const struct op_slot *s)
{
    return s->array[GATHER_ROWS].here;
}

/* Returns the number of rows of all ranks. */
uint64_t op_gather_rows(const struct op_rank *, const struct op_slot *);

/* Returns the bytes of a phase in which every rank needs the rows of all others, with `payload` bytes
 * each. A rank's own rows leave at least once. A sent row has row_bytes; this rank sends `sent` rows, and
 * control_bytes to each other rank. */
struct op_bytes op_gather_bytes(const struct op_rank *, const struct op_slot *, uint64_t payload,
                                uint64_t row_bytes, uint64_t sent, uint64_t control_bytes);

#endif
