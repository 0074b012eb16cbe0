/* Tests of the roundings of the reference: intervals of SwiGLU contain its value, ends are rounded outwards,
 * and all instruction sets return the same bits. */
#include "test.h"

#include <math.h>

#include "kernels/kernels.h"
#include "op/moe/reference_round.h"

enum { VALUES = 256 };

/* Returns the number of sets that this CPU can run. */
static uint32_t find_sets(const struct reference_round *out[2])
{
    out[0] = &reference_round_portable;
#ifdef __x86_64__
    out[1] = &reference_round_avx2;
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

TEST(intervals_of_swiglu_contain_its_value)
{
    static double gate[VALUES], zero[VALUES], up[VALUES];
    static float low[2][VALUES], high[2][VALUES];
    uint64_t random = 3;
    const struct reference_round *set[2];
    uint32_t sets = find_sets(set);

    for (uint32_t i = 0; i < VALUES; i++) {
        gate[i] = draw(&random) * (i < 100 ? 4 : i < 200 ? 90 : 1e5);
        up[i] = draw(&random) * 8;
    }
    for (uint32_t s = 0; s < sets; s++)
        set[s]->activate(VALUES, gate, zero, up, zero, low[s], high[s]);
    for (uint32_t i = 0; i < VALUES; i++) {
        double value = gate[i] / (1 + exp(-gate[i])) * up[i];
        double part = (0x1p-19 + fabs(gate[i]) * 0x1p-21) * fabs(value) + 0x1p-90;

        assert_true((double)low[0][i] < value && value < (double)high[0][i]);
        assert_true((double)low[0][i] > value - part && (double)high[0][i] < value + part);
    }
    if (sets == 2) {
        assert_memory_equal(low[0], low[1], sizeof(low[0]));
        assert_memory_equal(high[0], high[1], sizeof(high[0]));
    }
}

/* The interval of a sum that may be 0 or infinite has the right ends, and the next float32 beyond each end
 * that is no float32. */
TEST(ends_of_intervals_are_rounded_outwards)
{
    static const struct {
        double center, radius;
        float low, high;
    } c[] = {
        {1, 0, 1, 1},
        {1 + 0x1p-30, 0, 1, 1 + 0x1p-23f},
        {-1 - 0x1p-30, 0, -1 - 0x1p-23f, -1},
        {1, 0x1p-40, 1 - 0x1p-24f, 1 + 0x1p-23f},
        {0, 0, 0, 0},
        {0, 0x1p-200, -0x1p-149f, 0x1p-149f},
        {0x1p-200, 0, 0, 0x1p-149f},
        {1e300, 0, -INFINITY, INFINITY},
        {0, INFINITY, -INFINITY, INFINITY},
        {NAN, INFINITY, -INFINITY, INFINITY},
    };
    const struct reference_round *set[2];

    for (uint32_t s = 0, sets = find_sets(set); s < sets; s++)
        for (size_t i = 0; i < LENGTH(c); i++) {
            float low, high;

            set[s]->outputs(false, false, 1, &c[i].center, &c[i].radius, &low, &high);
            assert_true(low == c[i].low && high == c[i].high);
        }
}
