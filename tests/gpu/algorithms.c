/* Algorithms on GPUs, as far as the host alone decides: what is asked of a device and taken of
 * it, what is launched, which calls are refused, and what is said of that and of a fault. The
 * plugins are those for made-up GPUs (simt); the functions of the CUDA runtime that matter here are
 * this program's, and kernels do nothing. */
#pragma GCC diagnostic ignored "-Wunused-parameter" /* of functions that are made up */
#include <dlfcn.h>
#include "../unit/test.h"

#include <cuda_runtime_api.h>

#include "../../plugins/algorithm/ll_v1/ll_v1_cuda.h"
#include "../../plugins/algorithm/ll_v2/ll_v2_cuda.h"
#include "../../plugins/algorithm/token_flag/token_flag_cuda.h"

/* ---- the device ---- */

/* What it is, which of its functions fails, and what was done with it. */
static struct {
    int major, multiprocessors, fits; /* blocks, on a multiprocessor */
    const char *fails;
    int shared_bytes;            /* that a kernel may have */
    cudaLaunchConfig_t launched; /* last, with `args` */
    union {
        struct device_args shared;
        struct v1_args v1;
        struct tf_args tf;
        struct ll_args ll;
    } args;
    size_t args_bytes;
    uint32_t launches, early, copies, memsets;
    char *memory; /* the rank's own */
    size_t bytes;
} gpu;

static cudaError_t run(const char *function)
{
    return gpu.fails != NULL && strcmp(gpu.fails, function) == 0 ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return run("set device");
}

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr attribute, int device)
{
    *out = attribute == cudaDevAttrMultiProcessorCount ? gpu.multiprocessors : gpu.major;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *kernel)
{
    assert_non_null(kernel);
    return run("load");
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    assert_int_equal(attribute, cudaFuncAttributeMaxDynamicSharedMemorySize);
    gpu.shared_bytes = value;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *kernel, int threads,
                                                          size_t shared_bytes)
{
    assert_int_equal(shared_bytes, gpu.shared_bytes); /* it may have them */
    *out = gpu.fits;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args)
{
    assert_non_null(kernel);
    memcpy(&gpu.args, args[0], gpu.args_bytes);
    gpu.launched = *config;
    gpu.launches++;
    for (uint32_t i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            gpu.early += config->attrs[i].val.programmaticStreamSerializationAllowed != 0;
    return run("launch");
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    assert_int_equal(kind, cudaMemcpyDeviceToDevice);
    gpu.copies++;
    return run("copy");
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    assert_in_range(to, gpu.memory, gpu.memory + gpu.bytes - bytes);
    assert_int_equal(byte, 0);
    gpu.memsets++;
    return run("memset");
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *n)
{
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return "made up";
}

/* ---- a backend ---- */

static enum epa_status backend_alloc(struct epa_backend *b, size_t bytes, void **out)
{
    if (run("alloc") != cudaSuccess)
        return EPA_ERR_NOMEM;
    assert_null(gpu.memory);
    gpu.memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    assert_non_null(gpu.memory);
    memset(gpu.memory, 0xff, bytes);
    gpu.bytes = bytes;
    *out = gpu.memory;
    return EPA_OK;
}

static void backend_free(struct epa_backend *b, void *memory)
{
    assert_ptr_equal(memory, gpu.memory);
    free(memory);
    gpu.memory = NULL;
}

static enum epa_status backend_fill(struct epa_backend *b, void *to, int byte, size_t bytes)
{
    memset(to, byte, bytes);
    return run("fill") == cudaSuccess ? EPA_OK : EPA_ERR_SYSTEM;
}

static enum epa_status backend_read(struct epa_backend *b, void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return EPA_OK;
}

static enum epa_status backend_sync(struct epa_backend *b)
{
    return run("sync") == cudaSuccess ? EPA_OK : EPA_ERR_ABORTED;
}

static void backend_explain(struct epa_backend *b, struct epa_error *err)
{
    (void)epa_fail(err, EPA_ERR_SYSTEM, "cannot %s", gpu.fails);
}

static const struct epa_backend_ops backend_ops = {.alloc = backend_alloc,
                                                   .free = backend_free,
                                                   .fill = backend_fill,
                                                   .read = backend_read,
                                                   .sync = backend_sync,
                                                   .explain = backend_explain};

/* ---- one rank, that calls itself one of two ---- */

enum { LL_V1, LL_V2, TOKEN_FLAG, ALGORITHMS, SPLIT /* ll_v2, with split_phase: true */ };

static struct {
    const char *name;
    size_t args_bytes;
    const struct epa_algorithm_plugin *plugin;
} algorithms[ALGORITHMS] = {{"ll_v1", sizeof(struct v1_args), NULL},
                            {"ll_v2", sizeof(struct ll_args), NULL},
                            {"token_flag", sizeof(struct tf_args), NULL}};

struct fixture {
    uint32_t which;
    union {
        struct v1_config v1;
        struct ll_config ll;
        struct tf_config tf;
        char bytes[256];
    } config;
    struct epa_device_view view;
    struct epa_transport t;
    struct epa_backend backend;
    struct epa_problem problem;
    struct epa_algorithm_params p;
    struct epa_algorithm *a;
    struct epa_moe *m;
    char *heap, *peer_heap[2];
    struct epa_error err;
};

/* An H100 of its own, of which two blocks fit on a multiprocessor. */
static void set_up(struct fixture *f, uint32_t which)
{
    bool split = which == SPLIT;
    const struct epa_options *options;

    which = split ? LL_V2 : which;
    options = &algorithms[which].plugin->plugin.options;
    memset(&gpu, 0, sizeof(gpu));
    gpu.major = 9;
    gpu.multiprocessors = 132;
    gpu.fits = 2;
    gpu.args_bytes = algorithms[which].args_bytes;
    memset(f, 0, sizeof(*f));
    f->which = which;
    assert_true(options->size <= sizeof(f->config));
    memcpy(&f->config, options->defaults, options->size);
    if (which == LL_V1)
        f->config.v1.exchange = V1_EXCHANGE_PULL;
    if (which == LL_V2)
        f->config.ll.combine_mode = LL_COMBINE_PULL, f->config.ll.dedup = false,
        f->config.ll.split_phase = split;
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
    f->t = (struct epa_transport){.rank = 0, .size = 2, .view = &f->view};
    f->backend = (struct epa_backend){
        .ops = &backend_ops, .memory = EPA_MEMORY_CUDA, .device = 3, .multiprocessors = 132};
    f->p = (struct epa_algorithm_params){.problem = &f->problem,
                                         .world = {.size = 2, .local_size = 2, .local_cores = 2},
                                         .transport = &f->t,
                                         .backend = &f->backend,
                                         .config = &f->config,
                                         .transport_flags =
                                             EPA_TRANSPORT_DEVICE | EPA_TRANSPORT_LOAD_STORE,
                                         .heap = 4096};
}

static struct epa_footprint plan(struct fixture *f)
{
    struct epa_footprint print;

    if (algorithms[f->which].plugin->plan(&f->problem, &f->p.world, f->p.transport_flags,
                                          &f->config, &print, &f->err) != EPA_OK)
        fail_msg("%s: %s", algorithms[f->which].name, f->err.text);
    return print;
}

static enum epa_status create(struct fixture *f)
{
    f->err.status = EPA_OK;
    return algorithms[f->which].plugin->create(&f->p, &f->a, &f->err);
}

static void give_heap(struct fixture *f)
{
    f->t.heap_bytes = f->p.heap + plan(f).heap_bytes;
    f->heap = malloc(f->t.heap_bytes);
    assert_non_null(f->heap);
    f->peer_heap[0] = f->peer_heap[1] = f->heap;
    f->t.peer_heap = f->peer_heap;
}

static void begin(struct fixture *f)
{
    give_heap(f);
    if (create(f) != EPA_OK)
        fail_msg("%s", f->err.text);
    f->m->y = f->heap;
}

static void end(struct fixture *f)
{
    if (f->a != NULL)
        f->a->destroy(f->a);
    f->a = NULL;
    assert_null(gpu.memory); /* nothing leaks */
    free(f->heap);
}

static enum epa_status call(struct fixture *f, uint32_t stage)
{
    return f->a->stages[stage].run(f->a, &f->problem);
}

/* All stages, which are to succeed. */
static void iterate(struct fixture *f)
{
    for (uint32_t i = 0; i < f->a->n_stages; i++)
        assert_int_equal(call(f, i), EPA_OK);
}

static void assert_explained(struct fixture *f, enum epa_status status, const char *why)
{
    struct epa_error err = {EPA_OK, ""};

    f->a->explain(f->a, &err);
    assert_int_equal(err.status, status);
    assert_string_equal(err.text, why);
}

/* ---- set-up ---- */

static void assert_not_created(struct fixture *f, enum epa_status status, const char *why)
{
    char text[200];

    snprintf(text, sizeof(text), "%s: %s", algorithms[f->which].name, why);
    assert_int_equal(create(f), status);
    assert_int_equal(f->err.status, status);
    assert_string_equal(f->err.text, text);
    assert_null(gpu.memory);
}

TEST(what_will_not_do_is_refused_in_the_name_of_the_algorithm)
{
    static const struct {
        const char *fails, *why;
        enum epa_status status;
    } of[] = {{"load", "loading its kernels on GPU 3: made up", EPA_ERR_SYSTEM},
              {"alloc", "setting up on GPU 3: cannot alloc", EPA_ERR_NOMEM},
              {"fill", "setting up on GPU 3: cannot fill", EPA_ERR_SYSTEM},
              {"sync", "setting up on GPU 3: cannot sync", EPA_ERR_ABORTED}};
    struct fixture f;
    char why[100];

    for (uint32_t which = 0; which < ALGORITHMS; which++) {
        set_up(&f, which);
        give_heap(&f);
        for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
            gpu.fails = of[i].fails;
            assert_not_created(&f, of[i].status, of[i].why);
        }
        gpu.fails = NULL;
        gpu.fits = 0;
        assert_int_equal(create(&f), EPA_ERR_SYSTEM);
        assert_non_null(strstr(f.err.text, "no multiprocessor of GPU 3 has room"));
        f.t.heap_bytes--;
        snprintf(why, sizeof(why), "the heap of %llu bytes is too small",
                 (unsigned long long)f.t.heap_bytes);
        assert_not_created(&f, EPA_ERR_CONFIG, why);
        f.t.view = NULL;
        assert_not_created(&f, EPA_ERR_UNSUPPORTED,
                           "the transport gives kernels no way to other ranks");
        gpu.major = 8;
        assert_not_created(&f, EPA_ERR_UNSUPPORTED,
                           "GPU 3 has compute capability 8.x; its kernels need 9.0");
        gpu.fails = "set device";
        assert_not_created(&f, EPA_ERR_SYSTEM, "GPU 3: made up");
        end(&f);
    }
}

TEST(memory_is_0_and_its_parts_are_apart)
{
    struct fixture f;

    for (uint32_t which = 0; which < ALGORITHMS; which++) {
        set_up(&f, which);
        begin(&f);
        for (size_t i = 0; i < gpu.bytes; i++)
            assert_int_equal(gpu.memory[i], 0);
        assert_int_equal(call(&f, 0), EPA_OK);
        const struct device_args *a = &gpu.args.shared;
        const void *const part[] = {a->calls, a->rows, a->recv_count, a->recv_start,
                                    gpu.memory + gpu.bytes};

        for (uint32_t i = 0; i + 1 < sizeof(part) / sizeof(part[0]); i++) {
            assert_in_range(part[i], gpu.memory, gpu.memory + gpu.bytes);
            assert_int_equal(((const char *)part[i] - gpu.memory) % 256, 0);
            assert_true((const char *)part[i] + 8 <= (const char *)part[i + 1]);
        }
        assert_true((const char *)(a->calls + a->most_blocks) <= (const char *)a->taken);
        end(&f);
    }
}

/* But for the counters of blocks. */
TEST(the_plan_says_what_device_memory_is_taken)
{
    struct fixture f;

    for (uint32_t which = 0; which < ALGORITHMS; which++) {
        uint64_t bytes;

        set_up(&f, which);
        bytes = plan(&f).device_bytes;
        begin(&f);
        assert_in_range(bytes, 1, gpu.bytes);
        assert_in_range(gpu.bytes - bytes, 0, 64 << 10);
        end(&f);
    }
}

TEST(a_kernel_has_as_many_blocks_as_are_resident)
{
    static const struct {
        int fits;
        uint32_t most, blocks;
    } of[] = {{1, 0, 132}, {2, 0, 264}, {5, 0, 264}, {2, 8, 8}, {2, 264, 264}, {1, 200, 132}};
    struct fixture f;

    for (uint32_t i = 0; i < ALGORITHMS * 6; i++) {
        set_up(&f, i / 6);
        gpu.fits = of[i % 6].fits;
        f.config.v1.blocks = f.which == LL_V1 ? of[i % 6].most : f.config.v1.blocks;
        f.config.ll.blocks = f.which == LL_V2 ? of[i % 6].most : f.config.ll.blocks;
        f.config.tf.blocks = f.which == TOKEN_FLAG ? of[i % 6].most : f.config.tf.blocks;
        f.m->max_tokens = f.m->tokens = 300; /* more of them than blocks */
        begin(&f);
        iterate(&f);
        assert_int_equal(gpu.launched.gridDim.x, of[i % 6].blocks);
        assert_int_equal(gpu.launched.blockDim.x, 256);
        assert_int_equal(gpu.args.shared.most_blocks, of[i % 6].blocks);
        end(&f);
    }
}

TEST(kernels_are_set_up_early_where_nobody_shares_the_device)
{
    struct fixture f;

    for (uint32_t i = 0; i < 4 * ALGORITHMS; i++) {
        bool whole = (i & 1) != 0, asks = (i & 2) != 0;

        set_up(&f, i / 4);
        f.backend.multiprocessors = whole ? 132 : 66;
        if (f.which == LL_V1)
            f.config.v1.pdl = asks;
        else if (f.which == LL_V2)
            f.config.ll.pdl = asks;
        else /* a kernel behind a memset is not: what comes before it is no kernel */
            f.config.tf.counter_reset = asks ? TF_COUNTER_RESET_INLINE : TF_COUNTER_RESET_MEMSET;
        begin(&f);
        iterate(&f);
        iterate(&f);
        assert_int_equal(gpu.launches, 2 * f.a->n_stages);
        assert_int_equal(gpu.memsets, f.which == TOKEN_FLAG && !asks ? 2 : 0);
        assert_int_equal(gpu.early, !whole                  ? 0
                                    : f.which == TOKEN_FLAG ? gpu.launches - gpu.memsets
                                    : asks                  ? gpu.launches
                                                            : 0);
        end(&f);
    }
}

/* ---- calls ---- */

TEST(sets_take_turns)
{
    struct fixture f;

    for (uint32_t which = 0; which < ALGORITHMS; which++) {
        struct epa_moe of[5];

        set_up(&f, which);
        begin(&f);
        for (uint32_t i = 0; i < 5; i++) {
            const uint32_t *count;

            iterate(&f);
            count = gpu.args.shared.recv_count;
            of[i] = *f.m;
            assert_int_equal(of[i].epoch, i + 1);
            assert_ptr_equal(of[i].recv_count, count);
            if (which == LL_V1)
                assert_int_equal(gpu.args.v1.y_space, (char *)of[i].y_space - f.heap);
            if (which == LL_V2)
                assert_int_equal(gpu.args.ll.y_space, (char *)of[i].y_space - f.heap);
            if (i == 0)
                continue;
            assert_ptr_not_equal(of[i].recv, of[i - 1].recv);
            assert_ptr_not_equal(of[i].y_space, of[i - 1].y_space);
            assert_ptr_not_equal(of[i].recv_count, of[i - 1].recv_count);
            if (i > 1)
                assert_memory_equal(&of[i].recv_rows, &of[i - 2].recv_rows,
                                    offsetof(struct epa_moe, y) -
                                        offsetof(struct epa_moe, recv_rows));
        }
        end(&f);
    }
}

TEST(a_rank_without_tokens_launches_all_the_same)
{
    struct fixture f;

    for (uint32_t i = 0; i < 2 * ALGORITHMS; i++) {
        set_up(&f, i / 2);
        if (f.which == TOKEN_FLAG)
            f.config.tf.flag_granularity = i % 2 == 0 ? TF_FLAG_PER_RANK : TF_FLAG_PER_TOKEN;
        begin(&f);
        for (uint32_t stage = 0; stage < f.a->n_stages; stage++) {
            assert_int_equal(call(&f, stage), EPA_OK);
            assert_int_equal(gpu.launches, stage + 1);
            assert_true(gpu.launched.gridDim.x >= 1);
        }
        end(&f);
    }
}

/* Of any number of tokens, in a kernel of any number of blocks. */
TEST(some_block_sends_and_another_receives)
{
    static const uint32_t room[] = {1, 2, 3, 7, 264};
    struct fixture f;

    for (uint32_t i = 0; i < 5; i++) {
        const struct v1_args *a = &gpu.args.v1;

        set_up(&f, LL_V1);
        f.config.v1.blocks = room[i];
        f.config.v1.exchange = V1_EXCHANGE_PUSH;
        f.m->max_tokens = 4095;
        begin(&f);
        for (f.m->tokens = 0; f.m->tokens <= 4095; f.m->tokens = f.m->tokens * 2 + 1)
            for (uint32_t stage = 0; stage < 2; stage++) {
                uint32_t blocks;

                assert_int_equal(call(&f, stage), EPA_OK);
                blocks = gpu.launched.gridDim.x;
                assert_in_range(blocks, 1, room[i]);
                assert_in_range(a->senders, 1, room[i] > 1 ? room[i] / 2 : 1);
                assert_true(blocks > a->senders || room[i] == 1);
                if (stage == 0)
                    assert_in_range(a->chunk, 1, V1_MOST_CHUNK);
            }
        end(&f);
    }
}

/* A combine that is called again costs what one costs that is called once. */
TEST(outputs_that_stand_elsewhere_are_copied_for_who_pulls)
{
    enum { PULLS, PUSHES, FUSES };
    struct fixture f;
    char y[1];

    for (uint32_t i = 0; i < 6; i++) {
        uint32_t way = i % 3;

        set_up(&f, i / 3);
        if (f.which == LL_V1)
            f.config.v1.exchange = way == PULLS ? V1_EXCHANGE_PULL : V1_EXCHANGE_PUSH;
        else if (way == FUSES) /* expert outputs are made of rows then: there is nothing to copy */
            f.config.ll.fuse_expert = true, f.config.ll.combine_dtype = ALGO_DTYPE_NATIVE;
        else
            f.config.ll.combine_mode = way == PULLS ? LL_COMBINE_PULL : LL_COMBINE_PUSH;
        begin(&f);
        assert_int_equal(call(&f, 0), EPA_OK);
        f.m->y = f.m->y_space;
        assert_int_equal(call(&f, 1), EPA_OK);
        assert_int_equal(gpu.copies, 0);
        f.m->y = y;
        for (uint32_t n = 1; n < 4; n++) {
            assert_int_equal(call(&f, 1), EPA_OK);
            assert_int_equal(gpu.copies, way == PULLS ? n : 0);
        }
        end(&f);
    }
}

/* ---- calls out of order ---- */

/* Calls: the stage's number, or x to give a dispatch up; @N: of dispatch N, else of the last;
 * !: it is refused, and says the next of `why`. */
static const struct {
    uint32_t which, buffers;
    const char *calls, *why[6];
} orders[] = {
    {LL_V1,
     2,
     "1! 0 1 1 0 1@1! 0 0! 1@3! 1@2 0",
     {"combine: dispatch 0 is not open", "combine: dispatch 1 is not open",
      "dispatch: 2 dispatches are open", "dispatch 2 is to be combined before 3"}},
    {LL_V2,
     2,
     "1! 0 1 1 0 1@1! 0 0! 1@3! 1@2 0",
     {"combine: dispatch 0 is not open", "combine: dispatch 1 is not open",
      "dispatch: 2 dispatches are open", "dispatch 2 is to be combined before 3"}},
    {TOKEN_FLAG,
     2,
     "1! 0 2! 0! 1 0 1 0! 2@2! 2@1 0! 3@1 0",
     {"dispatch_recv: called for dispatch 0, which is not sent",
      "combine_send: called for dispatch 1, which is not received",
      "dispatch_send: dispatch 1 has been sent and not received: call dispatch_recv first",
      "dispatch_send: 2 dispatches are open", "dispatch 2, but 1 is the oldest",
      "dispatch 1 has been answered and not combined: call combine_recv first"}},
    {TOKEN_FLAG, 2, "0 1 2 3 3!", {"combine_recv: called for dispatch 1, which is not answered"}},
    {TOKEN_FLAG, 1, "0 1 0!", {"dispatch_send: 1 dispatches are open"}},
    /* A second half follows its own first. */
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
    /* Only the last dispatch is given up, and no half of one. */
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
    /* Where the next dispatch counts on the combine of the one before, none is given up. */
    for (uint32_t which = LL_V2; which <= TOKEN_FLAG; which++) {
        set_up(&f, which);
        *(which == LL_V2 ? &f.config.ll.buffers : &f.config.tf.buffers) = 1;
        begin(&f);
        assert_null(f.a->discard);
        end(&f);
    }
}

/* ---- what is said ---- */

TEST(a_call_that_fails_is_explained)
{
    struct fixture f;
    char y[1];

    for (uint32_t which = 0; which < ALGORITHMS; which++) {
        set_up(&f, which);
        if (which == TOKEN_FLAG)
            f.config.tf.counter_reset = TF_COUNTER_RESET_MEMSET;
        begin(&f);
        gpu.fails = which == TOKEN_FLAG ? "memset" : "launch";
        assert_int_equal(call(&f, 0), EPA_ERR_SYSTEM);
        assert_explained(&f, EPA_ERR_SYSTEM,
                         which == TOKEN_FLAG ? "clearing counters on GPU 3: made up"
                                             : "launching a kernel on GPU 3: made up");
        gpu.fails = "copy";
        f.m->y = y;
        if (which != TOKEN_FLAG) {
            assert_int_equal(call(&f, 1), EPA_ERR_SYSTEM);
            assert_explained(&f, EPA_ERR_SYSTEM, "copying expert outputs on GPU 3: made up");
        }
        end(&f);
    }
}

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
     "dispatch/wait: call 5, rank 1: waited 1.500 s for its splits, whose call is 3"},
    {LL_V1, FAULT(V1_DISPATCH, V1_WAIT_ROW, 3, 5, 1500),
     "dispatch/wait: call 5, rank 1: waited 1.500 s for row 7 of its block, which is of "
     "call 3"},
    {LL_V1, FAULT(V1_COMBINE, V1_WAIT_BEGUN, 4, 6, 1),
     "combine/wait: call 6, rank 1: waited 0.001 s for its signal that it has begun, which "
     "is 4"},
    {LL_V1, FAULT(V1_COMBINE, V1_WAIT_OUTPUT, 4, 6, 1),
     "combine/wait: call 6, rank 1: waited 0.001 s for its expert output of my token 7, which is "
     "of call 4"},
    {LL_V1, FAULT(V1_DISPATCH, V1_NO_ROOM, 10, 9, 0),
     "dispatch: rank 0 has 10 rows for rank 1, which has room for 9 from each: raise "
     "algorithm.capacity, or set it to 0"},
    {LL_V2, FAULT(LL_COMBINE, LL_DATA, 4, 5, 1500),
     "combine/recv_wait: waited 1.500 s for the expert output of rank 1 to my token 7: its signal "
     "is 4, not 5"},
    {LL_V2, FAULT(LL_DISPATCH, LL_WAIT_ROOM, 10, 9, 0),
     "dispatch: 10 rows arrived, and algorithm.capacity leaves room for 9; raise it, or "
     "set it to 0 for the worst case"},
    {LL_V2, FAULT(LL_DISPATCH, LL_COUNT, 4, 5, 1500),
     "dispatch/wait: epoch 5, counts of rank 1: waited 1.500 s for its signal, which is 4"},
    {TOKEN_FLAG, FAULT(TF_DISPATCH_RECV, TF_WAIT_COUNTS, 4ull << TF_ROW_BITS | 8, 5, 1500),
     "dispatch_recv/counts: epoch 5, waited 1.500 s for counts of rank 1: the last are of "
     "epoch 4"},
    {TOKEN_FLAG,
     FAULT(TF_DISPATCH_RECV, TF_WAIT_ROWS, 3ull << TF_ROW_BITS | 8, 5ull << TF_ROW_BITS | 1, 1500),
     "dispatch_recv/counts: epoch 5, waited 1.500 s for counts of rank 1 and all its rows: "
     "the last are of epoch 3"},
    {TOKEN_FLAG, FAULT(TF_DISPATCH_SEND, TF_WAIT_ROW, 3, 5, 1500),
     "dispatch_send/rows: epoch 5, waited 1.500 s for row 7 of rank 1: what is there is of "
     "epoch 3"},
    {TOKEN_FLAG, FAULT(TF_COMBINE_RECV, TF_WAIT_OUTPUT, 4, 5, 1500),
     "combine_recv/expert outputs: epoch 5, waited 1.500 s for the expert output for token 7 of "
     "rank 1: "
     "what is there is of epoch 4"},
    {TOKEN_FLAG, FAULT(TF_DISPATCH_RECV, TF_WAIT_ROW, 5, 5, 1500),
     "dispatch_recv/rows: epoch 5, waited 1.500 s for row 7 of rank 1: what is there is of "
     "epoch 5 at its end: not all of it has arrived"},
    {TOKEN_FLAG, FAULT(TF_DISPATCH_RECV, TF_BAD_ROW, 900, 3, 0),
     "dispatch_recv/rows: row 7 of rank 1 says that it is of token 900 and for the "
     "receiver's expert 3, which does not go with its counts"},
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
        f.backend.fault = faults[i].fault;
        assert_explained(&f, room ? EPA_ERR_CONFIG : EPA_ERR_TIMEOUT, faults[i].why);
        end(&f);
    }
}

static int load_plugins(void **state)
{
    for (int i = 0; i < ALGORITHMS; i++) {
        void *module = dlopen(test_argv[1 + i], RTLD_NOW | RTLD_LOCAL);

        if (module == NULL)
            fail_msg("%s", dlerror());
        algorithms[i].plugin = dlsym(module, EPA_PLUGIN_SYMBOL);
    }
    return test_argc == 1 + ALGORITHMS ? 0 : -1;
}

TEST_GROUP(load_plugins, NULL)
