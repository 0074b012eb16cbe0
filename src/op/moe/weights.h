/* Weights of real experts as a function of (seed, global expert, matrix, row, column): any
 * rank, and the checks, make any part of them, with the same bits. Tokens of
 * expert.values: integers are here too, as they fit these weights.
 *
 * random: dense. Signs, two bits of the exponent and all of the mantissa are of a hash, so
 * signs are independent of magnitudes and of each other, which the bounds of reference.c use;
 * outputs have about the size of tokens. FP8: the scale of a block has 23 random bits.
 *
 * integers: a row of W has up to 16 entries, small integers times a power of two, at hashed
 * places, one in each sixteenth of the row. Tokens are integers from -7 to 7 times 1/8 or 1/4, one
 * or the other for each scale's group of channels. Each sum is then a sum of few multiples of a
 * common unit: exact in float32, in any order. For FP8 scales have to be powers of two, as
 * otherwise the sum over groups would be rounded: a group of a token has a pilot channel, which is
 * +-7, so that its scale is a power of two (7 * (1/448 in float32) rounds to 1/64, and codes are
 * 64 times the integer); without activation each group of the intermediate has a pilot too, a
 * row of W_up whose one entry, at a pilot of x, gives +-28 times the same 1 or 2, which no
 * other channel exceeds: those have weights of +-1 and none at pilots of x, so 16 * 7/4 is
 * their most, where blocks have no scale above 1. */
#ifndef WEIGHTS_H
#define WEIGHTS_H

#include <epa2a/problem.h>
#include <stdbool.h>

#include "config/experiment.h"

enum weights_matrix { WEIGHTS_UP, WEIGHTS_DOWN, WEIGHTS_MATRICES };

enum { WEIGHTS_ENTRIES = 16, WEIGHTS_BLOCK = 128 };

struct weights {
    uint64_t seed;
    uint32_t hidden;
    bool integers, pilots; /* pilots: of the intermediate */
    uint32_t x_group;      /* channels of a token that share a scale, where it has any */
    struct epa_mlp mlp;    /* shapes; pointers NULL */
};

/* Of an experiment with expert.kind: mlp. */
void weights_init(const struct experiment *, struct weights *out);

/* The same, without pointers; ffn is 0 where experts are synthetic. */
struct epa_mlp weights_shape(const struct experiment *);

static inline uint32_t weights_rows(const struct weights *w, enum weights_matrix m)
{
    return m == WEIGHTS_UP ? epa_mlp_up_rows(&w->mlp) : w->hidden;
}

static inline uint32_t weights_columns(const struct weights *w, enum weights_matrix m)
{
    return m == WEIGHTS_UP ? w->hidden : w->mlp.ffn;
}

static inline size_t weights_element(const struct weights *w)
{
    return w->mlp.dtype == EPA_FP8_E4M3 ? 1 : 2;
}

/* Bytes of `experts` experts' weights with their scales. */
uint64_t weights_bytes(const struct weights *, uint32_t experts);

/* A row in the weights' type. */
void weights_row(const struct weights *, uint32_t expert, enum weights_matrix, uint32_t row,
                 void *out);
/* FP8: scales of the blocks of rows `block` * 128 on: [columns / 128]. */
void weights_scales(const struct weights *, uint32_t expert, enum weights_matrix, uint32_t block,
                    float *out);
/* integers: the entries of a row that are not 0, columns ascending, without the scale of
 * their block. Returns how many. */
uint32_t weights_entries(const struct weights *, uint32_t expert, enum weights_matrix, uint32_t row,
                         uint32_t column[WEIGHTS_ENTRIES], float value[WEIGHTS_ENTRIES]);

/* integers: what there is no smaller part of. Tokens, products of the first and of both
 * projections, all sums of them: multiples of these. */
#define WEIGHTS_UNIT_X 0x1p-3
#define WEIGHTS_UNIT_UP 0x1p-2
#define WEIGHTS_UNIT_DOWN 0x1p-3
/* Weights of the routing are multiples of this then, and not 0. */
#define WEIGHTS_UNIT_ROUTING 0x1p-6f

/* integers: a token; key: its own stream. */
void weights_token(const struct weights *, uint64_t key, bool f16, uint16_t *out);

#endif
