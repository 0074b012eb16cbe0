/* token_flag on GPUs: the protocol, and what is queued for each stage.
 *
 * Each stage is a kernel. What a kernel needs to know of the calls before it, how many there
 * were, it counts itself in device memory, so that a graph of them can be launched again and
 * again. The host alternates between the buffer sets; a graph keeps those it was recorded
 * with.
 *
 * Dispatches count as epochs 1, 2, 3..., combines apart from them as 1, 2, 3... Counts
 * (epoch << 32 | count + 1, a word for each source and expert), the flags of sources (lock:
 * rank) and the lines of rows and expert outputs (epa2a/packets.cuh) carry these, are waited for
 * with >=, and are never cleared. A rank stores into its peers' memory as soon as a kernel
 * starts, without asking. That is safe:
 *   - counts of dispatch m go to one of two places at p, of odd and even epochs, whatever the
 *     set. p has read those of m - 2: dispatch m - 1 has ended here, and waited for p's counts
 *     of m - 1, which p sent after its dispatch_recv m - 2.
 *   - rows of m go to this rank's own part of p's buffer in a set. With two sets, which
 *     dispatches take in turn, what stood there is of m - 2, and p has copied it, as above:
 *     so a dispatch may also be given up (discard). With one it is of m - 1, which has been
 *     combined here: for each row that p got it has given its output, after it copied all of them.
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
 * One set is enough for D1 C1 D2 C2, two for D1 D2 C1 D3 C2.
 *
 * Ranks of other nodes (token_flag_far.cu): each stage has a second kernel. A stage that sends
 * stores what is for such a rank p in a mirror of p's heap, and then has it put to p: counts and
 * rows in a block, with the flag of the source behind them; expert outputs in a block, with a
 * signal that is the epoch. With chunks dispatch_send is these two kernels for each chunk, which
 * has a block of rows; behind the last but one a signal says how many rows have been put. The
 * kernel of the last chunk waits for that of all such ranks, and takes in their rows so far: those
 * before wait for nobody, so nobody waits for who waits. A stage that receives waits for all of
 * all such ranks first. So
 * counts, rows and outputs of p say as much as above and more: what p sent in the call is in place
 * here. Slots of outputs are by source and row then, so that a source's are a block. A mirror is
 * written again when the memory that it mirrors may be: by then p has sent something after the
 * stage that received what filled it, so all of it has left. */
#include <cuda_runtime_api.h>

#include <epa2a/packets.h>

#include "token_flag_cuda.h"

/* The calls that an iteration has made of its four. */
enum tf_cuda_state { TF_CUDA_FREE, TF_CUDA_SENT, TF_CUDA_RECEIVED, TF_CUDA_RETURNED };

struct tf_cuda_set {
    enum tf_cuda_state state;
    uint32_t *received, *entry, *place;
};

struct tf_cuda {
    struct device d; /* first */
    struct tf_layout l;
    struct tf_args args; /* what is the same in all calls, beside those of d */
    bool f16;
    struct tf_cuda_set set[2];
};

static const char *const call_name[] = {"dispatch_send", "dispatch_recv", "combine_send",
                                        "combine_recv"};

/* ---- launches ---- */

static const void *kernel_of(const struct tf_cuda *c, enum tf_stage stage, int x_dtype)
{
    const struct tf_layout *l = &c->l;
    bool profile = c->d.stamps;

    switch (stage) {
    case TF_DISPATCH_SEND:
        return tf_dispatch_send_kernel(
            device_input_of(l->fp8, c->f16 ? EPA_F16 : EPA_BF16, x_dtype), profile);
    case TF_DISPATCH_RECV:
        return tf_dispatch_recv_kernel(profile);
    case TF_COMBINE_SEND:
        return tf_combine_send_kernel(!l->fused ? TF_OUTPUT_GIVEN
                                      : l->fp8  ? TF_OUTPUT_FP8
                                                : TF_OUTPUT_DTYPE,
                                      c->f16, profile);
    default:
        return tf_combine_recv_kernel(c->f16, profile);
    }
}

static struct tf_args args_of(const struct tf_cuda *c, const struct epa_moe *m, enum tf_stage stage,
                              uint32_t set)
{
    const struct tf_layout *l = &c->l;
    struct tf_args a = c->args;

    a.c = device_args_of(&c->d, m, stage, set);
    a.counts = device_region(&c->d, l->counts_at, l->counts_bytes, 0);
    a.comm = device_region(&c->d, l->comm_at, l->comm_bytes, set);
    a.grouped = device_region(&c->d, l->grouped_at, l->grouped_bytes, set);
    a.outputs = device_region(&c->d, l->outputs_at, l->outputs_bytes, set);
    a.received = c->set[set].received;
    a.entry = c->set[set].entry;
    a.place = c->set[set].place;
    return a;
}

/* Of what may arrive, two blocks' worth of warps for each: counts stay on the device. */
static uint32_t blocks_for_rows(const struct tf_cuda *c, uint32_t room, uint32_t packets)
{
    return device_blocks_for(room, (c->l.rows * tf_units_of(packets) + 3) / 4);
}

/* With chunks half of the blocks send, and the others receive meanwhile. */
static uint32_t divide_send(const struct tf_cuda *c, struct tf_args *a)
{
    uint32_t room = c->d.resident[TF_DISPATCH_SEND];
    bool apart = c->l.chunks > 1 && a->last && room > 1;
    uint32_t most = apart ? room / 2 : room;

    a->publishers = !c->l.by_token || a->chunk != 0 ? 0 : c->l.size < most ? c->l.size : most;
    a->senders = device_blocks_for(most, (uint64_t)a->end - a->begin + a->publishers);
    return a->senders + (apart ? blocks_for_rows(c, room - most, c->l.packets) : 0);
}

/* Of any stage but dispatch_send. */
static uint32_t blocks_of(const struct tf_cuda *c, const struct tf_args *a)
{
    uint32_t room = c->d.resident[a->c.stage];

    if (a->c.stage == TF_DISPATCH_RECV)
        return blocks_for_rows(c, room, c->l.packets);
    if (a->c.stage == TF_COMBINE_SEND)
        return blocks_for_rows(c, room, c->l.output_packets);
    return device_blocks_for(room, (uint64_t)a->c.tokens * tf_units_of(c->l.output_packets));
}

/* Bytes of the counters that `reset` is about. */
static size_t counter_bytes(const struct tf_layout *l)
{
    return offsetof(struct tf_counters, chosen) + l->experts * sizeof(uint32_t);
}

static enum epa_status clear_counters(struct tf_cuda *c)
{
    cudaError_t code = cudaSetDevice(c->d.backend->device);

    if (code == cudaSuccess)
        code = cudaMemsetAsync(c->args.counters, 0, counter_bytes(&c->l), c->d.backend->stream);
    return code == cudaSuccess ? EPA_OK : device_call_failed(&c->d, "clearing counters", code);
}

/* Where there are other nodes: what is put there, or arrives from there. */
static enum epa_status launch_far(struct tf_cuda *c, const struct tf_args *a)
{
    struct tf_far_args far;

    if (c->d.mirrors == NULL)
        return EPA_OK;
    far = (struct tf_far_args){.a = *a, .v = *c->d.t->view, .ring = *c->d.t->ring};
    return device_launch_far(&c->d, &far);
}

/* Where there are other nodes in chunks, so that the network has one while the next is sent. */
static enum epa_status launch_dispatch_send(struct tf_cuda *c, const struct epa_moe *m,
                                            uint32_t set)
{
    struct tf_args a = args_of(c, m, TF_DISPATCH_SEND, set);
    uint64_t n = c->d.mirrors != NULL ? c->l.chunks : 1;
    bool clears = !c->l.folded;
    enum epa_status status = clears ? clear_counters(c) : EPA_OK;

    for (uint32_t i = 0; i < n && status == EPA_OK; i++) {
        a.chunk = i;
        a.begin = (uint32_t)(m->tokens * i / n);
        a.end = (uint32_t)(m->tokens * (i + 1) / n);
        a.last = i + 1 == n;
        uint32_t blocks = divide_send(c, &a);

        status = device_launch(&c->d, kernel_of(c, TF_DISPATCH_SEND, m->x_dtype), &a.c, blocks,
                               clears && i == 0);
        if (status == EPA_OK)
            status = launch_far(c, &a);
    }
    return status;
}

static enum epa_status launch(struct tf_cuda *c, const struct epa_moe *m, uint32_t set,
                              enum tf_stage stage)
{
    struct tf_args a = args_of(c, m, stage, set);
    bool sends = stage == TF_COMBINE_SEND;
    enum epa_status status = EPA_OK;

    if (stage == TF_DISPATCH_SEND)
        return launch_dispatch_send(c, m, set);
    if (!sends)
        status = launch_far(c, &a);
    if (status == EPA_OK)
        status =
            device_launch(&c->d, kernel_of(c, stage, m->x_dtype), &a.c, blocks_of(c, &a), false);
    return status == EPA_OK && sends ? launch_far(c, &a) : status;
}

/* ---- stages ---- */

static void publish_views(const struct tf_cuda *c, uint32_t set, struct epa_moe *m)
{
    const struct tf_layout *l = &c->l;
    const char *recv =
        device_own(&c->d, device_region(&c->d, l->grouped_at, l->grouped_bytes, set));

    m->recv_rows = m->recv_entries = l->rows; /* at most */
    epa_publish_messages(m, recv, 0, l->fp8, l->scales_at, l->meta_at, l->message_bytes);
    m->y_space =
        l->fused ? NULL : device_own(&c->d, device_region(&c->d, l->y_at, l->y_bytes, set));
}

/* One half follows the other: each counts on what its own has left. */
static enum epa_status check_halves(struct tf_cuda *c, enum tf_stage stage,
                                    const struct tf_cuda_set *of)
{
    for (uint32_t i = 0; i < c->l.buffers; i++) {
        const struct tf_cuda_set *s = &c->set[i];

        if (s != of && (s->state == TF_CUDA_SENT || s->state == TF_CUDA_RETURNED))
            return device_fail(
                &c->d, EPA_ERR_CONFIG, "%s: dispatch %llu has been %s: call %s first",
                call_name[stage], (unsigned long long)c->d.set[i].epoch,
                s->state == TF_CUDA_SENT ? "sent and not received" : "returned and not combined",
                call_name[s->state]);
    }
    return EPA_OK;
}

/* The set that a stage goes on with; combines come in the order of their dispatches. */
static enum epa_status find_set(struct tf_cuda *c, uint64_t epoch, enum tf_stage stage,
                                uint32_t *out)
{
    static const char *const done[] = {"", "sent", "received", "returned"};
    uint32_t set = (uint32_t)((epoch - 1) % c->l.buffers), other = c->l.buffers - 1 - set;

    if (epoch == 0 || c->d.set[set].epoch != epoch ||
        c->set[set].state != (enum tf_cuda_state)stage)
        return device_fail(&c->d, EPA_ERR_CONFIG,
                           "%s: called for dispatch %llu, which is not %s, or never was",
                           call_name[stage], (unsigned long long)epoch, done[stage]);
    if (stage == TF_COMBINE_SEND && c->set[other].state == TF_CUDA_RECEIVED &&
        c->d.set[other].epoch < epoch)
        return device_fail(&c->d, EPA_ERR_CONFIG,
                           "combine_send: called for dispatch %llu, but %llu is the oldest "
                           "that is received: they go in order",
                           (unsigned long long)epoch, (unsigned long long)c->d.set[other].epoch);
    *out = set;
    return check_halves(c, stage, &c->set[set]);
}

static enum epa_status run_dispatch_send(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct tf_cuda *c = (struct tf_cuda *)a;
    struct epa_moe *m = &problem->u.moe;
    uint32_t set = 0;
    enum epa_status status;

    c->d.last.status = EPA_OK; /* of a call that was refused before */
    status = check_halves(c, TF_DISPATCH_SEND, NULL);
    if (status == EPA_OK)
        status = device_open_set(&c->d, "dispatch_send", m, &set);
    if (status != EPA_OK)
        return status;
    c->set[set].state = TF_CUDA_SENT;
    publish_views(c, set, m);
    return launch(c, m, set, TF_DISPATCH_SEND);
}

/* Any stage but the first. */
static enum epa_status go_on(struct epa_algorithm *a, struct epa_problem *problem,
                             enum tf_stage stage)
{
    struct tf_cuda *c = (struct tf_cuda *)a;
    uint32_t set = 0;
    enum epa_status status;

    c->d.last.status = EPA_OK;
    status = find_set(c, problem->u.moe.epoch, stage, &set);
    if (status != EPA_OK)
        return status;
    c->set[set].state = (enum tf_cuda_state)((stage + 1) % TF_STAGES);
    if (stage == TF_COMBINE_RECV)
        device_close_set(&c->d, set);
    return launch(c, &problem->u.moe, set, stage);
}

static enum epa_status run_dispatch_recv(struct epa_algorithm *a, struct epa_problem *problem)
{
    return go_on(a, problem, TF_DISPATCH_RECV);
}

static enum epa_status run_combine_send(struct epa_algorithm *a, struct epa_problem *problem)
{
    return go_on(a, problem, TF_COMBINE_SEND);
}

static enum epa_status run_combine_recv(struct epa_algorithm *a, struct epa_problem *problem)
{
    return go_on(a, problem, TF_COMBINE_RECV);
}

static enum epa_status discard(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct tf_cuda *c = (struct tf_cuda *)a;
    enum epa_status status = check_halves(c, TF_DISPATCH_SEND, NULL);

    if (status == EPA_OK)
        status = device_discard(a, problem);
    if (status == EPA_OK)
        c->set[(c->d.epoch - 1) % c->l.buffers].state = TF_CUDA_FREE;
    return status;
}

static const struct epa_stage cuda_stages[TF_STAGES] = {
    {.name = "dispatch_send", .kind = EPA_STAGE_SEND, .run = run_dispatch_send},
    {.name = "dispatch_recv", .kind = EPA_STAGE_DISPATCH, .run = run_dispatch_recv},
    {.name = "combine_send", .kind = EPA_STAGE_SEND, .run = run_combine_send},
    {.name = "combine_recv", .kind = EPA_STAGE_COMBINE, .run = run_combine_recv},
};

/* ---- what went wrong ---- */

/* What a kernel gave up waiting for, in the words of the host code. */
static void explain_fault(const struct epa_fault *f, uint32_t rank, struct epa_error *err)
{
    const char *stage = f->stage < TF_STAGES ? call_name[f->stage] : "unknown stage";
    const char *phase = f->stage >= TF_COMBINE_SEND                       ? "expert outputs"
                        : f->what == TF_WAIT_ROW || f->what == TF_BAD_ROW ? "rows"
                                                                          : "counts";
    double waited = (double)f->waited_ns * 1e-9;

    (void)rank;
    if (f->what == TF_BAD_ROW) {
        (void)epa_fail(err, (enum epa_status)f->status,
                       "%s/%s: row %u of rank %u says that it is of token %llu and for the "
                       "receiver's expert %llu, which does not go with its counts",
                       stage, phase, f->index, f->peer, (unsigned long long)f->seen,
                       (unsigned long long)f->wanted);
        return;
    }
    if (f->what == TF_WAIT_COUNTS || f->what == TF_WAIT_ROWS || f->what == TF_WAIT_CHUNKS) {
        bool flag = f->what != TF_WAIT_COUNTS;

        (void)epa_fail(err, (enum epa_status)f->status,
                       "%s/%s: epoch %llu, waited %.3f s for counts of rank %u%s: the last "
                       "are of epoch %llu",
                       stage, phase, (unsigned long long)(f->wanted >> (flag ? TF_ROW_BITS : 0)),
                       waited, f->peer,
                       f->what == TF_WAIT_ROWS     ? " and all its rows"
                       : f->what == TF_WAIT_CHUNKS ? " and all its chunks but the last"
                                                   : "",
                       (unsigned long long)(f->seen >> TF_ROW_BITS));
        return;
    }
    if (f->what == TF_WAIT_RING) {
        device_explain_ring(f, stage, err);
        return;
    }
    if (f->what == TF_WAIT_OUTPUTS) {
        (void)epa_fail(err, (enum epa_status)f->status,
                       "%s/%s: waited %.3f s for those of rank %u, of another node: its signal is "
                       "%llu, wants %llu",
                       stage, phase, waited, f->peer, (unsigned long long)f->seen,
                       (unsigned long long)f->wanted);
        return;
    }
    (void)epa_fail(err, (enum epa_status)f->status,
                   "%s/%s: epoch %llu, waited %.3f s for %s %u of rank %u: what is there is "
                   "of epoch %llu%s",
                   stage, phase, (unsigned long long)f->wanted, waited,
                   f->what == TF_WAIT_ROW ? "row" : "the expert output for token", f->index,
                   f->peer, (unsigned long long)f->seen, device_missing(f));
}

/* ---- set-up ---- */

static void place_sets(struct device *d, char *memory, uint64_t *at)
{
    struct tf_cuda *c = (struct tf_cuda *)d;
    const struct tf_layout *l = &c->l;

    c->args.counters = device_take(memory, at, counter_bytes(l));
    for (uint32_t i = 0; i < l->buffers; i++) {
        struct tf_cuda_set *s = &c->set[i];

        s->received = device_take(memory, at, l->size * sizeof(*s->received));
        s->entry = device_take(memory, at, (uint64_t)l->size * l->source_rows * sizeof(*s->entry));
        if (l->far)
            s->place =
                device_take(memory, at, (uint64_t)l->max_tokens * l->topk * sizeof(*s->place));
    }
}

static const struct device_kind token_flag_kind = {
    .name = "token_flag",
    .stages = TF_STAGES,
    .halves = 2,
    .phase =
        {
            [TF_DISPATCH_SEND * DEVICE_PHASES + TF_COUNTING] = "dispatch_send, counts",
            [TF_DISPATCH_SEND * DEVICE_PHASES + TF_SENDING] = "dispatch_send, send",
            [TF_DISPATCH_SEND * DEVICE_PHASES + TF_AWAITING] = "dispatch_send, wait",
            [TF_DISPATCH_SEND * DEVICE_PHASES + TF_RECEIVING] = "dispatch_send, receive",
            [TF_DISPATCH_RECV * DEVICE_PHASES + TF_COUNTING] = "dispatch_recv, counts",
            [TF_DISPATCH_RECV * DEVICE_PHASES + TF_SENDING] = "dispatch_recv, send",
            [TF_DISPATCH_RECV * DEVICE_PHASES + TF_AWAITING] = "dispatch_recv, wait",
            [TF_DISPATCH_RECV * DEVICE_PHASES + TF_RECEIVING] = "dispatch_recv, receive",
            [TF_COMBINE_SEND * DEVICE_PHASES + TF_COUNTING] = "combine_send, counts",
            [TF_COMBINE_SEND * DEVICE_PHASES + TF_SENDING] = "combine_send, send",
            [TF_COMBINE_SEND * DEVICE_PHASES + TF_AWAITING] = "combine_send, wait",
            [TF_COMBINE_SEND * DEVICE_PHASES + TF_RECEIVING] = "combine_send, receive",
            [TF_COMBINE_RECV * DEVICE_PHASES + TF_COUNTING] = "combine_recv, counts",
            [TF_COMBINE_RECV * DEVICE_PHASES + TF_SENDING] = "combine_recv, send",
            [TF_COMBINE_RECV * DEVICE_PHASES + TF_AWAITING] = "combine_recv, wait",
            [TF_COMBINE_RECV * DEVICE_PHASES + TF_RECEIVING] = "combine_recv, receive",
            [TF_DISPATCH_SEND * DEVICE_PHASES + DEVICE_TOKENS] = "dispatch_send, token",
            [TF_DISPATCH_RECV * DEVICE_PHASES + DEVICE_TOKENS] = "dispatch_recv, token",
            [TF_COMBINE_RECV * DEVICE_PHASES + DEVICE_TOKENS] = "combine_recv, token",
        },
    .place = place_sets,
    .explain = explain_fault,
};

static uint32_t warps_of(const struct tf_config *config, enum tf_stage stage)
{
    return config->kernel_warps.n != 0 ? config->kernel_warps.item[stage] : DEVICE_WARPS;
}

/* In shared memory: tables by expert, then a message, or a part of one for each warp. */
static void fill_args(struct tf_cuda *c, const struct tf_config *config)
{
    const struct tf_layout *l = &c->l;
    uint32_t scales = l->fp8 ? l->hidden / l->group * 4 : 0, send, receive[2];

    c->args = (struct tf_args){
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
    send = device_up16(c->args.content_bytes);
    for (int i = 0; i < 2; i++)
        receive[i] = warps_of(config, i == 0 ? TF_DISPATCH_SEND : TF_DISPATCH_RECV) * TF_UNIT_BYTES;
    c->d.shared_bytes[TF_DISPATCH_SEND] =
        c->args.payload + (l->chunks > 1 && receive[0] > send ? receive[0] : send);
    c->d.shared_bytes[TF_DISPATCH_RECV] = c->args.payload + receive[1];
}

uint64_t tf_cuda_bytes(const struct tf_layout *l)
{
    struct tf_cuda c = {.d = {.kind = &token_flag_kind, .sets = l->buffers}, .l = *l};

    c.d.args.local = l->local;
    return device_scratch_bytes(&c.d);
}

enum epa_status tf_cuda_create(const struct epa_algorithm_params *p, const struct tf_layout *l,
                               struct epa_algorithm **out, struct epa_error *err)
{
    const struct tf_config *config = p->config;
    struct device_kernel kernel[TF_STAGES];
    struct tf_cuda *c;
    enum epa_status status =
        device_create(&token_flag_kind, sizeof(*c), p, l->heap_bytes, l->buffers, true, &c, err);

    if (status != EPA_OK)
        return status;
    c->d.base.stages = cuda_stages;
    c->d.base.n_stages = TF_STAGES;
    c->d.base.discard = l->buffers > 1 ? discard : NULL;
    c->l = *l;
    c->f16 = p->problem->u.moe.dtype == EPA_F16;
    fill_args(c, config);
    c->d.args.notes = l->max_tokens + l->size * (l->source_rows + 1) + l->max_tokens * l->topk;
    for (int i = 0; i < TF_STAGES; i++)
        kernel[i] = (struct device_kernel){kernel_of(c, (enum tf_stage)i, EPA_BF16), NULL,
                                           call_name[i], warps_of(config, (enum tf_stage)i) * 32};
    if (l->fp8)
        kernel[TF_DISPATCH_SEND].other = kernel_of(c, TF_DISPATCH_SEND, EPA_FP8_E4M3);
    status = device_set_up(&c->d, kernel, config->blocks, err);
    for (uint32_t i = 0; i < config->kernel_blocks.n; i++)
        if (c->d.resident[i] > config->kernel_blocks.item[i])
            c->d.resident[i] = config->kernel_blocks.item[i];
    /* No transport promises what is in its heap at first, and lines are not to be of calls to
     * come. Nobody begins before all ranks have set up, so nothing that has arrived is lost. */
    if (status == EPA_OK && l->far)
        status = device_make_mirrors(&c->d, l->heap_bytes, l->signals, tf_far(), err);
    for (uint32_t r = 0; r < l->size; r++)
        c->args.far |= p->transport->view->peer_heap[r] == NULL ? (uint64_t)1 << r : 0;
    if (status == EPA_OK)
        status = device_clear(&c->d, device_own(&c->d, c->d.heap), c->l.heap_bytes, err);
    return device_created(&c->d, status, out);
}
