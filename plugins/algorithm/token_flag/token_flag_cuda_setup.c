/* token_flag on GPUs: what is made once. How many blocks a kernel may have, and the rank's own
 * device memory. */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "token_flag_cuda_state.h"
#include "token_flag_trace.h"

static uint32_t up16(uint64_t bytes)
{
    return (uint32_t)((bytes + 15) / 16 * 16);
}

static void destroy(struct epa_algorithm *a)
{
    struct tf_cuda *c = tf_cuda_of(a);

    if (c == NULL)
        return;
    if (c->profile != NULL && c->memory != NULL && c->epoch > 0)
        tf_trace_write(c->profile, c->t->rank, c->backend, c->args.stamps, c->args.stamped);
    if (c->memory != NULL)
        c->backend->ops->free(c->backend, c->memory);
    free(c);
}

static enum epa_status check_device(const struct epa_algorithm_params *p,
                                    const struct tf_layout *l, struct epa_error *err)
{
    const struct epa_transport *t = p->transport;
    int major = 0;
    cudaError_t code = cudaSetDevice(p->backend->device);

    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                      p->backend->device);
    if (code != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "token_flag: GPU %d: %s", p->backend->device,
                        cudaGetErrorString(code));
    if (major < 9)
        return epa_fail(
            err, EPA_ERR_UNSUPPORTED,
            "token_flag: GPU %d has compute capability %d.x; its kernels need 9.0",
            p->backend->device, major);
    if (t->view == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "token_flag: the transport gives kernels no way to other ranks");
    if (p->heap + l->heap_bytes > t->heap_bytes)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "token_flag: the heap of %llu bytes is too small",
                        (unsigned long long)t->heap_bytes);
    return EPA_OK;
}

/* Loads the kernel, too: one that is loaded when it is first launched may have to wait for
 * others that wait for it. */
static cudaError_t load(const struct tf_cuda *c, enum tf_stage stage, enum tf_input input)
{
    const void *kernel = tf_kernel_of(c, stage, input);
    struct cudaFuncAttributes attributes;
    cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);

    return code != cudaSuccess
               ? code
               : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)c->shared_bytes[stage]);
}

/* As many blocks as are resident at once: they wait for blocks of other ranks, which wait
 * for them. Two for each multiprocessor keep the links busy; more would only wait. */
static enum epa_status count_blocks(struct tf_cuda *c, uint32_t most, struct epa_error *err)
{
    enum tf_input input = c->l.fp8 ? TF_IN_QUANTISE : TF_IN_DTYPE;
    cudaError_t code = cudaSuccess;

    for (int i = 0; i < TF_STAGES; i++) {
        int n = 0;

        code = load(c, (enum tf_stage)i, input);
        if (code == cudaSuccess)
            code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                &n, tf_kernel_of(c, (enum tf_stage)i, input), TF_THREADS,
                c->shared_bytes[i]);
        if (code == cudaSuccess && i == TF_DISPATCH_SEND && c->l.fp8)
            code = load(c, TF_DISPATCH_SEND, TF_IN_FP8); /* may come, too */
        if (code != cudaSuccess)
            return epa_fail(err, EPA_ERR_SYSTEM,
                            "token_flag: loading its kernels on GPU %d: %s",
                            c->backend->device, cudaGetErrorString(code));
        if (n == 0)
            return epa_fail(err, EPA_ERR_SYSTEM,
                            "token_flag: no multiprocessor of GPU %d has room for a block "
                            "of %s: %d threads and %u bytes of shared memory",
                            c->backend->device, tf_cuda_stages[i].name, TF_THREADS,
                            c->shared_bytes[i]);
        c->resident[i] = c->backend->multiprocessors * (uint32_t)(n < 2 ? n : 2);
        if (most != 0 && most < c->resident[i])
            c->resident[i] = most;
    }
    return EPA_OK;
}

static uint32_t most_blocks(const struct tf_cuda *c)
{
    uint32_t most = 0;

    for (int i = 0; i < TF_STAGES; i++)
        most = c->resident[i] > most ? c->resident[i] : most;
    return most;
}

/* Takes the next part of the rank's own device memory; NULL: only counts. */
static void *take(char *memory, uint64_t *at, uint64_t bytes)
{
    void *p = memory != NULL ? memory + *at : NULL;

    *at += (bytes + 255) / 256 * 256;
    return p;
}

static uint64_t place_private(struct tf_cuda *c, char *memory)
{
    const struct tf_layout *l = &c->l;
    struct tf_args *a = &c->args;
    uint64_t at = 0;

    a->most_blocks = most_blocks(c);
    a->tickets = take(memory, &at, sizeof(*a->tickets));
    a->counters = take(memory, &at, tf_counter_bytes(l));
    for (int i = 0; i < 2; i++)
        c->calls[i] = take(memory, &at, a->most_blocks * sizeof(*c->calls[i]));
    a->stamped = c->profile != NULL ? a->most_blocks * TF_WARPS : 0;
    a->stamps = take(memory, &at, a->stamped * sizeof(*a->stamps));
    for (uint32_t i = 0; i < l->buffers; i++) {
        struct tf_cuda_set *s = &c->set[i];

        s->rows = take(memory, &at, sizeof(*s->rows));
        s->recv_count = take(memory, &at, l->local * sizeof(*s->recv_count));
        s->recv_start = take(memory, &at, l->local * sizeof(*s->recv_start));
    }
    return at;
}

/* No transport promises what is in its heap at first, and lines are not to be of calls to
 * come. Nobody begins before all ranks have set up, so nothing that has come is lost. */
static enum epa_status alloc(struct tf_cuda *c)
{
    const struct epa_backend_ops *ops = c->backend->ops;
    uint64_t bytes = place_private(c, NULL);
    enum epa_status status = ops->alloc(c->backend, bytes, &c->memory);
    struct epa_error why = {EPA_OK, ""};

    if (status == EPA_OK)
        status = ops->fill(c->backend, c->memory, 0, bytes);
    if (status == EPA_OK)
        status = ops->fill(c->backend, c->t->peer_heap[c->t->rank] + c->heap, 0,
                           c->l.heap_bytes);
    if (status == EPA_OK)
        status = ops->sync(c->backend);
    if (status != EPA_OK) {
        ops->explain(c->backend, &why);
        return tf_cuda_fail(c, status, "token_flag: %s", why.text);
    }
    (void)place_private(c, c->memory);
    return EPA_OK;
}

static void fill_args(struct tf_cuda *c, const struct epa_algorithm_params *p)
{
    const struct tf_layout *l = &c->l;
    uint32_t scales = l->fp8 ? l->hidden / l->group * 4 : 0;

    c->args = (struct tf_args){
        .v = *p->transport->view,
        .signal = p->signal,
        .timeout_ns = p->timeout_ns,
        .max_tokens = l->max_tokens,
        .hidden = l->hidden,
        .group = l->group,
        .experts = l->experts,
        .local = l->local,
        .topk = l->topk,
        .source_rows = l->source_rows,
        .chunks = l->chunks,
        .lines = l->lines,
        .answer_lines = l->answer_lines,
        .wire_bytes = (uint32_t)l->wire_bytes,
        .slot_bytes = (uint32_t)l->slot_bytes,
        .content_bytes = (uint32_t)((l->scales_at + scales + 7) / 8 * 8),
        .scales_at = (uint32_t)l->scales_at,
        .message_bytes = (uint32_t)l->message_bytes,
        .meta_at = (uint32_t)l->meta_at,
        .answer_bytes = (uint32_t)l->answer_bytes,
        .by_token = l->by_token,
        .flat = l->flat,
        .folded = l->folded,
        .string = up16((l->experts + 1) * 4),
        .counts_bytes = l->counts_bytes,
    };
}

/* Tables by expert, then a message, or a part of one for each warp. */
static void size_shared(struct tf_cuda *c)
{
    uint32_t send = up16(c->args.content_bytes), receive = TF_WARPS * TF_UNIT_BYTES;

    c->shared_bytes[TF_DISPATCH_SEND] = c->args.string + send;
    if (c->l.chunks > 1 && receive > send)
        c->shared_bytes[TF_DISPATCH_SEND] = c->args.string + receive;
    c->shared_bytes[TF_DISPATCH_RECV] = c->args.string + receive;
}

enum epa_status tf_cuda_create(const struct epa_algorithm_params *p,
                               const struct tf_layout *l, struct epa_algorithm **out,
                               struct epa_error *err)
{
    const struct tf_config *config = p->config;
    struct tf_cuda *c;
    int all = 0;
    enum epa_status status = check_device(p, l, err);

    if (status != EPA_OK)
        return status;
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "token_flag: no memory");
    c->base.stages = tf_cuda_stages;
    c->base.n_stages = TF_STAGES;
    c->base.discard = l->buffers > 1 ? tf_cuda_discard : NULL;
    c->base.explain = tf_cuda_explain;
    c->base.destroy = destroy;
    c->l = *l;
    c->t = p->transport;
    c->backend = p->backend;
    c->profile = config->profile;
    c->f16 = p->problem->u.moe.dtype == EPA_F16;
    c->heap = p->heap;
    fill_args(c, p);
    size_shared(c);
    (void)cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, p->backend->device);
    /* Where ranks share a device, a kernel set up early would take the room of their
     * kernels. */
    c->early = p->backend->multiprocessors == (uint32_t)all;
    status = count_blocks(c, config->blocks, err);
    if (status == EPA_OK)
        status = alloc(c);
    if (status != EPA_OK) {
        tf_cuda_explain(&c->base, err);
        destroy(&c->base);
        return epa_fail(err, status, "token_flag: cannot be set up on GPU %d",
                        p->backend->device);
    }
    *out = &c->base;
    return EPA_OK;
}
