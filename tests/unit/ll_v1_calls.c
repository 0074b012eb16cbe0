/* ll_v1: which calls a rank may make, in which order, and what is said of others. */
#include "ll_v1_peer.h"

#define TEST_OF_CALLS(name, begin) TEST_OF(name, struct fixture, f, begin, finish)

TEST_OF_CALLS(calls_of_a_mode_take_positions_in_turn,
              create(2,
                     (struct v1_config){.pdl = true, .dispatch_dtype = V1_DTYPE_FP8, .buffers = 1}))
{
    for (uint64_t call = 1; call <= 4; call++) {
        assert_int_equal(combine(f, dispatch(f)), EPA_OK);
        assert_int_equal(f->signalled[v1_signal_of(2, V1_DISPATCH, call, 0)], call);
        assert_int_equal(f->signalled[v1_signal_of(2, V1_COMBINE, call, 0)], call);
    }
}

TEST_OF_CALLS(combines_go_in_the_order_of_dispatches, alone(2))
{
    uint64_t first, second;

    memset(f->expert, 0, sizeof(f->expert));
    first = dispatch(f);
    second = dispatch(f);
    assert_int_equal(combine(f, second), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, "combine/send .. dispatch 2 .. 1");
    assert_int_equal(combine(f, first), EPA_OK);
    assert_int_equal(combine(f, second), EPA_OK);
}

TEST_OF_CALLS(a_combine_may_be_called_again_until_the_next_dispatch,
              create(2,
                     (struct v1_config){.pdl = true, .dispatch_dtype = V1_DTYPE_FP8, .buffers = 2}))
{
    uint64_t first, second;

    assert_true(f->a->combines_again);
    first = dispatch(f);
    assert_int_equal(combine(f, first), EPA_OK);
    assert_int_equal(combine(f, first), EPA_OK);
    assert_int_equal(combine(f, first), EPA_OK);
    assert_int_equal(f->signalled[v1_signal_of(2, V1_COMBINE, 3, 0)], 3);
    second = dispatch(f);
    assert_int_equal(combine(f, first), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, "combine/send .. dispatch 1");
    assert_int_equal(combine(f, second), EPA_OK);
}

TEST_OF_CALLS(only_the_last_dispatch_is_discarded_and_its_set_is_free,
              create(2,
                     (struct v1_config){.pdl = true, .dispatch_dtype = V1_DTYPE_FP8, .buffers = 2}))
{
    uint64_t first = dispatch(f);

    (void)dispatch(f);
    f->problem.u.moe.epoch = first;
    assert_int_equal(f->a->discard(f->a, &f->problem), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, "discard: .. dispatch 1");
    f->problem.u.moe.epoch = 2;
    memset(f->trace, 0, sizeof(f->trace));
    assert_int_equal(f->a->discard(f->a, &f->problem), EPA_OK);
    assert_string_equal(f->trace, "");
    (void)dispatch(f);
    assert_int_equal(combine(f, first), EPA_OK);
    assert_int_equal(combine(f, 3), EPA_OK);
}

TEST_OF_CALLS(no_more_dispatches_are_open_than_buffers,
              create(2,
                     (struct v1_config){.pdl = true, .dispatch_dtype = V1_DTYPE_FP8, .buffers = 1}))
{
    (void)dispatch(f);
    assert_int_equal(run(f, 0), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, "dispatch/sort_and_quantise .. 1 .. algorithm.buffers");
}

TEST(peers_out_of_reach_against_the_plan_are_refused)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(try_create(f, 2, EPA_TRANSPORT_LOAD_STORE,
                                (struct v1_config){.pdl = true, .buffers = 1}, &err),
                     EPA_ERR_UNSUPPORTED);
    assert_words(err.text, "ll_v1 .. rank 1");
    finish(f);
}
