/* The operation ag_gemm: its check finds each way to be wrong, with integers to the bit, with
 * random values beyond what rounding explains; a right product passes, however it was added up. */

#include "test.h"

#include "base/dtype.h"
#include "op/op.h"

enum { RANKS = 3, ME = 1, ITERATION = 6, CONTROL = 8, M = 60 };

static enum epa_status take(struct epa_backend *b, size_t bytes, void **out)
{
    (void)b;
    *out = malloc(bytes);
    return *out != NULL ? EPA_OK : EPA_ERR_NOMEM;
}

static void give_back(struct epa_backend *b, void *memory)
{
    (void)b;
    free(memory);
}

static enum epa_status fill(struct epa_backend *b, void *to, int byte, size_t bytes)
{
    (void)b;
    memset(to, byte, bytes);
    return EPA_OK;
}

static const struct epa_backend_ops ops = {.alloc = take, .free = give_back, .fill = fill};
static const uint32_t counts[RANKS] = {7, 0, 20};

struct fixture {
    struct experiment x;
    struct epa_backend backend;
    struct op_rank *rank[RANKS];
};

static struct epa_ag_gemm *problem_of(const struct fixture *f, uint32_t rank)
{
    return &op_ag_gemm.problem(f->rank[rank], 0)->u.ag_gemm;
}

static void make_inputs(struct fixture *f, uint64_t iteration)
{
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(op_ag_gemm.inputs(f->rank[r], 0, iteration), EPA_OK);
}

static void open_fixture(struct fixture *f, int dtype, int values, uint32_t n, uint32_t k)
{
    struct epa_footprint footprint = {.u.ag_gemm = {.row_bytes = 100, .control_bytes = CONTROL}};
    struct epa_error err = {EPA_OK, ""};

    *f = (struct fixture){.x = {.ranks = RANKS,
                                .seed = 9,
                                .tokens = {.kind = TOKENS_LIST, .per_rank = {counts, RANKS}},
                                .gemm = {M, RANKS * n, k, dtype, .bias = true, .values = values}},
                          .backend = {.ops = &ops, .memory = EPA_MEMORY_HOST}};
    for (uint32_t r = 0; r < RANKS; r++) {
        struct epa_world world = {.rank = r, .size = RANKS};
        struct op_params params = {.x = &f->x,
                                   .world = &world,
                                   .footprint = &footprint,
                                   .backend = &f->backend,
                                   .slots = 1};

        assert_int_equal(op_ag_gemm.create(&params, &f->rank[r], &err), EPA_OK);
    }
    make_inputs(f, ITERATION);
}

static void close_fixture(struct fixture *f)
{
    for (uint32_t r = 0; r < RANKS; r++)
        op_ag_gemm.destroy(f->rank[r]);
}

static float element(int dtype, const void *of, size_t i)
{
    return dtype == EPA_FP8_E4M3 ? float_of_e4m3(((const uint8_t *)of)[i])
                                 : float_of_word(dtype == EPA_F16, ((const uint16_t *)of)[i]);
}

/* In float32, k descending: an order that no kernel has. */
static float product(const struct epa_ag_gemm *g, const struct epa_ag_gemm *source, uint32_t row,
                     uint32_t column)
{
    uint32_t groups = epa_ag_gemm_groups(g->k);
    float sum = 0;

    for (uint32_t group = groups; group-- > 0;) {
        uint32_t end = g->k < group * 128 + 128 ? g->k : group * 128 + 128;
        float p = 0;

        for (uint32_t i = end; i-- > group * 128;)
            p += element(g->dtype, source->a, (size_t)row * g->k + i) *
                 element(g->dtype, g->b, (size_t)column * g->k + i);
        if (g->dtype == EPA_FP8_E4M3)
            p *= source->a_scale[row * groups + group] * g->b_scale[column / 128 * groups + group];
        sum += p;
    }
    return sum + g->bias_of[column];
}

static void multiply(struct fixture *f)
{
    struct epa_ag_gemm *g = problem_of(f, ME);
    bool f16 = g->dtype == EPA_F16;
    uint16_t *c = g->c;

    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t i = 0; i < counts[r]; i++)
            for (uint32_t j = 0; j < g->n; j++)
                *c++ = word_of_float(f16, product(g, problem_of(f, r), i, j));
}

/* Checks; how many are wrong, and what is said of the first. */
static uint64_t wrong_elements(struct fixture *f, const char *words)
{
    struct epa_error err = {EPA_OK, ""};
    uint64_t compared = 0, wrong = 0;
    enum epa_status status =
        op_ag_gemm.check(f->rank[ME], EPA_STAGE_WHOLE, 0, &compared, &wrong, &err);

    assert_int_equal(status, words == NULL ? EPA_OK : EPA_ERR_MISMATCH);
    assert_int_equal(compared, 27 * problem_of(f, ME)->n);
    if (words != NULL && strstr(err.text, words) == NULL)
        fail_msg("'%s' is not in '%s'", words, err.text);
    return wrong;
}

static uint16_t *c_at(struct fixture *f, uint32_t row, uint32_t column)
{
    struct epa_ag_gemm *g = problem_of(f, ME);

    return (uint16_t *)g->c + (size_t)row * g->n + column;
}

static const int dtypes[] = {EPA_BF16, EPA_F16, EPA_FP8_E4M3};

TEST(a_right_product_passes)
{
    for (int values = GEMM_INTEGERS; values <= GEMM_RANDOM; values++)
        for (uint32_t i = 0; i < 3; i++) {
            struct fixture f;

            open_fixture(&f, dtypes[i], values, 133, 264);
            multiply(&f);
            assert_int_equal(wrong_elements(&f, NULL), 0);
            close_fixture(&f);
        }
}

TEST(a_large_right_product_passes)
{
    for (uint32_t i = 0; i < 3; i++) {
        struct fixture f;

        open_fixture(&f, dtypes[i], GEMM_RANDOM, 515, 1032); /* too much to compare each element */
        multiply(&f);
        assert_int_equal(wrong_elements(&f, NULL), 0);
        *c_at(&f, 9, 514) ^= 0x8000; /* the sign */
        assert_int_equal(wrong_elements(&f, "row 9 (row 2 of rank 2): columns"), 1);
        close_fixture(&f);
    }
}

TEST(one_bit_of_an_integer_is_found)
{
    for (uint32_t i = 0; i < 3; i++) {
        struct fixture f;

        open_fixture(&f, dtypes[i], GEMM_INTEGERS, 133, 264);
        multiply(&f);
        *c_at(&f, 7, 132) ^= 1;
        assert_int_equal(wrong_elements(&f, "rank 1, iteration 6, ag_gemm: row 7 (row 0 of rank "
                                            "2): column 132 is"),
                         1);
        close_fixture(&f);
    }
}

/* Of the three last places, two are rounding's, and of sums in float32. */
TEST(a_random_value_that_is_off_is_found)
{
    struct fixture f;

    open_fixture(&f, EPA_BF16, GEMM_RANDOM, 133, 264);
    multiply(&f);
    *c_at(&f, 3, 5) ^= 8;
    assert_int_equal(wrong_elements(&f, "column 5 is"), 1);
    *c_at(&f, 3, 5) = 0x7f80; /* infinity is within no bound */
    assert_int_equal(wrong_elements(&f, "column 5 is inf"), 1);
    close_fixture(&f);
}

/* What a tile computes with rows of the call before, or of another rank. */
TEST(rows_of_another_call_are_found)
{
    for (int values = GEMM_INTEGERS; values <= GEMM_RANDOM; values++) {
        struct fixture f;
        uint16_t stale[133];

        open_fixture(&f, EPA_BF16, values, 133, 264);
        multiply(&f);
        memcpy(stale, c_at(&f, 12, 0), sizeof(stale));
        make_inputs(&f, ITERATION + 1);
        multiply(&f);
        memcpy(c_at(&f, 12, 0), stale, sizeof(stale));
        assert_true(wrong_elements(&f, "row 12 (row 5 of rank 2)") > 66);
        close_fixture(&f);
    }
}

TEST(what_was_not_written_is_found)
{
    struct fixture f;

    open_fixture(&f, EPA_BF16, GEMM_INTEGERS, 133, 264);
    assert_int_equal(wrong_elements(&f, "column 0 is"), 27 * 133);
    multiply(&f);
    *c_at(&f, 27, 4) = 0;
    assert_int_equal(wrong_elements(&f, "column 4 behind the last row (27 rows)"), 1);
    close_fixture(&f);
}

static struct op_bytes traffic_of(const struct fixture *f, uint32_t rank)
{
    struct op_traffic sum = {.flops = 0};

    op_ag_gemm.traffic(f->rank[rank], 0, &sum);
    return sum.phase[0];
}

TEST(rows_are_sent_to_all_others)
{
    struct fixture f;
    struct op_bytes t;

    open_fixture(&f, EPA_BF16, GEMM_INTEGERS, 133, 264);
    t = traffic_of(&f, 2);
    assert_int_equal(t.needed, 7 * 528);
    assert_int_equal(t.sent, 2 * 20 * 100 + 2 * CONTROL);
    assert_int_equal(t.received, 7 * 100 + 2 * CONTROL);
    assert_int_equal(t.least, 20 * 528);
    close_fixture(&f);
}

/* To the rank of the same place of the other node; and on to its own node what came from there. */
TEST(rows_are_sent_in_two_levels)
{
    static const uint32_t node[] = {0, 0, 1, 1}, rows[] = {1, 2, 4, 8};
    struct experiment x = {.ranks = 4,
                           .tokens = {.kind = TOKENS_LIST, .per_rank = {rows, 4}},
                           .gemm = {15, 16, 8, EPA_BF16}};
    struct epa_world world = {.rank = 2, .size = 4, .node = node};
    struct epa_footprint footprint = {.u.ag_gemm = {.row_bytes = 100, .two_level = true}};
    struct epa_backend backend = {.ops = &ops, .memory = EPA_MEMORY_HOST};
    struct epa_error err = {EPA_OK, ""};
    struct op_params params = {
        .x = &x, .world = &world, .footprint = &footprint, .backend = &backend, .slots = 1};
    struct fixture f;

    assert_int_equal(op_ag_gemm.create(&params, &f.rank[2], &err), EPA_OK);
    assert_int_equal(op_ag_gemm.inputs(f.rank[2], 0, 0), EPA_OK);
    assert_int_equal(traffic_of(&f, 2).sent, (4 + 4 + 1) * 100);
    op_ag_gemm.destroy(f.rank[2]);
}
