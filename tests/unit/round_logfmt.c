/* Tests of the rounding of rows to LogFMT-10. A table in float64 of the values of a group is the
 * reference, and all sets of this CPU must return the same bits. */
#include "kernel_rows.h"

#include <math.h>
#include <string.h>

#include "epa2a/logfmt.h"
#include "kernels/sets.h"

enum { GROUP = EPA_LOGFMT_GROUP, MOST = 3072 };

static double size_of(uint16_t word)
{
    return fabs((double)float_of_word(false, word));
}

struct range {
    double least, most;
};

static struct range range_of(const uint16_t *x)
{
    struct range r = {INFINITY, 0};

    for (uint32_t i = 0; i < GROUP; i++) {
        r.least = size_of(x[i]) < r.least ? size_of(x[i]) : r.least;
        r.most = size_of(x[i]) > r.most || isnan(size_of(x[i])) ? size_of(x[i]) : r.most;
    }
    return r;
}

static bool has_codes(const uint16_t *part, uint32_t channels)
{
    for (uint32_t h = 0; h < channels; h += GROUP) {
        struct range r = range_of(part + h);

        for (uint32_t i = 0; i < GROUP; i++)
            if (isnan(size_of(part[h + i])))
                return false;
        if (!(r.most < 1 && r.most >= 0x1p-90 && r.least < r.most))
            return false;
    }
    return true;
}

/* Computes the two values beside a magnitude, the nearest first. Code 0 has its place a step below code 1
 * and the value 0. */
static void find_values(double size, double low, double step, double out[2])
{
    double code = size > 0 ? floor((log2(size) - low) / step) : -1;
    double below = fmin(fmax(code, -1), 509);
    double a = exp2(low + below * step), b = exp2(low + (below + 1) * step);
    bool first = fabs(a - size) <= fabs(b - size);

    a = below < 0 ? 0 : a;
    out[0] = first ? a : b;
    out[1] = first ? b : a;
}

/* Returns the number of values that are the second nearest, or the nearest with another rounding to bf16. */
static uint32_t check_group(const uint16_t *x, const uint16_t *got)
{
    struct range r = range_of(x);
    double top = log2(r.most), low = r.least > 0 ? fmax(log2(r.least), top - 32) : top - 32;
    uint32_t others = 0;

    for (uint32_t i = 0; i < GROUP; i++) {
        double value[2], near;
        uint16_t wanted, second;

        find_values(size_of(x[i]), low, (top - low) / 510, value);
        wanted = word_of_float(false, copysignf((float)value[0], float_of_word(false, x[i])));
        second = word_of_float(false, copysignf((float)value[1], float_of_word(false, x[i])));
        near = fabs(size_of(got[i]) - size_of(wanted));
        others += got[i] != wanted;
        if (got[i] != wanted && got[i] != second && near > size_of(wanted) * 0x1p-7)
            fail_msg("0x%04x is 0x%04x, not 0x%04x or 0x%04x; least %a, most %a", x[i], got[i],
                     wanted, second, r.least, r.most);
        assert_int_equal(got[i] >> 15, x[i] >> 15);
    }
    return others;
}

/* Returns the number of values that differ from the nearest value. */
static uint32_t check_row(const uint16_t *x, uint32_t hidden, const uint16_t *got)
{
    uint32_t part = hidden % 1024 == 0 ? 1024 : 512, others = 0;

    for (uint32_t h = 0; h < hidden; h += part) {
        if (!has_codes(x + h, part)) {
            assert_memory_equal(got + h, x + h, part * sizeof(*x));
            continue;
        }
        for (uint32_t g = h; g < h + part; g += GROUP)
            others += check_group(x + g, got + g);
    }
    return others;
}

static uint32_t assert_sets(const uint16_t *x, uint32_t hidden)
{
    const struct gemm_rows *const sets[] = {
#ifdef __x86_64__
        epa_kernels_by_name("avx2", EPA_BF16) != NULL ? &kernels_rows_avx2 : NULL,
        epa_kernels_by_name("avx512", EPA_BF16) != NULL ? &kernels_rows_avx512 : NULL,
#endif
        NULL,
    };
    uint16_t got[MOST], same[MOST];

    kernels_rows_scalar.round_logfmt(x, hidden, got);
    for (size_t s = 0; s < LENGTH(sets); s++) {
        if (sets[s] == NULL)
            continue;
        memcpy(same, x, hidden * sizeof(*x)); /* in place */
        sets[s]->round_logfmt(same, hidden, same);
        assert_memory_equal(same, got, hidden * sizeof(*got));
    }
    return check_row(x, hidden, got);
}

/* kind 0: random bits; 1 to 4: as of random_value(), with magnitudes below 1 */
static void fill(uint16_t *x, uint32_t n, uint32_t kind, uint64_t *seed)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = random_value(false, seed, kind);
        if (kind != 0 && size_of(x[i]) >= 1)
            x[i] = (uint16_t)(0x3f00 | next_random(seed) % 128);
    }
}

TEST(values_are_the_nearest_of_the_format)
{
    static const uint32_t hidden[] = {512, 1024, 1536, 2048, MOST};
    uint64_t seed = 55;
    uint16_t x[MOST];

    for (uint32_t kind = 0; kind < 5; kind++)
        for (size_t n = 0; n < LENGTH(hidden); n++)
            for (uint32_t turn = 0; turn < 8; turn++) {
                uint32_t others;

                fill(x, hidden[n], kind, &seed);
                others = assert_sets(x, hidden[n]);
                if (others > hidden[n] / 100)
                    fail_msg("kind %u: %u of %u values are not the nearest", kind, others,
                             hidden[n]);
            }
}

/* The last value of the second part decides about the part. */
TEST(a_part_keeps_its_values_without_a_range_of_each_group)
{
    static const struct {
        uint16_t last;
        bool rounds;
    } list[] = {{0x3f7f, true},   /* the largest number below 1 */
                {0xbf80, false},  /* -1 */
                {0x7fc0, false},  /* NaN */
                {0xff80, false}}; /* infinity */
    uint64_t seed = 56;
    uint16_t x[2048], got[2048];

    for (size_t i = 0; i < LENGTH(list); i++) {
        fill(x, 2048, 1, &seed);
        x[2047] = list[i].last;
        (void)assert_sets(x, 2048);
        kernels_rows_scalar.round_logfmt(x, 2048, got);
        assert_true(memcmp(got, x, 2048) != 0);
        assert_int_equal(memcmp(got + 1024, x + 1024, 2048) != 0, list[i].rounds);
    }
    fill(x, 2048, 1, &seed);
    for (uint32_t i = 0; i < GROUP; i++)
        x[1024 + i] = 0x3e80; /* equal magnitudes */
    (void)assert_sets(x, 2048);
    kernels_rows_scalar.round_logfmt(x, 2048, got);
    assert_memory_equal(got + 1024, x + 1024, 2048);
}

/* Neighbouring magnitudes, zeros, denormals, and ranges that end at 2^-90. */
TEST(narrow_and_wide_ranges_are_right)
{
    uint16_t x[512];
    uint64_t seed = 57;

    for (uint32_t most = 0x0001; most < 0x3f80; most += 0x3b) {
        for (uint32_t i = 0; i < 512; i++)
            x[i] = (uint16_t)((most - next_random(&seed) % 2) | next_random(&seed) << 15);
        (void)assert_sets(x, 512);
        for (uint32_t i = 0; i < 512; i += 3)
            x[i] = (uint16_t)(next_random(&seed) % (most + 1));
        (void)assert_sets(x, 512);
    }
}
