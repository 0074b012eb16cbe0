/* What is wrong in a kernel is said, and ends the process: each probe runs in one of its own.
 * And a wait whose time is up looks once more, as its kernel may not have run for that long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "probe.h"
#include "probe_run.h"

static void a_kernel_that_is_right_passes(void **state)
{
    static char said[PROBE_SAID];

    (void)state;
    assert_int_equal(probe_status(probe_nothing, said), 0);
    assert_string_equal(said, "");
}

static void a_barrier_that_not_all_reach_is_found(void **state)
{
    (void)state;
    probe_expect(probe_lost_barrier, "its threads wait for each other in vain");
}

static void two_kinds_of_barrier_are_found(void **state)
{
    (void)state;
    probe_expect(probe_other_barrier, "its threads are at different kinds of __syncthreads");
}

static void a_lane_that_takes_no_part_is_found(void **state)
{
    (void)state;
    probe_expect(probe_foreign_lane, "which is not in its mask");
}

static void a_crooked_store_is_found(void **state)
{
    (void)state;
    probe_expect(probe_crooked_store, "stores 16 bytes at");
}

static void a_store_behind_memory_is_found_by_asan(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    probe_expect(probe_behind_memory, "AddressSanitizer");
#else
    skip();
#endif
}

/* Who was stopped for long finds what came meanwhile: after the clock there is one more look. */
static void a_row_that_came_before_the_last_look_is_found(void **state)
{
    (void)state;
    assert_int_not_equal(probe_late_row(false), 0);
    assert_int_not_equal(probe_late_row(true), 0);
}

static void lanes_of_a_line_see_it_at_one_time(void **state)
{
    (void)state;
    assert_int_equal(probe_torn_line(), 0);
}

/* One poll beyond that at which the clock is looked at, not as many as between two looks. */
static void a_word_that_never_came_is_given_up(void **state)
{
    (void)state;
    assert_int_equal(probe_late_word() % 32, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_that_is_right_passes),
        cmocka_unit_test(a_barrier_that_not_all_reach_is_found),
        cmocka_unit_test(two_kinds_of_barrier_are_found),
        cmocka_unit_test(a_lane_that_takes_no_part_is_found),
        cmocka_unit_test(a_crooked_store_is_found),
        cmocka_unit_test(a_store_behind_memory_is_found_by_asan),
        cmocka_unit_test(a_row_that_came_before_the_last_look_is_found),
        cmocka_unit_test(lanes_of_a_line_see_it_at_one_time),
        cmocka_unit_test(a_word_that_never_came_is_given_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
