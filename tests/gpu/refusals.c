/* ll_v2 on GPUs: calls that are refused, and what is said of it, as far as the host alone
 * decides. The few functions of the CUDA runtime that are called stand here, and kernels do
 * nothing: no GPU is needed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <cuda_runtime_api.h>

#include "../../plugins/algorithm/ll_v2/ll_v2_cuda_state.h"

cudaError_t cudaSetDevice(int device)
{
    (void)device;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                     enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *n)
{
    (void)stream, (void)id, (void)graph, (void)dependencies, (void)edges, (void)n;
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel,
                                void **args)
{
    (void)config, (void)kernel, (void)args;
    return cudaSuccess;
}

static uint32_t copies;

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

const void *ll_dispatch_kernel(enum ll_input in, enum ll_mode mode, bool profile)
{
    (void)in, (void)mode, (void)profile;
    return NULL;
}

const void *ll_combine_kernel(struct ll_combine_kind kind)
{
    (void)kind;
    return NULL;
}

/* ---- one rank, that calls itself one of two ---- */

struct fixture {
    struct ll_cuda c;
    struct epa_transport t;
    struct epa_backend backend;
    struct epa_problem problem;
    char heap[1], *peer_heap[2];
};

static void set_up(struct fixture *f)
{
    *f = (struct fixture){.problem.op = EPA_OP_MOE};
    f->peer_heap[0] = f->peer_heap[1] = f->heap;
    f->t = (struct epa_transport){.size = 2, .peer_heap = f->peer_heap};
    f->c.l = (struct ll_layout){.size = 2,
                                .local = 1,
                                .max_tokens = 1,
                                .buffers = 2,
                                .units = 1,
                                .row_signals = 1,
                                .shares = 1};
    f->c.d.t = &f->t;
    f->c.d.backend = &f->backend;
    f->c.sets.n = 2;
    f->c.resident[LL_DISPATCH] = f->c.resident[LL_COMBINE] = 4;
}

enum { DISPATCH_SEND, DISPATCH_RECV, COMBINE_SEND, COMBINE_RECV };

static enum epa_status call(struct fixture *f, int stage)
{
    return ll_cuda_split[stage].run(&f->c.base, &f->problem);
}

static void assert_explained(struct fixture *f, enum epa_status status, const char *why)
{
    struct epa_error err = {EPA_OK, ""};

    ll_cuda_explain(&f->c.base, &err);
    assert_int_equal(err.status, status);
    assert_string_equal(err.text, why);
}

static void assert_refused(struct fixture *f, int stage, const char *why)
{
    assert_int_equal(call(f, stage), EPA_ERR_CONFIG);
    assert_explained(f, EPA_ERR_CONFIG, why);
}

static void a_second_half_follows_its_own_first(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    assert_refused(&f, DISPATCH_RECV, "dispatch_recv: dispatch_send comes first");
    assert_int_equal(call(&f, DISPATCH_SEND), EPA_OK);
    assert_refused(&f, COMBINE_RECV,
                   "combine_recv: the second half of a dispatch is to come first");
    assert_refused(&f, COMBINE_SEND,
                   "combine: the second half of a dispatch is to come first");
    assert_refused(&f, DISPATCH_SEND,
                   "dispatch: the second half of a dispatch is to come first");
    assert_int_equal(call(&f, DISPATCH_RECV), EPA_OK);
    assert_refused(&f, COMBINE_RECV, "combine_recv: combine_send comes first");
    assert_int_equal(call(&f, COMBINE_SEND), EPA_OK);
    assert_refused(&f, DISPATCH_RECV,
                   "dispatch_recv: the second half of a combine is to come first");
    assert_refused(&f, DISPATCH_SEND,
                   "dispatch: the second half of a combine is to come first");
    assert_refused(&f, COMBINE_SEND,
                   "combine: the second half of a combine is to come first");
    assert_int_equal(call(&f, COMBINE_RECV), EPA_OK);
    assert_int_equal(call(&f, DISPATCH_SEND), EPA_OK);
}

static void a_second_half_is_of_the_dispatch_that_was_begun(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    assert_int_equal(call(&f, DISPATCH_SEND), EPA_OK);
    f.problem.u.moe.epoch = 7;
    assert_refused(&f, DISPATCH_RECV,
                   "dispatch_recv: the last dispatch_send was of dispatch 1, not 7");
}

static void a_half_that_is_open_is_not_given_up(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    assert_int_equal(call(&f, DISPATCH_SEND), EPA_OK);
    assert_int_equal(ll_cuda_discard(&f.c.base, &f.problem), EPA_ERR_CONFIG);
    assert_explained(&f, EPA_ERR_CONFIG, "dispatch 1 is not the last, or not open");
    assert_int_equal(call(&f, DISPATCH_RECV), EPA_OK);
    assert_int_equal(ll_cuda_discard(&f.c.base, &f.problem), EPA_OK);
}

static void a_fault_is_reported_though_a_call_was_refused_before(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    assert_refused(&f, DISPATCH_RECV, "dispatch_recv: dispatch_send comes first");
    f.backend.fault = (struct epa_fault){.claimed = 1,
                                         .status = EPA_ERR_TIMEOUT,
                                         .stage = LL_COMBINE,
                                         .what = LL_DATA,
                                         .peer = 1,
                                         .index = 3,
                                         .seen = 4,
                                         .wanted = 5,
                                         .waited_ns = 1500000000};
    assert_explained(&f, EPA_ERR_TIMEOUT,
                     "combine, recv_wait: waited 1.500 s for the answer of rank 1 to my "
                     "token 3: its signal is 4, not 5");
}

/* What the transport or the backend fails with later is theirs to explain. */
static void a_refusal_is_forgotten_with_the_next_call(void **state)
{
    struct fixture f;
    struct epa_error err = {EPA_OK, ""};

    (void)state;
    set_up(&f);
    assert_refused(&f, DISPATCH_RECV, "dispatch_recv: dispatch_send comes first");
    assert_int_equal(call(&f, DISPATCH_SEND), EPA_OK);
    ll_cuda_explain(&f.c.base, &err);
    assert_int_equal(err.status, EPA_OK);
}

/* A combine that is called again costs what one costs that is called once. */
static void outputs_that_stand_elsewhere_are_copied_in_each_combine(void **state)
{
    struct fixture f;
    char y[1];

    (void)state;
    set_up(&f);
    f.c.base.stages = ll_cuda_fused;
    f.problem.u.moe.y = y;
    copies = 0;
    assert_int_equal(ll_cuda_fused[0].run(&f.c.base, &f.problem), EPA_OK);
    for (uint32_t i = 1; i < 4; i++) {
        assert_int_equal(ll_cuda_fused[1].run(&f.c.base, &f.problem), EPA_OK);
        assert_int_equal(copies, i);
    }
    f.c.l.fused = true; /* expert outputs are made of rows then: there is nothing to copy */
    f.problem.u.moe.y = NULL;
    assert_int_equal(ll_cuda_fused[1].run(&f.c.base, &f.problem), EPA_OK);
    assert_int_equal(copies, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_half_follows_its_own_first),
        cmocka_unit_test(a_second_half_is_of_the_dispatch_that_was_begun),
        cmocka_unit_test(a_half_that_is_open_is_not_given_up),
        cmocka_unit_test(a_fault_is_reported_though_a_call_was_refused_before),
        cmocka_unit_test(a_refusal_is_forgotten_with_the_next_call),
        cmocka_unit_test(outputs_that_stand_elsewhere_are_copied_in_each_combine),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
