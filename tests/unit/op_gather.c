/* Tests of the checks of allgather and ag_gemm: they name the first wrong byte or element, with a
 * resolution of one bit for integers and of the rounding error for random values. tests/contract
 * and tests/mutants show that they pass correct results and find errors of algorithms. */
#include "test.h"

#include "base/dtype.h"
#include "fake_backend.h"
#include "op/op.h"

enum { RANKS = 3, ME = 1, ITERATION = 6, CONTROL = 8, ROW_BYTES = 48 };
enum { N = 133, K = 264 };
enum { ROWS = 27 }; /* sum of counts */

static const uint32_t counts[RANKS] = {7, 0, 20};

struct fixture {
    const struct operation *op;
    struct problem_params x;
    struct epa_backend backend;
    struct op_rank *rank[RANKS];
    char gathered[ROWS * ROW_BYTES];
};

static struct epa_problem *problem_of(const struct fixture *f, uint32_t rank)
{
    return &f->rank[rank]->slot[0].problem;
}

static void open_fixture(struct fixture *f, const struct operation *op, struct gemm_options gemm)
{
    struct epa_footprint footprint = {.in_flight = 1};

    if (op == &op_allgather)
        footprint.u.allgather.control_bytes = CONTROL;
    else
        footprint.u.ag_gemm.row_bytes = 100;
    *f = (struct fixture){.op = op,
                          .x = {.ranks = RANKS,
                                .seed = 9,
                                .tokens = {.kind = TOKENS_LIST, .per_rank = {counts, RANKS}},
                                .allgather = {.max_rows = 20, .row_bytes = ROW_BYTES},
                                .gemm = gemm},
                          .backend = {.ops = &host_ops, .memory = EPA_MEMORY_HOST}};
    for (uint32_t r = 0; r < RANKS; r++) {
        struct epa_world world = {.rank = r, .size = RANKS};
        struct op_params params = {.problem = &f->x,
                                   .world = &world,
                                   .footprint = &footprint,
                                   .backend = &f->backend,
                                   .slots = 1};

        assert_int_equal(op_create(op, &params, &f->rank[r], NULL), EPA_OK);
        assert_int_equal(op_inputs(f->rank[r], 0, ITERATION), EPA_OK);
    }
}

static void close_fixture(struct fixture *f)
{
    for (uint32_t r = 0; r < RANKS; r++)
        op_destroy(f->rank[r]);
}

/* Checks the result against `words`, and returns the number of wrong elements. */
static uint64_t wrong_of(struct fixture *f, uint64_t elements, const char *words)
{
    uint64_t compared = 0, wrong = 0;

    assert_status(op_check(f->rank[ME], EPA_STAGE_WHOLE, 0, &compared, &wrong, test_error()),
                  words[0] == '\0' ? EPA_OK : EPA_ERR_MISMATCH, words);
    assert_int_equal(compared, elements);
    return wrong;
}

TEST(a_byte_that_was_not_gathered_is_named)
{
    struct fixture f;
    char *to = f.gathered;

    open_fixture(&f, &op_allgather, (struct gemm_options){.m = 1});
    for (uint32_t r = 0; r < RANKS; r++) {
        memcpy(to, problem_of(&f, r)->u.allgather.in, counts[r] * ROW_BYTES);
        to += counts[r] * ROW_BYTES;
    }
    problem_of(&f, ME)->u.allgather.out = f.gathered;
    assert_int_equal(wrong_of(&f, sizeof(f.gathered), ""), 0);
    f.gathered[8 * ROW_BYTES + 7] ^= 0x10;
    assert_int_equal(wrong_of(&f, sizeof(f.gathered),
                              "rank 1, iteration 6, allgather: byte 7 of row 1 of rank 2 is 0x"),
                     1);
    problem_of(&f, ME)->u.allgather.out = NULL;
    (void)wrong_of(&f, 0, "no output");
    close_fixture(&f);
}

static float element(int dtype, const void *of, size_t i)
{
    return dtype == EPA_FP8_E4M3 ? float_of_e4m3(((const uint8_t *)of)[i])
                                 : float_of_word(dtype == EPA_F16, ((const uint16_t *)of)[i]);
}

static float *elements_of(enum epa_dtype dtype, const void *from, size_t n)
{
    float *out = malloc(n * sizeof(*out));

    assert_non_null(out);
    for (size_t i = 0; i < n; i++)
        out[i] = element(dtype, from, i);
    return out;
}

/* Adds in float32 with descending k, an order that no kernel uses. */
static float product(const struct epa_ag_gemm *g, const float *a, const float *a_scale,
                     const float *b, const float *b_scale)
{
    float sum = 0;

    for (uint32_t group = epa_ag_gemm_groups(g->k); group-- > 0;) {
        uint32_t end = g->k < group * 128 + 128 ? g->k : group * 128 + 128;
        float p = 0;

        for (uint32_t i = end; i-- > group * 128;)
            p += a[i] * b[i];
        if (g->dtype == EPA_FP8_E4M3)
            p *= a_scale[group] * b_scale[group];
        sum += p;
    }
    return sum;
}

/* Returns the product of ME in float32: [ROWS][n]. */
static float *products_of(struct fixture *f)
{
    const struct epa_ag_gemm *g = &problem_of(f, ME)->u.ag_gemm;
    const uint32_t groups = epa_ag_gemm_groups(g->k);
    const bool fp8 = g->dtype == EPA_FP8_E4M3;
    float *b = elements_of(g->dtype, g->b, (size_t)g->n * g->k);
    float *products = malloc((size_t)ROWS * g->n * sizeof(*products)), *c = products;

    assert_non_null(products);
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct epa_ag_gemm *source = &problem_of(f, r)->u.ag_gemm;
        float *a = elements_of(g->dtype, source->a, (size_t)counts[r] * g->k);

        for (uint32_t i = 0; i < counts[r]; i++)
            for (uint32_t j = 0; j < g->n; j++)
                *c++ = product(g, a + (size_t)i * g->k, fp8 ? source->a_scale + i * groups : NULL,
                               b + (size_t)j * g->k, fp8 ? g->b_scale + j / 128 * groups : NULL) +
                       g->bias_of[j];
        free(a);
    }
    free(b);
    return products;
}

static void multiply(struct fixture *f)
{
    struct epa_ag_gemm *g = &problem_of(f, ME)->u.ag_gemm;
    float *products = products_of(f);
    uint16_t *c = g->c;

    for (size_t i = 0; i < (size_t)ROWS * g->n; i++)
        c[i] = word_of_float(g->dtype == EPA_F16, products[i]);
    free(products);
}

static uint16_t *c_at(struct fixture *f, uint32_t row, uint32_t column)
{
    struct epa_ag_gemm *g = &problem_of(f, ME)->u.ag_gemm;

    return (uint16_t *)g->c + (size_t)row * g->n + column;
}

/* A product of ME with one changed element, and the message. The product 515 x 1032 is too large to
 * compare each element. For random values the mask exceeds the two lowest bits, which rounding may
 * change. */
TEST(an_element_that_is_wrong_is_named)
{
    static const struct {
        enum epa_dtype dtype;
        int values;
        uint32_t n, k, row, column;
        uint16_t mask;
        const char *said;
    } c[] = {
        {EPA_BF16, GEMM_INTEGERS, N, K, 7, 132, 1,
         "rank 1, iteration 6, ag_gemm: row 7 (row 0 of rank 2): column 132 is"},
        {EPA_F16, GEMM_INTEGERS, N, K, 7, 132, 1, "row 7 (row 0 of rank 2): column 132 is"},
        {EPA_FP8_E4M3, GEMM_INTEGERS, N, K, 7, 132, 1, "row 7 (row 0 of rank 2): column 132 is"},
        {EPA_BF16, GEMM_RANDOM, N, K, 3, 5, 8, "column 5 is"},
        {EPA_F16, GEMM_RANDOM, N, K, 3, 5, 0x7c00, "column 5 is"},
        {EPA_BF16, GEMM_RANDOM, 515, 1032, 9, 514, 0x8000, "row 9 (row 2 of rank 2): columns"},
        {EPA_F16, GEMM_RANDOM, 515, 1032, 9, 514, 0x8000, "row 9 (row 2 of rank 2): columns"},
        {EPA_FP8_E4M3, GEMM_RANDOM, 515, 1032, 9, 514, 0x8000, "row 9 (row 2 of rank 2): columns"},
    };

    for (size_t i = 0; i < LENGTH(c); i++) {
        struct fixture f;

        open_fixture(&f, &op_ag_gemm,
                     (struct gemm_options){60, RANKS * c[i].n, c[i].k, c[i].dtype, .bias = true,
                                           .values = c[i].values});
        multiply(&f);
        assert_int_equal(wrong_of(&f, ROWS * c[i].n, ""), 0);
        *c_at(&f, c[i].row, c[i].column) ^= c[i].mask;
        assert_int_equal(wrong_of(&f, ROWS * c[i].n, c[i].said), 1);
        close_fixture(&f);
    }
}

/* Stores the product of ME as codes and scales of groups of 128 columns. */
static void quantise_products(struct fixture *f, const float *products)
{
    struct epa_ag_gemm *g = &problem_of(f, ME)->u.ag_gemm;
    uint8_t *c = g->c;
    float *scale = g->c_scale;

    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t first = 0; first < g->n; first += 128) {
            const float *v = products + (size_t)row * g->n + first;
            uint32_t n = g->n - first < 128 ? g->n - first : 128;
            float amax = 0;

            for (uint32_t j = 0; j < n; j++)
                amax = fmaxf(amax, fabsf(v[j]));
            *scale = amax > 0 ? amax * (1.0f / 448.0f) : 1;
            for (uint32_t j = 0; j < n; j++)
                *c++ = e4m3_of_float(v[j] / *scale);
            scale++;
        }
}

/* C in FP8 with a changed code, with a changed scale, and with codes for twice the scale. */
TEST(a_code_or_scale_that_is_wrong_is_named)
{
    static const struct {
        enum epa_dtype dtype;
        int values;
        uint32_t n, k;
        const char *code_said, *scale_said;
    } c[] = {
        {EPA_BF16, GEMM_INTEGERS, N, K, "column 131 is", "the scale of columns 128 to 132 is"},
        {EPA_FP8_E4M3, GEMM_INTEGERS, N, K, "column 131 is", "the scale of columns 128 to 132 is"},
        {EPA_F16, GEMM_RANDOM, N, K, "column 131 is", "columns 128 to 132 have the scale"},
        {EPA_FP8_E4M3, GEMM_RANDOM, 515, 1032, "columns", "columns 128 to 255 have the scale"},
    };

    for (size_t i = 0; i < LENGTH(c); i++) {
        struct epa_ag_gemm *g;
        struct fixture f;
        float *products;

        open_fixture(&f, &op_ag_gemm,
                     (struct gemm_options){60, RANKS * c[i].n, c[i].k, c[i].dtype, .bias = true,
                                           .values = c[i].values, .out_dtype = EPA_FP8_E4M3});
        g = &problem_of(&f, ME)->u.ag_gemm;
        products = products_of(&f);
        quantise_products(&f, products);
        assert_int_equal(wrong_of(&f, ROWS * c[i].n, ""), 0);
        /* One negative code, or in a sum of columns, whose bound is wide, all of a group. */
        for (uint32_t j = 131; j < (c[i].n == N ? 132 : 256); j++)
            ((uint8_t *)g->c)[7 * g->n + j] ^= 0x80;
        assert_true(wrong_of(&f, ROWS * c[i].n, c[i].code_said) > 0);
        quantise_products(&f, products);
        for (uint32_t j = 128; j < 256 && j < g->n; j++) { /* codes of half the size */
            uint8_t *code = (uint8_t *)g->c + 7 * g->n + j;

            *code = e4m3_of_float(float_of_e4m3(*code) / 2);
        }
        g->c_scale[7 * epa_ag_gemm_groups(g->n) + 1] *= 2;
        assert_true(wrong_of(&f, ROWS * c[i].n, c[i].scale_said) > 0);
        quantise_products(&f, products);
        g->c_scale[ROWS * epa_ag_gemm_groups(g->n)] = 1;
        assert_int_equal(wrong_of(&f, ROWS * c[i].n, "the scale of group 0 behind the last row"),
                         1);
        free(products);
        close_fixture(&f);
    }
}

TEST(unwritten_elements_and_writes_behind_the_last_row_are_found)
{
    struct fixture f;

    open_fixture(&f, &op_ag_gemm,
                 (struct gemm_options){60, RANKS * N, K, EPA_BF16, .values = GEMM_INTEGERS});
    assert_int_equal(wrong_of(&f, ROWS * N, "column 0 is"), ROWS * N);
    multiply(&f);
    *c_at(&f, ROWS, 4) = 0;
    assert_int_equal(wrong_of(&f, ROWS * N, "column 4 behind the last row (27 rows)"), 1);
    close_fixture(&f);
}

static enum epa_status device_peaks(struct epa_backend *b, enum epa_dtype dtype, double *flops,
                                    double *bytes)
{
    *flops = dtype == EPA_F16 ? 700 : 1;
    *bytes = 3;
    return EPA_OK;
}

/* Runs three workers, one after the other. */
static enum epa_status parallel_by_three(struct epa_backend *b,
                                         void (*fn)(void *arg, uint32_t worker, uint32_t workers),
                                         void *arg)
{
    for (uint32_t worker = 0; worker < 3; worker++)
        fn(arg, worker, 3);
    return EPA_OK;
}

static struct op_peaks peaks_by(struct fixture *f, uint32_t memory,
                                const struct epa_backend_ops *ops)
{
    struct op_peaks peaks = {0, 0};

    f->backend.memory = memory;
    f->backend.ops = ops;
    assert_int_equal(f->op->measure(f->rank[ME], &peaks, NULL), EPA_OK);
    f->backend.memory = EPA_MEMORY_HOST;
    f->backend.ops = &host_ops;
    return peaks;
}

/* The peak of a device is the value of its backend; the peak of a host is the sum over its workers.
 * The measurement is repeated, since other load may take the cores. */
TEST(a_peak_is_that_of_the_device_or_of_all_workers)
{
    const struct epa_backend_ops device = {.peaks = device_peaks}, silent = {.peaks = NULL};
    const struct epa_backend_ops three = {.parallel = parallel_by_three};
    struct op_peaks one = {0, 0}, all = {0, 0}, none;
    struct fixture f;

    open_fixture(&f, &op_ag_gemm,
                 (struct gemm_options){60, RANKS * N, K, EPA_F16, .values = GEMM_INTEGERS});
    all = peaks_by(&f, EPA_MEMORY_CUDA, &device);
    assert_true(all.flops_per_ns == 700 && all.bytes_per_ns == 3);
    none = peaks_by(&f, EPA_MEMORY_CUDA, &silent);
    assert_true(none.flops_per_ns == 0 && none.bytes_per_ns == 0);
    all = none;
    for (uint32_t try = 0; try < 20 && (try == 0 || all.flops_per_ns < 2 * one.flops_per_ns ||
                                        all.bytes_per_ns < 2 * one.bytes_per_ns);
         try++) {
        one = peaks_by(&f, EPA_MEMORY_HOST, &host_ops);
        all = peaks_by(&f, EPA_MEMORY_HOST, &three);
    }
    assert_true(all.bytes_per_ns > 0 && all.bytes_per_ns >= 2 * one.bytes_per_ns);
    assert_true(all.flops_per_ns >= 2 * one.flops_per_ns);
    close_fixture(&f);
}
