/* Tests of op_moe without an algorithm: inputs that are hard for numerics, refused configurations,
 * planned memory, and the reference of the contest with its tolerances. tests/cli/harms.case,
 * thorough.py and tests/mutants cover the reports of verify for errors of algorithms. */
#include "test.h"

#include <math.h>

#include "base/dtype.h"
#include "fake_backend.h"
#include "op/moe/inputs.h"

enum { RANKS = 3, TOKENS = 6, EXPERTS = 6, TOPK = 3, HIDDEN = 64, GROUP = 32 };
enum { LOCAL = EXPERTS / RANKS, ROWS = LOCAL * RANKS * TOKENS };

struct world {
    struct problem_params x;
    struct op_oracle oracle;
    struct epa_footprint footprint;
    struct epa_backend backend;
    struct op_rank *op[RANKS];
    struct epa_moe *moe[RANKS];
};

static struct world made(enum epa_layout layout, enum epa_dtype wire)
{
    return (struct world){
        .x = {.ranks = RANKS,
              .seed = 5,
              .moe = {.max_tokens = TOKENS,
                      .hidden = HIDDEN,
                      .experts = EXPERTS,
                      .topk = TOPK,
                      .fp8_group_size = GROUP,
                      .dtype = EPA_BF16},
              .routing = {.kind = ROUTING_UNIFORM, .layer = UINT32_MAX}},
        .footprint = {.u.moe.recv_rows = ROWS,
                      .u.moe.recv_entries = ROWS,
                      .u.moe.layout = layout,
                      .u.moe.recv_dtype = wire,
                      .u.moe.sum = EPA_SUM_ORDERED,
                      .u.moe.output_dtype = EPA_BF16,
                      .in_flight = 2,
                      .u.moe.dispatch_row_bytes = HIDDEN * 2,
                      .u.moe.dispatch_token_bytes = wire == EPA_BF16 ? 2 * HIDDEN : HIDDEN,
                      .u.moe.combine_row_bytes = 2 * HIDDEN + 16,
                      .u.moe.combine_token_bytes = 2 * HIDDEN,
                      .u.moe.control_bytes = 100},
        .backend = {.ops = &host_ops, .memory = EPA_MEMORY_HOST, .device = -1},
    };
}

static enum epa_status try_open(struct world *w)
{
    enum epa_status status = EPA_OK;
    struct epa_error *err = test_error();

    for (uint32_t r = 0; r < RANKS && status == EPA_OK; r++) {
        struct epa_world world = {.rank = r, .size = RANKS};

        status = op_create(&op_moe,
                           &(struct op_params){.problem = &w->x,
                                               .world = &world,
                                               .footprint = &w->footprint,
                                               .backend = &w->backend,
                                               .backend_name = "host",
                                               .slots = 1,
                                               .oracle = w->oracle},
                           &w->op[r], err);
    }
    return status;
}

static void open_world(struct world *w)
{
    assert_status(try_open(w), EPA_OK, "");
}

static void close_world(struct world *w)
{
    for (uint32_t r = 0; r < RANKS; r++)
        op_destroy(w->op[r]);
}

static void make_inputs(struct world *w, uint64_t iteration)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(op_inputs(w->op[r], 0, iteration), EPA_OK);
        w->moe[r] = &w->op[r]->slot[0].problem.u.moe;
    }
}

static uint16_t *out_of(const struct world *w, uint32_t rank)
{
    return w->moe[rank]->out;
}

/* Returns the number of wrong elements in the outputs of all ranks. */
static uint64_t wrong_of(struct world *w, struct epa_error *err)
{
    uint64_t wrong = 0, compared = 0;

    for (uint32_t r = 0; r < RANKS; r++) {
        uint64_t before = wrong;
        enum epa_status status = op_check(w->op[r], EPA_STAGE_COMBINE, 0, &compared, &wrong, err);

        assert_int_equal(status, wrong == before ? EPA_OK : EPA_ERR_MISMATCH);
    }
    assert_int_equal(compared, RANKS * TOKENS * HIDDEN);
    return wrong;
}

/* Hard values are zeros, denormals and outliers; in f16 outliers have the largest exponent. */
TEST(hard_values_are_planted_on_demand)
{
    for (uint32_t i = 0; i < 4; i++) {
        struct world w = made(EPA_LAYOUT_EXPERT, i / 2 != 0 ? EPA_F16 : EPA_BF16);
        uint32_t denormals = 0, zero_groups = 0, outliers = 0, hard = i % 2;
        bool f16 = i / 2 != 0;

        w.x.moe.dtype = w.footprint.u.moe.output_dtype = f16 ? EPA_F16 : EPA_BF16;
        open_world(&w);
        for (uint32_t r = 0; r < RANKS; r++)
            w.op[r]->oracle.hard_values = w.op[r]->oracle.signed_weights = hard;
        for (uint64_t iteration = 0; iteration < 50; iteration++) {
            uint32_t zeros = 0;

            make_inputs(&w, iteration);
            for (uint32_t h = 0; h < TOKENS * HIDDEN; h++) {
                uint16_t a = ((const uint16_t *)w.moe[0]->x)[h] & 0x7fff;

                assert_true(a < (f16 ? 0x7c00 : 0x7f80));
                zeros = h % GROUP == 0 ? 0 : zeros;
                zeros += a == 0;
                zero_groups += zeros == GROUP;
                denormals += a != 0 && a < (f16 ? 0x400 : 0x80);
                outliers += fabsf(float_of_word(f16, a)) > (f16 ? 32767 : 3);
            }
        }
        assert_int_equal(zero_groups > 0, hard);
        assert_int_equal(denormals > (f16 ? 20 : 0), hard);
        assert_int_equal(outliers > 0, hard);
        close_world(&w);
    }
}

TEST(configurations_without_a_check_are_refused)
{
    static const struct {
        enum epa_layout layout;
        enum epa_dtype wire, output, dtype;
        uint32_t group;
        bool fp8_input, fused;
        enum epa_status status;
        const char *said;
    } c[] = {
        {EPA_LAYOUT_EXPERT, EPA_BF16, EPA_BF16, EPA_BF16, GROUP, true, false, EPA_ERR_CONFIG,
         "moe.input_dtype is fp8, the algorithm delivers bf16 rows .. moe.input_dtype: native"},
        {EPA_LAYOUT_EXPERT, EPA_FP8_E4M3, EPA_BF16, EPA_BF16, 48, false, false, EPA_ERR_CONFIG,
         "moe.hidden (64) .. moe.fp8_group_size (48)"},
        {EPA_LAYOUT_EXPERT, EPA_BF16, EPA_FP8_E4M3, EPA_BF16, 48, false, false, EPA_ERR_CONFIG,
         "moe.hidden (64) .. moe.fp8_group_size (48)"},
        {EPA_LAYOUT_EXPERT, EPA_F32, EPA_BF16, EPA_BF16, GROUP, false, false, EPA_ERR_UNSUPPORTED,
         "rows .. neither bf16 .. nor FP8"},
        {EPA_LAYOUT_EXPERT, EPA_BF16, EPA_BF16, EPA_F16, GROUP, false, false, EPA_ERR_UNSUPPORTED,
         "rows .. neither f16 .. nor FP8"},
        {EPA_LAYOUT_EXPERT, EPA_BF16, EPA_F32, EPA_BF16, GROUP, false, false, EPA_ERR_UNSUPPORTED,
         "expert outputs .. neither bf16 .. nor FP8"},
        {EPA_LAYOUT_EXPERT, EPA_BF16, EPA_BF16, EPA_F32, GROUP, false, false, EPA_ERR_UNSUPPORTED,
         "moe.dtype .. bf16 and f16"},
        {EPA_LAYOUT_RANK, EPA_BF16, EPA_BF16, EPA_BF16, GROUP, false, true, EPA_ERR_UNSUPPORTED,
         "layout rank .. layout expert"},
    };

    for (size_t i = 0; i < LENGTH(c); i++) {
        struct world w = made(c[i].layout, c[i].wire);

        w.footprint.u.moe.output_dtype = c[i].output;
        w.footprint.u.moe.fused = c[i].fused;
        w.x.moe.dtype = c[i].dtype;
        w.x.moe.fp8_group_size = c[i].group;
        w.x.moe.input_dtype = c[i].fp8_input ? MOE_INPUT_FP8 : MOE_INPUT_NATIVE;
        assert_status(try_open(&w), c[i].status, c[i].said);
        close_world(&w);
    }
}

/* Gaps take memory on the device only; the host keeps as many rows as can be in use. */
TEST(memory_of_the_host_does_not_grow_with_gaps)
{
    struct world w = made(EPA_LAYOUT_EXPERT, EPA_FP8_E4M3);
    uint64_t checks, bench;

    w.x.moe.max_tokens = 4096;
    w.x.moe.hidden = 7168;
    w.footprint.u.moe.dispatch_row_bytes = 7680;
    w.footprint.u.moe.recv_rows = w.footprint.u.moe.recv_entries = 1u << 20;
    checks = op_bytes(&op_moe, &w.x, &w.footprint, EPA_MEMORY_CUDA, 1, true);
    bench = op_bytes(&op_moe, &w.x, &w.footprint, EPA_MEMORY_CUDA, 1, false);
    w.footprint.u.moe.recv_rows = w.footprint.u.moe.recv_entries = 1u << 24;
    w.x.expert.output = OUTPUT_SEPARATE; /* takes memory on the device only */
    assert_int_equal(op_bytes(&op_moe, &w.x, &w.footprint, EPA_MEMORY_CUDA, 1, true), checks);
    /* A lower bound: 2 of the 3 choices of 3 x 4096 tokens. Without checks the host keeps no
     * rows. */
    assert_true(checks > 2ull * 3 * 4096 * 7680);
    assert_true(bench < (2ull * 4096 * 7168 * 2));
}

/* If each rank is a node, all bytes that leave a rank cross links. Within one node no bytes cross
 * links. */
TEST(the_load_of_a_world_is_that_of_its_busiest_rank)
{
    for (uint64_t i = 0; i < 20; i++) {
        struct world w = made(i % 2 ? EPA_LAYOUT_RANK : EPA_LAYOUT_EXPERT, EPA_FP8_E4M3);
        uint64_t most[OP_PHASES] = {0};
        struct op_load load[OP_PHASES];

        w.x.routing.kind = ROUTING_MASKED;
        w.x.routing.share = 0.3;
        w.x.tokens.kind = TOKENS_RANDOM;
        w.x.ranks_per_node = 1;
        open_world(&w);
        make_inputs(&w, i);
        for (uint32_t r = 0; r < RANKS; r++) {
            struct op_traffic t = {.flops = 0};

            op_moe_traffic(w.op[r], 0, &t);
            for (uint32_t k = 0; k < OP_PHASES; k++) {
                most[k] = t.phase[k].sent > most[k] ? t.phase[k].sent : most[k];
                most[k] = t.phase[k].received > most[k] ? t.phase[k].received : most[k];
            }
        }
        op_moe_load(&w.x, &w.footprint, NULL, i, load);
        for (uint32_t k = 0; k < OP_PHASES; k++) {
            assert_int_equal((uint64_t)load[k].rank_bytes, most[k]);
            assert_int_equal((uint64_t)load[k].node_bytes, most[k]);
            assert_true(load[k].entries >= load[k].rows);
        }
        w.x.ranks_per_node = RANKS;
        op_moe_load(&w.x, &w.footprint, NULL, i, load);
        assert_true(load[0].rank_bytes <= 0 && load[1].node_bytes <= 0 && load[0].rows > 0);
        close_world(&w);
    }
}

/* ---- the problem of the contest: experts that multiply by 1 + rank, and tolerances ---- */

static struct world allclose_of(enum epa_dtype dtype)
{
    struct world w = made(EPA_LAYOUT_EXPERT, dtype);

    w.x.moe.dtype = dtype;
    w.x.expert.kind = EXPERT_RANK;
    w.x.routing.weights = WEIGHTS_UNIFORM;
    w.oracle = (struct op_oracle){.allclose = true, .rtol = 1e-2, .atol = 5e-3};
    w.footprint.u.moe.output_dtype = dtype;
    return w;
}

enum steps { ONCE, BY_EXPERT, BY_K };

/* Returns one element: the sum in double, or step by step like the code of the contest. */
static uint16_t element(bool f16, float x, const int32_t *expert, const float *weight,
                        enum steps steps)
{
    int32_t order[TOPK] = {0, 1, 2}, swap;
    double exact = 0;
    float sum = 0;

    for (uint32_t i = 0; i < TOPK && steps == BY_EXPERT; i++)
        for (uint32_t j = i + 1; j < TOPK; j++)
            if (expert[order[j]] < expert[order[i]]) {
                swap = order[i];
                order[i] = order[j];
                order[j] = swap;
            }
    for (uint32_t i = 0; i < TOPK; i++) {
        uint32_t k = (uint32_t)order[i];
        float factor = 1.0f + (float)(expert[k] / LOCAL);
        float term = float_of_word(f16, word_of_float(f16, x * factor)) * weight[k];

        exact += (double)x * (double)factor * (double)weight[k];
        sum = float_of_word(f16, word_of_float(f16, sum + term));
    }
    return word_of_float(f16, steps == ONCE ? (float)exact : sum);
}

/* Computes the outputs of an iteration from the inputs in the problem and returns the number of
 * wrong elements. */
static uint64_t wrong_by(struct world *w, uint64_t iteration, enum steps steps)
{
    bool f16 = w->x.moe.dtype == EPA_F16;

    make_inputs(w, iteration);
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct epa_moe *m = w->moe[r];

        for (uint32_t i = 0; i < m->tokens * HIDDEN; i++)
            out_of(w, r)[i] =
                element(f16, float_of_word(f16, ((const uint16_t *)m->x)[i]),
                        m->expert + i / HIDDEN * TOPK, m->weight + i / HIDDEN * TOPK, steps);
    }
    return wrong_of(w, NULL);
}

/* Sums with a single rounding lie within the tolerances. Without tolerances only the steps of the
 * contest are correct. */
TEST(the_reference_follows_the_steps_of_the_contest)
{
    static const enum epa_dtype dtypes[] = {EPA_BF16, EPA_F16};

    for (size_t d = 0; d < 2; d++) {
        struct world w = allclose_of(dtypes[d]);
        uint64_t once = 0, by_k = 0;

        open_world(&w);
        for (uint64_t i = 0; i < 300 && d == 1; i++)
            assert_int_equal(wrong_by(&w, i, ONCE), 0);
        close_world(&w);
        w = allclose_of(dtypes[d]);
        w.oracle.rtol = w.oracle.atol = 0;
        open_world(&w);
        for (uint64_t i = 0; i < 20; i++) {
            assert_int_equal(wrong_by(&w, i, BY_EXPERT), 0);
            once += wrong_by(&w, i, ONCE);
            by_k += wrong_by(&w, i, BY_K);
        }
        assert_true(once > 1000 && by_k > 1000);
        close_world(&w);
    }
}

/* The tolerance is |out - ref| <= atol + rtol * |ref|; the cases have rtol, atol and both. */
TEST(both_tolerances_apply_exactly)
{
    static const double tolerances[][2] = {{0, 0.25}, {0.125, 0}, {0.125, 0.25}};
    static const double parts[] = {0.98, -0.98, 1.02};

    for (size_t i = 0; i < 9; i++) {
        struct world w = allclose_of(EPA_F16);
        double rtol = tolerances[i / 3][0], atol = tolerances[i / 3][1], right, room;
        struct epa_error err = {EPA_OK, ""};

        w.oracle.rtol = rtol;
        w.oracle.atol = atol;
        open_world(&w);
        assert_int_equal(wrong_by(&w, 5, BY_EXPERT), 0);
        right = (double)float_of_f16(out_of(&w, 1)[HIDDEN + 6]);
        room = atol + rtol * fabs(right);
        out_of(&w, 1)[HIDDEN + 6] = f16_of_float((float)(right + room * parts[i % 3]));
        assert_int_equal(wrong_of(&w, &err), i % 3 == 2);
        if (i % 3 == 2)
            assert_words(err.text, "rank 1, iteration 5, combine: token 1, column 6 is  ..  to ");
        close_world(&w);
    }
}

/* If the reference is infinite, only the same infinity is correct. */
TEST(nan_and_wrong_infinities_are_errors)
{
    static const uint16_t none[] = {0x7e00, 0x7c00, 0xfc00, 0xffff};
    struct world w = allclose_of(EPA_F16);
    struct epa_error err = {EPA_OK, ""};
    uint64_t iteration = 0;
    uint16_t *out = NULL;

    open_world(&w);
    for (size_t i = 0; i < LENGTH(none); i++) {
        assert_int_equal(wrong_by(&w, 5, ONCE), 0);
        out_of(&w, 0)[3] = none[i];
        assert_int_equal(wrong_of(&w, NULL), 1);
    }
    (void)wrong_of(&w, &err);
    assert_words(err.text, "token 0, column 3 was not written; should be ");
    w.op[0]->oracle.hard_values = w.op[0]->oracle.signed_weights = true;
    for (; out == NULL; iteration++) {
        assert_true(iteration < 1000);
        (void)wrong_by(&w, iteration, BY_EXPERT);
        assert_int_equal(wrong_of(&w, NULL), 0);
        for (uint32_t h = 0; h < TOKENS * HIDDEN && out == NULL; h++)
            if ((out_of(&w, 0)[h] & 0x7fff) == 0x7c00)
                out = &out_of(&w, 0)[h];
    }
    *out ^= 0x8000; /* infinity of the other sign */
    assert_int_equal(wrong_of(&w, NULL), 1);
    *out = (uint16_t)((*out ^ 0x8000) - 1); /* the largest finite value */
    assert_int_equal(wrong_of(&w, NULL), 1);
    close_world(&w);
}

/* ---- threads of a check ---- */

/* Findings of the check of rank 1, whose outputs are all `value` except the poison in one column. */
struct found {
    uint64_t compared, wrong;
    struct op_share share;
    char text[512];
};

static struct found found_by(const struct problem_params *x, enum epa_dtype output_dtype,
                             uint32_t threads)
{
    struct world w = made(EPA_LAYOUT_EXPERT, EPA_BF16);
    struct epa_error err = {EPA_OK, ""};
    struct found found = {0};
    uint16_t *out;

    w.x = *x;
    w.footprint.u.moe.fused = x->expert.kind == EXPERT_MLP;
    w.footprint.u.moe.output_dtype = output_dtype;
    open_world(&w);
    make_inputs(&w, 2);
    w.op[1]->crew.threads = threads;
    out = out_of(&w, 1);
    for (size_t i = 0; i < (size_t)x->moe.max_tokens * x->moe.hidden; i++)
        out[i] = i % 5 == 0 ? 0 : 0x3f80;
    (void)op_check(w.op[1], EPA_STAGE_COMBINE, 0, &found.compared, &found.wrong, &err);
    found.share = w.op[1]->share;
    snprintf(found.text, sizeof(found.text), "%s", err.text);
    close_world(&w);
    return found;
}

TEST(results_of_a_check_do_not_depend_on_its_threads)
{
    static const struct {
        struct expert_options expert;
        enum epa_dtype output;
    } c[] = {
        {{.kind = EXPERT_MLP, .ffn = 256, .values = EXPERT_VALUES_INTEGERS}, EPA_BF16},
        {{.kind = EXPERT_MLP,
          .ffn = 256,
          .activation = EPA_ACTIVATION_SWIGLU,
          .weights = EXPERT_WEIGHTS_FP8,
          .fp8_group_size = 128,
          .values = EXPERT_VALUES_INTEGERS},
         EPA_FP8_E4M3},
        {{.kind = EXPERT_MLP, .ffn = 256, .values = EXPERT_VALUES_RANDOM}, EPA_BF16},
        {{.kind = EXPERT_SCALE}, EPA_BF16},
    };

    for (size_t i = 0; i < LENGTH(c); i++) {
        struct problem_params x = made(EPA_LAYOUT_EXPERT, EPA_BF16).x;
        struct found one, four;

        x.expert = c[i].expert;
        /* More than one block of tokens, and enough work for several threads. */
        x.moe.max_tokens = c[i].expert.kind != EXPERT_MLP                 ? 700
                           : c[i].expert.values == EXPERT_VALUES_INTEGERS ? 1100
                                                                          : 300;
        x.moe.hidden = c[i].expert.kind == EXPERT_MLP ? 256 : 2048;
        one = found_by(&x, c[i].output, 1);
        four = found_by(&x, c[i].output, 4);
        assert_true(one.wrong > 1000);
        assert_memory_equal(&one, &four, sizeof(one));
        assert_words(one.text, "rank 1, iteration 2, combine: token  .. , column ");
    }
}
