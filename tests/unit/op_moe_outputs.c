/* The check of combine holds an algorithm to how it says that answers are added up, rounded
 * and quantised: the same expert outputs, put together in any other way, are wrong. bf16 hides
 * most of what float32 does, so some ways are told apart in a few of a million elements. */

#include "test.h"

#include "fake_moe.h"

struct promise {
    enum epa_layout layout;
    enum epa_sum sum;
    enum epa_dtype output;
};

static const struct promise promises[] = {
    {EPA_LAYOUT_EXPERT, EPA_SUM_ORDERED, EPA_FP8_E4M3},
    {EPA_LAYOUT_EXPERT, EPA_SUM_BY_RANK, EPA_BF16},
    {EPA_LAYOUT_EXPERT, EPA_SUM_BY_RANK, EPA_FP8_E4M3},
    {EPA_LAYOUT_EXPERT, EPA_SUM_ANY, EPA_FP8_E4M3},
    {EPA_LAYOUT_RANK, EPA_SUM_ORDERED, EPA_FP8_E4M3},
    {EPA_LAYOUT_RANK, EPA_SUM_ANY, EPA_FP8_E4M3},
    {EPA_LAYOUT_EXPERT, EPA_SUM_BY_RANK, EPA_F16},
    {EPA_LAYOUT_EXPERT, EPA_SUM_ANY, EPA_F16},
};

/* Elements that are wrong when so many iterations have added up that way, or `enough` are. */
static uint64_t wrong_until(struct promise p, enum fake_way way, uint64_t iterations,
                            uint64_t enough, struct epa_error *reported)
{
    struct fake f = fake_of(p.layout, EPA_BF16);
    struct epa_error err = {EPA_OK, ""};
    uint64_t compared = 0, wrong = 0, i;

    f.footprint.u.moe.sum = p.sum;
    if (p.output == EPA_F16)
        fake_to_f16(&f);
    f.footprint.u.moe.output_dtype = p.output;
    assert_int_equal(fake_open(&f, &err), EPA_OK);
    for (i = 0; i < iterations && wrong < enough; i++) {
        fake_inputs(&f, 0, i);
        fake_dispatch(&f, 0);
        assert_int_equal(fake_experts(&f, 0, &err), EPA_OK);
        fake_combine(&f, 0, way);
        for (uint32_t r = 0; r < RANKS; r++)
            op_moe.check(f.op[r], EPA_STAGE_COMBINE, 0, &compared, &wrong, reported);
    }
    fake_close(&f);
    assert_int_equal(compared, i * RANKS * TOKENS * HIDDEN);
    return wrong;
}

static uint64_t wrong_of(struct promise p, enum fake_way way, uint64_t iterations,
                         struct epa_error *reported)
{
    return wrong_until(p, way, iterations, UINT64_MAX, reported);
}

TEST(what_is_promised_passes)
{
    for (size_t i = 0; i < sizeof(promises) / sizeof(*promises); i++) {
        struct epa_error err = {EPA_OK, ""};

        assert_int_equal(wrong_of(promises[i], RIGHT, 200, &err), 0);
        assert_string_equal(err.text, "");
    }
}

TEST(another_order_is_wrong_unless_any_will_do)
{
    for (size_t i = 0; i < sizeof(promises) / sizeof(*promises); i++) {
        if (promises[i].sum == EPA_SUM_ANY)
            assert_int_equal(wrong_of(promises[i], BACKWARDS, 500, NULL), 0);
        else /* three numbers in 16 bits add up to the same in most orders */
            assert_in_range(wrong_until(promises[i], BACKWARDS, 10000, 1, NULL), 1, 50);
    }
}

/* Of the choices of one rank the first k comes first, whichever expert that is. */
TEST(a_rank_adds_up_its_choices_by_k)
{
    assert_in_range(wrong_until(promises[1], EXPERTS_ASCENDING, 5000, 1, NULL), 1, 100);
}

TEST(a_sum_by_rank_is_no_sum_over_choices)
{
    assert_true(wrong_of(promises[1], ONE_STEP, 5, NULL) > 50);
    assert_true(wrong_of(promises[2], ONE_STEP, 5, NULL) > 50);
}

TEST(a_sum_over_choices_is_no_sum_by_rank)
{
    const struct promise ordered = {EPA_LAYOUT_EXPERT, EPA_SUM_ORDERED, EPA_BF16};
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);
    struct epa_error err = {EPA_OK, ""};
    uint64_t compared = 0, wrong = 0;

    f.footprint.u.moe.sum = ordered.sum;
    assert_int_equal(fake_open(&f, &err), EPA_OK);
    fake_inputs(&f, 0, 3);
    fake_dispatch(&f, 0);
    assert_int_equal(fake_experts(&f, 0, &err), EPA_OK);
    f.footprint.u.moe.sum = EPA_SUM_BY_RANK; /* the fake's; op_moe has a copy */
    fake_combine(&f, 0, RIGHT);
    for (uint32_t r = 0; r < RANKS; r++)
        op_moe.check(f.op[r], EPA_STAGE_COMBINE, 0, &compared, &wrong, NULL);
    assert_true(wrong > 10);
    fake_close(&f);
}

TEST(the_output_of_a_rank_is_rounded_before_it_counts)
{
    assert_true(wrong_of(promises[1], PART_NOT_ROUNDED, 5, NULL) > 50);
    assert_true(wrong_of(promises[2], PART_NOT_ROUNDED, 5, NULL) > 50);
    assert_true(wrong_of(promises[6], PART_NOT_ROUNDED, 5, NULL) > 50);
}

/* Where the order is free the bound must be tight enough to see it. */
TEST(an_output_that_was_not_quantised_is_wrong)
{
    for (size_t i = 0; i < sizeof(promises) / sizeof(*promises); i++)
        if (promises[i].output == EPA_FP8_E4M3)
            assert_true(wrong_of(promises[i], NOT_QUANTISED, 5, NULL) > 1000);
}

TEST(an_output_that_need_not_be_quantised_must_not_be)
{
    const struct promise by_rank = {EPA_LAYOUT_EXPERT, EPA_SUM_BY_RANK, EPA_FP8_E4M3};
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);
    struct epa_error err = {EPA_OK, ""};
    uint64_t compared = 0, wrong = 0;

    f.footprint.u.moe.sum = by_rank.sum;
    assert_int_equal(fake_open(&f, &err), EPA_OK);
    fake_inputs(&f, 0, 3);
    fake_dispatch(&f, 0);
    assert_int_equal(fake_experts(&f, 0, &err), EPA_OK);
    f.footprint.u.moe.output_dtype = by_rank.output;
    fake_combine(&f, 0, RIGHT);
    for (uint32_t r = 0; r < RANKS; r++)
        op_moe.check(f.op[r], EPA_STAGE_COMBINE, 0, &compared, &wrong, NULL);
    assert_true(wrong > 500);
    fake_close(&f);
}

TEST(what_travels_is_quantised_not_what_each_expert_says)
{
    assert_true(wrong_of(promises[2], EACH_QUANTISED, 5, NULL) > 1000);
}

TEST(one_bit_of_a_scale_or_a_code_is_reported)
{
    for (size_t i = 0; i < sizeof(promises) / sizeof(*promises); i++) {
        struct epa_error err = {EPA_OK, ""};

        if (promises[i].output != EPA_FP8_E4M3)
            continue;
        /* Columns of the first group are right. */
        assert_true(wrong_of(promises[i], SCALE_BIT, 1, &err) > 200);
        assert_non_null(strstr(err.text, "rank 0, iteration 0, combine: token "));
        assert_non_null(strstr(err.text, ", column 32 is "));
        err = (struct epa_error){EPA_OK, ""};
        assert_in_range(wrong_of(promises[i], CODE_BIT, 1, &err), 10, RANKS * TOKENS);
        assert_non_null(strstr(err.text, "column 63 is "));
    }
}

TEST(outputs_that_cannot_be_checked_are_refused)
{
    struct epa_error err = {EPA_OK, ""};
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);

    f.x.moe.fp8_group_size = 48;
    f.footprint.u.moe.output_dtype = EPA_FP8_E4M3;
    assert_int_equal(fake_open(&f, &err), EPA_ERR_CONFIG);
    assert_string_equal(err.text, "moe.hidden (64) is no multiple of moe.fp8_group_size (48)");
    fake_close(&f);
    f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);
    f.footprint.u.moe.output_dtype = EPA_F32;
    err = (struct epa_error){EPA_OK, ""};
    assert_int_equal(fake_open(&f, &err), EPA_ERR_UNSUPPORTED);
    assert_string_equal(err.text,
                        "the algorithm sends expert outputs that are neither bf16, as moe.dtype "
                        "is, nor FP8");
    fake_close(&f);
}
