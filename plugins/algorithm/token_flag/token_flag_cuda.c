/* token_flag on GPUs: the protocol, and what is queued for each stage.
 *
 * Each stage is a kernel. What a kernel needs to know of the calls before it, how many there
 * were, it counts itself in device memory, so that a graph of them can be launched again and
 * again. The host alternates between the buffer sets; a graph keeps those it was recorded
 * with.
 *
 * Dispatches count as epochs 1, 2, 3..., combines apart from them as 1, 2, 3... Counts
 * (epoch << 32 | count + 1, a word for each source and expert), the flags of sources (lock:
 * rank) and the lines of rows and expert outputs (device/packets.cuh) carry these, are waited for
 * with >=, and are never cleared. A rank stores into its peers' memory as soon as a kernel
 * starts, without asking. That is safe:
 *   - counts of dispatch m go to one of two places at p, of odd and even epochs, whatever the
 *     set. p has read those of m - 2: dispatch m - 1 has ended here, and waited for p's counts
 *     of m - 1, which p sent after its dispatch_recv m - 2.
 *   - rows of m go to this rank's own part of p's buffer in a set. With two sets, which
 *     dispatches take in turn, what stood there is of m - 2, and p has copied it, as above:
 *     so a dispatch may also be given up (discard). With one it is of m - 1, which has been
 *     combined here: for each row that p got it has answered, after it copied all of them.
 *   - rows by expert and y are p's own, and read for the last time before p's next dispatch
 *     into that set begins.
 *   - slots are written at p by who has ended dispatch_recv m, so it has seen p's counts of
 *     m, which p sent after whatever it did before: the combine that read the slots of that
 *     set has ended there.
 *   - a line of an earlier call that stood where a new one is waited for has a smaller
 *     number: places belong to a set, whose dispatches, and whose combines, come in order.
 * For this each dispatch_recv waits for counts of all ranks, also of those with no row for
 * it; with flag_granularity: rank for their flags before.
 *
 * One set is enough for D1 C1 D2 C2, two for D1 D2 C1 D3 C2. */
#include <cuda_runtime_api.h>

#include "token_flag_cuda_state.h"

/* ---- launches ---- */

enum tf_input tf_input_of(const struct tf_layout *l, const struct epa_moe *m)
{
    if (!l->fp8)
        return TF_IN_DTYPE;
    return m->x_dtype == EPA_FP8_E4M3 ? TF_IN_FP8 : TF_IN_QUANTISE;
}

const void *tf_kernel_of(const struct tf_cuda *c, enum tf_stage stage, enum tf_input input)
{
    const struct tf_layout *l = &c->l;
    bool profile = c->profile != NULL;

    if (stage == TF_DISPATCH_SEND)
        return tf_dispatch_send_kernel(input, c->f16, profile);
    if (stage == TF_DISPATCH_RECV)
        return tf_dispatch_recv_kernel(profile);
    if (stage == TF_COMBINE_SEND)
        return tf_combine_send_kernel(!l->fused ? TF_OUTPUT_GIVEN
                                      : l->fp8  ? TF_OUTPUT_FP8
                                                : TF_OUTPUT_DTYPE,
                                      c->f16, profile);
    return tf_combine_recv_kernel(c->f16, profile);
}

static uint32_t set_number(const struct tf_cuda *c, const struct tf_cuda_set *s)
{
    return (uint32_t)(s - c->set);
}

static struct tf_args args_of(const struct tf_cuda *c, const struct epa_moe *m,
                              const struct tf_cuda_set *s, enum tf_stage stage)
{
    const struct tf_layout *l = &c->l;
    uint32_t set = set_number(c, s);
    struct tf_args a = c->args;

    a.stage = stage;
    a.tokens = m->tokens;
    a.counts = device_region(&c->d, l->counts_at, l->counts_bytes, 0);
    a.comm = device_region(&c->d, l->comm_at, l->comm_bytes, set);
    a.grouped = device_region(&c->d, l->grouped_at, l->grouped_bytes, set);
    a.outputs = device_region(&c->d, l->outputs_at, l->outputs_bytes, set);
    a.x = m->x_dtype == EPA_FP8_E4M3 ? (const void *)m->x_fp8 : m->x;
    a.x_scale = m->x_scale;
    a.expert = m->expert;
    a.weight = m->weight;
    a.factor = m->expert_factor;
    a.y = m->y;
    a.out = m->out;
    a.recv_count = s->recv_count;
    a.recv_start = s->recv_start;
    a.rows = s->rows;
    a.received = s->received;
    a.entry = s->entry;
    return a;
}

/* Of what may come, two blocks' worth of warps for each: counts stay on the device. */
static uint32_t blocks_for_rows(const struct tf_cuda *c, uint32_t room, uint32_t packets)
{
    return device_blocks_for(room, (c->l.rows * tf_units_of(packets) + 3) / 4);
}

/* With chunks half of the blocks send, and the others receive meanwhile. */
static uint32_t divide_send(const struct tf_cuda *c, struct tf_args *a)
{
    uint32_t room = c->resident[TF_DISPATCH_SEND];
    bool apart = c->l.chunks > 1 && room > 1;
    uint32_t most = apart ? room / 2 : room;

    a->publishers = !c->l.by_token ? 0 : c->l.size < most ? c->l.size : most;
    a->senders = device_blocks_for(most, (uint64_t)a->tokens + a->publishers);
    return a->senders + (apart ? blocks_for_rows(c, room - most, c->l.packets) : 0);
}

static uint32_t blocks_of(const struct tf_cuda *c, struct tf_args *a)
{
    uint32_t room = c->resident[a->stage];

    if (a->stage == TF_DISPATCH_SEND)
        return divide_send(c, a);
    if (a->stage == TF_DISPATCH_RECV)
        return blocks_for_rows(c, room, c->l.packets);
    if (a->stage == TF_COMBINE_SEND)
        return blocks_for_rows(c, room, c->l.output_packets);
    return device_blocks_for(room, (uint64_t)a->tokens * tf_units_of(c->l.output_packets));
}

static enum epa_status clear_counters(struct tf_cuda *c)
{
    cudaError_t code = cudaSetDevice(c->d.backend->device);

    if (code == cudaSuccess)
        code = cudaMemsetAsync(c->args.counters, 0, tf_counter_bytes(&c->l),
                               c->d.backend->stream);
    return code == cudaSuccess ? EPA_OK
                               : device_call_failed(&c->d, "clearing counters", code);
}

static enum epa_status launch(struct tf_cuda *c, const struct epa_moe *m,
                              const struct tf_cuda_set *s, enum tf_stage stage)
{
    struct tf_args a = args_of(c, m, s, stage);
    bool clears = stage == TF_DISPATCH_SEND && !c->l.folded;
    enum epa_status status = clears ? clear_counters(c) : EPA_OK;

    if (status != EPA_OK)
        return status;
    a.calls = c->calls[stage / 2];
    return device_launch(&c->d, tf_kernel_of(c, stage, tf_input_of(&c->l, m)), &a,
                         (struct device_grid){.blocks = blocks_of(c, &a),
                                              .threads = TF_THREADS,
                                              .shared_bytes = c->shared_bytes[stage],
                                              .waits = clears});
}

/* ---- stages ---- */

static void publish_views(const struct tf_cuda *c, const struct tf_cuda_set *s,
                     struct epa_moe *m)
{
    const struct tf_layout *l = &c->l;
    uint32_t set = set_number(c, s);
    const char *recv =
        device_own(&c->d, device_region(&c->d, l->grouped_at, l->grouped_bytes, set));

    m->recv_rows = m->recv_entries = l->rows; /* at most */
    m->recv_count = s->recv_count;
    m->recv_start = s->recv_start;
    m->recv_row = NULL;
    m->recv_weight = NULL;
    m->recv = recv;
    m->recv_scale = l->fp8 ? (const float *)(const void *)(recv + l->scales_at) : NULL;
    m->origin = (const struct epa_origin *)(const void *)(recv + l->meta_at);
    m->recv_stride = m->scale_stride = m->origin_stride = l->message_bytes;
    m->y_space =
        l->fused ? NULL : device_own(&c->d, device_region(&c->d, l->y_at, l->y_bytes, set));
}

static const char *const call_name[] = {"dispatch_send", "dispatch_recv", "combine_send",
                                        "combine_recv"};

/* One half follows the other: each counts on what its own has left. */
static enum epa_status check_halves(struct tf_cuda *c, enum tf_stage stage,
                                    const struct tf_cuda_set *of)
{
    for (uint32_t i = 0; i < c->l.buffers; i++) {
        const struct tf_cuda_set *s = &c->set[i];

        if (s != of && (s->state == TF_CUDA_SENT || s->state == TF_CUDA_ANSWERED))
            return device_fail(&c->d, EPA_ERR_CONFIG,
                               "%s: dispatch %llu has been %s: call %s first",
                               call_name[stage], (unsigned long long)s->epoch,
                               s->state == TF_CUDA_SENT ? "sent and not received"
                                                        : "answered and not combined",
                               call_name[s->state]);
    }
    return EPA_OK;
}

/* The set that a stage goes on with; combines come in the order of their dispatches. */
static enum epa_status find_set(struct tf_cuda *c, const struct epa_moe *m,
                                enum tf_stage stage, struct tf_cuda_set **out)
{
    static const char *const done[] = {"", "sent", "received", "answered"};
    struct tf_cuda_set *s = &c->set[(m->epoch - 1) % c->l.buffers];
    const struct tf_cuda_set *other = &c->set[c->l.buffers - 1 - set_number(c, s)];

    if (m->epoch == 0 || s->epoch != m->epoch || s->state != (enum tf_cuda_state)stage)
        return device_fail(&c->d, EPA_ERR_CONFIG,
                           "%s: called for dispatch %llu, which is not %s, or never was",
                           call_name[stage], (unsigned long long)m->epoch, done[stage]);
    if (stage == TF_COMBINE_SEND && other->state == TF_CUDA_RECEIVED &&
        other->epoch < m->epoch)
        return device_fail(&c->d, EPA_ERR_CONFIG,
                           "combine_send: called for dispatch %llu, but %llu is the oldest "
                           "that is received: they go in order",
                           (unsigned long long)m->epoch, (unsigned long long)other->epoch);
    *out = s;
    return check_halves(c, stage, s);
}

/* The sets take turns, on all ranks alike; the next one must have been given back. */
static enum epa_status dispatch_send(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct tf_cuda *c = tf_cuda_of(a);
    struct epa_moe *m = &problem->u.moe;
    struct tf_cuda_set *s = &c->set[c->epoch % c->l.buffers];
    enum epa_status status = check_halves(c, TF_DISPATCH_SEND, NULL);

    if (status != EPA_OK)
        return status;
    if (s->state != TF_CUDA_FREE)
        return device_fail(
            &c->d, EPA_ERR_CONFIG,
            "dispatch_send: %u dispatches are open, as many as there are buffer sets: "
            "combine one first",
            c->l.buffers);
    s->state = TF_CUDA_SENT;
    s->epoch = m->epoch = ++c->epoch;
    publish_views(c, s, m);
    return launch(c, m, s, TF_DISPATCH_SEND);
}

/* Any stage but the first. */
static enum epa_status go_on(struct epa_algorithm *a, struct epa_problem *problem,
                             enum tf_stage stage)
{
    struct tf_cuda *c = tf_cuda_of(a);
    struct tf_cuda_set *s = NULL;
    enum epa_status status = find_set(c, &problem->u.moe, stage, &s);

    if (status != EPA_OK)
        return status;
    s->state = stage == TF_COMBINE_RECV ? TF_CUDA_FREE : (enum tf_cuda_state)(stage + 1);
    return launch(c, &problem->u.moe, s, stage);
}

static enum epa_status dispatch_recv(struct epa_algorithm *a, struct epa_problem *problem)
{
    return go_on(a, problem, TF_DISPATCH_RECV);
}

static enum epa_status combine_send(struct epa_algorithm *a, struct epa_problem *problem)
{
    return go_on(a, problem, TF_COMBINE_SEND);
}

static enum epa_status combine_recv(struct epa_algorithm *a, struct epa_problem *problem)
{
    return go_on(a, problem, TF_COMBINE_RECV);
}

enum epa_status tf_cuda_discard(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct tf_cuda *c = tf_cuda_of(a);
    uint64_t epoch = problem->u.moe.epoch;
    struct tf_cuda_set *s = &c->set[(epoch - 1) % c->l.buffers];

    if (epoch == 0 || epoch != c->epoch || s->state != TF_CUDA_RECEIVED)
        return device_fail(&c->d, EPA_ERR_CONFIG,
                           "dispatch %llu is not the last, or not received",
                           (unsigned long long)epoch);
    if (c->l.buffers < 2)
        return device_fail(&c->d, EPA_ERR_CONFIG,
                           "a dispatch can be given up only with algorithm.buffers: 2");
    s->state = TF_CUDA_FREE;
    return EPA_OK;
}

const struct epa_stage tf_cuda_stages[TF_STAGES] = {
    {.name = "dispatch_send", .kind = EPA_STAGE_SEND, .run = dispatch_send},
    {.name = "dispatch_recv", .kind = EPA_STAGE_DISPATCH, .run = dispatch_recv},
    {.name = "combine_send", .kind = EPA_STAGE_SEND, .run = combine_send},
    {.name = "combine_recv", .kind = EPA_STAGE_COMBINE, .run = combine_recv},
};

/* ---- what went wrong ---- */

/* What a kernel gave up waiting for, in the words of the host code. */
static void explain_fault(const struct epa_fault *f, struct epa_error *err)
{
    const char *stage = f->stage < TF_STAGES ? call_name[f->stage] : "unknown stage";
    const char *phase = f->stage >= TF_COMBINE_SEND                       ? "expert outputs"
                        : f->what == TF_WAIT_ROW || f->what == TF_BAD_ROW ? "rows"
                                                                          : "counts";
    double waited = (double)f->waited_ns * 1e-9;

    if (f->what == TF_BAD_ROW) {
        (void)epa_fail(
            err, (enum epa_status)f->status,
            "%s, %s: row %u of rank %u says that it is of token %llu and for the "
            "receiver's expert %llu, which does not go with its counts",
            stage, phase, f->index, f->peer, (unsigned long long)f->seen,
            (unsigned long long)f->wanted);
        return;
    }
    if (f->what == TF_WAIT_COUNTS || f->what == TF_WAIT_ROWS) {
        bool flag = f->what == TF_WAIT_ROWS;

        (void)epa_fail(
            err, (enum epa_status)f->status,
            "%s, %s: epoch %llu, waited %.3f s for counts of rank %u%s: the last "
            "are of epoch %llu",
            stage, phase, (unsigned long long)(f->wanted >> (flag ? 32 : 0)), waited,
            f->peer, flag ? " and all its rows" : "", (unsigned long long)(f->seen >> 32));
        return;
    }
    (void)epa_fail(
        err, (enum epa_status)f->status,
        "%s, %s: epoch %llu, waited %.3f s for %s %u of rank %u: what is there is "
        "of epoch %llu%s",
        stage, phase, (unsigned long long)f->wanted, waited,
        f->what == TF_WAIT_ROW ? "row" : "the answer, to token", f->index, f->peer,
        (unsigned long long)f->seen, device_missing(f));
}

/* After a fault of its kernels nothing works any more; a call may have been refused before
 * it. */
void tf_cuda_explain(struct epa_algorithm *a, struct epa_error *err)
{
    const struct tf_cuda *c = tf_cuda_of(a);

    if (c->d.backend->fault.status != EPA_OK)
        explain_fault(&c->d.backend->fault, err);
    else
        device_explain(&c->d, err);
}
