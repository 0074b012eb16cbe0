/* Results from sessions made by hand: who is slowest, which bytes count where, what is told
 * when things went wrong. */
#include <math.h>
#include "test.h"

#include "fake_root.h"
#include "fake_session.h"

#include "base/exit_code.h"

static void assert_near(double is, double want)
{
    assert_true(fabs(is - want) <= 1e-9 * fabs(want));
}

/* Whether a warning holds `words`. */
static bool warned(const struct fake *f, const char *what)
{
    const json_t *warning;
    bool found = false;
    size_t i;

    json_array_foreach(json_object_get(f->result, "warnings"), i, warning) found =
        found || strstr(json_string_value(warning), what) != NULL;
    return found;
}

TEST_OF_FAKE(a_sample_is_the_slowest_rank_of_its_iteration, VERB_BENCH, 3, 2)
{
    fake_measure(f, 2);
    *fake_time(f, 0, 0, 1) = 500000; /* rank 0 is slowest once, in dispatch alone */
    fake_result(f, EPA_OK, NULL);
    assert_int_equal(num(f, "stop.samples"), 2);
    assert_near(num(f, "stages.0.samples_ns.0"), 102000);
    assert_near(num(f, "stages.0.samples_ns.1"), 500000);
    assert_near(num(f, "stages.1.samples_ns.1"), 203000);
}

TEST_OF_FAKE(total_adds_up_within_a_rank_before_the_slowest_is_taken, VERB_BENCH, 2, 1)
{
    fake_measure(f, 1);
    *fake_time(f, 0, 0, 0) = 10;
    *fake_time(f, 1, 0, 0) = 1;
    *fake_time(f, 0, 1, 0) = 1;
    *fake_time(f, 1, 1, 0) = 9;
    fake_result(f, EPA_OK, NULL);
    assert_int_equal(size(f, "stages"), 3);
    assert_string_equal(words(f, "stages.2.name"), "total");
    assert_near(num(f, "stages.2.samples_ns.0"), 11); /* not 10 + 9 */
}

TEST_OF_FAKE(only_iterations_that_all_ranks_finished_count, VERB_BENCH, 4, 200)
{
    fake_measure(f, 60);
    session_rank(&f->session, 2)->samples = 57;
    fake_result(f, EPA_ERR_INTERRUPTED, "stopped by the user");
    assert_int_equal(num(f, "stop.samples"), 57);
    assert_int_equal(size(f, "stages.2.samples_ns"), 57);
}

TEST_OF_FAKE(skew_and_straggler_are_of_the_total, VERB_BENCH, 4, 10)
{
    fake_measure(f, 10);
    *fake_time(f, 0, 1, 7) = 900000;
    fake_result(f, EPA_OK, NULL);
    assert_near(num(f, "skew.median_ns"), 6000); /* 3 ranks apart, 1 us in each of two stages */
    assert_int_equal(num(f, "skew.straggler"), 3);
    assert_near(num(f, "skew.straggler_share"), 0.9);
}

TEST_OF_FAKE(rates_are_bytes_of_one_iteration_by_the_median, VERB_BENCH, 2, 1)
{
    fake_measure(f, 1);
    session_rank(&f->session, 1)->traffic.phase[0].needed = 5000000;
    session_rank(&f->session, 1)->traffic.phase[0].sent =
        7000000; /* more than it gets: its bottleneck */
    fake_result(f, EPA_OK, NULL);
    assert_near(num(f, "stages.0.rate.goodput"), 4000000 / 101000.0);
    assert_near(num(f, "stages.0.rate.wire"), 4000000 / 101000.0);
    assert_near(num(f, "stages.0.rate.bottleneck"), 7000000 / 101000.0);
    assert_near(num(f, "stages.1.rate.goodput"), 3000000 / 201000.0);
    assert_near(num(f, "stages.1.rate.wire"), 1000000 / 201000.0);
    assert_near(num(f, "stages.1.rate.bottleneck"), 2000000 / 201000.0);
    assert_near(num(f, "stages.2.rate.goodput"), 7000000 / 302000.0);
    assert_near(num(f, "stages.2.rate.bottleneck"), 8000000 / 302000.0);
}

TEST_OF_FAKE(traffic_is_by_the_iterations_that_counted_it, VERB_BENCH, 2, 8)
{
    fake_measure(f, 8);
    for (uint32_t r = 0; r < 2; r++) {
        session_rank(&f->session, r)->traffic_n = 1; /* one set of inputs, used eight times */
        session_rank(&f->session, r)->traffic =
            (struct op_traffic){{{300, 100, 100, 0}, {300, 100, 100, 0}}, 0};
    }
    fake_result(f, EPA_OK, NULL);
    assert_near(num(f, "traffic.dispatch.needed_bytes"), 300);
    assert_near(num(f, "traffic.total.wire_bytes"), 200);
}

TEST_OF_FAKE(stages_that_share_a_dispatch_have_no_rate_of_their_own, VERB_BENCH, 2, 1)
{
    fake_measure(f, 1);
    f->session.stage_kind[1] = EPA_STAGE_DISPATCH;
    fake_result(f, EPA_OK, NULL);
    assert_true(isnan(num(f, "stages.0.rate.goodput")));
    assert_true(isnan(num(f, "stages.1.rate.bottleneck")));
    assert_near(num(f, "stages.2.rate.goodput"), 6000000 / 302000.0);
}

TEST_OF_FAKE(one_rank_has_no_skew_and_sends_nothing, VERB_BENCH, 1, 5)
{
    fake_measure(f, 5);
    session_rank(&f->session, 0)->traffic =
        (struct op_traffic){{{500, 0, 0, 0}, {500, 0, 0, 0}}, 0};
    fake_result(f, EPA_OK, NULL);
    assert_near(num(f, "skew.median_ns"), 0);
    assert_near(num(f, "stages.0.rate.wire"), 0);
    assert_true(num(f, "stages.0.rate.goodput") > 0);
}

TEST_OF_FAKE(no_sample_gives_nan_rates_and_keeps_its_stages, VERB_BENCH, 2, 200)
{
    fake_result(f, EPA_ERR_TIMEOUT, "rank 0 waits for rank 1");
    assert_int_equal(num(f, "stop.samples"), 0);
    assert_int_equal(size(f, "stages"), 3);
    assert_true(isnan(num(f, "stages.2.ns.median")));
    assert_true(isnan(num(f, "stages.2.rate.goodput")));
    assert_true(warned(f, "no sample"));
}

TEST_OF_FAKE(a_session_that_never_had_ranks_makes_a_result, VERB_BENCH, 8, 200)
{
    struct session bare;

    bare = (struct session){.experiment = &f->experiment, .verb = VERB_BENCH, .iterations = 200};
    f->result = result_make(&bare, &f->facts,
                            &(struct result_end){.status = EPA_ERR_NOMEM, .error = "no room"});
    assert_non_null(f->result);
    assert_int_equal(size(f, "stages"), 1);
    assert_int_equal(num(f, "exit_code"), EXIT_RESOURCE);
}

TEST_OF_FAKE(verify_counts_and_times_nothing, VERB_VERIFY, 2, 50)
{
    for (uint32_t r = 0; r < 2; r++) {
        session_rank(&f->session, r)->samples = 50;
        session_rank(&f->session, r)->checked = 50 - r;
        session_rank(&f->session, r)->compared = 1000;
        session_rank(&f->session, r)->wrong = r;
    }
    fake_result(f, EPA_ERR_MISMATCH, "wrong");
    assert_int_equal(num(f, "stop.samples"), 0);
    assert_int_equal(num(f, "verify.compared"), 2000);
    assert_int_equal(num(f, "verify.wrong"), 1);
    assert_int_equal(num(f, "verify.iterations"), 49);
    assert_int_equal(num(f, "exit_code"), EXIT_WRONG);
}

TEST_OF_FAKE(the_first_rank_that_failed_by_itself_explains, VERB_BENCH, 3, 5)
{
    session_rank(&f->session, 0)->status = EPA_ERR_ABORTED;
    session_rank(&f->session, 0)->failed_ns = 1;
    session_rank(&f->session, 1)->status = EPA_ERR_TIMEOUT;
    session_rank(&f->session, 1)->failed_ns = 30;
    strcpy(session_rank(&f->session, 1)->text, "later");
    session_rank(&f->session, 2)->status = EPA_ERR_TIMEOUT;
    session_rank(&f->session, 2)->failed_ns = 20;
    strcpy(session_rank(&f->session, 2)->text, "earlier");
    fake_result(f, EPA_ERR_TIMEOUT, "");
    assert_string_equal(words(f, "error.text"), "earlier");
}

TEST_OF_FAKE(a_quiet_bench_has_no_warning, VERB_BENCH, 4, 200)
{
    fake_measure(f, 200);
    fake_result(f, EPA_OK, NULL);
    assert_int_equal(size(f, "warnings"), 0);
}

TEST_OF_FAKE(doubtful_conditions_are_warned_of, VERB_BENCH, 4, 50)
{
    fake_measure(f, 50);
    fake_machine_set(f->facts.machine, NULL, "cores", json_integer(2));
    fake_machine_set(f->facts.machine, "build", "debug", json_true());
    fake_machine_set(f->facts.machine, NULL, "timer_ns", json_real(4e6));
    fake_machine_set(f->facts.machine, "build", "isa_refused", json_string("avx9"));
    fake_machine_set(f->facts.machine, NULL, "governor", json_string("powersave"));
    session_rank(&f->session, 3)->core = -1;
    *fake_time(f, 0, 0, 0) = 9e6;
    fake_result(f, EPA_OK, NULL);
    assert_true(warned(f, "4 ranks of 1 thread share 2 cores"));
    assert_true(warned(f, "debug build"));
    assert_true(warned(f, "steps of 4000000 ns"));
    assert_true(warned(f, "EPA2A_ISA=avx9"));
    assert_true(warned(f, "governor is \"powersave\""));
    assert_true(warned(f, "1 of 4 ranks are not pinned"));
    assert_true(warned(f, "the first sample took 9200.0 us"));
    assert_true(warned(f, "1 of 50 samples are outliers"));
    assert_true(warned(f, "p99 of 50 samples is the maximum"));
    assert_int_equal(size(f, "warnings"), 9);
}

TEST(a_routing_file_that_starts_again_is_warned_of)
{
    struct fake f;
    char root[512], path[600];

    root_create(root, sizeof(root));
    snprintf(path, sizeof(path), "%s/routes.jsonl", root);
    root_put(root, "/routes.jsonl",
             "{\"topk_ids\": [0, 1]}\n{\"topk_ids\": [2, 3]}\n{\"topk_ids\": [1, 2]}\n"
             "{\"topk_ids\": [3, 0]}\n{\"topk_ids\": [0, 2]}\n");
    fake_init(&f, VERB_RUN, 2, 3);
    f.experiment.moe.max_tokens = 1;
    f.experiment.moe.experts = 4;
    f.experiment.moe.topk = 2;
    f.experiment.routing.kind = ROUTING_FILE;
    f.experiment.routing.path = path;
    assert_int_equal(routing_open(&f.experiment, &f.session.source, NULL), EPA_OK);
    fake_result(&f, EPA_OK, NULL);
    assert_true(warned(&f, "start again after iteration 2 of 3: they hold no more (5 tokens"));
    f.session.iterations = 2;
    fake_result(&f, EPA_OK, NULL);
    assert_int_equal(size(&f, "warnings"), 0);
    routing_close(f.session.source);
    fake_finish(&f);
    root_destroy(root);
}

TEST(hidden_states_that_start_again_are_warned_of_without_routing)
{
    static const unsigned char head[128] = "\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', "
                                           "'fortran_order': False, 'shape': (1, 16)}";
    char root[512], path[600], npy[sizeof(head) + 16 * sizeof(float)] = "";
    struct fake f;
    FILE *file;

    root_create(root, sizeof(root));
    snprintf(path, sizeof(path), "%s/hidden.npy", root);
    memset(npy, ' ', sizeof(head));
    memcpy(npy, head, strlen((const char *)head + 10) + 10);
    npy[sizeof(head) - 1] = '\n';
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(npy, 1, sizeof(npy), file), sizeof(npy));
    fclose(file);
    fake_init(&f, VERB_RUN, 2, 3);
    f.experiment.moe.hidden = 16;
    f.experiment.routing.hidden_states = path;
    assert_int_equal(routing_open(&f.experiment, &f.session.source, NULL), EPA_OK);
    fake_result(&f, EPA_OK, NULL);
    assert_true(warned(&f, "are more than they hold"));
    assert_false(warned(&f, "with routing"));
    routing_close(f.session.source);
    fake_finish(&f);
    root_destroy(root);
}

TEST_OF_FAKE(only_bench_is_warned_of_times, VERB_RUN, 4, 2)
{
    fake_measure(f, 2);
    fake_machine_set(f->facts.machine, NULL, "cores", json_integer(1));
    fake_machine_set(f->facts.machine, "build", "debug", json_true());
    fake_result(f, EPA_OK, NULL);
    assert_int_equal(size(f, "warnings"), 0);
}

/* ---- rows: graphs, halves of stages, limits, and what was checked ---- */

TEST_OF_FAKE(halves_of_a_stage_have_no_rate_of_their_own, VERB_BENCH, 2, 1)
{
    fake_measure(f, 1);
    fake_peaks(f);
    f->session.stage_kind[0] = EPA_STAGE_SEND;
    f->session.stage_kind[1] = EPA_STAGE_DISPATCH;
    fake_result(f, EPA_OK, NULL);
    assert_true(isnan(num(f, "stages.0.rate.wire")));
    assert_true(isnan(num(f, "stages.0.peak_ns")));
    assert_true(isnan(num(f, "stages.1.rate.wire")));
    assert_true(num(f, "stages.2.rate.wire") > 0);
}

TEST_OF_FAKE(graphs_have_a_total_that_was_measured, VERB_BENCH, 2, 3)
{
    fake_graphs(f, 3);
    fake_result(f, EPA_OK, NULL);
    assert_int_equal(size(f, "stages"), 3);
    assert_string_equal(words(f, "stages.0.name"), "dispatch");
    assert_string_equal(words(f, "stages.1.name"), "combine");
    assert_string_equal(words(f, "stages.2.name"), "total");
    assert_near(num(f, "stages.0.ns.median"), 102000);
    assert_near(num(f, "stages.2.ns.median"), 252000);
    assert_near(num(f, "stages.2.rate.goodput"), 6000000 / 252000.0);
    assert_near(num(f, "skew.median_ns"), 1000);
}

TEST_OF_FAKE(what_graphs_cannot_measure_has_no_samples, VERB_BENCH, 2, 3)
{
    fake_graphs(f, 3);
    f->session.not_alone[FIGURE_COMBINE] = true;
    fake_result(f, EPA_OK, NULL);
    assert_int_equal(num(f, "stages.1.ns.n"), 0);
    assert_true(isnan(num(f, "stages.1.ns.median")));
    assert_true(isnan(num(f, "stages.1.rate.goodput")));
    assert_int_equal(num(f, "stages.2.ns.n"), 3);
}

/* Of the other ranks' times none is looked at, slow as they are. */
TEST_OF_FAKE(the_clock_on_the_wall_is_one_row_and_rank_0s, VERB_BENCH, 3, 4)
{
    fake_measure(f, 4);
    fake_peaks(f);
    f->session.clock = CLOCK_END_TO_END;
    fake_result(f, EPA_OK, NULL);
    assert_string_equal(words(f, "timing.clock"), "end_to_end");
    assert_int_equal(size(f, "stages"), 1);
    assert_string_equal(words(f, "stages.0.name"), "wall");
    assert_near(num(f, "stages.0.ns.min"), 100000);
    assert_near(num(f, "stages.0.ns.max"), 103000);
    assert_near(num(f, "stages.0.rate.goodput"), 6000000 / 101000.0);
    assert_near(num(f, "stages.0.peak_ns"), 2000000 / 100.0 + 4000);
    assert_near(num(f, "stages.0.ranks.0.max_ns"), 103000);
    assert_true(isnan(num(f, "stages.0.ranks.2.max_ns")));
}

TEST_OF_FAKE(a_limit_is_the_least_bytes_at_the_best_rate_and_a_latency, VERB_BENCH, 2, 1)
{
    fake_measure(f, 1);
    fake_result(f, EPA_OK, NULL);
    assert_false(json_is_object(json_at(f->result, "machine.links")));
    assert_true(isnan(num(f, "stages.2.peak_ns")));
    fake_peaks(f);
    session_rank(&f->session, 1)->traffic.phase[1].least = 3000000;
    fake_result(f, EPA_OK, NULL);
    assert_near(num(f, "stages.0.peak_ns"), 1000000 / 100.0 + 2000);
    assert_near(num(f, "stages.1.peak_ns"), 3000000 / 100.0 + 2000);
    assert_near(num(f, "stages.2.peak_ns"), 4000000 / 100.0 + 4000);
}

TEST_OF_FAKE(a_rate_that_is_not_known_leaves_a_latency, VERB_BENCH, 2, 1)
{
    fake_measure(f, 1);
    fake_peaks(f);
    for (uint32_t r = 0; r < 2; r++)
        session_rank(&f->session, r)->peak.bytes_per_ns = 0;
    fake_result(f, EPA_OK, NULL);
    assert_near(num(f, "stages.0.peak_ns"), 2000);
    assert_near(num(f, "stages.2.peak_ns"), 4000);
}

TEST_OF_FAKE(a_bench_that_checked_nothing_says_why, VERB_BENCH, 1, 1)
{
    static struct session_notes notes = {.unchecked = "for a reason"};

    fake_measure(f, 1);
    f->session.notes = &notes;
    fake_result(f, EPA_OK, NULL);
    assert_string_equal(words(f, "verify.unchecked"), "for a reason");
    f->experiment.bench.check = false;
    fake_result(f, EPA_OK, NULL);
    assert_string_equal(words(f, "verify.unchecked"), "bench.check is false");
    session_rank(&f->session, 0)->compared = 1;
    fake_result(f, EPA_OK, NULL);
    assert_string_equal(words(f, "verify.unchecked"), "");
}

TEST(times_of_a_gpu_are_not_held_against_the_clock_of_the_host)
{
    static const enum bench_clock clocks[] = {CLOCK_HOST, CLOCK_EVENTS, CLOCK_GRAPH};

    for (uint32_t i = 0; i < 3; i++) {
        struct fake f;

        fake_init(&f, VERB_BENCH, 2, 200);
        fake_graphs(&f, 200);
        f.session.clock = clocks[i];
        fake_machine_set(f.facts.machine, NULL, "timer_ns", json_real(10000));
        fake_result(&f, EPA_OK, NULL);
        assert_int_equal(warned(&f, "the clock moves in steps"), clocks[i] == CLOCK_HOST);
        fake_finish(&f);
    }
}

static void say_cores(struct fake *f, uint32_t local_size, uint32_t local_cores)
{
    for (uint32_t r = 0; r < 4; r++) {
        session_rank(&f->session, r)->local_size = local_size;
        session_rank(&f->session, r)->local_cores = local_cores;
    }
}

TEST_OF_FAKE(ranks_that_are_bound_to_a_core_each_share_none, VERB_BENCH, 4, 200)
{
    fake_measure(f, 200);
    fake_machine_set(f->facts.machine, NULL, "cores",
                     json_integer(1)); /* of rank 0's process, as mpirun --bind-to core has it */
    say_cores(f, 4, 4);
    fake_result(f, EPA_OK, NULL);
    assert_false(warned(f, " share "));
}

TEST_OF_FAKE(the_node_with_the_fewest_cores_is_warned_of, VERB_BENCH, 4, 200)
{
    fake_measure(f, 200);
    say_cores(f, 2, 8);
    session_rank(&f->session, 2)->local_cores = session_rank(&f->session, 3)->local_cores = 1;
    fake_result(f, EPA_OK, NULL);
    assert_true(warned(f, "2 ranks of 1 thread share 1 core:"));
}

TEST_OF_FAKE(a_limit_that_is_beaten_is_none, VERB_BENCH, 2, 1)
{
    fake_measure(f, 1);
    fake_peaks(f);
    fake_result(f, EPA_OK, NULL);
    for (uint32_t i = 0; i < size(f, "stages"); i++)
        assert_false(json_is_true(json_at(f->result, i == 0   ? "stages.0.beaten"
                                                     : i == 1 ? "stages.1.beaten"
                                                              : "stages.2.beaten")));
    for (uint32_t r = 0; r < 2; r++)
        session_rank(&f->session, r)->peak.bytes_per_ns = 1e-3; /* as with a core for two ranks */
    fake_result(f, EPA_OK, NULL);
    assert_true(json_is_true(json_at(f->result, "stages.0.beaten")));
    assert_true(isnan(num(f, "stages.0.peak_ns")));
}
