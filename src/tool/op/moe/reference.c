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
 * Only the error of float64 itself is an estimate: 2^-40 of A1. */
#include "op/moe/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/pool.h"
#include "kernels/kernels.h"
#include "op/moe/reference_round.h"

enum { BLOCK = MLP_BLOCK, LANES = 8, STEP = 32 };

/* The loops for the instruction set of this CPU. */
#ifdef __x86_64__
#define FOR_THIS_CPU(loops) (kernels_use_avx2() ? &loops##_avx2 : &loops##_portable)
#else
#define FOR_THIS_CPU(loops) (&loops##_portable)
#endif

static const double unit_roundoff = 0x1p-23, deviations = 9;

struct reference {
    struct reference_params p;
    const struct reference_round *round;
    double fp8_sum;   /* 2^fp8_sum_bits */
    struct pool pool; /* memory of all arrays below */
    float decode[256];
    void *row;              /* a row of weights */
    float *w, *block_scale; /* the row as float; scales of its blocks, with INT8 of the rows */
    uint32_t *column;       /* integers: entries of a matrix, [rows][WEIGHTS_ENTRIES] */
    float *value;
    uint8_t *entries;        /* [rows] */
    double *center, *radius; /* [p.rows][up rows] */
    float *c, *r;            /* [p.rows][ffn]: intermediate (codes for FP8), radius */
    float *scale;            /* [p.rows][ffn / group] */
    float *low, *high;       /* [ffn] */
    float *group;            /* [2][ffn]: codes of a group */
};

/* A sum of products, and the terms of its error bound. */
struct dot {
    double sum, a1, a2, r1, r2; /* a2, r2: sums of squares */
    double most;                /* largest product of a group */
    double above, below;        /* sums of the positive and of the negative steps of a group */
    double accumulation;        /* FP8: error of the additions within groups */
    bool exact;
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

static void allocate_reference(const struct weights *w, uint32_t n_rows, struct reference *R)
{
    size_t rows = n_rows, ffn = w->shape.mlp.ffn, up = epa_mlp_up_rows(&w->shape.mlp);
    size_t columns = w->shape.hidden > ffn ? w->shape.hidden : ffn,
           most = w->shape.hidden > up ? w->shape.hidden : up;
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
    R->low = pool_alloc(p, ffn, sizeof(*R->low));
    R->high = pool_alloc(p, ffn, sizeof(*R->high));
    R->group = pool_alloc(p, 2 * ffn, sizeof(*R->group));
    if (!w->integers)
        return;
    R->column = pool_alloc(p, most * WEIGHTS_ENTRIES, sizeof(*R->column));
    R->value = pool_alloc(p, most * WEIGHTS_ENTRIES, sizeof(*R->value));
    R->entries = pool_alloc(p, most, sizeof(*R->entries));
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
    R->round = FOR_THIS_CPU(reference_round);
    R->fp8_sum = ldexp(1, (int)p->fp8_sum_bits);
    for (uint32_t q = 0; q < 256; q++)
        R->decode[q] = float_of_e4m3((uint8_t)q);
    allocate_reference(p->weights, p->rows, R);
    if (!R->pool.failed)
        return R;
    reference_destroy(R);
    return NULL;
}

/* ---- sums ---- */

/* Returns the largest power of two up to x: its exponent alone. x is normal, or infinite. */
static double power_below(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    bits &= UINT64_C(0x7ff) << 52;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Returns the error bound of the additions of a group in units of the products of codes. Aligned sums:
 * steps run in any order, so no partial sum is further from 0 than the sum of all steps of one sign. */
static double lost_in_group(const struct reference *R, const struct dot *g, uint32_t group)
{
    double root = deviations * sqrt(g->a2), sum = (g->a1 < root ? g->a1 : root) + g->r1;
    double most = g->above > -g->below ? g->above : -g->below;

    if (R->p.fp8_sum_bits == 0)
        return (group + 3) * unit_roundoff * sum;
    most = (g->most > most ? g->most : most) + g->r1;
    if (most == 0)
        return 0;
    /* The exponent of a code below 2^-6 counts as -6, so the exponent of its product may count as 2. */
    most = most > 4 ? most : 4;
    /* The factor 1.02 covers the error of the partial sums. */
    return group / STEP * (STEP + 2) * (power_below(1.02 * most) / R->fp8_sum) +
           3 * unit_roundoff * sum;
}

/* Adds a group's products c w with radii r |w|, times `by`, to a dot. lossless: the caller needs no
 * error of the additions. */
static void add_group(const struct reference *R, struct dot *d, const struct dot *g, uint32_t group,
                      double by, double unit, bool lossless)
{
    d->sum += by * g->sum;
    d->a1 += by * g->a1;
    d->a2 += by * by * g->a2;
    d->r1 += by * g->r1;
    d->r2 += by * by * g->r2;
    if (!lossless)
        d->accumulation += by * lost_in_group(R, g, group);
    d->exact = d->exact && (R->p.fp8_sum_bits == 0 || g->a1 < unit * R->fp8_sum);
}

static void end_step(struct dot *g, double sum)
{
    g->above += sum > 0 ? sum : 0;
    g->below += sum < 0 ? sum : 0;
}

/* Adds n products, a multiple of LANES: one step, or more if steps do not matter. */
static void add_lanes(struct dot *g, const float *c, const float *r, const float *w, uint32_t n)
{
    double sum[LANES] = {0}, a1[LANES] = {0}, a2[LANES] = {0}, r1[LANES] = {0}, r2[LANES] = {0};
    double top[LANES] = {0}, step = 0;

    for (uint32_t k = 0; k < n; k += LANES)
        for (uint32_t i = 0; i < LANES; i++) {
            double p = (double)c[k + i] * (double)w[k + i], a = fabs(p);

            sum[i] += p;
            a1[i] += a;
            a2[i] += p * p;
            top[i] = a > top[i] ? a : top[i];
        }
    for (uint32_t k = 0; r != NULL && k < n; k += LANES)
        for (uint32_t i = 0; i < LANES; i++) {
            double p = (double)r[k + i] * fabs((double)w[k + i]);

            r1[i] += p;
            r2[i] += p * p;
        }
    for (uint32_t i = 0; i < LANES; i++) {
        step += sum[i];
        g->a1 += a1[i];
        g->a2 += a2[i];
        g->r1 += r1[i];
        g->r2 += r2[i];
        g->most = top[i] > g->most ? top[i] : g->most;
    }
    g->sum += step;
    end_step(g, step);
}

/* Multiplies row `row` of a matrix, in R->w, by c +- r. `group`: channels per element of `scale` (NULL:
 * native). */
static struct dot multiply_dense(const struct reference *R, const float *c, const float *r,
                                 const float *scale, uint32_t k, uint32_t group)
{
    uint32_t step = R->p.fp8_sum_bits != 0 ? STEP : group;
    struct dot d = {.exact = false};

    if (scale == NULL) {
        add_lanes(&d, c, r, R->w, k);
        return d;
    }
    for (uint32_t at = 0; at < k; at += group) {
        struct dot g = {0};

        for (uint32_t i = at; i < at + group; i += step)
            add_lanes(&g, c + i, r != NULL ? r + i : NULL, R->w + i, step);
        add_group(R, &d, &g, group, (double)scale[at / group] * (double)R->block_scale[at / BLOCK],
                  0, false);
    }
    return d;
}

/* integers: multiplies a sparse row. unit: unit of the products c w. lossless: see add_group(). */
static struct dot sum_entries(const struct reference *R, uint32_t row, const float *c,
                              const float *r, const float *scale, uint32_t group, double unit,
                              bool lossless)
{
    const uint32_t *column = R->column + (size_t)row * WEIGHTS_ENTRIES;
    const float *value = R->value + (size_t)row * WEIGHTS_ENTRIES;
    struct dot d = {.exact = true}, g = {0};
    uint32_t n = R->entries[row];
    double step = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = column[i], next = i + 1 < n ? column[i + 1] : UINT32_MAX;
        double p = (double)c[k] * (double)value[i], e;

        e = r != NULL ? (double)r[k] * fabs((double)value[i]) : 0;
        g.sum += p;
        g.a1 += fabs(p);
        g.a2 += p * p;
        g.r1 += e;
        g.r2 += e * e;
        g.most = fabs(p) > g.most ? fabs(p) : g.most;
        step += p;
        if (next / STEP == k / STEP)
            continue;
        end_step(&g, step);
        step = 0;
        if (scale == NULL || next / group == k / group)
            continue;
        add_group(R, &d, &g, group, (double)scale[k / group] * (double)R->block_scale[k / BLOCK],
                  unit / (double)scale[k / group], lossless);
        g = (struct dot){0};
    }
    if (scale == NULL) {
        g.exact = true;
        return g;
    }
    return d;
}

/* Returns true for a sum of multiples of `unit` without a rounding: its radius is 0. */
static bool is_exact(const struct dot *d, double unit)
{
    return d->exact && d->r1 == 0 && d->a1 < 0x1p24 * unit;
}

/* unit: unit of the products c w; total: unit of the products with scales. */
static struct dot multiply_sparse(const struct reference *R, uint32_t row, const float *c,
                                  const float *r, const float *scale, uint32_t group, double unit,
                                  double total)
{
    struct dot d = {.exact = false};

    if (total != 0)
        d = sum_entries(R, row, c, r, scale, group, unit, true);
    return is_exact(&d, total) ? d : sum_entries(R, row, c, r, scale, group, unit, false);
}

/* Returns the error bound of a dot of k terms. unit: common unit of all terms; 0: none. */
static double radius_of(const struct reference *R, const struct dot *d, uint32_t k, uint32_t group,
                        double unit)
{
    double root, sum, spread, in;
    double additions = is_fp8(R) ? (double)k / group + 3 : (double)k + 2;

    if (is_int8(R)) {
        spread = deviations * sqrt(d->r2);
        in = d->r1 < spread ? d->r1 : spread;
        return in + 1.01 * 3 * 0x1p-24 * (fabs(d->sum) + in) + 0x1p-120;
    }
    if (is_exact(d, unit))
        return 0;
    root = deviations * sqrt(d->a2);
    sum = d->a1 < root ? d->a1 : root;
    spread = deviations * sqrt(d->r2);
    in = d->r1 < spread ? d->r1 : spread;
    if (!isfinite(d->a1) || !isfinite(d->r1))
        return INFINITY;
    return in + 1.01 * (additions * unit_roundoff * (sum + in) + d->accumulation) +
           0x1p-40 * d->a1 + k * 0x1p-120;
}

/* INT8: multiplies the codes of row `row`, in R->w or as entries, by codes c +- r; by: both scales. */
static struct dot multiply_codes(const struct reference *R, uint32_t row, const float *c,
                                 const float *r, uint32_t k, double by)
{
    struct dot d = {.exact = false};

    if (R->p.weights->integers)
        d = sum_entries(R, row, c, r, NULL, k, 0, true);
    else
        add_lanes(&d, c, r, R->w, k);
    return (struct dot){.sum = by * d.sum, .r1 = by * d.r1, .r2 = by * by * d.r2};
}

/* ---- weights ---- */

static void load_row(struct reference *R, uint32_t expert, enum mlp_matrix m, uint32_t row)
{
    const struct weights *w = R->p.weights;
    uint32_t n = mlp_columns(&w->shape, m),
             projection = m == MLP_UP ? w->shape.mlp.ffn : w->shape.hidden;

    if (mlp_has_scales(&w->shape) && row % projection % BLOCK == 0)
        weights_scales(w, expert, m,
                       row / projection * epa_mlp_blocks(projection) + row % projection / BLOCK,
                       R->block_scale);
    if (w->integers)
        return;
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

    for (uint32_t row = 0; w->integers && row < mlp_rows(&w->shape, m); row++)
        R->entries[row] =
            (uint8_t)weights_entries(w, expert, m, row, R->column + (size_t)row * WEIGHTS_ENTRIES,
                                     R->value + (size_t)row * WEIGHTS_ENTRIES);
}

/* ---- intermediate ---- */

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

/* Computes R->low and R->high of a row: the intermediate before rounding. */
static void activate_row(struct reference *R, const double *center, const double *radius)
{
    const struct epa_mlp *m = &R->p.weights->shape.mlp;
    bool swiglu = m->activation == EPA_ACTIVATION_SWIGLU;

    R->round->activate(m->ffn, center, radius, swiglu ? center + m->ffn : NULL, radius + m->ffn,
                       R->low, R->high);
}

/* Rounds the intermediate to c +- r in units of scale. */
static void round_intermediate(struct reference *R, float *c, float *r, float *scale)
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

static void store_output(const struct reference *R, double center, double radius, float *low,
                         float *high)
{
    R->round->outputs(R->p.rounded, R->p.f16, 1, &center, &radius, low, high);
}

/* Multiplies a row of weights by an input of the projection. `unit` and `total`: see multiply_sparse(). */
static struct dot multiply_row(const struct reference *R, enum mlp_matrix m, uint32_t row,
                               const float *c, const float *r, const float *scale, uint32_t group,
                               double unit, double total)
{
    const struct weights *w = R->p.weights;
    uint32_t k = mlp_columns(&w->shape, m),
             projection = m == MLP_UP ? w->shape.mlp.ffn : w->shape.hidden;

    if (is_int8(R))
        return multiply_codes(R, row, c, r, k,
                              (double)*scale * (double)R->block_scale[row % projection % BLOCK]);
    return w->integers ? multiply_sparse(R, row, c, r, scale, group, unit, total)
                       : multiply_dense(R, c, r, scale, k, group);
}

void reference_expert(struct reference *R, uint32_t expert, uint32_t n,
                      const struct reference_row *row)
{
    const struct weights *w = R->p.weights;
    uint32_t up = mlp_rows(&w->shape, MLP_UP), ffn = w->shape.mlp.ffn,
             group = w->shape.mlp.fp8_group_size, x_group = w->x_group;
    double unit = w->integers ? WEIGHTS_UNIT_X * WEIGHTS_UNIT_UP : 0; /* unit of the first sums */
    double mid_unit = w->shape.mlp.activation == EPA_ACTIVATION_NONE ? unit : 0;
    bool scales = mlp_has_scales(&w->shape);

    load_entries(R, expert, MLP_UP);
    for (uint32_t i = 0; i < up; i++) {
        load_row(R, expert, MLP_UP, i);
        for (uint32_t k = 0; k < n; k++) {
            const float *x = row[k].x, *scale = row[k].scale;
            struct dot d =
                multiply_row(R, MLP_UP, i, x, NULL, scale, x_group, WEIGHTS_UNIT_X, unit);

            R->center[(size_t)k * up + i] = d.sum;
            R->radius[(size_t)k * up + i] = radius_of(R, &d, w->shape.hidden, x_group, unit);
        }
    }
    for (size_t k = 0; k < n; k++) {
        activate_row(R, R->center + k * up, R->radius + k * up);
        round_intermediate(R, R->c + k * ffn, R->r + k * ffn, R->scale + k * ffn);
    }
    load_entries(R, expert, MLP_DOWN);
    for (uint32_t i = 0; i < w->shape.hidden; i++) {
        load_row(R, expert, MLP_DOWN, i);
        for (size_t k = 0; k < n; k++) {
            const float *c = R->c + k * ffn, *r = R->r + k * ffn;
            const float *scale = scales ? R->scale + k * ffn : NULL;
            struct dot d = multiply_row(R, MLP_DOWN, i, c, r, scale, group, mid_unit,
                                        mid_unit * WEIGHTS_UNIT_DOWN);

            store_output(R, d.sum, radius_of(R, &d, ffn, group, mid_unit * WEIGHTS_UNIT_DOWN),
                         &row[k].low[i], &row[k].high[i]);
        }
    }
}
