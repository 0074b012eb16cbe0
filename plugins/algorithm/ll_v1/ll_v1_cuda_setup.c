/* ll_v1 on GPUs: set-up and what is given back at the end.
 *
 * All that depends on the shape alone is settled here: how many blocks a kernel has at most,
 * what its shared memory holds, and where things are in this rank's own device memory. */
#include <stdlib.h>

#include "device/setup.h"
#include "ll_v1_cuda_state.h"
#include "ll_v1_trace.h"

static void destroy(struct epa_algorithm *a)
{
    struct v1_cuda *c = v1_cuda_of(a);

    if (c == NULL)
        return;
    if (c->profile != NULL && c->d.memory != NULL && c->sets.epoch > 0)
        v1_trace_write(c->profile, c->d.t->rank, c->d.backend, c->args.stamps,
                       c->args.stamped);
    device_finish(&c->d);
    free(c);
}

static enum epa_status count_blocks(struct v1_cuda *c, uint32_t most, struct epa_error *err)
{
    bool profile = c->profile != NULL, f16 = c->l.f16;
    enum v1_input in = c->l.fp8 ? V1_IN_QUANTISE : V1_IN_DTYPE;
    const struct device_kernel kernel[V1_MODES] = {
        [V1_DISPATCH] = {"dispatch", v1_dispatch_kernel(in, f16, profile), V1_THREADS,
                         c->shared_bytes[V1_DISPATCH]},
        [V1_COMBINE] = {"combine", v1_combine_kernel(f16, c->l.pull, profile), V1_THREADS,
                        c->shared_bytes[V1_COMBINE]}};
    enum epa_status status = EPA_OK;

    for (int i = 0; i < V1_MODES && status == EPA_OK; i++)
        status = device_count_blocks(&c->d, kernel[i], most, &c->resident[i], err);
    if (status == EPA_OK && c->l.fp8) /* the other input that may come */
        status = device_load(&c->d, v1_dispatch_kernel(V1_IN_FP8, f16, profile),
                             c->shared_bytes[V1_DISPATCH], err);
    return status;
}

static uint64_t place_private(struct v1_cuda *c, char *memory)
{
    const struct v1_layout *l = &c->l;
    uint64_t at = 0, choices = (uint64_t)l->max_tokens * l->topk;
    uint64_t backs = l->pull ? 0 : l->rows;
    uint32_t blocks = c->resident[0] > c->resident[1] ? c->resident[0] : c->resident[1];

    for (int i = 0; i < V1_MODES; i++) {
        c->calls[i] = device_take(memory, &at, c->resident[i] * sizeof(*c->calls[i]));
        c->work_counters[i] = device_take(memory, &at, sizeof(*c->work_counters[i]));
    }
    c->args.stamped = c->profile != NULL ? blocks * V1_WARPS : 0;
    c->args.stamps = device_take(memory, &at, c->args.stamped * sizeof(*c->args.stamps));
    for (uint32_t i = 0; i < l->buffers; i++) {
        struct v1_cuda_set *s = &c->set[i];

        s->rows = device_take(memory, &at, sizeof(*s->rows));
        s->recv_count = device_take(memory, &at, l->local * sizeof(*s->recv_count));
        s->recv_start = device_take(memory, &at, l->local * sizeof(*s->recv_start));
        s->place = device_take(memory, &at, choices * sizeof(*s->place));
        s->back = device_take(memory, &at, backs * sizeof(*s->back));
    }
    return at;
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
        .output_bytes = (uint32_t)l->output_bytes,
        .row_bytes = (uint32_t)l->row_bytes,
        .scales_bytes = (uint32_t)l->scales_bytes,
        .pull = l->pull,
        /* Who sends has first [experts + 1], before and bits; who receives has less. */
        .payloads = device_up16((3 * (uint64_t)l->experts + 1) * sizeof(uint32_t)),
        .payload = device_up16(l->unit_bytes / DEV_PACKET * DEV_PACKET_WORDS * 8),
    };
    for (uint32_t i = 0; i < V1_POSITIONS; i++) {
        c->args.splits[i] = v1_cuda_region(c, &l->splits, i);
        c->args.arrival[i] = v1_cuda_region(c, &l->arrival, i);
        c->args.outputs[i] = v1_cuda_region(c, &l->outputs, i);
    }
    c->shared_bytes[V1_DISPATCH] = c->args.payloads + V1_WARPS * c->args.payload;
}

static enum epa_status set_up(struct v1_cuda *c, const struct epa_algorithm_params *p,
                              struct epa_error *err)
{
    const struct v1_config *config = p->config;
    enum epa_status status = device_init("ll_v1", p, c->l.heap_bytes,
                                         config->pdl, &c->d, err);

    if (status != EPA_OK)
        return status;
    c->profile = config->profile;
    fill_args(c, p);
    status = count_blocks(c, config->blocks, err);
    if (status == EPA_OK)
        status = device_alloc(&c->d, place_private(c, NULL), err);
    if (status == EPA_OK)
        (void)place_private(c, c->d.memory);
    return status;
}

enum epa_status v1_cuda_create(const struct epa_algorithm_params *p,
                               const struct v1_layout *l, struct epa_algorithm **out,
                               struct epa_error *err)
{
    struct v1_cuda *c = calloc(1, sizeof(*c));
    enum epa_status status;

    if (c == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "ll_v1: no memory");
    c->base = (struct epa_algorithm){.stages = v1_cuda_stages,
                                     .n_stages = 2,
                                     .discard = v1_cuda_discard,
                                     .combines_again = true,
                                     .explain = v1_cuda_explain,
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
