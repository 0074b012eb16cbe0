/* Time of a dispatch and its combine in CUDA graphs of an application, and the time in which the host
 * queues the two calls. Each rank captures CALLS pairs of calls. A sample is a launch of the graph
 * after an untimed launch of the same graph, which hides the latency of the launch, as in
 * `epa2a bench` with bench.clock: graph. Experts leave their outputs in place.
 *
 * bench-library-graphs processes|threads RANKS TOKENS HIDDEN EXPERTS TOPK OPTIONS */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <epa2a.h>

#include "lib/group.h"
#include "lib/room.h"

enum { CALLS = 20, WARMUP = 20, SAMPLES = 200, QUEUED = 200 };

struct bench {
    uint32_t ranks, tokens, hidden, experts, topk;
    const char *options;
};

/* The calls of a rank. */
struct caller {
    struct group_rank *of;
    const struct bench *b;
    struct epa2a_comm *comm;
    struct epa2a_moe *moe;
    struct epa2a_tokens in;
    struct epa2a_received got;
    struct epa2a_outputs back;
    cudaStream_t stream;
};

/* Ends the rank if a call of the library failed. */
static bool works(struct caller *c, int status)
{
    if (status == EPA2A_OK)
        return true;
    c->of->result->code = status;
    snprintf(c->of->result->text, sizeof(c->of->result->text), "%s", epa2a_last_error());
    return false;
}

static bool runs(struct caller *c, cudaError_t code)
{
    if (code == cudaSuccess)
        return true;
    c->of->result->code = (int)code;
    snprintf(c->of->result->text, sizeof(c->of->result->text), "%s", cudaGetErrorString(code));
    return false;
}

static bool create(struct caller *c)
{
    const struct bench *b = c->b;
    EPA2A_STRUCT(epa2a_comm_params, p);
    EPA2A_STRUCT(epa2a_moe_shape, shape);

    p.version = EPA2A_VERSION;
    p.rank = c->of->rank;
    p.ranks = b->ranks;
    p.allgather = group_allgather;
    p.arg = c->of;
    p.device = room_device(c->of->rank);
    p.options = "backend.share=true";
    c->stream = room_stream(c->of->rank);
    shape.max_tokens = b->tokens;
    shape.hidden = b->hidden;
    shape.experts = b->experts;
    shape.topk = b->topk;
    shape.dtype = EPA2A_BF16;
    shape.recv_dtype = EPA2A_FP8_E4M3;
    shape.layout = EPA2A_EXPERT_PACKED;
    shape.fp8_group = 128;
    shape.in_flight = 2;
    shape.options = b->options;
    return works(c, epa2a_comm_create(&p, &c->comm)) &&
           works(c, epa2a_moe_create(c->comm, &shape, &c->moe));
}

/* Tokens choose experts uniformly at random, without repetition. */
static void fill_inputs(struct caller *c)
{
    const struct bench *b = c->b;
    size_t choices = (size_t)b->tokens * b->topk, row = (size_t)b->hidden * 2;
    int32_t *expert = malloc(choices * sizeof(*expert));
    float *weight = malloc(choices * sizeof(*weight));
    uint16_t *x = malloc(b->tokens * row);
    uint64_t draw = c->of->rank + 1;

    if (expert == NULL || weight == NULL || x == NULL)
        abort();
    for (size_t i = 0; i < choices; i++) {
        bool repeated = true;

        while (repeated) {
            draw = draw * UINT64_C(6364136223846793005) + 1442695040888963407u;
            expert[i] = (int32_t)((draw >> 33) % b->experts);
            repeated = false;
            for (size_t k = i - i % b->topk; k < i; k++)
                repeated = repeated || expert[k] == expert[i];
        }
        weight[i] = 1.0f / (float)b->topk;
    }
    for (size_t i = 0; i < b->tokens * (size_t)b->hidden; i++)
        x[i] = (uint16_t)(0x3f80 + i % 64); /* 1 in bfloat16, and the next values */
    c->in = (struct epa2a_tokens){
        .size = sizeof(c->in),
        .tokens = b->tokens,
        .x = room_put(x, b->tokens * row, c->stream),
        .topk_idx = room_put(expert, choices * sizeof(*expert), c->stream),
        .topk_idx_bytes = sizeof(*expert),
        .topk_weight = room_put(weight, choices * sizeof(*weight), c->stream)};
    c->got = (struct epa2a_received){.size = sizeof(c->got)};
    c->back = (struct epa2a_outputs){.size = sizeof(c->back), .out = room_alloc(b->tokens * row)};
    free(expert);
    free(weight);
    free(x);
}

static bool queue_calls(struct caller *c)
{
    return works(c, epa2a_dispatch(c->moe, &c->in, &c->got, c->stream)) &&
           works(c, epa2a_combine(c->moe, &c->got, &c->back, c->stream));
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *value, uint32_t n)
{
    qsort(value, n, sizeof(*value), compare);
    return value[n / 2];
}

/* Replays the graph. Returns the microseconds of a pair of calls; 0 after a failure. */
static double time_graph(struct caller *c)
{
    static _Thread_local double sample[SAMPLES];
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaEvent_t mark[2] = {NULL, NULL};
    bool good = runs(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal));

    for (uint32_t i = 0; i < CALLS && good; i++)
        good = queue_calls(c);
    good = good && runs(c, cudaStreamEndCapture(c->stream, &graph)) &&
           runs(c, cudaGraphInstantiate(&exec, graph, 0)) && runs(c, cudaEventCreate(&mark[0])) &&
           runs(c, cudaEventCreate(&mark[1]));
    for (uint32_t i = 0; i < WARMUP + SAMPLES && good; i++) {
        float ms = 0;

        good = runs(c, cudaGraphLaunch(exec, c->stream)) &&
               runs(c, cudaEventRecord(mark[0], c->stream)) &&
               runs(c, cudaGraphLaunch(exec, c->stream)) &&
               runs(c, cudaEventRecord(mark[1], c->stream)) &&
               works(c, epa2a_comm_sync(c->comm, c->stream)) &&
               runs(c, cudaEventElapsedTime(&ms, mark[0], mark[1]));
        if (i >= WARMUP)
            sample[i - WARMUP] = (double)ms * 1e3 / CALLS;
    }
    if (!good)
        return 0;
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    (void)cudaEventDestroy(mark[0]);
    (void)cudaEventDestroy(mark[1]);
    return median(sample, SAMPLES);
}

/* Returns the microseconds in which the host queues a pair of calls. The pause between the samples
 * keeps the queue of the device short. */
static double time_host(struct caller *c)
{
    static _Thread_local double sample[QUEUED];

    for (uint32_t i = 0; i < QUEUED; i++) {
        double begun = group_now();

        if (!queue_calls(c))
            return 0;
        sample[i] = (group_now() - begun) * 1e6;
        if (!works(c, epa2a_comm_sync(c->comm, c->stream)))
            return 0;
    }
    return median(sample, QUEUED);
}

static void run_rank(struct group_rank *me)
{
    struct caller c = {.of = me, .b = me->arg};
    double host, graph;

    me->result->code = 0;
    if (!create(&c))
        return;
    fill_inputs(&c);
    host = time_host(&c);
    graph = host != 0 ? time_graph(&c) : 0;
    me->result->seconds = graph * 1e-6;
    if (me->result->code == 0)
        snprintf(me->result->text, sizeof(me->result->text),
                 "rank %u: dispatch and combine %.2f us in a graph, queued in %.2f us", me->rank,
                 graph, host);
    room_free((void *)(uintptr_t)c.in.x);
    room_free((void *)(uintptr_t)c.in.topk_idx);
    room_free((void *)(uintptr_t)c.in.topk_weight);
    room_free(c.back.out);
    epa2a_moe_destroy(c.moe);
    epa2a_comm_destroy(c.comm);
    room_stream_end(c.stream);
}

int main(int argc, char **argv)
{
    struct bench b;
    struct group *group;
    int failed = 0;

    if (argc != 8) {
        fprintf(stderr, "usage: %s processes|threads RANKS TOKENS HIDDEN EXPERTS TOPK OPTIONS\n",
                argv[0]);
        return 2;
    }
    if (room_missing())
        return 77;
    b = (struct bench){.ranks = (uint32_t)atoi(argv[2]),
                       .tokens = (uint32_t)atoi(argv[3]),
                       .hidden = (uint32_t)atoi(argv[4]),
                       .experts = (uint32_t)atoi(argv[5]),
                       .topk = (uint32_t)atoi(argv[6]),
                       .options = argv[7]};
    group = group_run(b.ranks, strcmp(argv[1], "threads") == 0 ? GROUP_THREADS : GROUP_PROCESSES,
                      run_rank, &b);
    for (uint32_t i = 0; i < b.ranks; i++) {
        const struct group_result *result = group_result(group, i);

        printf("%s\n", result->text);
        failed = failed || result->code != 0;
    }
    group_free(group);
    return failed;
}
