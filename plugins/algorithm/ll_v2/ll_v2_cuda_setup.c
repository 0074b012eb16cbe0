/* ll_v2 on GPUs: set-up and what is given back at the end.
 *
 * All that depends on the shape alone is settled here: how many blocks a kernel has at
 * most, what its shared memory holds, and where things are in this rank's own device
 * memory. */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "ll_v2_cuda_state.h"
#include "ll_v2_trace.h"

static uint32_t up16(uint64_t bytes)
{
    return (uint32_t)((bytes + 15) / 16 * 16);
}

/* Links serve multiprocessors alike: what many tokens' choices come to has to leave from
 * several of them. */
static uint32_t parts_of(const struct ll_layout *l)
{
    return (uint64_t)l->max_tokens * l->topk <= 2 * LL_WINDOW || l->local < 4 ? 1 : 4;
}

/* Experts of a part. */
static uint32_t experts_of(const struct ll_layout *l)
{
    return (l->local + parts_of(l) - 1) / parts_of(l);
}

/* Windows whose choices are counted at a time: as many as threads hold choices of, and 46
 * KiB of shared memory marks for. */
static uint32_t words_of(const struct ll_layout *l)
{
    uint32_t fit = 46 * 1024 / (4 * (experts_of(l) + 1)) - 1;
    uint32_t held = LL_WINDOW / l->topk / LL_WINDOW_TOKENS;

    held = held < fit ? held : fit;
    return held < 8 ? held : 8;
}

/* Tables by expert: marks and sums of those that a block counts at a time, or cells and
 * where they begin. */
static uint32_t table_bytes(const struct ll_cuda *c)
{
    const struct ll_layout *l = &c->l;
    uint32_t marks = 4 * (experts_of(l) + c->args.words * (experts_of(l) + 1));
    uint32_t tables = 4 * (2 * l->experts + EPA_DEVICE_RANKS);

    return up16(marks > tables ? marks : tables);
}

static void destroy(struct epa_algorithm *a)
{
    struct ll_cuda *c = ll_cuda_of(a);

    if (c == NULL)
        return;
    if (c->profile != NULL && c->memory != NULL && c->epoch > 0)
        ll_trace_write(c->profile, c->t->rank, c->backend, c->args.stamps, c->args.stamped);
    if (c->memory != NULL)
        c->backend->ops->free(c->backend, c->memory);
    free(c);
}

static enum epa_status check_device(const struct epa_algorithm_params *p,
                                    const struct ll_layout *l, struct epa_error *err)
{
    const struct epa_transport *t = p->transport;
    int major = 0;
    cudaError_t code = cudaSetDevice(p->backend->device);

    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                      p->backend->device);
    if (code != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "ll_v2: GPU %d: %s", p->backend->device,
                        cudaGetErrorString(code));
    if (major < 9)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "ll_v2: GPU %d has compute capability %d.x; its kernels need 9.0",
                        p->backend->device, major);
    if (t->view == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "ll_v2: the transport gives kernels no way to other ranks");
    if (p->heap + l->heap_bytes > t->heap_bytes)
        return epa_fail(err, EPA_ERR_CONFIG, "ll_v2: the heap of %llu bytes is too small",
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

/* As many blocks as are resident at once: they wait for blocks of other ranks, which wait
 * for them. */
static enum epa_status count_blocks(struct ll_cuda *c, uint32_t most, struct epa_error *err)
{
    bool profile = c->profile != NULL;
    enum ll_input input = c->l.dtype == EPA_F16 ? LL_IN_QUANTISE_F16 : LL_IN_QUANTISE;
    const void *kernel[2] = {
        ll_dispatch_kernel(c->l.fp8 ? input : LL_IN_PLAIN, c->mode, profile),
        ll_combine_kernel(ll_cuda_combine_kind(c))};
    int n[2] = {0, 0};
    cudaError_t code = cudaSuccess;

    for (int i = 0; i < 2 && code == cudaSuccess; i++) {
        code = allow_shared(kernel[i], c->shared_bytes[i]);
        if (code == cudaSuccess)
            code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                &n[i], kernel[i], LL_THREADS, c->shared_bytes[i]);
    }
    if (code == cudaSuccess && c->l.fp8) /* the other input that may come */
        code = allow_shared(ll_dispatch_kernel(LL_IN_FP8, c->mode, profile),
                            c->shared_bytes[LL_DISPATCH]);
    if (code != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "ll_v2: loading its kernels on GPU %d: %s",
                        c->backend->device, cudaGetErrorString(code));
    for (int i = 0; i < 2; i++)
        if (n[i] == 0)
            return epa_fail(err, EPA_ERR_SYSTEM,
                            "ll_v2: no multiprocessor of GPU %d has room for a block of "
                            "%s: %d threads and %u bytes of shared memory",
                            c->backend->device, i == LL_DISPATCH ? "dispatch" : "combine",
                            LL_THREADS, c->shared_bytes[i]);
    for (int i = 0; i < 2; i++) {
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

static uint64_t place_private(struct ll_cuda *c, char *memory)
{
    const struct ll_layout *l = &c->l;
    uint64_t at = 0, slots = (uint64_t)l->size * l->max_tokens;
    uint64_t choices = (uint64_t)l->max_tokens * l->topk;
    uint64_t entries = c->mode == LL_ONCE ? 0 : l->entries;
    uint64_t weights = l->by_rank ? l->entries : 0;
    uint64_t shares = c->mode == LL_ONCE ? slots * l->topk : 0;
    uint64_t chosen = !l->fused ? 0 : c->mode == LL_ONCE ? shares : l->pushes ? entries : 0;
    uint32_t blocks = c->resident[0] > c->resident[1] ? c->resident[0] : c->resident[1];

    for (int i = 0; i < 2; i++) {
        c->calls[i] = take(memory, &at, c->resident[i] * sizeof(*c->calls[i]));
        c->tickets[i] = take(memory, &at, sizeof(*c->tickets[i]));
    }
    c->args.stamped = c->profile != NULL ? blocks * LL_WARPS : 0;
    c->args.stamps = take(memory, &at, c->args.stamped * sizeof(*c->args.stamps));
    for (uint32_t i = 0; i < l->buffers; i++) {
        struct ll_set *s = &c->set[i];

        s->rows = take(memory, &at, sizeof(*s->rows));
        s->recv_count = take(memory, &at, l->local * sizeof(*s->recv_count));
        s->recv_start = take(memory, &at, l->local * sizeof(*s->recv_start));
        s->recv_row = take(memory, &at, entries * sizeof(*s->recv_row));
        s->recv_weight = take(memory, &at, weights * sizeof(*s->recv_weight));
        s->wanted = take(memory, &at, slots * sizeof(*s->wanted));
        s->share = take(memory, &at, shares * sizeof(*s->share));
        s->chosen = take(memory, &at, chosen * sizeof(*s->chosen));
        s->chosen = chosen != 0 ? s->chosen : NULL;
        s->place = take(memory, &at, choices * sizeof(*s->place));
    }
    return at;
}

/* Layout rank: a slot is of one token of one rank for ever, so its META is written once. */
static enum epa_status write_origins(struct ll_cuda *c, uint32_t set)
{
    const struct ll_layout *l = &c->l;
    uint32_t slots = l->size * l->max_tokens;
    char *to =
        ll_cuda_own(c, ll_cuda_region(c, l->recv_at, l->recv_bytes, set) + l->meta_at);
    struct ll_meta *meta = calloc(slots, sizeof(*meta));
    cudaError_t code;

    if (meta == NULL)
        return ll_cuda_fail(c, EPA_ERR_NOMEM, "ll_v2: no memory for %u origins", slots);
    for (uint32_t i = 0; i < slots; i++)
        meta[i].origin = (struct epa_origin){i / l->max_tokens, i % l->max_tokens};
    code = cudaMemcpy2DAsync(to, l->message_bytes, meta, sizeof(*meta), sizeof(*meta),
                             slots, cudaMemcpyHostToDevice, c->backend->stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(c->backend->stream);
    free(meta);
    return code == cudaSuccess ? EPA_OK : ll_cuda_call_failed(c, "writing origins", code);
}

static enum epa_status alloc(struct ll_cuda *c)
{
    const struct epa_backend_ops *ops = c->backend->ops;
    uint64_t bytes = place_private(c, NULL);
    enum epa_status status = ops->alloc(c->backend, bytes, &c->memory);
    struct epa_error why = {EPA_OK, ""};

    if (status == EPA_OK)
        status = ops->fill(c->backend, c->memory, 0, bytes);
    if (status != EPA_OK) {
        ops->explain(c->backend, &why);
        return ll_cuda_fail(c, status, "ll_v2: %s", why.text);
    }
    (void)place_private(c, c->memory);
    for (uint32_t i = 0; i < c->l.buffers && c->l.by_rank && status == EPA_OK; i++)
        status = write_origins(c, i);
    return status == EPA_OK ? ops->sync(c->backend) : status;
}

/* Then a string for each warp. */
static uint32_t dispatch_shared(const struct ll_cuda *c)
{
    return c->args.strings + (c->mode == LL_ONCE ? LL_WARPS * c->args.string : 0);
}

static void fill_args(struct ll_cuda *c, const struct epa_algorithm_params *p)
{
    const struct ll_layout *l = &c->l;

    c->args = (struct ll_args){
        .v = *p->transport->view,
        .signal = p->signal,
        .timeout_ns = p->timeout_ns,
        .max_tokens = l->max_tokens,
        .hidden = l->hidden,
        .group = l->group,
        .experts = l->experts,
        .local = l->local,
        .topk = l->topk,
        .places = l->places,
        .units = l->units,
        .unit_channels = l->unit_channels,
        .shares = l->shares,
        .share_channels = l->share_channels,
        .row_signals = l->row_signals,
        .padded = l->padded,
        .windows = l->windows,
        .unit_bytes = (uint32_t)l->unit_bytes,
        .share_bytes = (uint32_t)l->share_bytes,
        .entries = l->entries,
        .message_bytes = (uint32_t)l->message_bytes,
        .scales_at = (uint32_t)l->scales_at,
        .meta_at = (uint32_t)l->meta_at,
        .choices_at = (uint32_t)l->choices_at,
        .answer_bytes = (uint32_t)(l->fused ? l->message_bytes : l->answer_bytes),
        .sent_bytes = (uint32_t)l->sent_bytes,
        .publish_parts = parts_of(l),
        .words = words_of(l),
    };
    c->args.strings = table_bytes(c);
    c->args.string = up16(l->unit_bytes);
}

enum epa_status ll_cuda_create(const struct epa_algorithm_params *p,
                               const struct ll_layout *l, struct epa_algorithm **out,
                               struct epa_error *err)
{
    const struct ll_config *config = p->config;
    bool splits = config->overlap == LL_OVERLAP_SPLIT;
    struct ll_cuda *c;
    int all = 0;
    enum epa_status status = check_device(p, l, err);

    if (status != EPA_OK)
        return status;
    c = calloc(1, sizeof(*c));
    if (c == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "ll_v2: no memory");
    c->base.stages = splits ? ll_cuda_split : ll_cuda_fused;
    c->base.n_stages = splits ? 4 : 2;
    c->base.discard = l->buffers > 1 ? ll_cuda_discard : NULL;
    c->base.combines_again = true;
    c->base.explain = ll_cuda_explain;
    c->base.destroy = destroy;
    c->l = *l;
    c->t = p->transport;
    c->backend = p->backend;
    c->mode = l->by_rank ? LL_BY_RANK : l->once ? LL_ONCE : LL_DIRECT;
    c->profile = config->profile;
    c->heap = p->heap;
    fill_args(c, p);
    c->shared_bytes[LL_DISPATCH] = dispatch_shared(c);
    (void)cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, p->backend->device);
    /* Where ranks share a device, a kernel set up early would take the room of their
     * kernels. */
    c->early =
        config->launch == LL_LAUNCH_EARLY && p->backend->multiprocessors == (uint32_t)all;
    status = count_blocks(c, config->blocks, err);
    if (status == EPA_OK)
        status = alloc(c);
    if (status != EPA_OK) {
        ll_cuda_explain(&c->base, err);
        destroy(&c->base);
        return epa_fail(err, status, "ll_v2: cannot be set up on GPU %d",
                        p->backend->device);
    }
    *out = &c->base;
    return EPA_OK;
}
