/* token_flag on GPUs: calls that are refused, what is said of it and of a kernel that gave up,
 * as far as the host alone decides. The few functions of the CUDA runtime that are called
 * stand here, and kernels do nothing: no GPU is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <cuda_runtime_api.h>

#include "../../plugins/algorithm/token_flag/token_flag_cuda_state.h"

static uint32_t memsets, launches, early, blocks;

cudaError_t cudaSetDevice(int device)
{
    (void)device;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel,
                                void **args)
{
    (void)kernel, (void)args;
    launches++;
    early += config->numAttrs;
    blocks = config->gridDim.x;
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    (void)to, (void)byte, (void)bytes, (void)stream;
    memsets++;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)to, (void)from, (void)bytes, (void)kind, (void)stream;
    return cudaErrorUnknown; /* nothing asks for it */
}

const char *cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "made up";
}

const void *tf_dispatch_send_kernel(enum tf_input in, bool f16, bool profile)
{
    (void)in, (void)f16, (void)profile;
    return NULL;
}

const void *tf_dispatch_recv_kernel(bool profile)
{
    (void)profile;
    return NULL;
}

const void *tf_combine_send_kernel(enum tf_output kind, bool f16, bool profile)
{
    (void)kind, (void)f16, (void)profile;
    return NULL;
}

const void *tf_combine_recv_kernel(bool f16, bool profile)
{
    (void)f16, (void)profile;
    return NULL;
}

/* ---- one rank, that calls itself one of two ---- */

struct fixture {
    struct tf_cuda c;
    struct epa_transport t;
    struct epa_backend backend;
    struct epa_problem problem;
    char heap[1], *peer_heap[2];
};

static void set_up(struct fixture *f, uint32_t buffers)
{
    *f = (struct fixture){.problem.op = EPA_OP_MOE};
    f->peer_heap[0] = f->peer_heap[1] = f->heap;
    f->t = (struct epa_transport){.size = 2, .peer_heap = f->peer_heap};
    f->c.l = (struct tf_layout){.size = 2,
                                .local = 1,
                                .experts = 2,
                                .max_tokens = 1,
                                .buffers = buffers,
                                .chunks = 1,
                                .rows = 2,
                                .lines = 1,
                                .output_packets = 1,
                                .by_token = true,
                                .folded = true};
    f->c.d.t = &f->t;
    f->c.d.backend = &f->backend;
    f->c.d.early = true;
    for (uint32_t i = 0; i < TF_STAGES; i++)
        f->c.resident[i] = 4;
    memsets = launches = early = 0;
}

static enum epa_status call(struct fixture *f, enum tf_stage stage)
{
    return tf_cuda_stages[stage].run(&f->c.base, &f->problem);
}

static void assert_explained(struct fixture *f, enum epa_status status, const char *why)
{
    struct epa_error err = {EPA_OK, ""};

    tf_cuda_explain(&f->c.base, &err);
    assert_int_equal(err.status, status);
    assert_string_equal(err.text, why);
}

static void assert_refused(struct fixture *f, enum tf_stage stage, const char *why)
{
    assert_int_equal(call(f, stage), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, why);
}

static void each_half_follows_the_one_before(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f, 2);
    assert_refused(&f, TF_DISPATCH_RECV,
                   "dispatch_recv: called for dispatch 0, which is not sent, or never was");
    assert_int_equal(call(&f, TF_DISPATCH_SEND), EPA_OK);
    assert_refused(
        &f, TF_COMBINE_SEND,
        "combine_send: called for dispatch 1, which is not received, or never was");
    assert_refused(&f, TF_DISPATCH_SEND,
                   "dispatch_send: dispatch 1 has been sent and not received: call "
                   "dispatch_recv first");
    assert_int_equal(call(&f, TF_DISPATCH_RECV), EPA_OK);
    assert_int_equal(call(&f, TF_COMBINE_SEND), EPA_OK);
    assert_refused(&f, TF_DISPATCH_SEND,
                   "dispatch_send: dispatch 1 has been answered and not combined: call "
                   "combine_recv first");
    assert_int_equal(call(&f, TF_COMBINE_RECV), EPA_OK);
    assert_refused(
        &f, TF_COMBINE_RECV,
        "combine_recv: called for dispatch 1, which is not answered, or never was");
    assert_int_equal(call(&f, TF_DISPATCH_SEND), EPA_OK);
    assert_int_equal(f.problem.u.moe.epoch, 2);
}

static void combines_go_in_order_and_dispatches_wait_for_a_set(void **state)
{
    for (uint32_t buffers = 1; buffers <= 2; buffers++) {
        struct fixture f;
        char why[200];

        (void)state;
        set_up(&f, buffers);
        for (uint32_t i = 0; i < buffers; i++) {
            assert_int_equal(call(&f, TF_DISPATCH_SEND), EPA_OK);
            assert_int_equal(call(&f, TF_DISPATCH_RECV), EPA_OK);
        }
        snprintf(why, sizeof(why),
                 "dispatch_send: %u dispatches are open, as many as there are buffer sets: "
                 "combine one first",
                 buffers);
        assert_refused(&f, TF_DISPATCH_SEND, why);
        if (buffers == 1)
            continue;
        assert_refused(&f, TF_COMBINE_SEND,
                       "combine_send: called for dispatch 2, but 1 is the oldest that is "
                       "received: they go in order");
        f.problem.u.moe.epoch = 1;
        assert_int_equal(call(&f, TF_COMBINE_SEND), EPA_OK);
    }
}

static void only_the_last_dispatch_is_given_up_and_only_with_two_sets(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f, 2);
    assert_int_equal(call(&f, TF_DISPATCH_SEND), EPA_OK);
    assert_int_equal(tf_cuda_discard(&f.c.base, &f.problem), EPA_ERR_CONFIG);
    assert_explained(&f, EPA_ERR_CONFIG, "dispatch 1 is not the last, or not received");
    assert_int_equal(call(&f, TF_DISPATCH_RECV), EPA_OK);
    assert_int_equal(tf_cuda_discard(&f.c.base, &f.problem), EPA_OK);
    assert_int_equal(tf_cuda_discard(&f.c.base, &f.problem), EPA_ERR_CONFIG);
    set_up(&f, 1);
    assert_int_equal(call(&f, TF_DISPATCH_SEND), EPA_OK);
    assert_int_equal(call(&f, TF_DISPATCH_RECV), EPA_OK);
    assert_int_equal(tf_cuda_discard(&f.c.base, &f.problem), EPA_ERR_CONFIG);
    assert_explained(&f, EPA_ERR_CONFIG,
                     "a dispatch can be given up only with algorithm.buffers: 2");
}

/* A kernel behind a memset is not set up early: what comes before it is no kernel. */
static void memset_is_one_before_each_dispatch(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f, 2);
    f.c.l.folded = false;
    for (uint32_t i = 0; i < 2 * TF_STAGES; i++)
        assert_int_equal(call(&f, (enum tf_stage)(i % TF_STAGES)), EPA_OK);
    assert_int_equal(memsets, 2);
    assert_int_equal(launches, 8);
    assert_int_equal(early, 6);
    set_up(&f, 2);
    for (uint32_t i = 0; i < TF_STAGES; i++)
        assert_int_equal(call(&f, (enum tf_stage)i), EPA_OK);
    assert_int_equal(memsets, 0);
    assert_int_equal(early, 4);
}

static void a_rank_without_tokens_launches_all_the_same(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f, 2);
    f.c.l.by_token = false;
    for (uint32_t i = 0; i < TF_STAGES; i++) {
        assert_int_equal(call(&f, (enum tf_stage)i), EPA_OK);
        assert_true(blocks >= 1);
    }
}

static void assert_fault(uint32_t stage, uint32_t what, uint64_t seen, uint64_t wanted,
                         const char *why)
{
    struct fixture f;

    set_up(&f, 2);
    f.backend.fault = (struct epa_fault){.claimed = 1,
                                         .status = EPA_ERR_TIMEOUT,
                                         .stage = stage,
                                         .what = what,
                                         .peer = 1,
                                         .index = 3,
                                         .seen = seen,
                                         .wanted = wanted,
                                         .waited_ns = 1500000000};
    assert_explained(&f, EPA_ERR_TIMEOUT, why);
}

static void a_kernel_that_gave_up_says_for_what_of_whom(void **state)
{
    (void)state;
    assert_fault(TF_DISPATCH_RECV, TF_WAIT_COUNTS, tf_count_flag(4, 7), 5,
                 "dispatch_recv, counts: epoch 5, waited 1.500 s for counts of rank 1: the "
                 "last are of epoch 4");
    assert_fault(TF_DISPATCH_RECV, TF_WAIT_ROWS, tf_count_flag(3, 7), tf_count_flag(5, 0),
                 "dispatch_recv, counts: epoch 5, waited 1.500 s for counts of rank 1 and "
                 "all its rows: the last are of epoch 3");
    assert_fault(
        TF_DISPATCH_SEND, TF_WAIT_ROW, 3, 5,
        "dispatch_send, rows: epoch 5, waited 1.500 s for row 3 of rank 1: what is "
        "there is of epoch 3");
    assert_fault(
        TF_COMBINE_RECV, TF_WAIT_OUTPUT, 4, 5,
        "combine_recv, expert outputs: epoch 5, waited 1.500 s for the answer, to token 3 "
        "of rank 1: what is there is of epoch 4");
    assert_fault(
        TF_DISPATCH_RECV, TF_WAIT_ROW, 5, 5,
        "dispatch_recv, rows: epoch 5, waited 1.500 s for row 3 of rank 1: what is "
        "there is of epoch 5 at its end: not all of it has come");
    assert_fault(
        TF_DISPATCH_RECV, TF_BAD_ROW, 900, 7,
        "dispatch_recv, rows: row 3 of rank 1 says that it is of token 900 and for "
        "the receiver's expert 7, which does not go with its counts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_half_follows_the_one_before),
        cmocka_unit_test(combines_go_in_order_and_dispatches_wait_for_a_set),
        cmocka_unit_test(only_the_last_dispatch_is_given_up_and_only_with_two_sets),
        cmocka_unit_test(memset_is_one_before_each_dispatch),
        cmocka_unit_test(a_rank_without_tokens_launches_all_the_same),
        cmocka_unit_test(a_kernel_that_gave_up_says_for_what_of_whom),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
