/* ll_v1 on GPUs: set-up and what is given back at the end.
 *
 * All that depends on the shape alone is settled here: how many blocks a kernel has at most,
 * what its shared memory holds, and where things are in this rank's own device memory. */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "ll_v1_cuda_state.h"
#include "ll_v1_trace.h"

static uint32_t up16(uint64_t bytes)
{
    return (uint32_t)((bytes + 15) / 16 * 16);
}

static void destroy(struct epa_algorithm *a)
{
    struct v1_cuda *c = v1_cuda_of(a);

    if (c == NULL)
        return;
    if (c->profile != NULL && c->memory != NULL && c->epoch > 0)
        v1_trace_write(c->profile, c->t->rank, c->backend, c->args.stamps, c->args.stamped);
    if (c->memory != NULL)
        c->backend->ops->free(c->backend, c->memory);
    free(c);
}

static enum epa_status check_device(const struct epa_algorithm_params *p,
                                    const struct v1_layout *l, struct epa_error *err)
{
    const struct epa_transport *t = p->transport;
    int major = 0;
    cudaError_t code = cudaSetDevice(p->backend->device);

    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                      p->backend->device);
    if (code != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "ll_v1: GPU %d: %s", p->backend->device,
                        cudaGetErrorString(code));
    if (major < 9)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "ll_v1: GPU %d has compute capability %d.x; its kernels need 9.0",
                        p->backend->device, major);
    if (t->view == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "ll_v1: the transport gives kernels no way to other ranks");
    if (p->heap + l->heap_bytes > t->heap_bytes)
        return epa_fail(err, EPA_ERR_CONFIG, "ll_v1: the heap of %llu bytes is too small",
                        (unsigned long long)t->heap_bytes);
    return EPA_OK;
}

/* Loads the kernel, too: one that is loaded when it is first launched may have to wait for
 * others that wait for it. */
static cudaError_t allow_shared(const void *kernel, uint32_t bytes)
{
    struct cudaFuncAttributes attributes;
    cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);

    return code != cudaSuccess
               ? code
               : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)bytes);
}

/* As many blocks as are resident at once: they wait for blocks of other ranks, which wait for
 * them. */
static enum epa_status count_blocks(struct v1_cuda *c, uint32_t most, struct epa_error *err)
{
    bool profile = c->profile != NULL, f16 = c->l.f16;
    const void *kernel[V1_MODES] = {
        v1_dispatch_kernel(c->l.fp8 ? V1_IN_QUANTISE : V1_IN_DTYPE, f16, profile),
        v1_combine_kernel(f16, c->l.pull, profile)};
    int n[V1_MODES] = {0, 0};
    cudaError_t code = cudaSuccess;

    for (int i = 0; i < V1_MODES && code == cudaSuccess; i++) {
        code = allow_shared(kernel[i], c->shared_bytes[i]);
        if (code == cudaSuccess)
            code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                &n[i], kernel[i], V1_THREADS, c->shared_bytes[i]);
    }
    if (code == cudaSuccess && c->l.fp8) /* the other input that may come */
        code = allow_shared(v1_dispatch_kernel(V1_IN_FP8, f16, profile),
                            c->shared_bytes[V1_DISPATCH]);
    if (code != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "ll_v1: loading its kernels on GPU %d: %s",
                        c->backend->device, cudaGetErrorString(code));
    for (int i = 0; i < V1_MODES; i++) {
        if (n[i] == 0)
            return epa_fail(err, EPA_ERR_SYSTEM,
                            "ll_v1: no multiprocessor of GPU %d has room for a block of "
                            "%s: %d threads and %u bytes of shared memory",
                            c->backend->device, i == V1_DISPATCH ? "dispatch" : "combine",
                            V1_THREADS, c->shared_bytes[i]);
        /* Two for each multiprocessor keep the links busy; more would only wait. */
        c->resident[i] = c->backend->multiprocessors * (uint32_t)(n[i] < 2 ? n[i] : 2);
        if (most != 0 && most < c->resident[i])
            c->resident[i] = most;
    }
    return EPA_OK;
}

/* Takes the next part of the rank's own device memory; NULL: only counts. */
static void *take(char *memory, uint64_t *at, uint64_t bytes)
{
    void *p = memory != NULL ? memory + *at : NULL;

    *at += (bytes + 255) / 256 * 256;
    return p;
}

static uint64_t place_private(struct v1_cuda *c, char *memory)
{
    const struct v1_layout *l = &c->l;
    uint64_t at = 0, choices = (uint64_t)l->max_tokens * l->topk;
    uint64_t backs = l->pull ? 0 : l->rows;
    uint32_t blocks = c->resident[0] > c->resident[1] ? c->resident[0] : c->resident[1];

    for (int i = 0; i < V1_MODES; i++) {
        c->calls[i] = take(memory, &at, c->resident[i] * sizeof(*c->calls[i]));
        c->tickets[i] = take(memory, &at, sizeof(*c->tickets[i]));
    }
    c->args.stamped = c->profile != NULL ? blocks * V1_WARPS : 0;
    c->args.stamps = take(memory, &at, c->args.stamped * sizeof(*c->args.stamps));
    for (uint32_t i = 0; i < l->buffers; i++) {
        struct v1_cuda_set *s = &c->set[i];

        s->rows = take(memory, &at, sizeof(*s->rows));
        s->recv_count = take(memory, &at, l->local * sizeof(*s->recv_count));
        s->recv_start = take(memory, &at, l->local * sizeof(*s->recv_start));
        s->place = take(memory, &at, choices * sizeof(*s->place));
        s->back = take(memory, &at, backs * sizeof(*s->back));
    }
    return at;
}

static enum epa_status alloc(struct v1_cuda *c)
{
    const struct epa_backend_ops *ops = c->backend->ops;
    uint64_t bytes = place_private(c, NULL);
    enum epa_status status = ops->alloc(c->backend, bytes, &c->memory);
    struct epa_error why = {EPA_OK, ""};

    if (status == EPA_OK)
        status = ops->fill(c->backend, c->memory, 0, bytes);
    if (status == EPA_OK)
        status = ops->sync(c->backend);
    if (status != EPA_OK) {
        ops->explain(c->backend, &why);
        return v1_cuda_fail(c, status, "ll_v1: %s", why.text);
    }
    (void)place_private(c, c->memory);
    return EPA_OK;
}

static void fill_args(struct v1_cuda *c, const struct epa_algorithm_params *p)
{
    const struct v1_layout *l = &c->l;

    c->args = (struct v1_args){
        .v = *p->transport->view,
        .signal = p->signal,
        .timeout_ns = p->timeout_ns,
        .max_tokens = l->max_tokens,
        .hidden = l->hidden,
        .group = l->group,
        .experts = l->experts,
        .local = l->local,
        .topk = l->topk,
        .max_m = l->max_m,
        .units = l->units,
        .unit_channels = l->unit_channels,
        .unit_bytes = l->unit_bytes,
        .shares = l->shares,
        .share_channels = l->share_channels,
        .pieces = l->pieces,
        .sent_bytes = l->sent_bytes,
        .answer_bytes = (uint32_t)l->answer_bytes,
        .row_bytes = (uint32_t)l->row_bytes,
        .scales_bytes = (uint32_t)l->scales_bytes,
        .pull = l->pull,
        /* Who sends has first [experts + 1], before and bits; who receives has less. */
        .strings = up16((3 * (uint64_t)l->experts + 1) * sizeof(uint32_t)),
        .string = up16(l->unit_bytes / V1_PACKET * V1_LINE_WORDS * 8),
    };
    for (uint32_t i = 0; i < V1_POSITIONS; i++) {
        c->args.splits[i] = v1_cuda_region(c, &l->splits, i);
        c->args.arrival[i] = v1_cuda_region(c, &l->arrival, i);
        c->args.answers[i] = v1_cuda_region(c, &l->answers, i);
    }
    c->shared_bytes[V1_DISPATCH] = c->args.strings + V1_WARPS * c->args.string;
}

enum epa_status v1_cuda_create(const struct epa_algorithm_params *p,
                               const struct v1_layout *l, struct epa_algorithm **out,
                               struct epa_error *err)
{
    const struct v1_config *config = p->config;
    struct v1_cuda *c;
    int all = 0;
    enum epa_status status = check_device(p, l, err);

    if (status != EPA_OK)
        return status;
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "ll_v1: no memory");
    c->base = (struct epa_algorithm){.stages = v1_cuda_stages,
                                     .n_stages = 2,
                                     .discard = v1_cuda_discard,
                                     .combines_again = true,
                                     .explain = v1_cuda_explain,
                                     .destroy = destroy};
    c->l = *l;
    c->t = p->transport;
    c->backend = p->backend;
    c->profile = config->profile;
    c->heap = p->heap;
    fill_args(c, p);
    (void)cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, p->backend->device);
    /* Where ranks share a device, a kernel set up early would take the room of their
     * kernels. */
    c->early =
        config->launch == V1_LAUNCH_EARLY && p->backend->multiprocessors == (uint32_t)all;
    status = count_blocks(c, config->blocks, err);
    if (status == EPA_OK)
        status = alloc(c);
    if (status != EPA_OK) {
        v1_cuda_explain(&c->base, err);
        destroy(&c->base);
        return epa_fail(err, status, "ll_v1: cannot be set up on GPU %d",
                        p->backend->device);
    }
    *out = &c->base;
    return EPA_OK;
}
