/* token_flag on GPUs: what is made once. How many blocks a kernel may have, and the rank's own
 * device memory. */
#include <stdlib.h>

#include "device/setup.h"
#include "token_flag_cuda_state.h"
#include "token_flag_trace.h"

static void destroy(struct epa_algorithm *a)
{
    struct tf_cuda *c = tf_cuda_of(a);

    if (c == NULL)
        return;
    if (c->profile != NULL && c->d.memory != NULL && c->epoch > 0)
        tf_trace_write(c->profile, c->d.t->rank, c->d.backend, c->args.stamps,
                       c->args.stamped);
    device_finish(&c->d);
    free(c);
}

static enum epa_status count_blocks(struct tf_cuda *c, uint32_t most, struct epa_error *err)
{
    enum tf_input input = c->l.fp8 ? TF_IN_QUANTISE : TF_IN_DTYPE;
    enum epa_status status = EPA_OK;

    for (int i = 0; i < TF_STAGES && status == EPA_OK; i++) {
        struct device_kernel k = {tf_cuda_stages[i].name,
                                  tf_kernel_of(c, (enum tf_stage)i, input), TF_THREADS,
                                  c->shared_bytes[i]};

        status = device_count_blocks(&c->d, k, most, &c->resident[i], err);
    }
    if (status == EPA_OK && c->l.fp8) /* the other input that may come */
        status = device_load(&c->d, tf_kernel_of(c, TF_DISPATCH_SEND, TF_IN_FP8),
                             c->shared_bytes[TF_DISPATCH_SEND], err);
    return status;
}

static uint32_t most_blocks(const struct tf_cuda *c)
{
    uint32_t most = 0;

    for (int i = 0; i < TF_STAGES; i++)
        most = c->resident[i] > most ? c->resident[i] : most;
    return most;
}

static uint64_t place_private(struct tf_cuda *c, char *memory)
{
    const struct tf_layout *l = &c->l;
    struct tf_args *a = &c->args;
    uint64_t at = 0;

    a->most_blocks = most_blocks(c);
    a->work_counters = device_take(memory, &at, sizeof(*a->work_counters));
    a->counters = device_take(memory, &at, tf_counter_bytes(l));
    for (int i = 0; i < 2; i++)
        c->calls[i] = device_take(memory, &at, a->most_blocks * sizeof(*c->calls[i]));
    a->stamped = c->profile != NULL ? a->most_blocks * TF_WARPS : 0;
    a->stamps = device_take(memory, &at, a->stamped * sizeof(*a->stamps));
    for (uint32_t i = 0; i < l->buffers; i++) {
        struct tf_cuda_set *s = &c->set[i];

        s->rows = device_take(memory, &at, sizeof(*s->rows));
        s->recv_count = device_take(memory, &at, l->local * sizeof(*s->recv_count));
        s->recv_start = device_take(memory, &at, l->local * sizeof(*s->recv_start));
        s->received = device_take(memory, &at, l->size * sizeof(*s->received));
        s->entry = device_take(memory, &at,
                               (uint64_t)l->size * l->source_rows * sizeof(*s->entry));
    }
    return at;
}

/* No transport promises what is in its heap at first, and lines are not to be of calls to
 * come. Nobody begins before all ranks have set up, so nothing that has come is lost. */
static enum epa_status alloc(struct tf_cuda *c, struct epa_error *err)
{
    enum epa_status status = device_alloc(&c->d, place_private(c, NULL), err);

    if (status != EPA_OK)
        return status;
    (void)place_private(c, c->d.memory);
    return device_clear(&c->d, device_own(&c->d, c->d.heap), c->l.heap_bytes, err);
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
        .packets = l->packets,
        .output_packets = l->output_packets,
        .wire_bytes = (uint32_t)l->wire_bytes,
        .slot_bytes = (uint32_t)l->slot_bytes,
        .content_bytes = (uint32_t)((l->scales_at + scales + 7) / 8 * 8),
        .scales_at = (uint32_t)l->scales_at,
        .message_bytes = (uint32_t)l->message_bytes,
        .meta_at = (uint32_t)l->meta_at,
        .output_bytes = (uint32_t)l->output_bytes,
        .by_token = l->by_token,
        .flat = l->flat,
        .folded = l->folded,
        .payload = device_up16((l->experts + 1) * 4),
        .counts_bytes = l->counts_bytes,
    };
}

/* Tables by expert, then a message, or a part of one for each warp. */
static void size_shared(struct tf_cuda *c)
{
    uint32_t send = device_up16(c->args.content_bytes), receive = TF_WARPS * TF_UNIT_BYTES;

    c->shared_bytes[TF_DISPATCH_SEND] = c->args.payload + send;
    if (c->l.chunks > 1 && receive > send)
        c->shared_bytes[TF_DISPATCH_SEND] = c->args.payload + receive;
    c->shared_bytes[TF_DISPATCH_RECV] = c->args.payload + receive;
}

static enum epa_status set_up(struct tf_cuda *c, const struct epa_algorithm_params *p,
                              struct epa_error *err)
{
    const struct tf_config *config = p->config;
    enum epa_status status =
        device_init("token_flag", p, c->l.heap_bytes, true, &c->d, err);

    if (status != EPA_OK)
        return status;
    c->profile = config->profile;
    c->f16 = p->problem->u.moe.dtype == EPA_F16;
    fill_args(c, p);
    size_shared(c);
    status = count_blocks(c, config->blocks, err);
    return status == EPA_OK ? alloc(c, err) : status;
}

enum epa_status tf_cuda_create(const struct epa_algorithm_params *p,
                               const struct tf_layout *l, struct epa_algorithm **out,
                               struct epa_error *err)
{
    struct tf_cuda *c = calloc(1, sizeof(*c));
    enum epa_status status;

    if (c == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "token_flag: no memory");
    c->base = (struct epa_algorithm){.stages = tf_cuda_stages,
                                     .n_stages = TF_STAGES,
                                     .discard = l->buffers > 1 ? tf_cuda_discard : NULL,
                                     .explain = tf_cuda_explain,
                                     .destroy = destroy};
    c->l = *l;
    status = set_up(c, p, err);
    if (status != EPA_OK) {
        destroy(&c->base);
        return status;
    }
    *out = &c->base;
    return EPA_OK;
}
