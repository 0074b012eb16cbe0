/* Tests of the host code of algorithms on GPUs: refused calls, launch parameters, and messages
 * after a failed call of the CUDA runtime or a failed kernel. Plugins and runtime are those for
 * simulated GPUs (simt); launched kernels do nothing here. */
#include "../unit/test.h"

#include <cuda_runtime_api.h>

#include "../../plugins/algorithm/ll_v1/ll_v1_device.h"
#include "../../plugins/algorithm/ll_v2/ll_v2_device.h"
#include "../../plugins/algorithm/token_flag/token_flag_device.h"
#include "../contract/ranks.h"
#include "fake/fake_cuda.h"

static struct {
    uint32_t launches, early;
    bool counts_early; /* of the last kernel, if it is of ll_v2 */
    bool full;         /* no block fits on a multiprocessor */
} gpu;

static void run_nothing(void *data)
{
    (void)data;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args)
{
    assert_non_null(kernel);
    gpu.launches++;
    for (uint32_t i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            gpu.early += config->attrs[i].val.programmaticStreamSerializationAllowed != 0;
    gpu.counts_early = ((const struct ll_args *)args[0])->counts_early != 0;
    if (++fake_cuda.calls == fake_cuda.fail_at)
        return cudaErrorUnknown;
    return fake_queue(config->stream, run_nothing, "", 0);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *kernel, int threads,
                                                          size_t shared_bytes)
{
    *out = gpu.full ? 0 : 2;
    return cudaSuccess;
}

/* ---- one rank of a world of two ---- */

/* SPLIT, DEDUP: ll_v2 with split_phase: true, or dedup: true. */
enum { LL_V1, LL_V2, TOKEN_FLAG, ALGORITHMS, SPLIT, DEDUP };

static const struct epa_algorithm_plugin *algorithms[ALGORITHMS];
static const struct epa_backend_plugin *backend;

struct fixture {
    uint32_t which;
    union {
        struct v1_config v1;
        struct ll_config ll;
        struct tf_config tf;
        char bytes[256];
    } config;
    uint32_t aborted;
    struct epa_bootstrap boot;
    struct epa_device_view view;
    struct epa_transport t;
    struct epa_problem problem;
    struct epa_algorithm_params p;
    struct epa_algorithm *a;
    struct epa_moe *m;
    void *heap;
    char *peer_heap[2];
    struct epa_error err;
};

static void set_up(struct fixture *f, uint32_t which)
{
    bool split = which == SPLIT, dedup = which == DEDUP;
    const struct epa_options *options;
    struct epa_footprint need;

    which = split || dedup ? LL_V2 : which;
    options = &algorithms[which]->plugin.options;
    memset(&gpu, 0, sizeof(gpu));
    fake_cuda.fail_at = 0;
    memset(f, 0, sizeof(*f));
    f->which = which;
    assert_true(options->size <= sizeof(f->config));
    memcpy(&f->config, options->defaults, options->size);
    if (which == LL_V1)
        f->config.v1.exchange = V1_EXCHANGE_PULL;
    if (which == LL_V2)
        f->config.ll.combine_mode = dedup ? LL_COMBINE_AUTO : LL_COMBINE_PULL,
        f->config.ll.dedup = dedup, f->config.ll.split_phase = split;
    if (which == TOKEN_FLAG)
        f->config.tf.fuse_expert = false;
    f->problem.op = EPA_OP_MOE;
    f->m = &f->problem.u.moe;
    *f->m = (struct epa_moe){.max_tokens = 64,
                             .hidden = 512,
                             .experts = 4,
                             .topk = 2,
                             .fp8_group_size = 128,
                             .dtype = EPA_BF16,
                             .x_dtype = EPA_BF16};
    f->boot = (struct epa_bootstrap){.world = {.size = 1, .local_size = 1, .local_cores = 1},
                                     .aborted = &f->aborted};
    f->t = (struct epa_transport){.rank = 0, .size = 2, .view = &f->view};
    f->p = (struct epa_algorithm_params){.problem = &f->problem,
                                         .world = {.size = 2, .local_size = 2, .local_cores = 2},
                                         .transport = &f->t,
                                         .config = &f->config,
                                         .transport_flags =
                                             EPA_TRANSPORT_DEVICE | EPA_TRANSPORT_LOAD_STORE,
                                         .heap = 4096};
    if (backend->open(backend->plugin.options.defaults, &f->boot, &f->p.backend, &f->err) !=
            EPA_OK ||
        algorithms[which]->plan(&f->problem, &f->p.world, f->p.transport_flags, &f->config, &need,
                                &f->err) != EPA_OK)
        fail_msg("%s", f->err.text);
    f->t.heap_bytes = f->p.heap + need.heap_bytes;
    assert_int_equal(cudaMalloc(&f->heap, 2 * f->t.heap_bytes), cudaSuccess);
    f->peer_heap[0] = f->peer_heap[1] = f->heap;
    f->t.peer_heap = f->peer_heap;
}

static enum epa_status create(struct fixture *f)
{
    enum epa_status status;

    f->err.status = EPA_OK;
    status = algorithms[f->which]->create(&f->p, &f->a, &f->err);
    f->m->y = (char *)f->heap + f->t.heap_bytes; /* behind the heap */
    return status;
}

static void begin(struct fixture *f)
{
    if (create(f) != EPA_OK)
        fail_msg("%s", f->err.text);
}

static void end(struct fixture *f)
{
    fake_cuda.fail_at = 0;
    if (f->a != NULL)
        f->a->destroy(f->a);
    cudaFree(f->heap);
    f->p.backend->ops->close(f->p.backend);
    assert_int_equal(fake_cuda.live, 0); /* nothing leaks */
}

static enum epa_status call(struct fixture *f, uint32_t stage)
{
    return f->a->stages[stage].run(f->a, &f->problem);
}

/* ---- set-up ---- */

static void assert_not_created(struct fixture *f, enum epa_status status, const char *why)
{
    assert_int_equal(create(f), status);
    assert_int_equal(f->err.status, status);
    assert_words(f->err.text, algorithms[f->which]->plugin.name);
    assert_words(f->err.text, why);
}

TEST(failed_set_up_is_reported_with_the_algorithm)
{
    struct fixture f;

    for (uint32_t which = 0; which < ALGORITHMS; which++) {
        set_up(&f, which);
        gpu.full = true;
        assert_not_created(&f, EPA_ERR_SYSTEM, "no multiprocessor of GPU 0 has room");
        f.t.heap_bytes--;
        assert_not_created(&f, EPA_ERR_CONFIG, "the heap of .. bytes is too small");
        f.t.view = NULL;
        assert_not_created(&f, EPA_ERR_UNSUPPORTED,
                           "the transport does not connect kernels to other ranks");
        end(&f);
    }
}

/* Lets each call fail in turn: in set-up, in a dispatch, and in a combine with expert outputs
 * outside the heap. Failures of two queries have no effect: the number of multiprocessors, and the
 * state of a recording. */
TEST(any_call_of_the_runtime_may_fail)
{
    struct fixture f;

    for (uint32_t which = 0; which < ALGORITHMS; which++) {
        uint32_t reached = 1, failed = 0;

        for (uint32_t at = 1; reached == at; at++) {
            enum epa_status status;

            set_up(&f, which);
            if (which == TOKEN_FLAG)
                f.config.tf.counter_reset = TF_COUNTER_RESET_MEMSET;
            fake_cuda.calls = 0;
            fake_cuda.fail_at = at;
            status = create(&f);
            for (uint32_t i = 0; status == EPA_OK && i < f.a->n_stages; i++) {
                status = call(&f, i);
                f.a->explain(f.a, &f.err);
            }
            assert_int_equal(f.err.status, status);
            if (status != EPA_OK)
                assert_words(f.err.text, "GPU 0");
            failed += status != EPA_OK;
            reached += fake_cuda.calls >= at;
            end(&f);
        }
        assert_in_range(failed, 10, reached - 1);
        assert_in_range(reached - 1 - failed, 0, 5);
    }
}

TEST(kernels_are_set_up_early_on_an_exclusive_device)
{
    struct fixture f;

    for (uint32_t i = 0; i < 4 * ALGORITHMS; i++) {
        bool whole = (i & 1) != 0, asks = (i & 2) != 0;
        uint32_t memsets, stages;

        set_up(&f, i / 4);
        f.p.backend->multiprocessors /= whole ? 1 : 2;
        if (f.which == LL_V1)
            f.config.v1.pdl = asks;
        else if (f.which == LL_V2)
            f.config.ll.pdl = asks;
        else /* the launch after a memset has no kernel before it */
            f.config.tf.counter_reset = asks ? TF_COUNTER_RESET_INLINE : TF_COUNTER_RESET_MEMSET;
        memsets = f.which == TOKEN_FLAG && !asks ? 2 : 0;
        begin(&f);
        stages = f.a->n_stages;
        for (uint32_t k = 0; k < 2 * stages; k++)
            assert_int_equal(call(&f, k % stages), EPA_OK);
        assert_int_equal(gpu.launches, 2 * stages);
        assert_int_equal(gpu.early,
                         whole && (asks || f.which == TOKEN_FLAG) ? 2 * stages - memsets : 0);
        end(&f);
    }
}

/* Checks the call of a stage in a graph, and whether its kernel reads the count of calls while the
 * previous kernel runs. */
static void assert_counts(struct fixture *f, uint32_t stage, bool early)
{
    f->m->y = f->m->y_space; /* no copy of expert outputs */
    assert_int_equal(call(f, stage), EPA_OK);
    assert_int_equal(gpu.counts_early, early);
}

/* A combine whose kernel follows the kernel of its dispatch, and the reverse. A stream of an application
 * may have other work in between. */
TEST(kernels_in_graphs_count_early_behind_kernels_of_the_other_stage)
{
    for (uint32_t shares = 0; shares < 2; shares++) {
        struct epa_graph *graph = NULL;
        struct epa_backend *b;
        struct fixture f;

        set_up(&f, LL_V2);
        b = f.p.backend;
        b->shares_stream = shares != 0;
        begin(&f);
        for (uint32_t i = 0; i < 2; i++)
            assert_counts(&f, i, false);
        for (uint32_t round = 0; round < 2; round++) {
            assert_int_equal(b->ops->capture_begin(b), EPA_OK);
            assert_counts(&f, 0, false);
            assert_counts(&f, 1, true);
            assert_counts(&f, 1, false); /* repeats the combine */
            assert_counts(&f, 0, true);
            assert_int_equal(fake_queue(b->stream, run_nothing, "", 0), cudaSuccess);
            assert_counts(&f, 1, !b->shares_stream);
            assert_counts(&f, 0, true);
            assert_counts(&f, 1, true);
            assert_int_equal(b->ops->capture_end(b, &graph), EPA_OK);
            b->ops->graph_destroy(b, graph);
        }
        assert_counts(&f, 0, false);
        end(&f);
    }
}

/* Returns the received rows of a new dispatch. */
static const void *dispatch(struct fixture *f)
{
    assert_int_equal(call(f, 0), EPA_OK);
    return f->m->recv;
}

static void combine(struct fixture *f, uint64_t epoch)
{
    f->m->epoch = epoch;
    assert_int_equal(call(f, 1), EPA_OK);
}

TEST(a_dispatch_with_dedup_takes_the_set_of_the_last_combine)
{
    const void *first, *second;
    struct fixture f;

    set_up(&f, DEDUP);
    begin(&f);
    first = dispatch(&f);
    combine(&f, 1);
    assert_ptr_equal(dispatch(&f), first);
    second = dispatch(&f);
    assert_ptr_not_equal(second, first);
    combine(&f, 2);
    assert_ptr_equal(dispatch(&f), first);
    combine(&f, 3);
    assert_ptr_equal(dispatch(&f), second);
    combine(&f, 4);
    combine(&f, 5);
    assert_ptr_equal(dispatch(&f), second);
    /* A dispatch that was discarded keeps its set until another call has ended. */
    assert_int_equal(f.a->discard(f.a, &f.problem), EPA_OK);
    assert_ptr_equal(dispatch(&f), first);
    end(&f);
}

/* Rows of peers arrive where experts read them, so the rows of a dispatch stay after its combine. */
TEST(other_dispatches_take_the_sets_in_turn)
{
    const void *first, *second;
    struct fixture f;

    set_up(&f, LL_V2);
    begin(&f);
    first = dispatch(&f);
    combine(&f, 1);
    second = dispatch(&f);
    assert_ptr_not_equal(second, first);
    combine(&f, 2);
    assert_ptr_equal(dispatch(&f), first);
    end(&f);
}

/* ---- the backend ---- */

static void assert_refused(struct fixture *f, enum epa_status status, const char *why)
{
    struct epa_error *err = test_error();

    f->p.backend->ops->explain(f->p.backend, err);
    assert_int_equal(status, EPA_ERR_UNSUPPORTED);
    assert_words(err->text, why);
}

TEST(calls_that_wait_cannot_be_recorded)
{
    struct fixture f;
    const struct epa_backend_ops *ops;
    struct epa_backend *b;
    struct epa_graph *graph = NULL;
    void *memory = NULL;
    char bytes[4] = "";
    double ns;

    set_up(&f, LL_V2);
    b = f.p.backend;
    ops = b->ops;
    assert_refused(&f, ops->parallel(b, NULL, NULL), "no worker threads");
    assert_refused(&f, ops->elapsed(b, 0, 1, &ns), "no time between marks 0 and 1");
    assert_refused(&f, ops->mark(b, 64), "mark 64 of 64");
    assert_refused(&f, ops->capture_end(b, &graph), "capture_end without a capture_begin");
    assert_int_equal(ops->capture_begin(b), EPA_OK);
    assert_refused(&f, ops->capture_begin(b), "");
    assert_refused(&f, ops->sync(b), "sync cannot be part of a graph");
    assert_refused(&f, ops->write(b, f.heap, bytes, 4), "");
    assert_refused(&f, ops->read(b, bytes, f.heap, 4), "");
    assert_refused(&f, ops->fill(b, f.heap, 1, 4), "");
    assert_refused(&f, ops->alloc(b, 4, &memory), "");
    /* the refused calls have not damaged the recording */
    assert_int_equal(ops->capture_end(b, &graph), EPA_OK);
    assert_int_equal(ops->graph_launch(b, graph), EPA_OK);
    assert_int_equal(ops->sync(b), EPA_OK);
    ops->graph_destroy(b, graph);
    assert_int_equal(ops->capture_begin(b), EPA_OK); /* a recording may be left open */
    end(&f);
}

/* ---- calls out of order ---- */

/* Calls: the number of the stage, or x to discard a dispatch. @N selects dispatch N instead of the
 * last. ! marks a refused call, whose message has the next text of `why`. */
static const struct {
    uint32_t which, buffers;
    const char *calls, *why[6];
} orders[] = {
    {LL_V1,
     2,
     "1! 0 1 1 0 1@1! 0 0! 1@3! 1@2 0",
     {"combine: dispatch 0 is not open", "combine: dispatch 1 is not open",
      "dispatch: 2 dispatches are open", "dispatch 2 must be combined before 3"}},
    {LL_V2,
     2,
     "1! 0 1 1 0 1@1! 0 0! 1@3! 1@2 0",
     {"combine: dispatch 0 is not open", "combine: dispatch 1 is not open",
      "dispatch: 2 dispatches are open", "dispatch 2 must be combined before 3"}},
    {TOKEN_FLAG,
     2,
     "1! 0 2! 0! 1 0 1 0! 2@2! 2@1 0! 3@1 0",
     {"dispatch_recv: called for dispatch 0, which is not sent",
      "combine_send: called for dispatch 1, which is not received",
      "dispatch_send: dispatch 1 has been sent and not received: call dispatch_recv first",
      "dispatch_send: 2 dispatches are open", "dispatch 2, but 1 is the oldest",
      "dispatch 1 has been returned and not combined: call combine_recv first"}},
    {TOKEN_FLAG, 2, "0 1 2 3 3!", {"combine_recv: called for dispatch 1, which is not returned"}},
    {TOKEN_FLAG, 1, "0 1 0!", {"dispatch_send: 1 dispatches are open"}},
    /* A second half must follow its own first half. */
    {SPLIT,
     2,
     "1! 0 3! 2! 0! 1@7!",
     {"dispatch_recv: dispatch_send must be called first",
      "combine_recv: the second half of a dispatch must be called first",
      "combine: the second half of a dispatch must be called first",
      "dispatch: the second half of a dispatch must be called first",
      "the last dispatch_send was of dispatch 1, not 7"}},
    {SPLIT,
     2,
     "0 1 3! 2 1! 0! 2! 3 0",
     {"combine_recv: combine_send must be called first",
      "dispatch_recv: the second half of a combine must be called first",
      "dispatch: the second half of a combine must be called first",
      "combine: the second half of a combine must be called first"}},
    /* Only the last complete dispatch can be discarded. */
    {LL_V1, 1, "0 x 0 x x!", {"dispatch 2 is not the last"}},
    {LL_V1, 2, "0 x 0 x x! 0 x@2! 1", {"dispatch 2 is not", "dispatch 2 is not the last"}},
    {LL_V2, 2, "0 x 0 x x! 0 x@2! 1", {"dispatch 2 is not", "dispatch 2 is not the last"}},
    {SPLIT, 2, "0 x! 1 x", {"the second half of a dispatch must be called first"}},
    {TOKEN_FLAG,
     2,
     "0 x! 1 x x! 0 1 x@1!",
     {"dispatch 1 has been sent and not received", "dispatch 1 is not the last",
      "dispatch 1 is not the last"}},
};

TEST(a_call_out_of_order_is_refused_and_changes_nothing)
{
    struct fixture f;

    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        const char *const *why = orders[i].why;
        uint64_t last = 0;

        set_up(&f, orders[i].which);
        *(f.which == LL_V1   ? &f.config.v1.buffers
          : f.which == LL_V2 ? &f.config.ll.buffers
                             : &f.config.tf.buffers) = orders[i].buffers;
        begin(&f);
        for (const char *c = orders[i].calls; *c != '\0'; c += strspn(c, " ")) {
            struct epa_error err = {EPA_OK, ""};
            char stage = *c++;
            enum epa_status status;

            f.m->epoch = *c == '@' ? (uint64_t)(c[1] - '0') : last;
            c += *c == '@' ? 2 : 0;
            status =
                stage == 'x' ? f.a->discard(f.a, &f.problem) : call(&f, (uint32_t)(stage - '0'));
            if (stage == '0' && status == EPA_OK)
                last = f.m->epoch;
            f.a->explain(f.a, &err);
            if (status != (*c == '!' ? EPA_ERR_CONFIG : EPA_OK) || err.status != status ||
                (status != EPA_OK && strstr(err.text, *why) == NULL))
                fail_msg("row %zu, before '%s': %s", i, c, err.text);
            why += status != EPA_OK;
            c += *c == '!';
        }
        end(&f);
    }
    /* Dispatches cannot be discarded if the next dispatch relies on the combine of the previous
     * one. */
    for (uint32_t which = LL_V2; which <= TOKEN_FLAG; which++) {
        set_up(&f, which);
        *(which == LL_V2 ? &f.config.ll.buffers : &f.config.tf.buffers) = 1;
        begin(&f);
        assert_null(f.a->discard);
        end(&f);
    }
}

/* ---- messages ---- */

enum { MS = 1000000 };
#define FAULT(stage_, what_, seen_, wanted_, ms) \
    { \
        .status = EPA_ERR_TIMEOUT, .stage = (stage_), .what = (what_), .peer = 1, .index = 7, \
        .seen = (seen_), .wanted = (wanted_), .waited_ns = (ms)*MS \
    }

static const struct {
    uint32_t which;
    struct epa_fault fault;
    const char *why;
} faults[] = {
    {LL_V1, FAULT(V1_DISPATCH, V1_WAIT_SPLITS, 3, 5, 1500),
     "dispatch/wait: call 5, rank 1 .. 1.500 s .. splits .. call is 3"},
    {LL_V1, FAULT(V1_DISPATCH, V1_WAIT_ROW, 3, 5, 1500),
     "dispatch/wait: call 5, rank 1 .. 1.500 s .. row 7 .. call 3"},
    {LL_V1, FAULT(V1_COMBINE, V1_WAIT_BEGUN, 4, 6, 1),
     "combine/wait: call 6, rank 1 .. 0.001 s .. begun .. is 4"},
    {LL_V1, FAULT(V1_COMBINE, V1_WAIT_OUTPUT, 4, 6, 1),
     "combine/wait: call 6, rank 1 .. 0.001 s .. output for token 7 .. call 4"},
    {LL_V1, FAULT(V1_DISPATCH, V1_NO_ROOM, 10, 9, 0),
     "dispatch: rank 0 has 10 rows for rank 1 .. room for 9 .. algorithm.capacity"},
    {LL_V2, FAULT(LL_COMBINE, LL_DATA, 4, 5, 1500),
     "combine/recv_wait: .. 1.500 s .. output of rank 1 for token 7 .. is 4, not 5"},
    {LL_V2, FAULT(LL_DISPATCH, LL_WAIT_ROOM, 10, 9, 0),
     "dispatch: 10 rows arrived .. algorithm.capacity .. 9"},
    {LL_V2, FAULT(LL_DISPATCH, LL_COUNT, 4, 5, 1500),
     "dispatch/wait: epoch 5, counts of rank 1 .. 1.500 s .. is 4"},
    {TOKEN_FLAG, FAULT(TF_DISPATCH_RECV, TF_WAIT_COUNTS, 4ull << TF_ROW_BITS | 8, 5, 1500),
     "dispatch_recv/counts: epoch 5 .. 1.500 s .. counts of rank 1: .. epoch 4"},
    {TOKEN_FLAG,
     FAULT(TF_DISPATCH_RECV, TF_WAIT_ROWS, 3ull << TF_ROW_BITS | 8, 5ull << TF_ROW_BITS | 1, 1500),
     "dispatch_recv/counts: epoch 5 .. 1.500 s .. counts of rank 1 and all its rows .. epoch 3"},
    {TOKEN_FLAG, FAULT(TF_DISPATCH_SEND, TF_WAIT_ROW, 3, 5, 1500),
     "dispatch_send/rows: epoch 5 .. 1.500 s .. row 7 of rank 1 .. epoch 3"},
    {TOKEN_FLAG, FAULT(TF_COMBINE_RECV, TF_WAIT_OUTPUT, 4, 5, 1500),
     "combine_recv/expert outputs: epoch 5 .. 1.500 s .. for token 7 of rank 1 .. epoch 4"},
    {TOKEN_FLAG, FAULT(TF_DISPATCH_RECV, TF_WAIT_ROW, 5, 5, 1500),
     "dispatch_recv/rows: epoch 5 .. row 7 of rank 1 .. epoch 5 at its end: the transfer is"},
    {TOKEN_FLAG, FAULT(TF_DISPATCH_RECV, TF_BAD_ROW, 900, 3, 0),
     "dispatch_recv/rows: row 7 of rank 1 .. token 900 .. expert 3"},
};

TEST(a_fault_is_reported_though_a_call_was_refused_before)
{
    struct fixture f;

    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        bool room =
            faults[i].fault.what ==
                (uint32_t)(faults[i].which == LL_V1 ? (int)V1_NO_ROOM : (int)LL_WAIT_ROOM) &&
            faults[i].which != TOKEN_FLAG;

        set_up(&f, faults[i].which);
        begin(&f);
        f.m->epoch = 9;
        assert_int_equal(call(&f, 1), EPA_ERR_CONFIG);
        f.p.backend->fault = faults[i].fault;
        f.err.status = EPA_OK;
        f.a->explain(f.a, &f.err);
        assert_int_equal(f.err.status, room ? EPA_ERR_CONFIG : EPA_ERR_TIMEOUT);
        assert_words(f.err.text, faults[i].why);
        end(&f);
    }
}

static int load_plugins(void **state)
{
    if (test_argc != 2 + ALGORITHMS)
        return -1;
    for (int i = 0; i < ALGORITHMS; i++)
        algorithms[i] = load_symbol(test_argv[1 + i], EPA_PLUGIN_SYMBOL);
    backend = load_symbol(test_argv[1 + ALGORITHMS], EPA_PLUGIN_SYMBOL);
    return 0;
}

TEST_GROUP(load_plugins, NULL)
