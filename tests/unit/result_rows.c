/* Rows of results: those of graphs, halves of stages, limits, and what was checked. */
#include <math.h>
#include "test.h"

#include "fake_session.h"

static void assert_near(double is, double want)
{
    assert_true(fabs(is - want) <= 1e-9 * fabs(want));
}

TEST_OF_FAKE(halves_of_a_stage_have_no_rate_of_their_own, VERB_BENCH, 2, 1)
{
    fake_measure(f, 1);
    fake_peaks(f);
    f->session.stage_kind[0] = EPA_STAGE_SEND;
    f->session.stage_kind[1] = EPA_STAGE_DISPATCH;
    assert_int_equal(fake_result(f, EPA_OK, NULL), EPA_OK);
    assert_true(isnan(f->result.stage[0].wire));
    assert_true(isnan(f->result.stage[0].peak_ns));
    assert_true(isnan(f->result.stage[1].wire));
    assert_true(f->result.stage[2].wire > 0);
}

TEST_OF_FAKE(graphs_have_a_total_that_was_measured, VERB_BENCH, 2, 3)
{
    fake_graphs(f, 3);
    assert_int_equal(fake_result(f, EPA_OK, NULL), EPA_OK);
    assert_int_equal(f->result.n_stages, 3);
    assert_string_equal(f->result.stage[0].name, "dispatch");
    assert_string_equal(f->result.stage[1].name, "combine");
    assert_string_equal(f->result.stage[2].name, "total");
    assert_near(f->result.stage[0].slowest.median, 102000);
    assert_near(f->result.stage[2].slowest.median, 252000);
    assert_near(f->result.stage[2].goodput, 6000000 / 252000.0);
    assert_near(f->result.skew_ns, 1000);
}

/* Two halves of each stage are one row by graphs. */
TEST_OF_FAKE(rows_of_graphs_are_not_stages, VERB_BENCH, 2, 3)
{
    fake_graphs(f, 3);
    f->session.n_stages = 4;
    assert_int_equal(fake_result(f, EPA_OK, NULL), EPA_OK);
    assert_int_equal(f->result.n_stages, 3);
    assert_true(f->result.stage[0].goodput > 0);
}

TEST_OF_FAKE(what_graphs_cannot_measure_has_no_samples, VERB_BENCH, 2, 3)
{
    fake_graphs(f, 3);
    f->session.not_alone[FIGURE_COMBINE] = true;
    assert_int_equal(fake_result(f, EPA_OK, NULL), EPA_OK);
    assert_int_equal(f->result.stage[1].slowest.n, 0);
    assert_true(isnan(f->result.stage[1].slowest.median));
    assert_true(isnan(f->result.stage[1].goodput));
    assert_int_equal(f->result.stage[2].slowest.n, 3);
}

/* Of the other ranks' times none is looked at, slow as they are. */
TEST_OF_FAKE(the_clock_on_the_wall_is_one_row_and_rank_0s, VERB_BENCH, 3, 4)
{
    fake_measure(f, 4);
    fake_peaks(f);
    f->session.clock = CLOCK_END_TO_END;
    assert_int_equal(fake_result(f, EPA_OK, NULL), EPA_OK);
    assert_string_equal(result_clock_name(&f->result), "end_to_end");
    assert_int_equal(f->result.n_stages, 1);
    assert_string_equal(f->result.stage[0].name, "wall");
    assert_near(f->result.stage[0].slowest.min, 100000);
    assert_near(f->result.stage[0].slowest.max, 103000);
    assert_near(f->result.stage[0].goodput, 6000000 / 101000.0);
    assert_near(f->result.stage[0].peak_ns, 2000000 / 100.0 + 4000);
    assert_int_equal(f->result.stage[0].rank[0].n, 4);
    assert_int_equal(f->result.stage[0].rank[2].n, 0);
}

TEST_OF_FAKE(a_limit_is_the_least_bytes_at_the_best_rate_and_a_latency, VERB_BENCH, 2, 1)
{
    fake_measure(f, 1);
    assert_int_equal(fake_result(f, EPA_OK, NULL), EPA_OK);
    assert_false(f->result.peak.known);
    assert_true(isnan(f->result.stage[2].peak_ns));
    result_finish(&f->result);
    fake_peaks(f);
    session_rank(&f->session, 1)->traffic.phase[1].least = 3000000;
    assert_int_equal(fake_result(f, EPA_OK, NULL), EPA_OK);
    assert_near(f->result.stage[0].peak_ns, 1000000 / 100.0 + 2000);
    assert_near(f->result.stage[1].peak_ns, 3000000 / 100.0 + 2000);
    assert_near(f->result.stage[2].peak_ns, 4000000 / 100.0 + 4000);
}

TEST_OF_FAKE(a_rate_that_is_not_known_leaves_a_latency, VERB_BENCH, 2, 1)
{
    fake_measure(f, 1);
    fake_peaks(f);
    for (uint32_t r = 0; r < 2; r++)
        session_rank(&f->session, r)->peak.bytes_per_ns = 0;
    assert_int_equal(fake_result(f, EPA_OK, NULL), EPA_OK);
    assert_near(f->result.stage[0].peak_ns, 2000);
    assert_near(f->result.stage[2].peak_ns, 4000);
}

TEST_OF_FAKE(one_rank_has_no_limit, VERB_BENCH, 1, 1)
{
    fake_measure(f, 1);
    fake_peaks(f);
    assert_int_equal(fake_result(f, EPA_OK, NULL), EPA_OK);
    assert_false(f->result.peak.known);
    assert_true(isnan(f->result.stage[0].peak_ns));
}

TEST_OF_FAKE(a_bench_that_checked_nothing_says_why, VERB_BENCH, 1, 1)
{
    static struct session_notes notes = {.unchecked = "for a reason"};

    fake_measure(f, 1);
    f->session.notes = &notes;
    assert_int_equal(fake_result(f, EPA_OK, NULL), EPA_OK);
    assert_string_equal(f->result.unchecked, "for a reason");
    result_finish(&f->result);
    f->experiment.bench.check = false;
    assert_int_equal(fake_result(f, EPA_OK, NULL), EPA_OK);
    assert_string_equal(f->result.unchecked, "bench.check is false");
    result_finish(&f->result);
    session_rank(&f->session, 0)->compared = 1;
    assert_int_equal(fake_result(f, EPA_OK, NULL), EPA_OK);
    assert_string_equal(f->result.unchecked, "");
}

TEST(times_of_a_gpu_are_not_held_against_the_clock_of_the_host)
{
    static const enum bench_clock clocks[] = {CLOCK_HOST, CLOCK_EVENTS, CLOCK_GRAPH};

    for (uint32_t i = 0; i < 3; i++) {
        struct fake f;
        bool reported = false;

        fake_init(&f, VERB_BENCH, 2, 200);
        fake_graphs(&f, 200);
        f.session.clock = clocks[i];
        f.facts.timer_ns = 10000;
        assert_int_equal(fake_result(&f, EPA_OK, NULL), EPA_OK);
        for (uint32_t w = 0; w < f.result.n_warnings; w++)
            reported |= strstr(f.result.warning[w], "the clock moves in steps") != NULL;
        assert_int_equal(reported, clocks[i] == CLOCK_HOST);
        fake_finish(&f);
    }
}
