/* Tests of the kernels that quantise and reduce rows. Every instruction set of this CPU must match
 * a loop over the definitions in dtype.h to the bit, for rows of bf16 and f16, any width, group
 * size and alignment. tests/oracle compares dtype.h with NumPy. */
#include "kernel_rows.h"

#include "epa2a/gemm.h"
#include "epa2a/quant.h"

static const char *const isas[] = {"scalar", "avx2", "avx512"};

enum {
    ISAS = LENGTH(isas),
    MOST = 64,          /* maximum of rows */
    HIDDEN = 7168,      /* maximum of channels */
    GUARD = 0x5a5a,     /* value behind the last channel */
    ROW = HIDDEN + 128, /* room for any start and for a check behind the end */
};

static const struct epa_kernels *set_of(uint32_t isa, bool f16)
{
    return epa_kernels_by_name(isas[isa], f16 ? EPA_F16 : EPA_BF16);
}

/* Arguments of a kernel: rows of words, or of FP8 codes if scales are given. */
struct call {
    bool f16;
    const void *row[MOST];
    const float *scale[MOST]; /* NULL: rows are words */
    float weight[MOST], factor;
    const float *x, *add;
    uint32_t n, hidden, group;
    enum epa_store store;
};

static float value_of(const struct call *c, uint32_t i, uint32_t h)
{
    if (c->scale[i] != NULL)
        return float_of_e4m3(((const uint8_t *)c->row[i])[h]) * c->scale[i][h / c->group];
    return float_of_word(c->f16, ((const uint16_t *)c->row[i])[h]);
}

static float sum_of(const struct call *c, uint32_t h)
{
    float acc = 0.0f;

    for (uint32_t i = 0; i < c->n; i++)
        acc = fmaf(c->weight[i], value_of(c, i, h), acc);
    return acc;
}

static void run_sum(const struct epa_kernels *set, const struct call *c, uint16_t *out)
{
    if (c->scale[0] != NULL)
        set->reduce_fp8((const uint8_t *const *)c->row, c->scale, c->weight, c->n, c->hidden,
                        c->group, c->store, out);
    else
        set->reduce((const uint16_t *const *)c->row, c->weight, c->n, c->hidden, c->store, out);
}

static float output_of(const struct call *c, uint32_t h)
{
    return value_of(c, 0, h) * c->factor;
}

static void run_output(const struct epa_kernels *set, const struct call *c, uint16_t *out)
{
    if (c->scale[0] != NULL)
        set->output_fp8(c->row[0], c->scale[0], c->hidden, c->group, c->factor, out);
    else
        set->output(c->row[0], c->hidden, c->factor, out);
}

static float rounded_of(const struct call *c, uint32_t h)
{
    return c->add != NULL ? c->x[h] + c->add[h] : c->x[h];
}

static void run_round(const struct epa_kernels *set, const struct call *c, uint16_t *out)
{
    set->round(c->x, c->add, c->hidden, out);
}

static const struct kernel {
    const char *name;
    void (*run)(const struct epa_kernels *set, const struct call *c, uint16_t *out);
    float (*want)(const struct call *c, uint32_t h);
} sum = {"sum", run_sum, sum_of}, output = {"output", run_output, output_of},
  rounding = {"round", run_round, rounded_of};

/* Checks that every set equals the definition (a NaN may have any payload) and stores nothing
 * behind the row. */
static void assert_kernel(const struct kernel *kernel, struct call *c)
{
    static uint16_t want[ROW], got[ROW];

    for (uint32_t h = 0; h < c->hidden; h++)
        want[h] = word_of_float(c->f16, kernel->want(c, h));
    for (uint32_t k = 0; k < 2 * ISAS; k++) {
        const struct epa_kernels *set = set_of(k / 2, c->f16);

        if (set == NULL)
            continue;
        c->store = k % 2 != 0 ? EPA_STORE_NONTEMPORAL : EPA_STORE_CACHED;
        for (uint32_t h = 0; h < ROW; h++)
            got[h] = GUARD;
        kernel->run(set, c, got);
        epa_store_drain();
        for (uint32_t h = 0; h < c->hidden; h++)
            if (got[h] != want[h] &&
                !(isnan(float_of_word(c->f16, got[h])) && isnan(float_of_word(c->f16, want[h]))))
                fail_msg("%s, %s, %s: %u of %u x %u, group %u is 0x%04x, not 0x%04x", kernel->name,
                         isas[k / 2], c->f16 ? "f16" : "bf16", h, c->n, c->hidden, c->group, got[h],
                         want[h]);
        for (uint32_t h = c->hidden; h < c->hidden + 64; h++)
            assert_int_equal(got[h], GUARD);
    }
}

/* Returns numbers near 1 of both signs, at times tiny, denormal or large; never NaN. */
static uint16_t random_word(bool f16, uint64_t *seed)
{
    uint64_t r = next_random(seed);
    uint32_t mantissa = f16 ? 10 : 7, exponents = f16 ? 31 : 255, near = f16 ? 8 : 120;
    uint32_t exponent = near + (uint32_t)(r >> 32) % 10;

    if (r >> 58 == 0)
        exponent = (uint32_t)(r >> 40) % exponents;
    return (uint16_t)((r & (0x8000u | ((1u << mantissa) - 1))) | exponent << mantissa);
}

static uint16_t word[MOST][ROW];
static float scale[MOST][HIDDEN];

/* Makes a call with random rows. group: size for FP8 codes, 0 for words. shift: offset of the first
 * row from an aligned address. */
static struct call call_of(bool f16, uint32_t n, uint32_t hidden, uint32_t group, uint32_t shift)
{
    struct call c = {
        .f16 = f16, .n = n, .hidden = hidden, .group = group != 0 ? group : 1, .factor = -0.3f};
    uint64_t seed = 4;

    for (uint32_t i = 0; i < MOST; i++) {
        for (uint32_t h = 0; i < n && h < hidden + 8; h++)
            word[i][h] = random_word(f16, &seed);
        for (uint32_t g = 0; i < n && g < hidden; g++)
            scale[i][g] = float_of_word(f16, random_word(f16, &seed)) * 1.01f;
        c.row[i] = group != 0 ? (void *)((uint8_t *)word[i] + shift + i % 3) : word[i] + shift;
        c.scale[i] = group != 0 ? scale[i] : NULL;
        c.weight[i] = (float)(next_random(&seed) >> 40) * 0x1p-24f - 0.25f;
    }
    return c;
}

static void assert_call(bool f16, uint32_t n, uint32_t hidden, uint32_t group, uint32_t shift)
{
    struct call c = call_of(f16, n, hidden, group, shift);

    assert_kernel(&sum, &c);
    c.factor = n % 2 != 0 ? expert_factor(n) * 1.37f : c.factor;
    if (n != 0)
        assert_kernel(&output, &c);
}

TEST(sums_and_outputs_are_right_for_any_number_of_rows)
{
    for (uint32_t n = 0; n <= MOST; n++) {
        for (int f16 = 0; f16 < 2; f16++) {
            assert_call(f16 != 0, n, n % 4 == 0 ? 2048 : 144, 0, 0);
            assert_call(f16 != 0, n, n % 4 == 0 ? 2048 : 256, 128, 0);
        }
    }
}

TEST(sums_and_outputs_are_right_for_any_width_group_and_place)
{
    static const uint32_t widths[] = {16,  32,  48,  64,  80,   96,   112,
                                      128, 144, 208, 256, 1008, 2048, 7168};
    static const uint32_t groups[] = {1,  3,  16,  17,  32,  40,  48,  64,
                                      80, 96, 100, 112, 128, 160, 256, 448};
    static const uint32_t ns[] = {1, 2, 3, 8, 9};

    for (uint32_t i = 0; i < 2 * LENGTH(ns); i++) {
        bool f16 = i % 2 != 0;
        uint32_t n = ns[i / 2];

        for (uint32_t w = 0; w < LENGTH(widths); w++)
            assert_call(f16, n, widths[w], 0, (w + n) % 8);
        for (uint32_t g = 0; g < LENGTH(groups); g++) {
            assert_call(f16, n, groups[g] * 16, groups[g], 0);
            assert_call(f16, n, groups[g], groups[g], g % 2);
        }
    }
}

TEST(nan_infinity_denormals_and_signs_of_zero_are_added_as_defined)
{
    static const uint16_t odds[2][12] = {
        {0x7fc0, 0xffc1, 0x7f80, 0xff80, 0x7f81, 1, 0x8001, 0x7f, 0x80, 0x8000, 0, 0x7f7f},
        {0x7e00, 0xfe01, 0x7c00, 0xfc00, 0x7c01, 1, 0x8001, 0x3ff, 0x400, 0x8000, 0, 0x7bff},
    };
    static const float odd_scales[] = {0x1p-149f, 0x1p-126f, 1.0f, 0x1.fffffep127f,
                                       0.0f,      INFINITY,  NAN,  -1.5f};
    static const float weights[] = {0.7f, 1.0f, 0.0f, -1.0f};

    for (uint32_t i = 0; i < 2 * LENGTH(weights); i++) {
        bool f16 = i % 2 != 0;
        struct call words = call_of(f16, 2, 144, 0, 0), codes;

        for (uint32_t h = 0; h < 144; h++) {
            word[0][h] = odds[f16][h % 12];
            word[1][h] = odds[f16][h / 12];
        }
        words.weight[0] = words.factor = weights[i / 2];
        assert_kernel(&sum, &words);
        assert_kernel(&output, &words);
        codes = call_of(f16, 2, 2048, 256, 0);
        for (uint32_t h = 0; h < 2048; h++) {
            ((uint8_t *)word[0])[h] = (uint8_t)h;
            scale[0][h / 256] = odd_scales[h / 256];
        }
        codes.weight[0] = codes.factor = weights[i / 2];
        assert_kernel(&sum, &codes);
        assert_kernel(&output, &codes);
    }
}

/* The roundings are those that quant.h documents; the inputs make any other order give another
 * word. */
TEST(products_are_rounded_as_defined)
{
    const float third = 1.0f / 3.0f, product = third * 1.0078125f, odd = 0x1.555556p0f;

    for (int f16 = 0; f16 < 2; f16++) {
        struct call c = call_of(f16 != 0, 2, 32, 0, 0);

        /* The sum needs the exact product (FMA); with a rounded product it is 0. */
        for (uint32_t h = 0; h < 32; h++) {
            word[0][h] = word_of_float(f16 != 0, -1.0f);
            word[1][h] = word_of_float(f16 != 0, 1.0078125f);
        }
        c.weight[0] = product;
        c.weight[1] = third;
        assert_true(sum_of(&c, 0) != 0);
        assert_kernel(&sum, &c);
        /* 3 * scale is not a float32. The bits cut off by its rounding must not reappear in the
         * sum. */
        c = call_of(f16 != 0, 2, 64, 64, 0);
        memset((void *)c.row[0], 0x38, 64);
        memset((void *)c.row[1], 0x44, 64);
        scale[0][0] = 3 * odd;
        scale[1][0] = odd;
        c.weight[0] = -1.0f;
        c.weight[1] = 1.0f;
        assert_true(sum_of(&c, 0) == 0);
        assert_kernel(&sum, &c);
        /* 1.5 times the least float32 rounds to twice that value; 1.5 times (scale * factor) would
         * not. */
        c = call_of(f16 != 0, 1, 112, 112, 0);
        memset((void *)c.row[0], 0x3c, 112);
        scale[0][0] = 0x1p-149f;
        c.factor = 0x1p127f;
        assert_kernel(&output, &c);
    }
}

TEST(round_adds_and_rounds)
{
    enum { N = 101 };
    uint64_t seed = 7;
    float x[N], add[N];

    for (uint32_t h = 0; h < N; h++) {
        x[h] = float_of_bits((uint32_t)next_random(&seed));
        add[h] = x[h] * (float)(h % 3) * 0x1p-9f;
    }
    x[5] = float_of_bits(0x3f808000u); /* halfway between two values of bf16 */
    x[6] = float_of_bits(0x3f801000u); /* halfway between two values of f16 */
    add[5] = add[6] = 0;
    for (uint32_t i = 0; i < 4; i++)
        assert_kernel(
            &rounding,
            &(struct call){.f16 = i % 2 != 0, .x = x, .add = i / 2 != 0 ? add : NULL, .hidden = N});
}

/* ---- quantisers ---- */

/* Runs one row of several groups through every set. x and q start at unaligned addresses; bytes
 * behind the row must stay unchanged. */
static void assert_quantised_row(bool f16, const uint16_t *x, uint32_t hidden, uint32_t group)
{
    uint32_t groups = hidden / group;
    uint8_t want[4096], got[4096 + 64];
    float want_scale[4096], got_scale[4096 + 1];

    for (uint32_t g = 0; g < groups; g++)
        want_scale[g] = e4m3_group_of(f16, x + g * group, group, want + g * group);
    for (uint32_t k = 0; k < ISAS; k++) {
        const struct epa_kernels *set = set_of(k, f16);

        if (set == NULL)
            continue;
        memset(got, 0xa5, sizeof(got));
        got_scale[groups] = -1.0f;
        set->quantise(x, hidden, group, x, got + 1, got_scale);
        for (uint32_t h = 0; h < hidden; h++)
            if (got[1 + h] != want[h])
                fail_msg("%s, group %u: x[%u] = 0x%04x, scale %a: 0x%02x, not 0x%02x", isas[k],
                         group, h, x[h], (double)want_scale[h / group], got[1 + h], want[h]);
        assert_memory_equal(got_scale, want_scale, groups * sizeof(float));
        assert_true(got_scale[groups] == -1.0f);
        assert_int_equal(got[0], 0xa5);
        for (uint32_t i = 1 + hidden; i < hidden + 64; i++)
            assert_int_equal(got[i], 0xa5);
    }
}

TEST(groups_of_any_size_are_quantised_exactly)
{
    static const uint32_t groups[] = {1,   2,   7,   15,  16,  17,  31,   32,  33,  48,
                                      63,  64,  65,  80,  96,  97,  100,  112, 127, 128,
                                      144, 192, 200, 256, 448, 512, 1000, 2048};
    static uint16_t row[1 + 4096];
    uint64_t seed = 3;

    for (size_t g = 0; g < 2 * LENGTH(groups); g++) {
        uint32_t group = groups[g / 2];

        for (uint32_t round = 0; round < 40; round++) {
            uint32_t hidden = group * (1 + round % (group > 1024 ? 2 : 4));
            uint16_t *x = row + round % 2;

            for (uint32_t h = 0; h < hidden; h++)
                x[h] = random_value(g % 2 != 0, &seed, round % 5);
            assert_quantised_row(g % 2 != 0, x, hidden, group);
        }
    }
}

/* Checks magnitudes from `first` to amax in steps of `step`, with both signs, in groups with this
 * amax. Each group also contains `other`. */
static void assert_quantised_amax(bool f16, uint32_t amax, uint32_t other, uint32_t first,
                                  uint32_t step)
{
    enum { GROUP = 128, GROUPS = 8 };
    static uint16_t row[1 + GROUP * GROUPS];
    uint16_t *x = row + 1;

    for (uint32_t value = first; value <= amax;) {
        for (uint32_t i = 0; i < GROUP * GROUPS; i++) {
            uint32_t v = value <= amax ? value : amax;

            x[i] = (uint16_t)(i % 2 != 0 ? v | 0x8000u : v);
            if (i % GROUP == 37)
                x[i] = (uint16_t)amax;
            else if (i % GROUP == 91)
                x[i] = (uint16_t)other;
            else
                value += step;
        }
        assert_quantised_row(f16, x, GROUP * GROUPS, GROUP);
    }
}

/* Without denormals the result depends on the mantissas and the distance in octaves only. The
 * ranges cover all values of some octaves under each mantissa of amax, and the values below them
 * that have no normal code. */
TEST(values_under_each_amax_are_quantised_exactly)
{
    static const struct {
        bool f16;
        uint32_t first, last, apart; /* range and step of amax */
        uint32_t below,
            step; /* below: distance of the smallest value from amax; step: distance between values */
    } ranges[] = {
        {false, 127 << 7, 128 << 7, 1, UINT32_MAX, 1}, /* every mantissa, every value below */
        {false, 22 << 7, 23 << 7, 1, UINT32_MAX, 13},
        {false, 254 << 7, 255 << 7, 1, UINT32_MAX, 13},
        {false, 0, 24 << 7, 33, UINT32_MAX, 1}, /* every exponent */
        {false, 24 << 7, 255 << 7, 33, UINT32_MAX, 11},
        {false, 0, 128, 1, UINT32_MAX, 1}, /* denormals */
        {true, 22 << 10, 23 << 10, 1, 2047, 1},
        {true, 0, 31 << 10, 61, UINT32_MAX, 7},
        {true, 0, 0x400, 3, UINT32_MAX, 1},
    };

    for (size_t i = 0; i < LENGTH(ranges); i++)
        for (uint32_t amax = ranges[i].first; amax < ranges[i].last; amax += ranges[i].apart)
            assert_quantised_amax(ranges[i].f16, amax, amax % 2 != 0 ? amax : 0x8000,
                                  amax > ranges[i].below ? amax - ranges[i].below : amax % 3,
                                  ranges[i].step);
}

TEST(nan_and_infinity_leave_the_scale_alone)
{
    static const uint16_t bf16_amaxes[] = {0,      1,      0x7f,   0x80,   0x0aff, 0x3f80,
                                           0x3f81, 0x3fff, 0x43e0, 0x7f00, 0x7f7f};
    static const uint16_t f16_amaxes[] = {0, 1, 0x3ff, 0x400, 0x3c00, 0x3c01, 0x7bff};
    static const uint16_t one[] = {0x3f80, 0x3c00}, half[] = {0xbf00, 0xb800};
    static const uint8_t want[] = {0x7e, 0x7e, 0xfe, 0x7f, 0xff, 0xf6 /* 0xf6 is -224 */};

    for (int f16 = 0; f16 < 2; f16++) {
        uint16_t infinity = f16 != 0 ? 0x7c00 : 0x7f80;
        uint16_t x[] = {one[f16], infinity, infinity | 0x8000, infinity | 0x40, 0xff81, half[f16]};
        const uint16_t others[] = {infinity, infinity | 0x8000, infinity | 1, 0xffff};
        uint8_t q[6];

        assert_true(e4m3_group_of(f16 != 0, x, 6, q) == 1.0f / 448.0f);
        assert_memory_equal(q, want, sizeof(want));
        for (size_t a = 0; a < (f16 != 0 ? LENGTH(f16_amaxes) : LENGTH(bf16_amaxes)); a++)
            for (size_t o = 0; o < LENGTH(others); o++)
                assert_quantised_amax(f16 != 0, f16 != 0 ? f16_amaxes[a] : bf16_amaxes[a],
                                      others[o], 0, 3);
        for (uint32_t nan = infinity; nan < 0x8000;
             nan++) /* each NaN, in a group without other numbers */
            assert_quantised_amax(f16 != 0, 0, nan, 0, 1);
    }
}

#ifdef __x86_64__
/* Linux lists a feature if the CPU has it and the system saves its registers. */
static bool has_flags(const char *names)
{
    char flags[8192] = "", name[32];
    FILE *f = fopen("/proc/cpuinfo", "r");
    bool all = true;
    int n;

    assert_non_null(f);
    while (fgets(flags, sizeof(flags), f) != NULL && strncmp(flags, "flags", 5) != 0)
        ;
    fclose(f);
    *strchrnul(flags, '\n') = ' ';
    for (; sscanf(names, "%30s%n", name + 1, &n) == 1; names += n) {
        name[0] = ' ';
        strcat(name, " ");
        all = all && strstr(flags, name) != NULL;
    }
    return all;
}

TEST(sets_are_those_of_the_flags_of_the_cpu)
{
    static const char avx2[] = "avx2 fma f16c",
                      avx512[] = "avx512f avx512bw avx512dq avx512vl avx512vbmi";
    bool has_avx512 = has_flags(avx2) && has_flags(avx512);

    assert_int_equal(epa_kernels_by_name("avx2", EPA_BF16) != NULL, has_flags(avx2));
    assert_int_equal(epa_kernels_by_name("avx512", EPA_BF16) != NULL, has_avx512);
    assert_int_equal(epa_gemm_by_name("avx512_bf16", EPA_BF16) != NULL,
                     has_avx512 && has_flags("avx512_bf16"));
    assert_int_equal(epa_gemm_by_name("avx512_vnni", EPA_INT8) != NULL,
                     has_avx512 && has_flags("avx512_vnni"));
}
#endif
