/* That measuring memory and flags comes to an end with numbers that can be, on any machine. */
#include "test.h"

#include "doctor/doctor.h"
#include "launch/pin.h"

TEST(a_core_works_on_more_than_the_cache_holds)
{
    const uint64_t mib = 1 << 20, plenty = (uint64_t)1 << 40;

    assert_int_equal(measure_bytes(50 * mib, plenty, 4, false), 100 * mib);
    assert_int_equal(measure_bytes(0, plenty, 4, false), 64 * mib);
    assert_int_equal(measure_bytes(500 * mib, plenty, 4, false), 256 * mib);
    assert_int_equal(measure_bytes(500 * mib, plenty, 4, true), 32 * mib);
}

TEST(little_memory_is_shared_out)
{
    const uint64_t mib = 1 << 20;

    assert_int_equal(measure_bytes(50 * mib, 1024 * mib, 4, false), 32 * mib);
    assert_int_equal(measure_bytes(50 * mib, 64 * mib, 4, false), 8 * mib);
}

TEST(every_rate_is_above_zero)
{
    struct epa_error err = {EPA_OK, ""};
    struct measure_memory m;
    struct pin_plan plan;

    assert_int_equal(pin_plan_init(&plan, PIN_CORE, 1, 1, &err), EPA_OK);
    assert_int_equal(measure_memory(plan.order, plan.cores, 2 << 20, true, &m, &err), EPA_OK);
    assert_int_equal(m.cores, plan.cores);
    assert_int_equal(m.bytes, 2 << 20);
    assert_true(m.one.read > 0 && m.one.write > 0 && m.one.copy > 0);
    assert_true(m.all.read > 0 && m.all.write > 0 && m.all.copy > 0);
    pin_plan_finish(&plan);
}

TEST(memory_that_is_not_there_is_refused_in_words)
{
    const int32_t core[] = {0, 0};
    struct epa_error err = {EPA_OK, ""};
    struct measure_memory m;

    assert_int_equal(measure_memory(core, 2, (uint64_t)1 << 62, true, &m, &err), EPA_ERR_NOMEM);
    assert_string_equal(err.text, "no memory for 2 times 4611686018427387904 bytes");
}

TEST(flags_of_all_pairs_are_in_order)
{
    struct epa_error err = {EPA_OK, ""};
    struct measure_flags f;
    struct pin_plan plan;

    assert_int_equal(pin_plan_init(&plan, PIN_CORE, 1, 1, &err), EPA_OK);
    assert_int_equal(measure_flags(plan.order, plan.cores, true, &f, &err), EPA_OK);
    if (plan.cores <= 16)
        assert_int_equal(f.pairs + f.missed, plan.cores * (plan.cores - 1) / 2);
    if (f.pairs > 0) {
        assert_true(f.least > 0);
        assert_true(f.least <= f.median && f.median <= f.most);
    }
    pin_plan_finish(&plan);
}

TEST(one_core_has_no_pairs)
{
    const int32_t core[] = {0};
    struct epa_error err = {EPA_OK, ""};
    struct measure_flags f = {.pairs = 7};

    assert_int_equal(measure_flags(core, 1, true, &f, &err), EPA_OK);
    assert_int_equal(f.pairs, 0);
}
