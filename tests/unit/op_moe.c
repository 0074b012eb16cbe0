/* op_moe: the inputs of a rank, the synthetic expert, traffic; and that a right
 * dispatch and combine pass the checks in every shape. What must not pass is in
 * op_moe_check.c. */

#include "test.h"

#include "fake_moe.h"

/* One iteration, each check on each rank; returns elements compared. */
static uint64_t run_one(struct fake *f, uint32_t slot, uint64_t iteration, enum fake_way way)
{
    struct epa_error err = {EPA_OK, ""};
    uint64_t compared = 0, wrong = 0;

    fake_inputs(f, slot, iteration);
    fake_dispatch(f, slot);
    for (uint32_t r = 0; r < RANKS; r++)
        op_moe_check_dispatch(f->op[r], slot, &compared, &wrong, &err);
    fake_experts(f, slot, &err);
    fake_combine(f, slot, way);
    for (uint32_t r = 0; r < RANKS; r++)
        op_moe.check(f->op[r], EPA_STAGE_COMBINE, slot, &compared, &wrong, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(wrong, 0);
    return compared;
}

/* Iterations in turn over two slots. */
static uint64_t run(struct fake *f, uint32_t iterations, enum fake_way way)
{
    uint64_t compared = 0;

    for (uint64_t i = 0; i < iterations; i++)
        compared += run_one(f, i % SLOTS, i, way);
    return compared;
}

/* The knobs that a shape has; each value of each is met. */
static struct fake variant(uint32_t i)
{
    static const int kinds[] = {ROUTING_UNIFORM, ROUTING_MASKED, ROUTING_HOT, ROUTING_ZIPF};
    static const enum epa_sum sums[] = {EPA_SUM_ORDERED, EPA_SUM_ANY, EPA_SUM_BY_RANK};
    struct fake f =
        fake_of(i & 1 ? EPA_LAYOUT_RANK : EPA_LAYOUT_EXPERT, i & 2 ? EPA_BF16 : EPA_FP8_E4M3);

    f.x.routing.kind = kinds[i / 4 % 4];
    f.x.routing.share = 0.4;
    f.x.routing.exponent = 2;
    f.x.expert.output = i & 16 ? OUTPUT_SEPARATE : OUTPUT_IN_PLACE;
    f.x.tokens.kind = i & 32 ? TOKENS_RANDOM : TOKENS_FULL;
    f.backend.memory = i & 64 ? EPA_MEMORY_CUDA : EPA_MEMORY_HOST;
    f.footprint.u.moe.sum = sums[i / 128 % 3];
    f.footprint.u.moe.output_dtype = i % 5 < 2 ? EPA_FP8_E4M3 : EPA_BF16;
    f.rows = i % 7 < 3 ? FAKE_COMPACT : i % 7 < 5 ? FAKE_HOLES : FAKE_AS_EVER;
    f.apart = i % 11 < 4;
    if (i & 8 && !(i & 2))
        f.x.moe.input_dtype = MOE_INPUT_FP8;
    if (i % 13 < 6)
        fake_to_f16(&f);
    return f;
}

TEST(what_is_right_passes_in_every_shape)
{
    struct epa_error err = {EPA_OK, ""};

    for (uint32_t i = 0; i < 768; i++) {
        struct fake f = variant(i);

        assert_int_equal(fake_open(&f, &err), EPA_OK);
        for (uint32_t r = 0; r < RANKS; r++)
            op_moe_of(f.op[r])->hard_values = i % 3 != 0;
        assert_true(run(&f, 4, RIGHT) > HIDDEN);
        fake_close(&f);
    }
}

TEST(any_order_may_differ_in_the_last_bit_only)
{
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_FP8_E4M3);
    struct epa_error err = {EPA_OK, ""};

    f.footprint.u.moe.sum = EPA_SUM_ANY;
    assert_int_equal(fake_open(&f, &err), EPA_OK);
    run(&f, 20, BACKWARDS);
    fake_close(&f);
}

TEST(every_element_is_compared)
{
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_FP8_E4M3);
    struct epa_error err = {EPA_OK, ""};
    uint64_t rows = RANKS * TOKENS * TOPK, outputs = RANKS * TOKENS * HIDDEN;
    uint64_t compared;

    assert_int_equal(fake_open(&f, &err), EPA_OK);
    compared = run(&f, 1, RIGHT);
    /* Bytes, scales and origin of each row, each output; then counts and ranges. */
    assert_in_range(compared, rows * (HIDDEN + HIDDEN / GROUP + 1) + outputs + EXPERTS,
                    rows * (HIDDEN + HIDDEN / GROUP + 1) + outputs + 2 * EXPERTS);
    fake_close(&f);
}

TEST(inputs_change_with_each_iteration_and_come_back)
{
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);
    struct epa_error err = {EPA_OK, ""};
    uint16_t first[TOKENS * HIDDEN];
    int32_t choices[TOKENS * TOPK];

    assert_int_equal(fake_open(&f, &err), EPA_OK);
    fake_inputs(&f, 0, 7);
    memcpy(first, f.moe[1][0]->x, sizeof(first));
    memcpy(choices, f.moe[1][0]->expert, sizeof(choices));
    assert_memory_not_equal(first, f.moe[2][0]->x, sizeof(first));
    fake_inputs(&f, 0, 8);
    assert_memory_not_equal(first, f.moe[1][0]->x, sizeof(first));
    assert_memory_not_equal(choices, f.moe[1][0]->expert, sizeof(choices));
    fake_inputs(&f, 1, 7);
    assert_memory_equal(first, f.moe[1][1]->x, sizeof(first));
    assert_ptr_equal(&op_moe_problem(f.op[1], 1)->u.moe, f.moe[1][1]);
    fake_close(&f);
}

TEST(outputs_begin_as_nan)
{
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(fake_open(&f, &err), EPA_OK);
    run(&f, 1, RIGHT);
    fake_inputs(&f, 0, 1);
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        assert_int_equal(((const uint16_t *)f.moe[0][0]->out)[i], 0xffff);
    fake_close(&f);
}

TEST(quantised_input_comes_without_the_other)
{
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_FP8_E4M3);
    struct epa_error err = {EPA_OK, ""};

    f.x.moe.input_dtype = MOE_INPUT_FP8;
    assert_int_equal(fake_open(&f, &err), EPA_OK);
    fake_inputs(&f, 0, 0);
    assert_null(f.moe[0][0]->x);
    assert_non_null(f.moe[0][0]->x_fp8);
    assert_non_null(f.moe[0][0]->x_scale);
    fake_close(&f);
}

TEST(hard_values_are_planted_on_demand)
{
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);
    struct epa_error err = {EPA_OK, ""};
    uint32_t denormals[2] = {0}, zero_groups[2] = {0}, outliers[2] = {0};

    assert_int_equal(fake_open(&f, &err), EPA_OK);
    for (uint32_t hard = 0; hard < 2; hard++) {
        op_moe_of(f.op[0])->hard_values = hard;
        for (uint64_t i = 0; i < 50; i++) {
            const uint16_t *x;
            uint32_t zeros = 0;

            assert_int_equal(op_moe_inputs(f.op[0], 0, i), EPA_OK);
            x = op_moe_problem(f.op[0], 0)->u.moe.x;
            for (uint32_t h = 0; h < TOKENS * HIDDEN; h++) {
                uint16_t a = x[h] & 0x7fff;

                assert_true(a < 0x7f80);
                zeros = h % GROUP == 0 ? 0 : zeros;
                zeros += a == 0;
                zero_groups[hard] += zeros == GROUP;
                denormals[hard] += a != 0 && a < 0x80;
                outliers[hard] += fabsf(float_of_bf16(x[h])) > 3;
            }
        }
    }
    assert_int_equal(denormals[0] + zero_groups[0] + outliers[0], 0);
    assert_true(denormals[1] > 0 && zero_groups[1] > 0 && outliers[1] > 0);
    fake_close(&f);
}

/* Outliers with the largest exponent of f16; and what answers to them, infinite at times,
 * passes where it should. */
TEST(hard_values_in_f16_overflow_outputs)
{
    uint32_t denormals = 0, largest = 0, infinite = 0;
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);
    struct epa_error err = {EPA_OK, ""};

    fake_to_f16(&f);
    assert_int_equal(fake_open(&f, &err), EPA_OK);
    for (uint32_t r = 0; r < RANKS; r++)
        op_moe_of(f.op[r])->hard_values = true;
    for (uint64_t i = 0; i < 50; i++) {
        run_one(&f, 0, i, RIGHT);
        for (uint32_t h = 0; h < TOKENS * HIDDEN; h++) {
            uint16_t a = ((const uint16_t *)f.moe[0][0]->x)[h] & 0x7fff;

            assert_true(a < 0x7c00);
            denormals += a != 0 && a < 0x400;
            largest += a >= 0x7800;
            infinite += (((const uint16_t *)f.moe[0][0]->out)[h] & 0x7fff) == 0x7c00;
        }
    }
    assert_true(denormals > 0 && largest > 0 && infinite > 0);
    fake_close(&f);
}

/* Counted from the choices by the words of the definition, for one iteration. */
static void expect_traffic(const struct fake *f, uint32_t me, const struct op_traffic *t)
{
    bool by_rank = f->footprint.u.moe.layout == EPA_LAYOUT_RANK;
    uint64_t kept = 0, crossing[RANKS][RANKS] = {{0}}, out = 0, in = 0;
    uint64_t least_out = 0, least_in = 0, least;
    uint64_t control = f->footprint.u.moe.control_bytes * (RANKS - 1);

    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t t0 = 0; t0 < f->moe[r][0]->tokens; t0++) {
            uint32_t to[RANKS] = {0};

            for (uint32_t k = 0; k < TOPK; k++) {
                int32_t e = f->moe[r][0]->expert[t0 * TOPK + k];

                kept += e >= 0 && r == me;
                if (e >= 0)
                    to[e / LOCAL]++;
            }
            for (uint32_t d = 0; d < RANKS; d++) {
                crossing[r][d] += by_rank ? to[d] != 0 : to[d];
                least_out += r == me && d != me && to[d] != 0;
                least_in += r != me && d == me && to[d] != 0;
            }
        }
    for (uint32_t r = 0; r < RANKS; r++) {
        out += r != me ? crossing[me][r] : 0;
        in += r != me ? crossing[r][me] : 0;
    }
    least = least_out > least_in ? least_out : least_in;
    assert_int_equal(t->phase[0].needed, kept * f->footprint.u.moe.dispatch_token_bytes);
    assert_int_equal(t->phase[1].needed, kept * f->footprint.u.moe.combine_token_bytes);
    assert_int_equal(t->phase[0].sent, out * f->footprint.u.moe.dispatch_row_bytes + control);
    assert_int_equal(t->phase[0].received, in * f->footprint.u.moe.dispatch_row_bytes + control);
    assert_int_equal(t->phase[1].sent, in * f->footprint.u.moe.combine_row_bytes);
    assert_int_equal(t->phase[1].received, out * f->footprint.u.moe.combine_row_bytes);
    assert_int_equal(t->phase[0].least, least * (HIDDEN + HIDDEN / GROUP * sizeof(float)));
    assert_int_equal(t->phase[1].least, least * HIDDEN * sizeof(uint16_t));
}

TEST(traffic_is_counted_by_layout)
{
    for (int layout = EPA_LAYOUT_EXPERT; layout <= EPA_LAYOUT_RANK; layout++) {
        struct fake f = fake_of(layout, EPA_FP8_E4M3);
        struct epa_error err = {EPA_OK, ""};

        f.x.routing.kind = ROUTING_MASKED;
        f.x.routing.share = 0.3;
        f.x.tokens.kind = TOKENS_RANDOM;
        assert_int_equal(fake_open(&f, &err), EPA_OK);
        for (uint64_t i = 0; i < 10; i++) {
            fake_inputs(&f, 0, i);
            for (uint32_t r = 0; r < RANKS; r++) {
                struct op_traffic t = {0};

                op_moe_traffic(f.op[r], 0, &t);
                expect_traffic(&f, r, &t);
            }
        }
        fake_close(&f);
    }
}

/* Where each rank is a node of its own, all that leaves it crosses links. */
TEST(the_load_of_a_world_is_that_of_its_busiest_rank)
{
    for (int layout = EPA_LAYOUT_EXPERT; layout <= EPA_LAYOUT_RANK; layout++) {
        struct fake f = fake_of(layout, EPA_FP8_E4M3);
        struct epa_error err = {EPA_OK, ""};
        struct op_load load[OP_PHASES];

        f.x.routing.kind = ROUTING_MASKED;
        f.x.routing.share = 0.3;
        f.x.tokens.kind = TOKENS_RANDOM;
        f.x.ranks_per_node = 1;
        f.x.footprint = f.footprint;
        assert_int_equal(fake_open(&f, &err), EPA_OK);
        for (uint64_t i = 0; i < 10; i++) {
            uint64_t most[2] = {0, 0};

            fake_inputs(&f, 0, i);
            for (uint32_t r = 0; r < RANKS; r++) {
                struct op_traffic t = {0};

                op_moe_traffic(f.op[r], 0, &t);
                for (uint32_t k = 0; k < 2; k++) {
                    most[k] = t.phase[k].sent > most[k] ? t.phase[k].sent : most[k];
                    most[k] = t.phase[k].received > most[k] ? t.phase[k].received : most[k];
                }
            }
            op_moe_load(&f.x, NULL, i, load);
            for (uint32_t k = 0; k < 2; k++) {
                assert_int_equal((uint64_t)load[k].rank_bytes, most[k]);
                assert_int_equal((uint64_t)load[k].node_bytes, most[k]);
                assert_true(load[k].entries >= load[k].rows);
            }
            f.x.ranks_per_node = RANKS; /* one node: nothing crosses */
            op_moe_load(&f.x, NULL, i, load);
            assert_true(load[0].rank_bytes <= 0 && load[1].node_bytes <= 0 && load[0].rows > 0);
            f.x.ranks_per_node = 1;
        }
        fake_close(&f);
    }
}

TEST(shapes_that_cannot_be_checked_are_refused)
{
    struct epa_error err = {EPA_OK, ""};
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);

    f.x.moe.input_dtype = MOE_INPUT_FP8;
    assert_int_equal(fake_open(&f, &err), EPA_ERR_CONFIG);
    assert_string_equal(err.text, "moe.input_dtype is fp8, the algorithm delivers bf16 rows; "
                                  "set moe.input_dtype: native");
    fake_close(&f);
    f = fake_of(EPA_LAYOUT_EXPERT, EPA_FP8_E4M3);
    f.x.moe.fp8_group_size = 48;
    err.status = EPA_OK;
    assert_int_equal(fake_open(&f, &err), EPA_ERR_CONFIG);
    assert_string_equal(err.text, "moe.hidden (64) is no multiple of moe.fp8_group_size (48)");
    fake_close(&f);
    f = fake_of(EPA_LAYOUT_EXPERT, EPA_F32);
    err.status = EPA_OK;
    assert_int_equal(fake_open(&f, &err), EPA_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "the algorithm delivers rows that are neither bf16, as "
                                  "moe.dtype is, nor FP8");
    fake_close(&f);
    f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);
    f.x.moe.dtype = EPA_F16;
    err.status = EPA_OK;
    assert_int_equal(fake_open(&f, &err), EPA_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "the algorithm delivers rows that are neither f16, as "
                                  "moe.dtype is, nor FP8");
    fake_close(&f);
    f.x.moe.dtype = EPA_F32;
    err.status = EPA_OK;
    assert_int_equal(fake_open(&f, &err), EPA_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "moe.dtype: only bf16 and f16 can be verified");
    fake_close(&f);
}

/* What op_moe_bytes() says covers what is taken, within the few hundred bytes of
 * structs. */
TEST(memory_is_foretold)
{
    struct fake f = fake_of(EPA_LAYOUT_RANK, EPA_FP8_E4M3);
    uint64_t one = op_moe_bytes(&f.x, &f.footprint, EPA_MEMORY_HOST, 1, false);

    assert_true(one >= 2 * TOKENS * HIDDEN * sizeof(uint16_t));
    assert_true(op_moe_bytes(&f.x, &f.footprint, EPA_MEMORY_HOST, 3, false) > 2 * one);
    assert_true(op_moe_bytes(&f.x, &f.footprint, EPA_MEMORY_HOST, 1, true) >
                one + (uint64_t)RANKS * TOKENS * TOPK * 12);
    f.x.expert.output = OUTPUT_SEPARATE;
    assert_int_equal(op_moe_bytes(&f.x, &f.footprint, EPA_MEMORY_HOST, 1, false) - one,
                     ROWS * HIDDEN * sizeof(uint16_t));
}
