/* ll_v1 on GPUs: how calls take sets, which are refused, and what is said of it and of a
 * fault. The few functions of the CUDA runtime that are called stand here, and kernels do
 * nothing: no GPU is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <cuda_runtime_api.h>

#include "../../plugins/algorithm/ll_v1/ll_v1_cuda_state.h"

static struct v1_args launched; /* with the last kernel */
static uint32_t blocks, copies;

cudaError_t cudaSetDevice(int device)
{
    (void)device;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel,
                                void **args)
{
    (void)kernel;
    memcpy(&launched, args[0], sizeof(launched));
    blocks = config->gridDim.x;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)to, (void)from, (void)bytes, (void)kind, (void)stream;
    copies++;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "made up";
}

const void *v1_dispatch_kernel(enum v1_input in, bool f16, bool profile)
{
    (void)in, (void)f16, (void)profile;
    return NULL;
}

const void *v1_combine_kernel(bool f16, bool pull, bool profile)
{
    (void)f16, (void)pull, (void)profile;
    return NULL;
}

/* ---- one rank, that calls itself one of two ---- */

struct fixture {
    struct v1_cuda c;
    struct epa_transport t;
    struct epa_backend backend;
    struct epa_problem problem;
    char heap[1 << 12], *peer_heap[2];
};

static void set_up(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    f->peer_heap[0] = f->peer_heap[1] = f->heap;
    f->t = (struct epa_transport){.size = 2, .peer_heap = f->peer_heap};
    f->c.l = (struct v1_layout){.size = 2,
                                .local = 1,
                                .max_tokens = 4096,
                                .topk = 1,
                                .buffers = 2,
                                .units = 1,
                                .shares = 1,
                                .pieces = 1,
                                .rows = 2,
                                .recv = {.at = 0, .bytes = 256},
                                .y = {.at = 1024, .bytes = 512}};
    f->c.d.t = &f->t;
    f->c.d.backend = &f->backend;
    f->c.sets.n = 2;
    f->c.resident[V1_DISPATCH] = f->c.resident[V1_COMBINE] = 4;
}

static enum epa_status call(struct fixture *f, enum v1_mode mode)
{
    return v1_cuda_stages[mode].run(&f->c.base, &f->problem);
}

static void assert_explained(struct fixture *f, enum epa_status status, const char *why)
{
    struct epa_error err = {EPA_OK, ""};

    v1_cuda_explain(&f->c.base, &err);
    assert_int_equal(err.status, status);
    assert_string_equal(err.text, why);
}

static void assert_refused(struct fixture *f, enum v1_mode mode, const char *why)
{
    assert_int_equal(call(f, mode), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, why);
}

static void sets_take_turns(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(call(&f, V1_DISPATCH), EPA_OK);
        assert_int_equal(f.problem.u.moe.epoch, i + 1);
        assert_ptr_equal(f.problem.u.moe.recv, f.heap + i % 2 * 256);
        assert_ptr_equal(f.problem.u.moe.y_space, f.heap + 1024 + i % 2 * 512);
        assert_int_equal(launched.y_space, 1024 + i % 2 * 512);
        assert_int_equal(call(&f, V1_COMBINE), EPA_OK);
        assert_int_equal(launched.y_space, 1024 + i % 2 * 512);
    }
}

static void a_third_dispatch_waits_for_a_combine(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    assert_int_equal(call(&f, V1_DISPATCH), EPA_OK);
    assert_int_equal(call(&f, V1_DISPATCH), EPA_OK);
    assert_refused(&f, V1_DISPATCH,
                   "dispatch: dispatch 1 is open in the set whose turn it is, of 2 that "
                   "algorithm.buffers gives: combine that first");
    f.problem.u.moe.epoch = 2;
    assert_refused(&f, V1_COMBINE,
                   "combine: dispatch 1 is to be combined before 2: they go in order");
}

static void only_what_is_open_is_combined(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    assert_refused(&f, V1_COMBINE, "combine: dispatch 0 is not open, or never was");
    assert_int_equal(call(&f, V1_DISPATCH), EPA_OK);
    assert_int_equal(call(&f, V1_COMBINE), EPA_OK);
    assert_int_equal(call(&f, V1_COMBINE), EPA_OK); /* again */
    assert_int_equal(call(&f, V1_DISPATCH), EPA_OK);
    f.problem.u.moe.epoch = 1;
    assert_refused(&f, V1_COMBINE, "combine: dispatch 1 is not open, or never was");
}

static void only_the_last_is_given_up(void **state)
{
    struct fixture f;

    (void)state;
    for (uint32_t buffers = 1; buffers <= 2; buffers++) {
        set_up(&f);
        f.c.sets.n = buffers;
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(call(&f, V1_DISPATCH), EPA_OK);
            assert_int_equal(v1_cuda_discard(&f.c.base, &f.problem), EPA_OK);
        }
        assert_int_equal(v1_cuda_discard(&f.c.base, &f.problem), EPA_ERR_CONFIG);
        assert_explained(&f, EPA_ERR_CONFIG,
                         "dispatch 3 is not the last, or not open any more");
    }
}

static void outputs_that_stand_elsewhere_are_copied_for_who_pulls(void **state)
{
    struct fixture f;
    char y[1];

    (void)state;
    for (int pull = 0; pull < 2; pull++) {
        set_up(&f);
        f.c.l.pull = pull != 0;
        copies = 0;
        assert_int_equal(call(&f, V1_DISPATCH), EPA_OK);
        f.problem.u.moe.y = f.problem.u.moe.y_space;
        assert_int_equal(call(&f, V1_COMBINE), EPA_OK);
        assert_int_equal(copies, 0);
        f.problem.u.moe.y = y;
        assert_int_equal(call(&f, V1_COMBINE), EPA_OK);
        assert_int_equal(copies, pull);
    }
}

/* Of any number of tokens, in a kernel of any number of blocks. */
static void some_block_sends_and_another_receives(void **state)
{
    static const uint32_t room[] = {1, 2, 3, 7, 264};
    struct fixture f;

    (void)state;
    for (uint32_t i = 0; i < 5; i++) {
        set_up(&f);
        f.c.resident[V1_DISPATCH] = f.c.resident[V1_COMBINE] = room[i];
        for (uint32_t tokens = 0; tokens <= 4096; tokens = tokens * 2 + 1) {
            f.problem.u.moe.tokens = tokens;
            assert_int_equal(call(&f, V1_DISPATCH), EPA_OK);
            assert_in_range(launched.senders, 1, room[i] > 1 ? room[i] / 2 : 1);
            assert_in_range(launched.chunk, 1, V1_MOST_CHUNK);
            assert_true(blocks > launched.senders || room[i] == 1);
            assert_in_range(blocks, 1, room[i]);
            assert_int_equal(call(&f, V1_COMBINE), EPA_OK);
            assert_in_range(launched.senders, 1, blocks);
            assert_true(blocks > launched.senders || room[i] == 1);
            assert_in_range(blocks, 1, room[i]);
        }
    }
}

static const struct {
    struct epa_fault fault;
    const char *why;
} faults[] = {
    {{.status = EPA_ERR_TIMEOUT,
      .stage = V1_DISPATCH,
      .what = V1_WAIT_SPLITS,
      .peer = 1,
      .seen = 3,
      .wanted = 5,
      .waited_ns = 1500000000},
     "dispatch, wait: call 5, rank 1: waited 1.500 s for its splits, whose call is 3"},
    {{.status = EPA_ERR_TIMEOUT,
      .stage = V1_DISPATCH,
      .what = V1_WAIT_ROW,
      .peer = 1,
      .index = 7,
      .seen = 3,
      .wanted = 5,
      .waited_ns = 1500000000},
     "dispatch, wait: call 5, rank 1: waited 1.500 s for row 7 of its block, which is of "
     "call 3"},
    {{.status = EPA_ERR_ABORTED,
      .stage = V1_COMBINE,
      .what = V1_WAIT_BEGUN,
      .peer = 1,
      .seen = 4,
      .wanted = 6,
      .waited_ns = 1000000},
     "combine, wait: call 6, rank 1: waited 0.001 s for its signal that it has begun, which "
     "is 4"},
    {{.status = EPA_ERR_TIMEOUT,
      .stage = V1_COMBINE,
      .what = V1_WAIT_OUTPUT,
      .peer = 1,
      .index = 7,
      .seen = 4,
      .wanted = 6,
      .waited_ns = 1000000},
     "combine, wait: call 6, rank 1: waited 0.001 s for its answer to my token 7, which is "
     "of call 4"},
    {{.status = EPA_ERR_CONFIG,
      .stage = V1_DISPATCH,
      .what = V1_NO_ROOM,
      .peer = 1,
      .seen = 10,
      .wanted = 9},
     "dispatch: rank 0 has 10 rows for rank 1, which has room for 9 from each: raise "
     "algorithm.capacity, or set it to 0"},
};

static void a_fault_is_reported_with_stage_peer_and_call(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        f.backend.fault = faults[i].fault;
        assert_explained(&f, (enum epa_status)faults[i].fault.status, faults[i].why);
    }
}

/* What the transport or the backend fails with later is theirs to explain. */
static void a_refusal_is_forgotten_with_the_next_call(void **state)
{
    struct fixture f;
    struct epa_error err = {EPA_OK, ""};

    (void)state;
    set_up(&f);
    assert_int_equal(call(&f, V1_COMBINE), EPA_ERR_CONFIG);
    assert_int_equal(call(&f, V1_DISPATCH), EPA_OK);
    v1_cuda_explain(&f.c.base, &err);
    assert_int_equal(err.status, EPA_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_take_turns),
        cmocka_unit_test(a_third_dispatch_waits_for_a_combine),
        cmocka_unit_test(only_what_is_open_is_combined),
        cmocka_unit_test(only_the_last_is_given_up),
        cmocka_unit_test(outputs_that_stand_elsewhere_are_copied_for_who_pulls),
        cmocka_unit_test(some_block_sends_and_another_receives),
        cmocka_unit_test(a_fault_is_reported_with_stage_peer_and_call),
        cmocka_unit_test(a_refusal_is_forgotten_with_the_next_call),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
