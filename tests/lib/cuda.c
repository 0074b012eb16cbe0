/* Streams and graphs of the application, failures of kernels, and refused calls on CUDA devices.
 *
 * lib-cuda processes|threads nvlink */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime_api.h>

#include "room.h"
#include "moe_check.h"

enum { REPLAYS = 5, CAPTURED = 3 };

static enum group_kind kind;
static const char *transport;
static uint32_t failures;

static bool runs(struct rank *r, cudaError_t code)
{
    return claim(r, code == cudaSuccess, "CUDA: %s", cudaGetErrorString(code));
}

/* ---- graphs ---- */

/* Queues a dispatch, experts that return their rows, and a combine. Captures need no host. */
static void queue_layer(struct subject *t, const struct epa2a_tokens *in,
                        struct epa2a_received *got, cudaStream_t stream)
{
    size_t row = (size_t)t->s->shape.hidden * 2;
    EPA2A_STRUCT(epa2a_outputs, o);

    o.out = t->there.out;
    if (works(t->r, epa2a_dispatch(t->moe, in, got, stream)) &&
        runs(t->r, cudaMemcpy2DAsync(got->y, row, got->x, got->x_stride, row, t->need.rows,
                                     cudaMemcpyDeviceToDevice, stream)))
        (void)works(t->r, epa2a_combine(t->moe, got, &o, stream));
}

/* Lists the terms of the sum of a token: its row once for each choice or, in the RANK layouts, once for
 * each rank. Returns the number of terms. */
static uint32_t list_terms(const struct subject *t, uint32_t token, const uint16_t **of, float *by)
{
    const int32_t *expert = t->expert + (size_t)token * t->s->shape.topk;
    const float *weight = t->weight + (size_t)token * t->s->shape.topk;
    uint32_t n = 0;
    uint64_t ranks = 0;

    for (uint32_t k = 0; k < t->s->shape.topk; k++) {
        uint64_t rank = expert[k] >= 0 ? UINT64_C(1) << ((uint32_t)expert[k] / local_of(t->s)) : 0;

        if (expert[k] < 0 || (is_rank_layout(t->s) && (ranks & rank) != 0))
            continue;
        ranks |= rank;
        of[n] = t->x + (size_t)token * t->s->shape.hidden;
        by[n++] = is_rank_layout(t->s) ? 1 : weight[k];
    }
    return n;
}

/* Each token returns as the weighted sum of itself. */
static void check_layer(struct subject *t, const struct slot *p, cudaStream_t stream)
{
    uint32_t hidden = t->s->shape.hidden;

    if (t->r->failed || !works(t->r, epa2a_comm_sync(t->comm, stream)))
        return;
    room_copy(t->out, t->there.out, (size_t)p->tokens * hidden * 2, stream);
    for (uint32_t i = 0; i < p->tokens; i++) {
        const uint16_t *of[32];
        uint16_t want[1024];
        float by[32];

        model_sum(t->s, list_terms(t, i, of, by), of, by, want);
        if (!claim(t->r, memcmp(want, t->out + (size_t)i * hidden, 2 * (size_t)hidden) == 0,
                   "iteration %llu: token %u has another sum", (unsigned long long)p->iteration, i))
            return;
    }
}

static void fill_layer(struct subject *t, struct slot *p, uint64_t iteration,
                       struct epa2a_tokens *in)
{
    const struct way w = {.own = false};

    p->iteration = p->route = iteration;
    p->tokens = t->s->shape.max_tokens;
    fill_inputs(t, p, &w, in);
}

/* Queues the layer three times: the second one dispatches along the routes of the first, and the last
 * combine repeats the dispatch. Expert outputs are in memory of the caller. */
static void queue_routes(struct subject *t, const struct epa2a_tokens *in,
                         struct epa2a_received *got, void *y, cudaStream_t stream)
{
    size_t row = (size_t)t->s->shape.hidden * 2;
    EPA2A_STRUCT(epa2a_outputs, o);

    o.y = y;
    o.out = t->there.out;
    for (int i = 0; i < 3; i++) {
        if (!works(t->r, i == 0   ? epa2a_dispatch(t->moe, in, got, stream)
                         : i == 1 ? epa2a_dispatch_again(t->moe, in, got, stream)
                                  : EPA2A_OK) ||
            !runs(t->r, cudaMemsetAsync(o.out, 0, (size_t)in->tokens * row, stream)) ||
            !runs(t->r, cudaMemcpy2DAsync(y, row, got->x, got->x_stride != 0 ? got->x_stride : row,
                                          row, t->need.rows, cudaMemcpyDeviceToDevice, stream)))
            return;
        (void)works(t->r, epa2a_combine(t->moe, got, &o, stream));
    }
}

/* Replays a graph of dispatches with `routing` to memory of the caller, with other inputs. */
static void run_routes_graph(struct rank *r)
{
    struct epa2a_comm *comm = create_comm(r);
    const struct way w = {.own = true, .routing = true};
    struct epa2a_tokens in;
    cudaGraphExec_t exec = NULL;
    cudaGraph_t graph = NULL;
    struct subject t;
    struct slot p;

    subject_begin(&t, r, r->arg, comm);
    if (r->failed)
        return;
    slot_begin(&t, &p, &w);
    p.got.host_count = NULL;
    fill_layer(&t, &p, 0, &in);
    queue_routes(&t, &in, &p.got, p.got.y, r->stream);
    check_layer(&t, &p, r->stream);
    (void)runs(r, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeGlobal));
    for (uint32_t i = 0; i < CAPTURED; i++)
        queue_routes(&t, &in, &p.got, p.got.y, r->stream);
    (void)runs(r, cudaStreamEndCapture(r->stream, &graph));
    if (!r->failed)
        (void)runs(r, cudaGraphInstantiate(&exec, graph, 0));
    for (uint64_t i = 1; i <= REPLAYS && !r->failed; i++) {
        fill_layer(&t, &p, i, &in);
        (void)runs(r, cudaGraphLaunch(exec, r->stream));
        check_layer(&t, &p, r->stream);
    }
    if (exec != NULL)
        (void)runs(r, cudaGraphExecDestroy(exec));
    if (graph != NULL)
        (void)runs(r, cudaGraphDestroy(graph));
    slot_end(&p);
    subject_end(&t);
    epa2a_comm_destroy(comm);
}

/* With memory of the moe, a dispatch of ll_v2 is one kernel, and so is its combine. queue_layer() adds a
 * copy. */
static void count_nodes(struct rank *r, cudaGraph_t graph)
{
    size_t n = 0;

    if (r->arg->shape.options == NULL && runs(r, cudaGraphGetNodes(graph, NULL, &n)))
        (void)claim(r, n == 3 * CAPTURED, "the graph has %zu nodes instead of %d", n, 3 * CAPTURED);
}

/* A moe still works after the creation of one with fewer experts, whose kernels need less memory. */
static void run_smaller_moe(struct rank *r)
{
    struct epa2a_comm *comm = create_comm(r);
    struct setting small = *r->arg;
    EPA2A_STRUCT(epa2a_received, got);
    struct slot p = {.own = false};
    struct epa2a_tokens in;
    struct subject t, other;

    small.shape.experts = small.ranks;
    small.shape.topk = 1;
    subject_begin(&t, r, r->arg, comm);
    subject_begin(&other, r, &small, comm);
    if (r->failed)
        return;
    fill_layer(&t, &p, 0, &in);
    queue_layer(&t, &in, &got, r->stream);
    check_layer(&t, &p, r->stream);
    subject_end(&other);
    subject_end(&t);
    epa2a_comm_destroy(comm);
}

/* Captures an odd number of layers, and replays them with other inputs, between single calls and in
 * two streams. */
static void run_graph(struct rank *r)
{
    struct epa2a_comm *comm = create_comm(r);
    EPA2A_STRUCT(epa2a_received, got);
    struct slot p = {.own = false};
    struct epa2a_tokens in;
    struct subject t;
    cudaStream_t other = room_stream(r->rank), stream = r->stream;
    cudaGraphExec_t exec = NULL;
    cudaGraph_t graph = NULL;

    subject_begin(&t, r, r->arg, comm);
    if (r->failed)
        return;
    fill_layer(&t, &p, 0, &in);
    queue_layer(&t, &in, &got, stream);
    check_layer(&t, &p, stream);
    (void)runs(r, cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (uint32_t i = 0; i < CAPTURED; i++)
        queue_layer(&t, &in, &got, stream);
    (void)runs(r, cudaStreamEndCapture(stream, &graph));
    if (!r->failed)
        count_nodes(r, graph);
    if (!r->failed)
        (void)runs(r, cudaGraphInstantiate(&exec, graph, 0));
    for (uint64_t i = 1; i <= REPLAYS && !r->failed; i++) {
        cudaStream_t now = i % 2 != 0 ? stream : other;

        fill_layer(&t, &p, i, &in);
        (void)runs(r, cudaGraphLaunch(exec, now));
        check_layer(&t, &p, now);
        fill_layer(&t, &p, i + 50, &in);
        queue_layer(&t, &in, &got, now);
        check_layer(&t, &p, now);
    }
    if (exec != NULL)
        (void)runs(r, cudaGraphExecDestroy(exec));
    if (graph != NULL)
        (void)runs(r, cudaGraphDestroy(graph));
    subject_end(&t);
    epa2a_comm_destroy(comm);
    room_stream_end(other);
}

/* ---- refused calls ---- */

/* Ends a capture that may have failed. */
static void end_refused_capture(struct rank *r)
{
    cudaGraph_t graph = NULL;

    if (cudaStreamEndCapture(r->stream, &graph) == cudaSuccess && graph != NULL)
        (void)runs(r, cudaGraphDestroy(graph));
}

/* Calls that would wait or allocate within a capture fail, and so do calls that need the host. */
static void run_refused(struct rank *r)
{
    struct epa2a_comm *comm = create_comm(r);
    struct epa2a_moe_shape shape = r->arg->shape;
    EPA2A_STRUCT(epa2a_received, got);
    EPA2A_STRUCT(epa2a_outputs, o);
    struct slot p = {.own = false};
    struct epa2a_tokens in;
    struct subject t;
    uint32_t counts[64];
    struct epa2a_moe *moe = NULL;

    shape.size = sizeof(shape);
    subject_begin(&t, r, r->arg, comm);
    if (r->failed)
        return;
    fill_layer(&t, &p, 0, &in);
    (void)runs(r, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed));
    got.host_count = counts;
    fails(r, epa2a_dispatch(t.moe, &in, &got, r->stream), EPA2A_ERR_CONFIG, "host_count .. graph");
    got.host_count = NULL;
    fails(r, epa2a_comm_sync(comm, r->stream), EPA2A_ERR_UNSUPPORTED, "sync .. graph");
    end_refused_capture(r);
    (void)claim(r, group_meet(r->of), "a rank left");
    (void)runs(r, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeGlobal));
    (void)claim(r, group_meet(r->of), "a rank left");
    fails(r, epa2a_moe_create(comm, &shape, &moe), EPA2A_ERR_UNSUPPORTED, "graph .. create");
    (void)claim(r, group_meet(r->of), "a rank left");
    end_refused_capture(r);
    (void)cudaGetLastError();
    (void)claim(r, group_meet(r->of), "a rank left");
    in.flags = EPA2A_RECV_FP8;
    fails(r, epa2a_dispatch(t.moe, &in, &got, r->stream), EPA2A_ERR_UNSUPPORTED, "x and x_scale");
    in.flags = 0;
    got.routing = t.there.out;
    fails(r, epa2a_dispatch_again(t.moe, &in, &got, r->stream), EPA2A_ERR_CONFIG, "routing");
    fails(r, epa2a_combine(t.moe, &got, &o, r->stream), EPA2A_ERR_CONFIG, "routing");
    got.routing = NULL;
    (void)works(r, epa2a_dispatch(t.moe, &in, &got, r->stream));
    fails(r, epa2a_discard(t.moe, &got), EPA2A_ERR_UNSUPPORTED, "in_flight");
    o.out = t.there.out;
    o.topk_idx = t.there.expert;
    fails(r, epa2a_combine(t.moe, &got, &o, r->stream), EPA2A_ERR_CONFIG, "topk_idx_bytes");
    o.topk_idx = NULL;
    (void)works(r, epa2a_combine(t.moe, &got, &o, r->stream));
    shape.layout = EPA2A_EXPERT_PADDED;
    shape.options = "algorithm=ll_v1";
    fails(r, epa2a_moe_create(comm, &shape, &moe), EPA2A_ERR_UNSUPPORTED,
          "ll_v1 .. EPA2A_EXPERT_PACKED");
    (void)works(r, epa2a_comm_sync(comm, r->stream));
    subject_end(&t);
    epa2a_comm_destroy(comm);
}

/* A rank may use the library while another thread captures a graph in the global mode, which forbids
 * other threads to query streams. */
static void run_beside_capture(struct rank *r)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    struct epa2a_comm *comm = create_comm(r);
    cudaGraph_t graph = NULL;

    (void)runs(r, cudaThreadExchangeStreamCaptureMode(&mode));
    if (r->rank == 0)
        (void)runs(r, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeGlobal));
    (void)claim(r, group_meet(r->of), "a rank left");
    if (r->rank != 0)
        (void)works(r, epa2a_comm_sync(comm, r->stream));
    (void)claim(r, group_meet(r->of), "a rank left");
    if (r->rank == 0) {
        (void)runs(r, cudaStreamEndCapture(r->stream, &graph));
        (void)runs(r, cudaGraphDestroy(graph));
    }
    (void)claim(r, group_meet(r->of), "a rank left");
    (void)runs(r, cudaThreadExchangeStreamCaptureMode(&mode));
    epa2a_comm_destroy(comm);
}

/* The device of the thread stays current, and a device that does not exist is refused. */
static void run_device(struct rank *r)
{
    int devices = 0, now = -1, mine;
    struct epa2a_comm *comm, *wrong = NULL;
    struct epa2a_comm_params p = {.size = sizeof(p),
                                  .version = EPA2A_VERSION,
                                  .rank = r->rank,
                                  .ranks = r->arg->ranks,
                                  .allgather = group_allgather,
                                  .arg = r->of,
                                  .options = "backend.share=true"};

    (void)runs(r, cudaGetDeviceCount(&devices));
    mine = (room_device(r->rank) + 1) % devices;
    comm = create_comm(r);
    (void)runs(r, cudaSetDevice(mine));
    (void)works(r, epa2a_comm_barrier(comm, NULL));
    (void)runs(r, cudaGetDevice(&now));
    (void)claim(r, now == mine, "device %d is current instead of %d", now, mine);
    epa2a_comm_destroy(comm);
    (void)runs(r, cudaGetDevice(&now));
    (void)claim(r, now == mine, "device %d is current instead of %d", now, mine);
    p.device = devices;
    fails(r, epa2a_comm_create(&p, &wrong), EPA2A_ERR_CONFIG, "GPU");
    p.device = -2;
    fails(r, epa2a_comm_create(&p, &wrong), EPA2A_ERR_CONFIG, "device is -2");
    p.device = 0;
    p.options = NULL;
    if (r->arg->ranks > 1)
        fails(r, epa2a_comm_create(&p, &wrong), EPA2A_ERR_CONFIG, "ranks 0 and 1 .. same GPU");
}

/* ---- failures ---- */

/* Rank 1 does not call a dispatch: the check of the others reports the kernel without a wait. */
static void run_fault(struct rank *r)
{
    static const double limit_s = 30;
    struct epa2a_comm *comm = create_comm(r);
    EPA2A_STRUCT(epa2a_received, got);
    struct slot p = {.own = false};
    struct epa2a_tokens in;
    struct subject t;
    double begun;
    int status = EPA2A_OK;

    subject_begin(&t, r, r->arg, comm);
    if (r->failed)
        return;
    fill_layer(&t, &p, 0, &in);
    (void)works(r, epa2a_comm_check(comm));
    if (r->rank != 1)
        (void)works(r, epa2a_dispatch(t.moe, &in, &got, r->stream));
    begun = group_now();
    while (r->rank != 1 && status == EPA2A_OK && group_now() - begun < limit_s) {
        status = epa2a_comm_check(comm);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (r->rank != 1) {
        fails(r, status, EPA2A_ERR_TIMEOUT, "for rank 1");
        fails(r, epa2a_dispatch(t.moe, &in, &got, r->stream), EPA2A_ERR_TIMEOUT,
              "counts of rank 1: waited");
        fails(r, epa2a_dispatch(t.moe, &in, &got, r->stream), EPA2A_ERR_ABORTED,
              "counts of rank 1: waited");
    }
    (void)claim(r, group_meet(r->of), "a rank left");
    if (r->rank == 1)
        fails(r, epa2a_dispatch(t.moe, &in, &got, r->stream), EPA2A_ERR_ABORTED,
              "counts of rank 1: waited");
    subject_end(&t);
    epa2a_comm_destroy(comm);
}

/* The process of rank 1 dies: the other ranks name it within the time-out + 1 s. */
static void run_death(struct rank *r)
{
    static const double timeout_s = 2;
    struct epa2a_comm *comm = create_comm(r);
    EPA2A_STRUCT(epa2a_received, got);
    struct slot p = {.own = false};
    struct epa2a_tokens in;
    struct subject t;
    double begun;
    int status;

    subject_begin(&t, r, r->arg, comm);
    if (r->failed)
        return;
    fill_layer(&t, &p, 0, &in);
    queue_layer(&t, &in, &got, r->stream);
    check_layer(&t, &p, r->stream);
    (void)claim(r, group_meet(r->of), "a rank left");
    if (r->rank == 1) {
        r->of->result->code = r->failed;
        (void)raise(SIGKILL);
    }
    begun = group_now();
    status = epa2a_dispatch(t.moe, &in, &got, r->stream);
    if (status == EPA2A_OK)
        status = epa2a_comm_sync(comm, r->stream);
    fails(r, status, EPA2A_ERR_DIED, "rank 1");
    (void)claim(r, group_now() - begun < timeout_s + 1, "the death was reported after %.1f s",
                group_now() - begun);
    subject_end(&t);
    epa2a_comm_destroy(comm);
}

/* An abort ends a kernel while the rank waits for the stream in a function of CUDA. */
static void run_abort(struct rank *r)
{
    struct epa2a_comm *comm = create_comm(r);
    EPA2A_STRUCT(epa2a_received, got);
    struct slot p = {.own = false};
    struct epa2a_tokens in;
    struct subject t;
    double begun = group_now();

    subject_begin(&t, r, r->arg, comm);
    if (r->failed)
        return;
    fill_layer(&t, &p, 0, &in);
    if (r->rank == 0) {
        (void)works(r, epa2a_dispatch(t.moe, &in, &got, r->stream));
        __atomic_store_n(group_word(r->of, 0), 1, __ATOMIC_RELEASE);
        (void)runs(r, cudaStreamSynchronize(r->stream));
        (void)claim(r, group_now() - begun < 20, "the kernel ended after %.1f s",
                    group_now() - begun);
    } else {
        (void)claim(r, group_wait(group_word(r->of, 0)), "rank 0 did not dispatch");
        epa2a_comm_abort(comm);
    }
    fails(r, epa2a_comm_sync(comm, r->stream), EPA2A_ERR_ABORTED, "aborted");
    subject_end(&t);
    epa2a_comm_destroy(comm);
}

/* ---- settings ---- */

struct run {
    const struct setting *s;
    void (*body)(struct rank *);
    const char *options;
};

static void run_rank(struct group_rank *me)
{
    const struct run *run = me->arg;
    char text[128];
    struct rank r = {.of = me, .rank = me->rank, .arg = run->s, .transport = text};

    snprintf(text, sizeof(text), "%s%s", transport, run->options);
    me->result->code = 2; /* of a rank that ends early */
    run->body(&r);
    me->result->code = r.failed;
    if (r.stream != NULL)
        room_stream_end(r.stream);
}

static void run(const char *what, void (*body)(struct rank *), const struct setting *s,
                const char *options)
{
    const struct run of = {s, body, options};
    struct group *group = group_run(s->ranks, kind, run_rank, &of);

    for (uint32_t i = 0; i < s->ranks; i++) {
        const struct group_result *result = group_result(group, i);

        if (result->code == 0)
            continue;
        fprintf(stderr, "failed: %s, %s, rank %u of %u: %d: %s\n", what,
                s->shape.options != NULL ? s->shape.options : "defaults", i, s->ranks, result->code,
                result->text);
        failures++;
    }
    group_free(group);
}

static struct setting setting_of(uint32_t ranks, int layout, const char *options)
{
    return (struct setting){.ranks = ranks,
                            .seed = ranks,
                            .shape = {.max_tokens = 7,
                                      .hidden = 64,
                                      .experts = 4 * ranks,
                                      .topk = 3,
                                      .dtype = EPA2A_BF16,
                                      .recv_dtype = EPA2A_BF16,
                                      .layout = layout,
                                      .fp8_group = 16,
                                      .in_flight = 1,
                                      .options = options}};
}

int main(int argc, char **argv)
{
    static const struct {
        const char *options;
        int layout;
    } graphs[] = {{NULL, EPA2A_EXPERT_PADDED},
                  {"algorithm=ll_v1", EPA2A_EXPERT_PACKED},
                  {"algorithm=token_flag", EPA2A_EXPERT_PACKED},
                  {NULL, EPA2A_RANK_PACKED},
                  {NULL, EPA2A_RANK_PADDED}};
    struct setting s;

    if (argc != 3)
        return 2;
    kind = strcmp(argv[1], "threads") == 0 ? GROUP_THREADS : GROUP_PROCESSES;
    transport = argv[2];
    if (room_missing())
        return 77;
    for (uint32_t i = 0; i < sizeof(graphs) / sizeof(graphs[0]); i++) {
        s = setting_of(i == 0 ? 2 : 3, graphs[i].layout, graphs[i].options);
        run("graph", run_graph, &s, "");
        run("graph of routes", run_routes_graph, &s, "");
        s.shape.in_flight = 2;
        run("graph", run_graph, &s, "");
        run("graph of routes", run_routes_graph, &s, "");
    }
    s = setting_of(2, EPA2A_EXPERT_PACKED, "algorithm=ll_v2");
    s.shape.experts = 512;
    run("smaller moe", run_smaller_moe, &s, "");
    s = setting_of(2, EPA2A_EXPERT_PACKED, NULL);
    run("refused", run_refused, &s, "");
    run("beside capture", run_beside_capture, &s, "");
    run("device", run_device, &s, "");
    run("abort", run_abort, &s, "");
    run("fault", run_fault, &s, ", timeout=1s");
    if (kind == GROUP_PROCESSES) {
        s = setting_of(3, EPA2A_EXPERT_PACKED, NULL);
        run("death", run_death, &s, ", timeout=2s");
    }
    return failures != 0;
}
