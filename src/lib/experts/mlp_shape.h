/* Shape of the matrices of real experts, in the format of struct epa_mlp. */
#ifndef EXPERTS_MLP_SHAPE_H
#define EXPERTS_MLP_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/problem.h>

enum mlp_matrix { MLP_UP, MLP_DOWN, MLP_MATRICES };

enum { MLP_BLOCK = 128 };

struct mlp_shape {
    uint32_t hidden;
    struct epa_mlp mlp;
};

static inline uint32_t mlp_rows(const struct mlp_shape *s, enum mlp_matrix m)
{
    return m == MLP_UP ? epa_mlp_up_rows(&s->mlp) : s->hidden;
}

static inline uint32_t mlp_columns(const struct mlp_shape *s, enum mlp_matrix m)
{
    return m == MLP_UP ? s->hidden : s->mlp.ffn;
}

/* Rows of a matrix form blocks of MLP_BLOCK. The last block of each projection, or of W_down, may
 * have fewer rows. */
static inline uint32_t mlp_blocks(const struct mlp_shape *s, enum mlp_matrix m)
{
    return m == MLP_UP ? epa_mlp_up_blocks(&s->mlp) : epa_mlp_blocks(s->hidden);
}

/* Rows of one block. */
struct mlp_block {
    uint32_t first, rows;
};

static inline struct mlp_block mlp_block_at(const struct mlp_shape *s, enum mlp_matrix m,
                                            uint32_t block)
{
    uint32_t rows = m == MLP_UP ? s->mlp.ffn : s->hidden, each = epa_mlp_blocks(rows);
    uint32_t first = block % each * MLP_BLOCK, left = rows - first;

    return (struct mlp_block){block / each * rows + first, left < MLP_BLOCK ? left : MLP_BLOCK};
}

static inline bool mlp_has_scales(const struct mlp_shape *s)
{
    return s->mlp.dtype == EPA_FP8_E4M3 || s->mlp.dtype == EPA_INT8;
}

/* Returns the number of scales before a block of rows of an expert. FP8: a block has one scale for each
 * MLP_BLOCK columns. INT8: each row has one. */
static inline size_t mlp_scale_at(const struct mlp_shape *s, enum mlp_matrix m, uint32_t block)
{
    if (s->mlp.dtype == EPA_INT8)
        return block < mlp_blocks(s, m) ? mlp_block_at(s, m, block).first : mlp_rows(s, m);
    return (size_t)block * epa_mlp_blocks(mlp_columns(s, m));
}

/* Returns the number of scales of a matrix of an expert; 0: its type has none. */
static inline size_t mlp_scales(const struct mlp_shape *s, enum mlp_matrix m)
{
    return mlp_has_scales(s) ? mlp_scale_at(s, m, mlp_blocks(s, m)) : 0;
}

static inline size_t mlp_element(const struct mlp_shape *s)
{
    return mlp_has_scales(s) ? 1 : 2;
}

#endif
