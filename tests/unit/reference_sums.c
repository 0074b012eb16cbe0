/* Tests of the sums of the reference: sums of sparse rows equal sums of dense rows, which have other
 * code, and all instruction sets return the same bits. */
#include "test.h"

#include <math.h>

#include "kernels/kernels.h"
#include "op/moe/reference_sums.h"

enum { COLUMNS = 4096, ENTRIES = 16, LANES = REFERENCE_LANES };

/* Returns the number of sets that this CPU can run. */
static uint32_t find_sets(const struct reference_sums *out[2])
{
    out[0] = &reference_sums_portable;
#ifdef __x86_64__
    out[1] = &reference_sums_avx2;
    return kernels_use_avx2() ? 2 : 1;
#else
    return 1;
#endif
}

/* Returns a value from -1 to 1. */
static double draw(uint64_t *state)
{
    return (double)(int64_t)next_random(state) * 0x1p-63;
}

/* A tile of tokens, and a row of weights in both forms. */
struct product {
    float c[COLUMNS * LANES], r[COLUMNS * LANES], scale[COLUMNS / 64 * LANES];
    bool wide[COLUMNS];
    float w[COLUMNS], block_scale[COLUMNS / 128], value[ENTRIES];
    uint32_t column[ENTRIES];
    struct sums_tile tile;
    struct sums_row row;
};

struct form {
    uint32_t columns, group;
    bool fp8, radii;
    double fp8_sum;
};

static struct product *product_create(const struct form *f, uint64_t *state)
{
    struct product *p = calloc(1, sizeof(*p));

    for (uint32_t k = 0; k < f->columns; k++) {
        p->wide[k] = f->radii && next_random(state) % 2 == 0;
        for (uint32_t l = 0; l < LANES; l++) {
            p->c[k * LANES + l] = next_random(state) % 4 == 0 ? 0 : (float)draw(state);
            p->r[k * LANES + l] = p->wide[k] ? (float)fabs(draw(state)) * 0x1p-8f : 0;
        }
    }
    for (size_t i = 0; i < LENGTH(p->scale); i++)
        p->scale[i] = (float)(1.5 + draw(state));
    for (size_t i = 0; i < LENGTH(p->block_scale); i++)
        p->block_scale[i] = (float)(1.5 + draw(state));
    for (uint32_t i = 0; i < ENTRIES; i++) {
        uint32_t room = f->columns / ENTRIES;

        p->column[i] = i * room + (uint32_t)(next_random(state) % room);
        p->value[i] = p->w[p->column[i]] = (float)draw(state);
        p->row.size += fabsf(p->value[i]);
    }
    p->row.w = p->w;
    p->row.block_scale = p->block_scale;
    p->row.column = p->column;
    p->row.value = p->value;
    p->row.n = ENTRIES;
    p->tile = (struct sums_tile){.in = {.c = p->c,
                                        .r = f->radii ? p->r : NULL,
                                        .scale = f->fp8 ? p->scale : NULL,
                                        .columns = f->columns,
                                        .group = f->group,
                                        .fp8_sum = f->fp8_sum},
                                 .wide = p->wide,
                                 .most = 1};
    return p;
}

/* Computes the sum of a lane from the dense row. */
static double dense_sum(const struct reference_sums *s, const struct product *p, uint32_t lane,
                        double *center)
{
    static float c[COLUMNS], r[COLUMNS], scale[COLUMNS];
    struct sums_input in = p->tile.in;

    for (uint32_t k = 0; k < in.columns; k++) {
        c[k] = p->c[k * LANES + lane];
        r[k] = p->r[k * LANES + lane];
    }
    for (uint32_t g = 0; g < in.columns / in.group; g++)
        scale[g] = p->scale[g * LANES + lane];
    in.c = c;
    in.r = in.r != NULL ? r : NULL;
    in.scale = in.scale != NULL ? scale : NULL;
    return s->dense(&in, &p->row, center);
}

static const struct form forms[] = {
    {256, 128, false, false, 0},        {256, 128, false, true, 0},
    {COLUMNS, 128, false, true, 0},     {256, 128, true, false, 0},
    {256, 64, true, true, 0x1p13},      {2048, 64, true, true, 0x1p13},
    {2048, 128, true, true, 0},         {COLUMNS, 64, true, false, 0x1p13},
    {COLUMNS, 128, true, true, 0x1p13},
};

TEST(sums_of_sparse_rows_equal_sums_of_dense_rows)
{
    uint64_t random = 11;
    const struct reference_sums *set[2];
    uint32_t sets = find_sets(set);

    for (size_t i = 0; i < LENGTH(forms) * 8; i++) {
        struct product *p = product_create(&forms[i % LENGTH(forms)], &random);
        double center[2][LANES], radius[2][LANES];

        for (uint32_t s = 0; s < sets; s++)
            set[s]->sparse(&p->tile, &p->row, center[s], radius[s]);
        for (uint32_t l = 0; l < LANES; l++) {
            double want_center[2], want_radius[2];

            for (uint32_t s = 0; s < sets; s++)
                want_radius[s] = dense_sum(set[s], p, l, &want_center[s]);
            assert_true(radius[0][l] > 0);
            assert_true(fabs(center[0][l] - want_center[0]) <= 0x1p-40);
            assert_true(fabs(radius[0][l] - want_radius[0]) <= 0x1p-40 * want_radius[0]);
            if (sets == 2) {
                assert_true(want_center[0] == want_center[1]);
                assert_true(want_radius[0] == want_radius[1]);
            }
        }
        if (sets == 2) {
            assert_memory_equal(center[0], center[1], sizeof(center[0]));
            assert_memory_equal(radius[0], radius[1], sizeof(radius[0]));
        }
        free(p);
    }
}

/* A sum of multiples of a unit has radius 0 up to 2^24 units, and not beyond. Infinite terms have no
 * bound. */
TEST(only_sums_without_a_rounding_are_exact)
{
    const struct form f = {256, 128, false, false, 0};
    uint64_t random = 5;
    const struct reference_sums *set[2];
    uint32_t sets = find_sets(set);
    struct product *p = product_create(&f, &random);
    double center[LANES], radius[LANES];

    for (size_t i = 0; i < 256 * LANES; i++)
        p->c[i] = 1;
    for (uint32_t i = 0; i < ENTRIES; i++)
        p->value[i] = 1;
    p->row.size = ENTRIES;
    p->tile.unit = p->tile.total = 1;
    for (uint32_t s = 0; s < sets; s++) {
        p->c[p->column[3] * LANES + 1] = p->c[p->column[3] * LANES + 2] = p->tile.most = 1;
        set[s]->sparse(&p->tile, &p->row, center, radius);
        assert_true(radius[1] == 0 && center[1] == ENTRIES);
        p->c[p->column[3] * LANES + 1] = 0x1p24f;
        p->c[p->column[3] * LANES + 2] = p->tile.most = INFINITY;
        set[s]->sparse(&p->tile, &p->row, center, radius);
        assert_true(radius[0] == 0 && center[0] == ENTRIES);
        assert_true(radius[1] > 0 && radius[1] < 0x1p12);
        assert_true(isinf(radius[2]));
    }
    free(p);
}
