/* The CUDA backend of a rank: memory, a stream and events of one device. Set-up calls (alloc, write,
 * read, fill) are synchronous. Kernels are queued, and sync() waits for them. */
#include "beat.h"
#include "bias.h"
#include "choices.h"
#include "choose.h"
#include "deliver.h"
#include "deliver_ordered.h"
#include "describe.h"
#include "experts.h"
#include "flush.h"
#include "graph.h"
#include "logfmt.h"
#include "peak.h"
#include "quantise.h"
#include "state.h"
#include "stream.h"
#include "weights.h"

#include <stdlib.h>

enum { LEAST_BYTES = 256 };

/* ---- memory ---- */

static enum epa_status cuda_fill(struct epa_backend *base, void *to, int byte, size_t bytes)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter_eager(c, "fill");

    if (status == EPA_OK && bytes > 0)
        status = cuda_check(c, cudaMemsetAsync(to, byte, bytes, c->base.stream), "cudaMemsetAsync");
    return status == EPA_OK ? cuda_drain(c, false) : status;
}

static enum epa_status fail_alloc(struct cuda *c, size_t bytes, cudaError_t why)
{
    size_t available = 0, all = 0;

    (void)cudaGetLastError();
    if (why == cudaErrorStreamCaptureUnsupported || why == cudaErrorStreamCaptureInvalidated)
        return epa_fail(&c->last, EPA_ERR_UNSUPPORTED,
                        "cuda: this thread or another one records a CUDA graph, and memory cannot "
                        "be allocated meanwhile; create all objects before the capture begins");
    if (why != cudaErrorMemoryAllocation || cudaMemGetInfo(&available, &all) != cudaSuccess)
        return cuda_fail(c, why, "cudaMalloc");
    return epa_fail_key(&c->last, EPA_ERR_NOMEM, EPA_LIMIT_NAMED,
                        "cuda: no memory for %zu bytes on GPU %d: %zu of its %zu are free", bytes,
                        c->base.device, available, all);
}

static enum epa_status cuda_alloc(struct epa_backend *base, size_t bytes, void **out)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter_eager(c, "alloc");
    void *memory = NULL;
    cudaError_t why;

    if (status != EPA_OK)
        return status;
    why = cudaMalloc(&memory, bytes > LEAST_BYTES ? bytes : LEAST_BYTES);
    if (why != cudaSuccess)
        return fail_alloc(c, bytes, why);
    status = cuda_fill(base, memory, 0, bytes); /* zeroed, like host memory */
    if (status != EPA_OK && !c->lost)
        (void)cudaFree(memory);
    if (status == EPA_OK)
        *out = memory;
    return status;
}

static void cuda_free(struct epa_backend *base, void *memory)
{
    struct cuda *c = (struct cuda *)base;

    /* cudaFree() waits for the device without a time limit, so a lost device keeps its memory. */
    if (memory != NULL && !c->lost && cudaSetDevice(c->base.device) == cudaSuccess)
        (void)cudaFree(memory);
}

/* Drains the stream first: a copy from or to unpinned memory would wait for the stream inside the
 * driver, without a time limit. */
static enum epa_status copy(struct epa_backend *base, void *to, const void *from, size_t bytes,
                            const char *what)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter_eager(c, what);

    if (status == EPA_OK)
        status = cuda_drain(c, false);
    if (status != EPA_OK || bytes == 0)
        return status;
    status = cuda_check(c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, c->base.stream),
                        "cudaMemcpyAsync");
    return status == EPA_OK ? cuda_drain(c, false) : status;
}

static enum epa_status cuda_write(struct epa_backend *base, void *to, const void *host,
                                  size_t bytes)
{
    return copy(base, to, host, bytes, "write");
}

static enum epa_status cuda_read(struct epa_backend *base, void *host, const void *from,
                                 size_t bytes)
{
    return copy(base, host, from, bytes, "read");
}

static enum epa_status cuda_parallel(struct epa_backend *base,
                                     void (*fn)(void *arg, uint32_t worker, uint32_t workers),
                                     void *arg)
{
    (void)fn;
    (void)arg;
    return epa_fail(&cuda_fresh(base)->last, EPA_ERR_UNSUPPORTED,
                    "cuda: a rank has no worker threads; its kernels do the work");
}

/* ---- small kernels for applications ---- */

enum { SMALL_BLOCKS = 4 }; /* per multiprocessor */

static uint32_t small_blocks(const struct epa_backend *base)
{
    return SMALL_BLOCKS * base->multiprocessors;
}

/* Returns true if no other rank uses the device. Blocks that wait for the previous kernel would take
 * the place of kernels that another rank waits for. */
static bool is_whole(const struct cuda *c)
{
    return c->sharers == 1;
}

static enum epa_status cuda_deliver(struct epa_backend *base, const struct epa_moe *view,
                                    const struct epa_delivery *to)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter(c);
    cudaError_t code;

    if (status != EPA_OK)
        return status;
    code = view->recv_range != NULL
               ? deliver_ordered_queue(view, to, small_blocks(base), base->stream)
               : deliver_queue(view, to, small_blocks(base), is_whole(c), base->stream);
    return cuda_check(c, code, "launching a kernel");
}

static enum epa_status cuda_encode_weights(struct epa_backend *base, const struct epa_moe *view,
                                           const struct epa_weight_bytes *bytes,
                                           const float *weight, void *y)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter(c);

    return status != EPA_OK ? status
                            : cuda_check(c,
                                         weights_encode_queue(view, bytes, weight, y,
                                                              small_blocks(base), base->stream),
                                         "launching a kernel");
}

static enum epa_status cuda_decode_weights(struct epa_backend *base,
                                           const struct epa_weight_bytes *bytes, uint32_t tokens,
                                           const void *sum, float *weight)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter(c);

    return status != EPA_OK ? status
                            : cuda_check(c,
                                         weights_decode_queue(bytes, tokens, sum, weight,
                                                              small_blocks(base), base->stream),
                                         "launching a kernel");
}

static enum epa_status cuda_copy_choices(struct epa_backend *base,
                                         const struct epa_choices_copy *choices)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter(c);

    return status != EPA_OK
               ? status
               : cuda_check(c,
                            choices_queue(choices, small_blocks(base), is_whole(c), base->stream),
                            "launching a kernel");
}

static enum epa_status cuda_copy_rows(struct epa_backend *base, void *to, const void *from,
                                      size_t stride, size_t row_bytes, uint32_t rows)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter(c);

    return status != EPA_OK
               ? status
               : cuda_check(c,
                            cudaMemcpy2DAsync(to, row_bytes, from, stride, row_bytes, rows,
                                              cudaMemcpyDeviceToDevice, base->stream),
                            "cudaMemcpy2DAsync");
}

static enum epa_status cuda_quantise(struct epa_backend *base, const struct epa_quantise *tokens)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter(c);

    return status != EPA_OK
               ? status
               : cuda_check(c, quantise_queue(tokens, small_blocks(base), base->stream),
                            "launching a kernel");
}

static enum epa_status cuda_round_outputs(struct epa_backend *base, const struct epa_moe *view,
                                          uint32_t experts, const void *y, void *out)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter(c);

    return status != EPA_OK ? status
                            : cuda_check(c,
                                         logfmt_queue(view, experts, y, out, small_blocks(base),
                                                      is_whole(c), base->stream),
                                         "launching a kernel");
}

static enum epa_status cuda_add_bias(struct epa_backend *base, const void *const bias[2],
                                     enum epa_dtype dtype, uint64_t n, void *out)
{
    struct cuda *c = cuda_fresh(base);
    enum epa_status status = cuda_enter(c);

    return status != EPA_OK
               ? status
               : cuda_check(c, bias_queue(bias, dtype, n, out, small_blocks(base), base->stream),
                            "launching a kernel");
}

/* ---- open and close ---- */

static void cuda_explain(struct epa_backend *base, struct epa_error *err)
{
    const struct cuda *c = (const struct cuda *)base;

    if (c->last.status != EPA_OK)
        epa_fail_key(err, c->last.status, c->last.key, "%s", c->last.text);
}

static void end_capture(struct cuda *c)
{
    cudaGraph_t recorded = NULL;

    if (!c->capturing)
        return;
    c->capturing = false;
    (void)cudaStreamEndCapture(c->stream, &recorded);
    if (recorded != NULL)
        (void)cudaGraphDestroy(recorded);
}

/* A hanging device keeps its memory until the process ends, since freeing it would block. */
static void cuda_close(struct epa_backend *base)
{
    struct cuda *c = (struct cuda *)base;

    if (c == NULL)
        return;
    if (cudaSetDevice(c->base.device) != cudaSuccess)
        c->lost = true;
    if (c->stream != NULL && !c->lost) {
        end_capture(c);
        (void)cuda_drain(c, true);
    }
    beat_stop(c);
    if (!c->lost) {
        for (uint32_t i = 0; i < CUDA_MARKS; i++) {
            if (c->mark[i] != NULL)
                (void)cudaEventDestroy(c->mark[i]);
        }
        if (c->stream != NULL)
            (void)cudaStreamDestroy(c->stream);
        (void)cudaFree(c->flush);
        (void)cudaFree(c->base.device_fault);
        (void)cudaFreeHost(c->fault);
        (void)cudaFreeHost(c->words);
    }
    (void)cudaGetLastError();
    cuda_end(&c->base);
    free(c);
}

static const struct epa_backend_ops ops = {
    .alloc = cuda_alloc,
    .free = cuda_free,
    .write = cuda_write,
    .read = cuda_read,
    .fill = cuda_fill,
    .sync = cuda_sync,
    .begin = cuda_begin,
    .end = cuda_end,
    .captures = cuda_captures,
    .finish = cuda_finish,
    .check = cuda_check_fault,
    .deliver = cuda_deliver,
    .encode_weights = cuda_encode_weights,
    .decode_weights = cuda_decode_weights,
    .copy_choices = cuda_copy_choices,
    .copy_rows = cuda_copy_rows,
    .quantise = cuda_quantise,
    .round_outputs = cuda_round_outputs,
    .add_bias = cuda_add_bias,
    .parallel = cuda_parallel,
    .mark = cuda_mark,
    .elapsed = cuda_elapsed,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_destroy = cuda_graph_destroy,
    .flush_cache = cuda_flush_cache,
    .experts_create = cuda_experts_create,
    .experts_run = cuda_experts_run,
    .experts_name = cuda_experts_name,
    .experts_destroy = cuda_experts_destroy,
    .peaks = cuda_peaks,
    .clock = cuda_clock,
    .describe = cuda_describe,
    .explain = cuda_explain,
    .close = cuda_close,
};

/* Allocates the words that host and device both poll. */
static enum epa_status make_words(struct cuda *c)
{
    void *there = NULL;
    enum epa_status status = cuda_check(c,
                                        cudaHostAlloc((void **)&c->words, sizeof(*c->words),
                                                      cudaHostAllocMapped | cudaHostAllocPortable),
                                        "cudaHostAlloc");

    if (status != EPA_OK)
        return status;
    *c->words = (struct cuda_words){0};
    status =
        cuda_check(c, cudaHostGetDevicePointer(&there, c->words, 0), "cudaHostGetDevicePointer");
    if (status == EPA_OK) {
        c->base.stop = &((struct cuda_words *)there)->stop;
        c->base.beat = &((struct cuda_words *)there)->beat;
        status = beat_start(c);
    }
    if (status == EPA_OK)
        status = cuda_check(
            c, cudaHostAlloc((void **)&c->fault, sizeof(*c->fault), cudaHostAllocDefault),
            "cudaHostAlloc");
    if (status == EPA_OK)
        status = cuda_alloc(&c->base, sizeof(*c->fault), (void **)&c->base.device_fault);
    if (status != EPA_OK)
        return status;
    there = &((struct cuda_words *)there)->fault;
    return cuda_write(&c->base, &c->base.device_fault->host, &there, sizeof(there));
}

static enum epa_status read_attributes(struct cuda *c)
{
    int n = 0, cache = 0;
    enum epa_status status =
        cuda_check(c, cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, c->base.device),
                   "cudaDeviceGetAttribute");

    if (status == EPA_OK)
        status =
            cuda_check(c, cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, c->base.device),
                       "cudaDeviceGetAttribute");
    c->base.cache_bytes = (uint64_t)cache;
    c->base.multiprocessors = (uint32_t)n / c->sharers;
    if (status == EPA_OK && c->base.multiprocessors == 0)
        return epa_fail(&c->last, EPA_ERR_UNSUPPORTED,
                        "cuda: %u ranks share the %d multiprocessors of GPU %d: too many",
                        c->sharers, n, c->base.device);
    return status;
}

static enum epa_status make(struct cuda *c)
{
    enum epa_status status = read_attributes(c);
    size_t available = 0, all = 0;

    if (status == EPA_OK)
        status = cuda_check(c, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking),
                            "cudaStreamCreateWithFlags");
    c->base.stream = c->stream;
    for (uint32_t i = 0; i < CUDA_MARKS && status == EPA_OK; i++)
        status = cuda_check(c, cudaEventCreateWithFlags(&c->mark[i], cudaEventDefault),
                            "cudaEventCreateWithFlags");
    if (status == EPA_OK)
        status = make_words(c);
    if (status == EPA_OK && cudaMemGetInfo(&available, &all) == cudaSuccess)
        c->base.free_bytes = available;
    return status;
}

static enum epa_status cuda_open(const void *config, struct epa_bootstrap *boot,
                                 struct epa_backend **out, struct epa_error *err)
{
    enum cudaStreamCaptureMode captures_before;
    struct cuda_place place;
    struct cuda *c = NULL;
    int before = 0;
    enum epa_status status = cuda_choose(config, &boot->world, &place, err);

    if (status != EPA_OK)
        return status;
    if (cudaGetDevice(&before) != cudaSuccess)
        before = place.device;
    status = cuda_take(place.device, err);
    if (status == EPA_OK)
        status = cuda_share(config, boot, &place, err);
    if (status == EPA_OK && (c = calloc(1, sizeof(*c))) == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "cuda: no memory for a backend");
    if (status != EPA_OK) {
        (void)cudaSetDevice(before);
        return status;
    }
    c->base = (struct epa_backend){.ops = &ops, .memory = EPA_MEMORY_CUDA, .device = place.device};
    c->boot = boot;
    c->before = before;
    cuda_ignore_captures(&captures_before);
    c->captures_before = captures_before;
    c->sharers = place.sharers;
    status = make(c);
    if (status != EPA_OK) {
        cuda_explain(&c->base, err);
        cuda_close(&c->base);
        return status;
    }
    *out = &c->base;
    return EPA_OK;
}

static uint32_t cuda_threads(const void *config)
{
    (void)config;
    return 1;
}

static const struct cuda_config defaults = {.share = false, .device = CUDA_ANY_DEVICE};
static const struct epa_choice devices[] = {
    {"auto", -1, "by the rank on its node, from `devices`"},
    {0},
};
static const struct epa_option options[] = {
    {.name = "share",
     EPA_BOOL(struct cuda_config, share),
     .help = "let ranks share a GPU if there are fewer GPUs than ranks; for checks, not "
             "for measurements"},
    {.name = "devices",
     EPA_U32_LIST(struct cuda_config, devices),
     .help = "GPUs of the ranks of a node, in order of rank; the default is all, in CUDA's "
             "order"},
    {.name = "device",
     EPA_U32(struct cuda_config, device),
     .choices = devices,
     .help = "GPU of this rank, by its number in this process; for programs whose ranks choose "
             "their GPUs"},
    {0},
};

EPA_PLUGIN_EXPORT const struct epa_backend_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_BACKEND, struct epa_backend_plugin), .name = "cuda",
               .summary = "memory and kernels of NVIDIA GPUs, one for each rank",
               .options = {options, sizeof(struct cuda_config), &defaults}},
    .memory = EPA_MEMORY_CUDA,
    .threads = cuda_threads,
    .open = cuda_open,
};
