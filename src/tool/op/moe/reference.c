/* Outputs of real experts in float64. The radius of an interval covers all permitted deviations of an
 * implementation, so a right output is always inside the interval:
 *
 *   sums      An addition in float32, rounded or truncated, has an error of at most u = 2^-23 of its
 *             result. With A1 = sum |x w| no partial sum exceeds A1 in any order, and n additions have an
 *             error of at most n u A1. This bound grows too fast for models of full size. The signs of
 *             weights are independent of each other and of all other values. So for any order that does
 *             not depend on values, a partial sum exceeds 9 sqrt(sum (x w)^2) with probability
 *             2 exp(-81 / 2) = 5e-18 (Hoeffding). The smaller bound counts.
 *   exact     Sums of multiples of a unit with a sum of magnitudes below 2^24 units are exact: radius 0.
 *             expert.values: integers have this property.
 *   inputs    Radii r of the summed values: sum r |w|, or 9 sqrt(sum (r w)^2), as above.
 *   FP8       A group of products is such a sum. With fp8_sum_bits, 32 consecutive products and the sum so
 *             far are aligned to the largest of them and truncated to fp8_sum_bits fraction bits; their
 *             sum is truncated, too. The steps of 32 run in any order. Three roundings and the sum over
 *             groups follow.
 *   INT8      Sums of products of codes are exact. Three roundings follow: of the sum to float32, of the
 *             product of both scales, and of the product of both. The intermediate is rounded to dtype
 *             before it is quantised, so its codes are nearly always points.
 *   rounding  Ends of an interval are rounded, since rounding to nearest is monotone. An interval within
 *             one rounding step becomes a point. FP8 codes follow from both ends of the scale.
 *   SwiGLU    Relative 2^-20 + |gate| 2^-22: a float32 exp of a rounded argument, a division, two
 *             products.
 *
 * Only the error of float64 itself is an estimate: 2^-40 of A1.
 *
 * Dense weights: a row of weights is multiplied by one token after the other. Sparse weights (integers):
 * a tile of tokens is stored with the values of a channel side by side, and an entry is multiplied by all
 * tokens of the tile. */
#include "op/moe/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/pool.h"
#include "kernels/kernels.h"
#include "op/moe/reference_round.h"
#include "op/moe/reference_sums.h"

enum { BLOCK = MLP_BLOCK, LANES = REFERENCE_LANES };

/* The loops for the instruction set of this CPU. */
#ifdef __x86_64__
#define FOR_THIS_CPU(loops) (kernels_use_avx2() ? &loops##_avx2 : &loops##_portable)
#else
#define FOR_THIS_CPU(loops) (&loops##_portable)
#endif

/* Sparse rows of a matrix. */
struct entries {
    uint32_t *column; /* [rows][WEIGHTS_ENTRIES] */
    float *value;
    uint8_t *n;  /* [rows] */
    float *size; /* [rows]: sums of the magnitudes of the values */
};

struct reference {
    struct reference_params p;
    const struct reference_sums *sums;
    const struct reference_round *round;
    double fp8_sum;   /* 2^fp8_sum_bits; 0: not given */
    struct pool pool; /* memory of all arrays below */
    float decode[256];
    void *row;              /* a row of weights */
    float *w, *block_scale; /* the row as float; scales of its blocks, with INT8 of the rows */

    /* Tokens of a call, or lanes of a tile. Dense: the channels of a token are contiguous. Sparse: the
     * tokens of a channel are. */
    double *center, *radius; /* [tokens][up rows]: results of the up projection */
    float *c, *r;            /* [tokens][ffn]: intermediate (codes for FP8), radius */
    float *scale;            /* [tokens][ffn / group] */
    float *low, *high;       /* [ffn], of all lanes if sparse: intermediate before rounding */
    float *group;            /* [6][ffn]: a group of channels with one scale */

    /* integers */
    struct entries entries[MLP_MATRICES];
    float *x, *x_scale; /* [hidden][LANES], [hidden / x_group][LANES] */
    bool *wide;         /* [ffn]: a lane of r is not 0 */
};

static bool is_fp8(const struct reference *R)
{
    return R->p.weights->shape.mlp.dtype == EPA_FP8_E4M3;
}

static bool is_int8(const struct reference *R)
{
    return R->p.weights->shape.mlp.dtype == EPA_INT8;
}

double reference_cost(const struct weights *w)
{
    double rows = (double)epa_mlp_up_rows(&w->shape.mlp);

    if (w->integers)
        return WEIGHTS_ENTRIES * (rows + w->shape.hidden);
    return rows * w->shape.hidden + (double)w->shape.hidden * w->shape.mlp.ffn;
}

static void allocate_entries(const struct weights *w, struct reference *R)
{
    struct pool *p = &R->pool;

    for (enum mlp_matrix m = MLP_UP; m < MLP_MATRICES; m++) {
        size_t rows = mlp_rows(&w->shape, m);
        struct entries *e = &R->entries[m];

        e->column = pool_alloc(p, rows * WEIGHTS_ENTRIES, sizeof(*e->column));
        e->value = pool_alloc(p, rows * WEIGHTS_ENTRIES, sizeof(*e->value));
        e->n = pool_alloc(p, rows, sizeof(*e->n));
        e->size = pool_alloc(p, rows, sizeof(*e->size));
    }
    R->x = pool_alloc(p, (size_t)w->shape.hidden * LANES, sizeof(*R->x));
    R->x_scale = pool_alloc(p, (size_t)(w->shape.hidden / w->x_group) * LANES, sizeof(*R->x_scale));
    R->wide = pool_alloc(p, w->shape.mlp.ffn, sizeof(*R->wide));
}

static void allocate_reference(const struct weights *w, uint32_t n_rows, struct reference *R)
{
    size_t rows = w->integers ? LANES : n_rows, ffn = w->shape.mlp.ffn;
    size_t up = epa_mlp_up_rows(&w->shape.mlp);
    size_t columns = w->shape.hidden > ffn ? w->shape.hidden : ffn;
    struct pool *p = &R->pool;

    R->row = pool_alloc(p, columns, 2);
    R->w = pool_alloc(p, columns, sizeof(*R->w));
    R->block_scale =
        pool_alloc(p, w->shape.mlp.dtype == EPA_INT8 ? BLOCK : epa_mlp_blocks((uint32_t)columns),
                   sizeof(*R->block_scale));
    R->center = pool_alloc(p, rows * up, sizeof(*R->center));
    R->radius = pool_alloc(p, rows * up, sizeof(*R->radius));
    R->c = pool_alloc(p, rows * ffn, sizeof(*R->c));
    R->r = pool_alloc(p, rows * ffn, sizeof(*R->r));
    R->scale = pool_alloc(p, rows * ffn, sizeof(*R->scale));
    R->low = pool_alloc(p, ffn * (w->integers ? LANES : 1), sizeof(*R->low));
    R->high = pool_alloc(p, ffn * (w->integers ? LANES : 1), sizeof(*R->high));
    R->group = pool_alloc(p, 6 * ffn, sizeof(*R->group));
    if (w->integers)
        allocate_entries(w, R);
}

uint64_t reference_bytes(const struct weights *w, uint32_t rows)
{
    struct reference R = {.pool = {.counting = true}};

    allocate_reference(w, rows, &R);
    return sizeof(R) + R.pool.bytes;
}

void reference_destroy(struct reference *R)
{
    if (R == NULL)
        return;
    pool_free(&R->pool);
    free(R);
}

struct reference *reference_create(const struct reference_params *p)
{
    struct reference *R = memory_alloc(1, sizeof(*R));

    R->p = *p;
    R->sums = FOR_THIS_CPU(reference_sums);
    R->round = FOR_THIS_CPU(reference_round);
    R->fp8_sum = p->fp8_sum_bits != 0 ? ldexp(1, (int)p->fp8_sum_bits) : 0;
    for (uint32_t q = 0; q < 256; q++)
        R->decode[q] = float_of_e4m3((uint8_t)q);
    allocate_reference(p->weights, p->rows, R);
    if (!R->pool.failed)
        return R;
    reference_destroy(R);
    return NULL;
}

struct reference_scale reference_quantise(const float *low, const float *high, uint32_t n,
                                          float *q_low, float *q_high)
{
    return FOR_THIS_CPU(reference_round)->quantise(low, high, n, q_low, q_high);
}

struct reference_scale reference_quantise_int8(const float *low, const float *high, uint32_t n,
                                               float *q_low, float *q_high)
{
    return FOR_THIS_CPU(reference_round)->quantise_int8(low, high, n, q_low, q_high);
}

/* ---- weights ---- */

/* Loads the scales of the blocks of a row, or of 128 rows with INT8, if the row begins blocks. */
static void load_scales(struct reference *R, uint32_t expert, enum mlp_matrix m, uint32_t row)
{
    const struct weights *w = R->p.weights;
    uint32_t projection = m == MLP_UP ? w->shape.mlp.ffn : w->shape.hidden;

    if (mlp_has_scales(&w->shape) && row % projection % BLOCK == 0)
        weights_scales(w, expert, m,
                       row / projection * epa_mlp_blocks(projection) + row % projection / BLOCK,
                       R->block_scale);
}

static void load_row(struct reference *R, uint32_t expert, enum mlp_matrix m, uint32_t row)
{
    const struct weights *w = R->p.weights;
    uint32_t n = mlp_columns(&w->shape, m);

    load_scales(R, expert, m, row);
    weights_row(w, expert, m, row, R->row);
    if (is_fp8(R))
        for (uint32_t i = 0; i < n; i++)
            R->w[i] = R->decode[((const uint8_t *)R->row)[i]];
    else if (is_int8(R))
        for (uint32_t i = 0; i < n; i++)
            R->w[i] = ((const int8_t *)R->row)[i];
    else
        for (uint32_t i = 0; i < n; i++)
            R->w[i] = float_of_word(R->p.f16, ((const uint16_t *)R->row)[i]);
}

static void load_entries(struct reference *R, uint32_t expert, enum mlp_matrix m)
{
    const struct weights *w = R->p.weights;
    struct entries *e = &R->entries[m];

    for (uint32_t row = 0; row < mlp_rows(&w->shape, m); row++) {
        float *value = e->value + (size_t)row * WEIGHTS_ENTRIES, size = 0;
        uint32_t n =
            weights_entries(w, expert, m, row, e->column + (size_t)row * WEIGHTS_ENTRIES, value);

        for (uint32_t i = 0; i < n; i++)
            size += fabsf(value[i]);
        e->n[row] = (uint8_t)n;
        e->size[row] = size;
    }
}

/* ---- both projections ---- */

/* Returns the scales for a row of which load_scales() has loaded the block. */
static const float *scales_of_row(const struct reference *R, enum mlp_matrix m, uint32_t row)
{
    const struct mlp_shape *s = &R->p.weights->shape;

    return R->block_scale + (is_int8(R) ? row % (m == MLP_UP ? s->mlp.ffn : s->hidden) % BLOCK : 0);
}

/* Returns the input of a projection, without its values. */
static struct sums_input input_of(const struct reference *R, enum mlp_matrix m)
{
    const struct weights *w = R->p.weights;

    return (struct sums_input){.columns = mlp_columns(&w->shape, m),
                               .group = m == MLP_UP ? w->x_group : w->shape.mlp.fp8_group_size,
                               .int8 = is_int8(R),
                               .fp8_sum = R->fp8_sum};
}

/* Computes R->low and R->high of n channels in a row, of which the up projection begins at `up`. */
static void activate(struct reference *R, size_t n, const double *center, const double *radius)
{
    bool swiglu = R->p.weights->shape.mlp.activation == EPA_ACTIVATION_SWIGLU;

    R->round->activate((uint32_t)n, center, radius, swiglu ? center + n : NULL, radius + n, R->low,
                       R->high);
}

/* ---- dense ---- */

static void multiply_up(struct reference *R, uint32_t expert, uint32_t n,
                        const struct reference_row *row)
{
    size_t up = mlp_rows(&R->p.weights->shape, MLP_UP);
    struct sums_input in = input_of(R, MLP_UP);

    for (uint32_t i = 0; i < up; i++) {
        load_row(R, expert, MLP_UP, i);
        for (size_t k = 0; k < n; k++) {
            in.c = row[k].x;
            in.scale = row[k].scale;
            R->radius[k * up + i] = R->sums->dense(
                &in, &(struct sums_row){.w = R->w, .block_scale = scales_of_row(R, MLP_UP, i)},
                &R->center[k * up + i]);
        }
    }
}

/* Rounds the intermediate to c +- r in units of scale. */
static void round_dense(struct reference *R, float *c, float *r, float *scale)
{
    const struct epa_mlp *m = &R->p.weights->shape.mlp;
    uint32_t group = m->fp8_group_size;

    if (is_int8(R))
        *scale = R->round->int8(R->p.f16, m->ffn, R->low, R->high, R->group, c, r);
    else if (!is_fp8(R))
        R->round->native(R->p.f16, m->ffn, R->low, R->high, c, r);
    for (uint32_t g = 0; is_fp8(R) && g < m->ffn; g += group)
        scale[g / group] = R->round->fp8(group, R->low + g, R->high + g, R->group, c + g, r + g);
}

static void multiply_down(struct reference *R, uint32_t expert, uint32_t n,
                          const struct reference_row *row)
{
    const struct weights *w = R->p.weights;
    size_t ffn = w->shape.mlp.ffn;
    struct sums_input in = input_of(R, MLP_DOWN);

    for (uint32_t i = 0; i < w->shape.hidden; i++) {
        load_row(R, expert, MLP_DOWN, i);
        for (size_t k = 0; k < n; k++) {
            double center, radius;

            in.c = R->c + k * ffn;
            in.r = R->r + k * ffn;
            in.scale = mlp_has_scales(&w->shape) ? R->scale + k * ffn : NULL;
            radius = R->sums->dense(
                &in, &(struct sums_row){.w = R->w, .block_scale = scales_of_row(R, MLP_DOWN, i)},
                &center);
            R->round->outputs(R->p.rounded, R->p.f16, 1, &center, &radius, &row[k].low[i],
                              &row[k].high[i]);
        }
    }
}

static void dense_expert(struct reference *R, uint32_t expert, uint32_t n,
                         const struct reference_row *row)
{
    size_t up = mlp_rows(&R->p.weights->shape, MLP_UP), ffn = R->p.weights->shape.mlp.ffn;

    multiply_up(R, expert, n, row);
    for (size_t k = 0; k < n; k++) {
        activate(R, ffn, R->center + k * up, R->radius + k * up);
        round_dense(R, R->c + k * ffn, R->r + k * ffn, R->scale + k * ffn);
    }
    multiply_down(R, expert, n, row);
}

/* ---- sparse ---- */

/* Stores n values of up to LANES tokens with the tokens of a value side by side; other lanes are `rest`. */
static void transpose(uint32_t lanes, size_t n, const float *const *from, float rest, float *to)
{
    for (size_t i = 0; i < n; i++, to += LANES) {
        for (uint32_t l = 0; l < lanes; l++)
            to[l] = from[l][i];
        for (uint32_t l = lanes; l < LANES; l++)
            to[l] = rest;
    }
}

/* Returns the largest magnitude of n channels of a tile. */
static float largest(size_t n, const float *x)
{
    float most[LANES] = {0};

    for (size_t i = 0; i < n; i++)
        for (uint32_t l = 0; l < LANES; l++) {
            float a = fabsf(x[i * LANES + l]);

            most[l] = a > most[l] ? a : most[l];
        }
    for (uint32_t l = 1; l < LANES; l++)
        most[0] = most[l] > most[0] ? most[l] : most[0];
    return most[0];
}

static void load_tile(struct reference *R, uint32_t lanes, const struct reference_row *row,
                      struct sums_tile *out)
{
    const struct weights *w = R->p.weights;
    const float *x[LANES], *scale[LANES];

    for (uint32_t l = 0; l < lanes; l++) {
        x[l] = row[l].x;
        scale[l] = row[l].scale;
    }
    transpose(lanes, w->shape.hidden, x, 0, R->x);
    if (mlp_has_scales(&w->shape))
        transpose(lanes, is_int8(R) ? 1 : w->shape.hidden / w->x_group, scale, 1, R->x_scale);
    out->in.c = R->x;
    out->in.scale = mlp_has_scales(&w->shape) ? R->x_scale : NULL;
    out->most = largest(w->shape.hidden, R->x);
}

static struct sums_row sparse_row(const struct reference *R, enum mlp_matrix m, uint32_t row)
{
    const struct entries *e = &R->entries[m];

    return (struct sums_row){.block_scale = scales_of_row(R, m, row),
                             .column = e->column + (size_t)row * WEIGHTS_ENTRIES,
                             .value = e->value + (size_t)row * WEIGHTS_ENTRIES,
                             .n = e->n[row],
                             .size = e->size[row]};
}

/* Quantises group g of n channels of a lane. */
static void round_lane(struct reference *R, uint32_t lane, size_t g, uint32_t n)
{
    float *low = R->group + 2 * (size_t)n, *high = low + n, *c = high + n, *r = c + n;

    for (uint32_t i = 0; i < n; i++) {
        low[i] = R->low[(g * n + i) * LANES + lane];
        high[i] = R->high[(g * n + i) * LANES + lane];
    }
    R->scale[g * LANES + lane] = is_int8(R) ? R->round->int8(R->p.f16, n, low, high, R->group, c, r)
                                            : R->round->fp8(n, low, high, R->group, c, r);
    for (uint32_t i = 0; i < n; i++) {
        R->c[(g * n + i) * LANES + lane] = c[i];
        R->r[(g * n + i) * LANES + lane] = r[i];
    }
}

/* Rounds the intermediate of a tile to c +- r in units of scale. */
static void round_tile(struct reference *R, struct sums_tile *out)
{
    const struct epa_mlp *m = &R->p.weights->shape.mlp;
    uint32_t group = is_int8(R) ? m->ffn : m->fp8_group_size;
    bool scales = mlp_has_scales(&R->p.weights->shape);

    if (!scales)
        R->round->native(R->p.f16, m->ffn * LANES, R->low, R->high, R->c, R->r);
    for (size_t g = 0; scales && g < m->ffn / group; g++)
        for (uint32_t l = 0; l < LANES; l++)
            round_lane(R, l, g, group);
    out->in.c = R->c;
    out->in.scale = scales ? R->scale : NULL;
    for (size_t i = 0; i < m->ffn; i++) {
        R->wide[i] = false;
        for (uint32_t l = 0; l < LANES; l++)
            R->wide[i] |= R->r[i * LANES + l] != 0;
        if (R->wide[i])
            out->in.r = R->r;
    }
    out->most = largest(m->ffn, R->c);
}

/* Computes the outputs of up to LANES rows. */
static void sparse_tile(struct reference *R, uint32_t expert, uint32_t lanes,
                        const struct reference_row *row)
{
    const struct weights *w = R->p.weights;
    bool swiglu = w->shape.mlp.activation == EPA_ACTIVATION_SWIGLU;
    double center[LANES], radius[LANES];
    float low[LANES], high[LANES];
    struct sums_tile up = {.in = input_of(R, MLP_UP),
                           .unit = WEIGHTS_UNIT_X,
                           .total = WEIGHTS_UNIT_X * WEIGHTS_UNIT_UP};
    struct sums_tile down = {.in = input_of(R, MLP_DOWN),
                             .wide = R->wide,
                             .unit = swiglu ? 0 : up.total,
                             .total = swiglu ? 0 : up.total * WEIGHTS_UNIT_DOWN};

    load_tile(R, lanes, row, &up);
    for (uint32_t i = 0; i < mlp_rows(&w->shape, MLP_UP); i++) {
        const struct sums_row of = sparse_row(R, MLP_UP, i);

        load_scales(R, expert, MLP_UP, i);
        R->sums->sparse(&up, &of, R->center + (size_t)i * LANES, R->radius + (size_t)i * LANES);
    }
    activate(R, (size_t)w->shape.mlp.ffn * LANES, R->center, R->radius);
    round_tile(R, &down);
    for (uint32_t i = 0; i < w->shape.hidden; i++) {
        const struct sums_row of = sparse_row(R, MLP_DOWN, i);

        load_scales(R, expert, MLP_DOWN, i);
        R->sums->sparse(&down, &of, center, radius);
        R->round->outputs(R->p.rounded, R->p.f16, LANES, center, radius, low, high);
        for (uint32_t l = 0; l < lanes; l++) {
            row[l].low[i] = low[l];
            row[l].high[i] = high[l];
        }
    }
}

void reference_expert(struct reference *R, uint32_t expert, uint32_t n,
                      const struct reference_row *row)
{
    if (!R->p.weights->integers) {
        dense_expert(R, expert, n, row);
        return;
    }
    load_entries(R, expert, MLP_UP);
    load_entries(R, expert, MLP_DOWN);
    for (uint32_t i = 0; i < n; i += LANES)
        sparse_tile(R, expert, n - i < LANES ? n - i : LANES, row + i);
}
