/* Sums of products with their error bounds. reference.c derives the bounds.
 *
 * A sparse row has n <= 16 products, so A1 <= sqrt(n) sqrt(sum (x w)^2) <= 4 sqrt(sum (x w)^2): the bound
 * A1 is always smaller than 9 sqrt(sum (x w)^2), and squares are not needed. The same holds for radii. */
#include "op/moe/reference_sums.h"

#include <math.h>
#include <string.h>

#include "experts/mlp_shape.h"

enum { BLOCK = MLP_BLOCK, STEP = 32, DENSE_LANES = 8, LANES = REFERENCE_LANES };

static const double unit_roundoff = 0x1p-23, deviations = 9;

/* Returns the largest power of two up to x: its exponent alone. x is normal, or infinite. */
static inline double power_below(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    bits &= UINT64_C(0x7ff) << 52;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Returns the error bound of the aligned sums of a group in units of the products of codes. most: the
 * largest sum of the steps of one sign, or product, plus radii. The exponent of a code below 2^-6 counts as
 * -6, so the exponent of its product may count as 2. The factor 1.02 covers the error of the partial sums. */
static inline double lost_in_steps(double most, double fp8_sum, uint32_t group)
{
    double error =
        group / STEP * (STEP + 2) * (power_below(1.02 * (most > 4 ? most : 4)) / fp8_sum);

    return most == 0 ? 0 : error;
}

/* Returns the error bound of a sum. in: error of its inputs. sum: bound of all partial sums.
 * accumulation: FP8, error of the additions within groups. */
static inline double radius_of(double a1, double sum, double in, double accumulation,
                               double additions, uint32_t columns)
{
    return in + 1.01 * (additions * unit_roundoff * (sum + in) + accumulation) + 0x1p-40 * a1 +
           columns * 0x1p-120;
}

/* Returns the error bound of the additions of a group of a sparse row. sum: bound of all partial sums;
 * most: as above. */
static inline double lost_in_lane(double sum, double most, double fp8_sum, uint32_t group)
{
    double steps = fp8_sum != 0 ? lost_in_steps(most, fp8_sum, group) : 0;

    return steps + (fp8_sum != 0 ? 3 : group + 3) * unit_roundoff * sum;
}

static double additions_of(const struct sums_input *in)
{
    return in->scale != NULL ? (double)in->columns / in->group + 3 : (double)in->columns + 2;
}

/* ---- dense ---- */

/* A sum of products, and the terms of its error bound. */
struct dot {
    double sum, a1, a2, r1, r2; /* a2, r2: sums of squares */
    double most;                /* largest product of a group */
    double above, below;        /* sums of the positive and of the negative steps of a group */
    double accumulation;        /* FP8: error of the additions within groups */
};

/* Returns the error bound of the additions of a group in units of the products of codes. Aligned sums:
 * steps run in any order, so no partial sum is further from 0 than the sum of all steps of one sign. */
static double lost_in_group(const struct dot *g, uint32_t group, double fp8_sum)
{
    double root = deviations * sqrt(g->a2), sum = (g->a1 < root ? g->a1 : root) + g->r1;
    double most = g->above > -g->below ? g->above : -g->below;

    if (fp8_sum == 0)
        return (group + 3) * unit_roundoff * sum;
    most = (g->most > most ? g->most : most) + g->r1;
    return most == 0 ? 0 : lost_in_steps(most, fp8_sum, group) + 3 * unit_roundoff * sum;
}

/* Adds a group's products c w with radii r |w|, times `by`, to a dot. */
static void add_group(struct dot *d, const struct dot *g, double by, double lost)
{
    d->sum += by * g->sum;
    d->a1 += by * g->a1;
    d->a2 += by * by * g->a2;
    d->r1 += by * g->r1;
    d->r2 += by * by * g->r2;
    d->accumulation += by * lost;
}

/* Adds n products, a multiple of DENSE_LANES: one step, or more if steps do not matter. */
static void add_products(struct dot *g, const float *c, const float *r, const float *w, uint32_t n)
{
    double sum[DENSE_LANES] = {0}, a1[DENSE_LANES] = {0}, a2[DENSE_LANES] = {0};
    double r1[DENSE_LANES] = {0}, r2[DENSE_LANES] = {0}, top[DENSE_LANES] = {0}, step = 0;

    for (uint32_t k = 0; k < n; k += DENSE_LANES)
        for (uint32_t i = 0; i < DENSE_LANES; i++) {
            double p = (double)c[k + i] * (double)w[k + i], a = fabs(p);

            sum[i] += p;
            a1[i] += a;
            a2[i] += p * p;
            top[i] = a > top[i] ? a : top[i];
        }
    for (uint32_t k = 0; r != NULL && k < n; k += DENSE_LANES)
        for (uint32_t i = 0; i < DENSE_LANES; i++) {
            double p = (double)r[k + i] * fabs((double)w[k + i]);

            r1[i] += p;
            r2[i] += p * p;
        }
    for (uint32_t i = 0; i < DENSE_LANES; i++) {
        step += sum[i];
        g->a1 += a1[i];
        g->a2 += a2[i];
        g->r1 += r1[i];
        g->r2 += r2[i];
        g->most = top[i] > g->most ? top[i] : g->most;
    }
    g->sum += step;
    g->above += step > 0 ? step : 0;
    g->below += step < 0 ? step : 0;
}

/* INT8: sums of codes are exact. Three roundings follow: of the sum to float32, of the product of both
 * scales, and of the product of both. in: error of the inputs. */
static inline double int8_radius(double sum, double in)
{
    return in + 1.01 * 3 * 0x1p-24 * (fabs(sum) + in) + 0x1p-120;
}

static double dense_int8(const struct sums_input *in, const struct sums_row *row, double *center)
{
    double by = (double)in->scale[0] * (double)row->block_scale[0], spread;
    struct dot d = {.sum = 0};

    add_products(&d, in->c, in->r, row->w, in->columns);
    *center = by * d.sum;
    spread = deviations * sqrt(by * by * d.r2);
    return int8_radius(*center, by * d.r1 < spread ? by * d.r1 : spread);
}

static double dense(const struct sums_input *in, const struct sums_row *row, double *center)
{
    uint32_t group = in->group, step = in->fp8_sum != 0 ? STEP : group;
    struct dot d = {.sum = 0};
    double root, spread;

    if (in->int8)
        return dense_int8(in, row, center);
    if (in->scale == NULL)
        add_products(&d, in->c, in->r, row->w, in->columns);
    for (uint32_t at = 0; in->scale != NULL && at < in->columns; at += group) {
        struct dot g = {.sum = 0};

        for (uint32_t i = at; i < at + group; i += step)
            add_products(&g, in->c + i, in->r != NULL ? in->r + i : NULL, row->w + i, step);
        add_group(&d, &g, (double)in->scale[at / group] * (double)row->block_scale[at / BLOCK],
                  lost_in_group(&g, group, in->fp8_sum));
    }
    *center = d.sum;
    if (!isfinite(d.a1) || !isfinite(d.r1))
        return INFINITY;
    root = deviations * sqrt(d.a2);
    spread = deviations * sqrt(d.r2);
    return radius_of(d.a1, d.a1 < root ? d.a1 : root, d.r1 < spread ? d.r1 : spread, d.accumulation,
                     additions_of(in), in->columns);
}

/* ---- sparse ---- */

/* Sums of one row for all lanes. */
struct lanes {
    double sum[LANES], a1[LANES], r1[LANES], accumulation[LANES];
    double largest[LANES]; /* FP8, exact sums: largest a1 of a group times the scale of the token */
};

/* Adds the products of an entry of a row. */
static inline void add_entry(const struct sums_tile *t, uint32_t k, float value, double *sum,
                             double *a1, double *r1)
{
    const float *c = t->in.c + (size_t)k * LANES;

    for (uint32_t l = 0; l < LANES; l++) {
        double p = (double)c[l] * (double)value;

        sum[l] += p;
        a1[l] += fabs(p);
    }
    if (t->in.r != NULL && t->wide[k]) {
        const float *r = t->in.r + (size_t)k * LANES;

        for (uint32_t l = 0; l < LANES; l++)
            r1[l] += (double)r[l] * fabs((double)value);
    }
}

/* Products that are multiples of one unit, in a row whose partial sums are all below 2^24 units: float32
 * is exact. */
static void add_units(const struct sums_tile *t, const struct sums_row *row, double *center)
{
    float sum[LANES] = {0};

    for (uint32_t i = 0; i < row->n; i++) {
        const float *c = t->in.c + (size_t)row->column[i] * LANES;
        float value = row->value[i];

        for (uint32_t l = 0; l < LANES; l++)
            sum[l] += c[l] * value;
    }
    for (uint32_t l = 0; l < LANES; l++)
        center[l] = (double)sum[l];
}

static void add_native(const struct sums_tile *t, const struct sums_row *row, struct lanes *s)
{
    for (uint32_t i = 0; i < row->n; i++)
        add_entry(t, row->column[i], row->value[i], s->sum, s->a1, s->r1);
}

/* A group of a row for all lanes. */
struct group {
    double sum[LANES], a1[LANES], r1[LANES], most[LANES];
    double step[LANES], above[LANES], below[LANES]; /* as in struct dot */
};

static inline void end_step(struct group *g)
{
    for (uint32_t l = 0; l < LANES; l++) {
        g->above[l] += g->step[l] > 0 ? g->step[l] : 0;
        g->below[l] += g->step[l] < 0 ? g->step[l] : 0;
        g->step[l] = 0;
    }
}

static inline void add_to_group(const struct sums_tile *t, uint32_t k, float value, struct group *g)
{
    const float *c = t->in.c + (size_t)k * LANES;

    add_entry(t, k, value, g->sum, g->a1, g->r1);
    for (uint32_t l = 0; l < LANES; l++) {
        double p = (double)c[l] * (double)value, a = fabs(p);

        g->step[l] += p;
        g->most[l] = a > g->most[l] ? a : g->most[l];
    }
}

/* Adds an entry that is the only one of its step. */
static inline void add_lone_step(const struct sums_tile *t, uint32_t k, float value,
                                 struct group *g)
{
    const float *c = t->in.c + (size_t)k * LANES;

    add_entry(t, k, value, g->sum, g->a1, g->r1);
    for (uint32_t l = 0; l < LANES; l++) {
        double p = (double)c[l] * (double)value, a = fabs(p);

        g->most[l] = a > g->most[l] ? a : g->most[l];
        g->above[l] += p > 0 ? p : 0;
        g->below[l] += p < 0 ? p : 0;
    }
}

/* Adds a group of several entries, i to end - 1. exact: the error of the additions is not needed. */
static inline __attribute__((always_inline)) void add_group_of(const struct sums_tile *t,
                                                               const struct sums_row *row,
                                                               uint32_t i, uint32_t end, bool exact,
                                                               struct lanes *s)
{
    const float *scale = t->in.scale + (size_t)(row->column[i] / t->in.group) * LANES;
    double block = (double)row->block_scale[row->column[i] / BLOCK], fp8_sum = t->in.fp8_sum;
    bool steps = !exact && fp8_sum != 0, first = true;
    struct group g = {.sum = {0}};

    for (; i < end; i++) {
        uint32_t k = row->column[i];
        bool last = i + 1 == end || row->column[i + 1] / STEP != k / STEP;

        if (!steps)
            add_entry(t, k, row->value[i], g.sum, g.a1, g.r1);
        else if (first && last)
            add_lone_step(t, k, row->value[i], &g);
        else
            add_to_group(t, k, row->value[i], &g);
        if (steps && last && !first)
            end_step(&g);
        first = last;
    }
    for (uint32_t l = 0; l < LANES; l++) {
        double by = (double)scale[l] * block, a = g.a1[l] * (double)scale[l];
        double most = g.above[l] > -g.below[l] ? g.above[l] : -g.below[l];

        most = (g.most[l] > most ? g.most[l] : most) + g.r1[l];
        s->sum[l] += by * g.sum[l];
        s->a1[l] += by * g.a1[l];
        s->r1[l] += by * g.r1[l];
        s->largest[l] = a > s->largest[l] ? a : s->largest[l];
        if (!exact)
            s->accumulation[l] += by * lost_in_lane(g.a1[l] + g.r1[l], most, fp8_sum, t->in.group);
    }
}

/* Adds a group of one entry: like add_group_of(), where its product is the only step. */
static inline void add_single(const struct sums_tile *t, uint32_t k, float value, double block,
                              uint32_t of, bool exact, bool wide, struct lanes *s)
{
    const float *c = t->in.c + (size_t)k * LANES, *scale = t->in.scale + (size_t)of * LANES;
    const float *r = wide ? t->in.r + (size_t)k * LANES : c;
    double fp8_sum = t->in.fp8_sum, size = fabs((double)value);

    for (uint32_t l = 0; l < LANES; l++) {
        double p = (double)c[l] * (double)value, magnitude = fabs(p);
        double radius = wide ? (double)r[l] * size : 0;
        double by = (double)scale[l] * block, a = magnitude * (double)scale[l];

        s->sum[l] += by * p;
        s->a1[l] += by * magnitude;
        if (wide)
            s->r1[l] += by * radius;
        if (exact)
            s->largest[l] = a > s->largest[l] ? a : s->largest[l];
        else
            s->accumulation[l] +=
                by * lost_in_lane(magnitude + radius, magnitude + radius, fp8_sum, t->in.group);
    }
}

static inline void add_groups(const struct sums_tile *t, const struct sums_row *row, bool exact,
                              struct lanes *s)
{
    uint32_t group = t->in.group;

    for (uint32_t i = 0, end; i < row->n; i = end) {
        uint32_t k = row->column[i], of = k / group, behind = (of + 1) * group;
        double block = (double)row->block_scale[k / BLOCK];

        for (end = i + 1; end < row->n && row->column[end] < behind; end++)
            continue;
        if (end > i + 1)
            add_group_of(t, row, i, end, exact, s);
        else if (t->in.r != NULL && t->wide[k])
            add_single(t, k, row->value[i], block, of, exact, true, s);
        else
            add_single(t, k, row->value[i], block, of, exact, false, s);
    }
}

/* Returns true if the sum of a lane is a sum of multiples of a unit without a rounding. */
static bool is_exact(const struct sums_tile *t, const struct lanes *s, uint32_t lane)
{
    return s->r1[lane] == 0 && s->a1[lane] < 0x1p24 * t->total &&
           (t->in.scale == NULL || t->in.fp8_sum == 0 ||
            s->largest[lane] < t->unit * t->in.fp8_sum);
}

static void add_row(const struct sums_tile *t, const struct sums_row *row, bool exact,
                    struct lanes *s)
{
    memset(s, 0, sizeof(*s));
    if (t->in.scale == NULL)
        add_native(t, row, s);
    else if (exact)
        add_groups(t, row, true, s);
    else
        add_groups(t, row, false, s);
}

static void sparse_int8(const struct sums_tile *t, const struct sums_row *row, double center[LANES],
                        double radius[LANES])
{
    struct lanes s = {.sum = {0}};

    add_native(t, row, &s);
    for (uint32_t l = 0; l < LANES; l++) {
        double by = (double)t->in.scale[l] * (double)row->block_scale[0];

        center[l] = by * s.sum[l];
        radius[l] = int8_radius(center[l], by * s.r1[l]);
    }
}

static void sparse(const struct sums_tile *t, const struct sums_row *row, double center[LANES],
                   double radius[LANES])
{
    double additions = additions_of(&t->in);
    bool exact[LANES] = {false};
    uint32_t n_exact = 0;
    struct lanes s;

    if (t->in.int8) {
        sparse_int8(t, row, center, radius);
        return;
    }
    memset(radius, 0, LANES * sizeof(*radius));
    if (t->in.scale == NULL && t->in.r == NULL &&
        (double)row->size * (double)t->most < 0x1p24 * t->total) {
        add_units(t, row, center);
        return;
    }
    add_row(t, row, t->total != 0, &s);
    memcpy(center, s.sum, sizeof(s.sum));
    for (uint32_t l = 0; t->total != 0 && l < LANES; l++)
        n_exact += exact[l] = is_exact(t, &s, l);
    if (n_exact == LANES)
        return;
    if (t->total != 0)
        add_row(t, row, false, &s);
    for (uint32_t l = 0; l < LANES; l++) {
        double r =
            radius_of(s.a1[l], s.a1[l], s.r1[l], s.accumulation[l], additions, t->in.columns);

        r = s.a1[l] + s.r1[l] < INFINITY ? r : INFINITY;
        radius[l] = exact[l] ? 0 : r;
    }
}

const struct reference_sums REFERENCE_SUMS = {dense, sparse};
