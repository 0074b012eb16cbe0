/* Shares of cores are checked on made-up orders; the rest on whatever this machine has. */
#include <sched.h>
#include "test.h"

#include "launch/pin.h"

static int32_t made_up[] = {0, 2, 4, 6, 1, 3, 5, 7};

static struct pin_plan plan_of(uint32_t cores, uint32_t ranks, uint32_t threads)
{
    return (struct pin_plan){
        .order = made_up, .cores = cores, .pin = PIN_CORE, .ranks = ranks, .threads = threads};
}

TEST(ranks_have_distinct_cores_while_there_are_enough)
{
    for (uint32_t ranks = 1; ranks <= 8; ranks++) {
        for (uint32_t threads = 1; ranks * threads <= 8; threads++) {
            struct pin_plan plan = plan_of(8, ranks, threads);
            const int32_t *core;
            uint32_t used = 0;

            for (uint32_t r = 0; r < ranks; r++) {
                assert_int_equal(pin_plan_rank(&plan, r, &core), threads);
                for (uint32_t t = 0; t < threads; t++) {
                    assert_int_equal(used & 1u << core[t], 0);
                    used |= 1u << core[t];
                }
            }
        }
    }
}

TEST(threads_get_fewer_cores_before_ranks_share_one)
{
    struct pin_plan plan = plan_of(8, 3, 4);
    const int32_t *core;

    assert_int_equal(pin_plan_rank(&plan, 2, &core), 2);
    assert_int_equal(core[0], 1);
    assert_int_equal(core[1], 3);
}

TEST(more_ranks_than_cores_take_them_in_turn)
{
    struct pin_plan plan = plan_of(3, 8, 2);
    const int32_t *core;

    for (uint32_t r = 0; r < 8; r++) {
        assert_int_equal(pin_plan_rank(&plan, r, &core), 1);
        assert_int_equal(core[0], made_up[r % 3]);
    }
}

TEST(the_plan_holds_each_allowed_core_once)
{
    struct pin_plan plan;
    cpu_set_t mask, seen;

    assert_int_equal(sched_getaffinity(0, sizeof(mask), &mask), 0);
    assert_int_equal(pin_plan_init(&plan, PIN_CORE, 1, 1, NULL), EPA_OK);
    CPU_ZERO(&seen);
    for (uint32_t i = 0; i < plan.cores; i++)
        CPU_SET((size_t)plan.order[i], &seen);
    assert_int_equal(plan.cores, CPU_COUNT(&mask));
    assert_true(CPU_EQUAL(&mask, &seen));
    pin_plan_finish(&plan);
}

TEST(cores_outside_the_own_mask_are_not_used)
{
    struct pin_plan plan, narrow;
    cpu_set_t before;

    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    assert_int_equal(pin_plan_init(&plan, PIN_CORE, 4, 1, NULL), EPA_OK);
    assert_true(pin_self(plan.order[plan.cores - 1]));
    assert_int_equal(sched_getcpu(), plan.order[plan.cores - 1]);
    assert_int_equal(pin_plan_init(&narrow, PIN_CORE, 4, 1, NULL), EPA_OK);
    assert_int_equal(narrow.cores, 1);
    assert_int_equal(narrow.order[0], plan.order[plan.cores - 1]);
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
    pin_plan_finish(&narrow);
    pin_plan_finish(&plan);
}

TEST(pin_none_gives_no_core_but_counts_them)
{
    struct pin_plan plan;
    const int32_t *core;

    assert_int_equal(pin_plan_init(&plan, PIN_NONE, 2, 1, NULL), EPA_OK);
    assert_true(plan.cores > 0);
    assert_int_equal(pin_plan_rank(&plan, 1, &core), 0);
    assert_null(core);
    pin_plan_finish(&plan);
}
