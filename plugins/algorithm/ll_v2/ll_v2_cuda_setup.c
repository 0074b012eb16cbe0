/* ll_v2 on GPUs: set-up and what is given back at the end.
 *
 * All that depends on the shape alone is settled here: how many blocks a kernel has at
 * most, what its shared memory holds, and where things are in this rank's own device
 * memory. */
#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "device/setup.h"
#include "ll_v2_cuda_state.h"
#include "ll_v2_trace.h"

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

    return device_up16(marks > tables ? marks : tables);
}

static void destroy(struct epa_algorithm *a)
{
    struct ll_cuda *c = ll_cuda_of(a);

    if (c == NULL)
        return;
    if (c->profile != NULL && c->d.memory != NULL && c->sets.epoch > 0)
        ll_trace_write(c->profile, c->d.t->rank, c->d.backend, c->args.stamps,
                       c->args.stamped);
    device_finish(&c->d);
    free(c);
}

static enum epa_status count_blocks(struct ll_cuda *c, uint32_t most, struct epa_error *err)
{
    bool profile = c->profile != NULL;
    enum ll_input input = c->l.dtype == EPA_F16 ? LL_IN_QUANTISE_F16 : LL_IN_QUANTISE;
    const void *dispatch =
        ll_dispatch_kernel(c->l.fp8 ? input : LL_IN_PLAIN, c->mode, profile);
    const struct device_kernel kernel[2] = {
        [LL_DISPATCH] = {"dispatch", dispatch, LL_THREADS, c->shared_bytes[LL_DISPATCH]},
        [LL_COMBINE] = {"combine", ll_combine_kernel(ll_cuda_combine_kind(c)), LL_THREADS,
                        c->shared_bytes[LL_COMBINE]}};
    enum epa_status status = EPA_OK;

    for (int i = 0; i < 2 && status == EPA_OK; i++)
        status = device_count_blocks(&c->d, kernel[i], most, &c->resident[i], err);
    if (status == EPA_OK && c->l.fp8) /* the other input that may come */
        status = device_load(&c->d, ll_dispatch_kernel(LL_IN_FP8, c->mode, profile),
                             c->shared_bytes[LL_DISPATCH], err);
    return status;
}

static uint64_t place_private(struct ll_cuda *c, char *memory)
{
    const struct ll_layout *l = &c->l;
    uint64_t at = 0, slots = (uint64_t)l->size * l->max_tokens;
    uint64_t choices = (uint64_t)l->max_tokens * l->topk;
    uint64_t entries = c->mode == LL_DEDUP ? 0 : l->entries;
    uint64_t weights = l->by_rank ? l->entries : 0;
    uint64_t shares = c->mode == LL_DEDUP ? slots * l->topk : 0;
    uint64_t chosen = !l->fused ? 0 : c->mode == LL_DEDUP ? shares : l->pushes ? entries : 0;
    uint32_t blocks = c->resident[0] > c->resident[1] ? c->resident[0] : c->resident[1];

    for (int i = 0; i < 2; i++) {
        c->calls[i] = device_take(memory, &at, c->resident[i] * sizeof(*c->calls[i]));
        c->work_counters[i] = device_take(memory, &at, sizeof(*c->work_counters[i]));
    }
    c->args.stamped = c->profile != NULL ? blocks * LL_WARPS : 0;
    c->args.stamps = device_take(memory, &at, c->args.stamped * sizeof(*c->args.stamps));
    for (uint32_t i = 0; i < l->buffers; i++) {
        struct ll_set *s = &c->set[i];

        s->rows = device_take(memory, &at, sizeof(*s->rows));
        s->recv_count = device_take(memory, &at, l->local * sizeof(*s->recv_count));
        s->recv_start = device_take(memory, &at, l->local * sizeof(*s->recv_start));
        s->recv_row = device_take(memory, &at, entries * sizeof(*s->recv_row));
        s->recv_weight = device_take(memory, &at, weights * sizeof(*s->recv_weight));
        s->wanted = device_take(memory, &at, slots * sizeof(*s->wanted));
        s->share = device_take(memory, &at, shares * sizeof(*s->share));
        s->chosen = device_take(memory, &at, chosen * sizeof(*s->chosen));
        s->chosen = chosen != 0 ? s->chosen : NULL;
        s->place = device_take(memory, &at, choices * sizeof(*s->place));
    }
    return at;
}

/* Layout rank: a slot is of one token of one rank for ever, so its META is written once. */
static enum epa_status write_origins(struct ll_cuda *c, uint32_t set, struct epa_error *err)
{
    const struct ll_layout *l = &c->l;
    uint32_t slots = l->size * l->max_tokens;
    uint64_t recv = device_region(&c->d, l->recv_at, l->recv_bytes, set);
    char *to = device_own(&c->d, recv + l->meta_at);
    struct ll_meta *meta = calloc(slots, sizeof(*meta));
    cudaError_t code;

    if (meta == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "ll_v2: no memory for %u origins", slots);
    for (uint32_t i = 0; i < slots; i++)
        meta[i].origin = (struct epa_origin){i / l->max_tokens, i % l->max_tokens};
    code = cudaMemcpy2DAsync(to, l->message_bytes, meta, sizeof(*meta), sizeof(*meta),
                             slots, cudaMemcpyHostToDevice, c->d.backend->stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(c->d.backend->stream);
    free(meta);
    if (code != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "ll_v2: writing origins on GPU %d: %s",
                        c->d.backend->device, cudaGetErrorString(code));
    return EPA_OK;
}

static enum epa_status alloc(struct ll_cuda *c, struct epa_error *err)
{
    enum epa_status status = device_alloc(&c->d, place_private(c, NULL), err);

    if (status != EPA_OK)
        return status;
    (void)place_private(c, c->d.memory);
    for (uint32_t i = 0; i < c->l.buffers && c->l.by_rank && status == EPA_OK; i++)
        status = write_origins(c, i, err);
    return status;
}

/* Then a string for each warp. */
static uint32_t dispatch_shared(const struct ll_cuda *c)
{
    return c->args.payloads + (c->mode == LL_DEDUP ? LL_WARPS * c->args.payload : 0);
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
        .output_bytes = (uint32_t)(l->fused ? l->message_bytes : l->output_bytes),
        .sent_bytes = (uint32_t)l->sent_bytes,
        .publish_parts = parts_of(l),
        .words = words_of(l),
    };
    c->args.payloads = table_bytes(c);
    c->args.payload = device_up16(l->unit_bytes);
}

static enum epa_status set_up(struct ll_cuda *c, const struct epa_algorithm_params *p,
                              struct epa_error *err)
{
    const struct ll_config *config = p->config;
    enum epa_status status = device_init("ll_v2", p, c->l.heap_bytes,
                                         config->pdl, &c->d, err);

    if (status != EPA_OK)
        return status;
    c->mode = c->l.by_rank ? LL_BY_RANK : c->l.dedup ? LL_DEDUP : LL_DIRECT;
    c->profile = config->profile;
    fill_args(c, p);
    c->shared_bytes[LL_DISPATCH] = dispatch_shared(c);
    status = count_blocks(c, config->blocks, err);
    return status == EPA_OK ? alloc(c, err) : status;
}

enum epa_status ll_cuda_create(const struct epa_algorithm_params *p,
                               const struct ll_layout *l, struct epa_algorithm **out,
                               struct epa_error *err)
{
    const struct ll_config *config = p->config;
    bool splits = config->split_phase;
    struct ll_cuda *c = calloc(1, sizeof(*c));
    enum epa_status status;

    if (c == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "ll_v2: no memory");
    c->base = (struct epa_algorithm){.stages = splits ? ll_cuda_split : ll_cuda_fused,
                                     .n_stages = splits ? 4 : 2,
                                     .discard = l->buffers > 1 ? ll_cuda_discard : NULL,
                                     .combines_again = true,
                                     .explain = ll_cuda_explain,
                                     .destroy = destroy};
    c->l = *l;
    c->sets.n = l->buffers;
    status = set_up(c, p, err);
    if (status != EPA_OK) {
        destroy(&c->base);
        return status;
    }
    *out = &c->base;
    return EPA_OK;
}
