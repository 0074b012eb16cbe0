/* A mixture-of-experts layer on GPUs, captured in a CUDA graph. Two ranks of this host dispatch their
 * tokens to the experts of both ranks, a kernel doubles the rows, and combine returns the weighted
 * sums. The weights of a token add up to 1, so each output is twice its token. The ranks share a GPU
 * if there is only one.
 *
 *     nvcc -arch=sm_90 moe_layer_cuda.cu -o moe_layer_cuda $(pkg-config --cflags --libs epa2a)
 *     CUDA_MODULE_LOADING=EAGER ./moe_layer_cuda */
#include <cuda_runtime.h>
#include <epa2a.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, TOKENS = 4, HIDDEN = 256, EXPERTS = 8, TOPK = 2, LAYERS = 3, STEPS = 4 };

/* Exchanges the contributions of the two ranks over the socket at `arg`. */
static int allgather(void *arg, const void *mine, size_t bytes, void *all)
{
    const int *socket = (const int *)arg, rank = socket[1];

    memcpy((char *)all + rank * bytes, mine, bytes);
    return send(*socket, mine, bytes, MSG_NOSIGNAL) != (ssize_t)bytes ||
           recv(*socket, (char *)all + !rank * bytes, bytes, MSG_WAITALL) != (ssize_t)bytes;
}

/* A block for each expert of the rank. The counts are on the device, and a replay of the graph reads
 * them again. The exponent of bfloat16 begins at bit 7. */
static __global__ void double_rows(struct epa2a_received got)
{
    uint32_t e = blockIdx.x, n = got.count[e];

    for (uint32_t i = threadIdx.x; i < n * HIDDEN; i += blockDim.x) {
        uint64_t row = got.start[e] + i / HIDDEN;
        const uint16_t *x = (const uint16_t *)((const char *)got.x + row * got.x_stride);

        ((uint16_t *)got.y)[row * HIDDEN + i % HIDDEN] = x[i % HIDDEN] + (1 << 7);
    }
}

struct layer {
    struct epa2a_tokens in;
    struct epa2a_received got;
    struct epa2a_outputs back;
};

/* Only queues work: nothing here waits for the GPU. */
static int queue_layer(struct epa2a_moe *moe, struct layer *l, cudaStream_t stream)
{
    int status = epa2a_dispatch(moe, &l->in, &l->got, stream);

    if (status != EPA2A_OK)
        return status;
    double_rows<<<EXPERTS / RANKS, 256, 0, stream>>>(l->got);
    return epa2a_combine(moe, &l->got, &l->back, stream);
}

/* Returns memory of the GPU with a copy of `from`. */
static void *copy_to_gpu(const void *from, size_t bytes)
{
    void *to = NULL;

    if (cudaMalloc(&to, bytes) == cudaSuccess)
        (void)cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
    return to;
}

/* Captures several layers in a graph and replays it. Returns the number of wrong outputs, or the
 * negative status of a failed call. */
static int run_steps(struct epa2a_comm *comm, struct epa2a_moe *moe, cudaStream_t stream)
{
    static uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN];
    const int32_t expert[TOKENS][TOPK] = {{0, 7}, {1, 6}, {2, 5}, {3, 4}};
    const float weight[TOKENS][TOPK] = {{.25f, .75f}, {.25f, .75f}, {.25f, .75f}, {.25f, .75f}};
    struct layer l = {};
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    int status = EPA2A_OK, wrong = 0;

    l.in.size = sizeof(l.in);
    l.got.size = sizeof(l.got);
    l.back.size = sizeof(l.back);
    l.in.tokens = TOKENS;
    l.in.x = copy_to_gpu(x, sizeof(x));
    l.in.topk_idx = copy_to_gpu(expert, sizeof(expert));
    l.in.topk_idx_bytes = sizeof(expert[0][0]);
    l.in.topk_weight = (const float *)copy_to_gpu(weight, sizeof(weight));
    l.back.out = copy_to_gpu(out, sizeof(out));
    (void)cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    for (int i = 0; i < LAYERS && status == EPA2A_OK; i++)
        status = queue_layer(moe, &l, stream);
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess || status != EPA2A_OK ||
        cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess)
        return status != EPA2A_OK ? status : -1;
    for (int step = 0; step < STEPS && status == EPA2A_OK; step++) {
        uint16_t one = (uint16_t)(0x3f80 + step); /* 1 in bfloat16, and the next values */

        for (int i = 0; i < TOKENS * HIDDEN; i++)
            x[i] = one;
        (void)cudaMemcpyAsync((void *)l.in.x, x, sizeof(x), cudaMemcpyHostToDevice, stream);
        (void)cudaGraphLaunch(exec, stream);
        (void)cudaMemcpyAsync(out, l.back.out, sizeof(out), cudaMemcpyDeviceToHost, stream);
        status = epa2a_comm_sync(comm, stream);
        for (int i = 0; i < TOKENS * HIDDEN; i++)
            wrong += out[i] != one + (1 << 7);
    }
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    (void)cudaFree((void *)l.in.x);
    (void)cudaFree((void *)l.in.topk_idx);
    (void)cudaFree((void *)l.in.topk_weight);
    (void)cudaFree(l.back.out);
    return status != EPA2A_OK ? status : wrong;
}

int main(void)
{
    EPA2A_STRUCT(epa2a_comm_params, params);
    EPA2A_STRUCT(epa2a_moe_shape, shape);
    struct epa2a_comm *comm = NULL;
    struct epa2a_moe *moe = NULL;
    int pair[2], child, devices = 0, wrong = -1, socket[2];
    cudaStream_t stream;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || (child = fork()) < 0)
        return 1;
    params.version = EPA2A_VERSION;
    params.ranks = RANKS;
    params.rank = child == 0;
    params.allgather = allgather;
    params.arg = socket;
    socket[0] = pair[params.rank];
    socket[1] = (int)params.rank;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        return fprintf(stderr, "rank %u: no GPU\n", params.rank), 1;
    params.device = (int)params.rank % devices;
    params.options = devices < RANKS ? "backend.share=true" : NULL;
    shape.max_tokens = TOKENS;
    shape.hidden = HIDDEN;
    shape.experts = EXPERTS;
    shape.topk = TOPK;
    shape.dtype = EPA2A_BF16;
    shape.layout = EPA2A_EXPERT_PACKED;
    if (cudaSetDevice(params.device) != cudaSuccess ||
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
        return fprintf(stderr, "rank %u: GPU %d fails\n", params.rank, params.device), 1;
    if (epa2a_comm_create(&params, &comm) != EPA2A_OK ||
        epa2a_moe_create(comm, &shape, &moe) != EPA2A_OK ||
        (wrong = run_steps(comm, moe, stream)) < 0)
        return fprintf(stderr, "rank %u: %s\n", params.rank, epa2a_last_error()), 1;
    epa2a_moe_destroy(moe);
    epa2a_comm_destroy(comm);
    (void)cudaStreamDestroy(stream);
    printf("rank %u: %d tokens, %d wrong outputs\n", params.rank, TOKENS, wrong);
    return (child != 0 && (wait(&child) < 0 || child != 0)) || wrong != 0;
}
