/* Weights of real experts are functions of (seed, global expert, matrix, row, column): any rank and the
 * checks make any part of them with the same bits. Tokens of expert.values: integers are made here, too,
 * since they must fit these weights.
 *
 * random: dense. Signs, two bits of the exponent and the whole mantissa are bits of a hash. So signs are
 * independent of magnitudes and of each other, which the bounds of reference.c require. Outputs have
 * about the size of tokens. FP8 and INT8: a scale has 23 random bits.
 *
 * integers: a row of W has up to 16 entries, small integers times a power of two, at hashed positions,
 * one in each sixteenth of the row. Tokens are integers from -7 to 7 times 1/8 or 1/4, with one factor
 * per group of channels that share a scale. Each sum then consists of few multiples of a common unit and
 * is exact in float32, in any order. FP8 scales must be powers of two; otherwise the sum over groups
 * would be rounded. Therefore each group of a token has a pilot channel with the value +-7, which makes
 * its scale a power of two (7 * (1/448 in float32) rounds to 1/64, and codes are 64 times the integer).
 * Without activation each group of the intermediate has a pilot, too: a row of W_up with one entry at a
 * pilot of x, which gives +-28 times the same 1 or 2. No other channel exceeds this value: other rows
 * have weights of +-1 and none at pilots of x, so their maximum is 16 * 7/4 with block scales up to 1. */
#ifndef OP_MOE_WEIGHTS_H
#define OP_MOE_WEIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/problem_params.h"
#include "experts/mlp_shape.h"

enum { WEIGHTS_ENTRIES = 16 };

struct weights {
    uint64_t seed;
    struct mlp_shape shape; /* pointers NULL */
    bool integers, pilots;  /* pilots: the intermediate has pilots */
    uint32_t x_group;       /* channels of a token that share a scale, if tokens have scales */
};

/* Initialises the weights of an experiment with expert.kind: mlp. */
void weights_init(const struct problem_params *, struct weights *out);

/* Returns the shape of the experts without pointers; ffn is 0 for synthetic experts. */
struct epa_mlp weights_shape(const struct problem_params *);

/* Returns the bytes of the weights and scales of `experts` experts. */
uint64_t weights_bytes(const struct weights *, uint32_t experts);

/* Makes a row in the type of the weights. */
void weights_row(const struct weights *, uint32_t expert, enum mlp_matrix, uint32_t row, void *out);
/* Makes the scales of a block of rows. FP8: [columns / 128]; INT8: one for each row. */
void weights_scales(const struct weights *, uint32_t expert, enum mlp_matrix, uint32_t block,
                    float *out);
/* integers: lists the non-zero entries of a row in order of columns, without the scale of their block.
 * Returns their number. */
uint32_t weights_entries(const struct weights *, uint32_t expert, enum mlp_matrix, uint32_t row,
                         uint32_t column[WEIGHTS_ENTRIES], float value[WEIGHTS_ENTRIES]);

/* integers: common units of tokens, of products of the first projection, and of products of both
 * projections. All sums are multiples of them. */
#define WEIGHTS_UNIT_X 0x1p-3
#define WEIGHTS_UNIT_UP 0x1p-2
#define WEIGHTS_UNIT_DOWN 0x1p-3
/* integers: weights of the routing are non-zero multiples of this unit. */
#define WEIGHTS_UNIT_ROUTING 0x1p-6f

/* integers: makes a token; `key` selects its random stream. */
void weights_token(const struct weights *, uint64_t key, bool f16, uint16_t *out);

#endif
