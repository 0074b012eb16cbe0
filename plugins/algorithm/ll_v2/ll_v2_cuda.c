/* ll_v2 on GPUs: the protocol, and what is queued for each stage.
 *
 * A dispatch is one kernel and a combine is one (`split_phase: true`: two each). What a kernel
 * needs to know of the calls before it, how many there were, it counts itself in device
 * memory, so that a graph of them can be launched again and again. The host alternates
 * between the buffer sets; a graph keeps those it was recorded with.
 *
 * Dispatches count as epochs 1, 2, 3..., combines apart from them as 1, 2, 3... Signals
 * carry these, and so do packets and lines (device/packets.cuh); they are
 * waited for with >=. COUNT of a rank is here what it tells of its choices, in packets. A
 * rank stores into its peers' memory as soon as a kernel starts, without asking. That is
 * safe:
 *   - rows, routes and counts of a dispatch m go to p's set s. p is done with the dispatch
 *     n that had s before: either n's combine has ended here, and it waited for ANSWER of
 *     p, which p sends when its experts are done and its combine starts; or n was
 *     discarded, and dispatch m - 1, in the other set, has ended here: it waited for COUNT
 *     of p, which p sends when its dispatch m - 1 starts, after whatever it did with n.
 *     (Combine reads no routes: what it needs of them, dispatch has copied.)
 *   - rows that combines make expert outputs of (fuse_expert: true), here or at the token's rank, are
 *     written after that, too: who stores a row straight to its place has COUNT m of all
 *     ranks first, which have then ended combine n; rows that came as lines their own rank
 *     copies, in its dispatch m.
 *   - y of the set that a dispatch m took is written after m has ended, which waited for
 *     COUNT m of every p: p has entered m, and so pulled all that it wanted of y before.
 *   - expert outputs that are pushed go to the first of two regions after a dispatch: p read it
 *     last in a combine before that dispatch, which has ended here, so p has entered it. A
 *     combine that follows another takes the other region, which p read last before the one
 *     between.
 * For this each dispatch waits for COUNT and each combine for ANSWER of all ranks, also of
 * those with which no row is exchanged.
 *
 * Two sets let one dispatch run ahead: D1 D2 C1 D3 C2. One is enough for D1 C1 D2 C2. */
#include <cuda_runtime_api.h>

#include "ll_v2_cuda_state.h"

/* ---- calls ---- */

static enum ll_input input_of(const struct ll_cuda *c, const struct epa_moe *m)
{
    if (!c->l.fp8)
        return LL_IN_PLAIN;
    if (m->x_dtype == EPA_FP8_E4M3)
        return LL_IN_FP8;
    return c->l.dtype == EPA_F16 ? LL_IN_QUANTISE_F16 : LL_IN_QUANTISE;
}

static uint64_t y_offset(const struct ll_cuda *c, uint32_t set)
{
    return device_region(&c->d, c->l.y_at, c->l.y_bytes, set);
}

static struct ll_args args_of(const struct ll_cuda *c, const struct epa_moe *m,
                              uint32_t set)
{
    const struct ll_layout *l = &c->l;
    const struct ll_set *s = &c->set[set];
    struct ll_args a = c->args;

    a.tokens = m->tokens;
    a.counts = device_region(&c->d, l->counts_at, l->counts_bytes, set);
    a.routes = device_region(&c->d, l->routes_at, l->routes_bytes, set);
    a.arrival = device_region(&c->d, l->arrival_at, l->arrival_bytes, set);
    a.recv = device_region(&c->d, l->recv_at, l->recv_bytes, set);
    a.y_space = y_offset(c, set);
    a.outputs = device_region(&c->d, l->outputs_at, l->outputs_bytes, c->combine_mode);
    a.x = m->x_dtype == EPA_FP8_E4M3 ? (const void *)m->x_fp8 : m->x;
    a.x_scale = m->x_scale;
    a.expert = m->expert;
    a.weight = m->weight;
    a.y = m->y;
    a.factor = m->expert_factor;
    a.out = m->out;
    if (l->fused) { /* expert outputs are made of these */
        a.y_space = a.recv;
        a.y = device_own(&c->d, a.recv);
    }
    a.wanted = s->wanted;
    a.share = s->share;
    a.chosen = s->chosen;
    a.place = s->place;
    a.recv_count = s->recv_count;
    a.rows = s->rows;
    a.recv_start = s->recv_start;
    a.recv_row = s->recv_row;
    a.recv_weight = s->recv_weight;
    return a;
}

/* In a graph it is known which of these kernels comes before this one. Outside, or as the
 * first of a graph, a graph that was launched in between may have. */
static cudaError_t note_order(struct ll_cuda *c, struct ll_args *a)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long graph = 0;
    cudaError_t code = cudaStreamGetCaptureInfo(c->d.backend->stream, &status, &graph, NULL,
                                                NULL, NULL, NULL);

    if (status != cudaStreamCaptureStatusActive)
        graph = 0;
    a->counts_early = graph != 0 && c->last_graph == graph && c->last_stage != a->stage;
    c->last_graph = graph;
    c->last_stage = a->stage;
    return code;
}

static enum epa_status launch(struct ll_cuda *c, const void *kernel, struct ll_args *a,
                              uint32_t blocks)
{
    cudaError_t code = note_order(c, a);

    if (code != cudaSuccess)
        return device_call_failed(&c->d, "launching a kernel", code);
    a->calls = c->calls[a->stage];
    a->most_blocks = c->resident[a->stage];
    a->work_counters = c->work_counters[a->stage];
    return device_launch(&c->d, kernel, a,
                         (struct device_grid){.blocks = blocks,
                                              .threads = LL_THREADS,
                                              .shared_bytes = c->shared_bytes[a->stage]});
}

/* One for each part of each rank's experts, if a quarter of the blocks will do for that. */
static uint32_t publishers_for(const struct ll_cuda *c, uint32_t room)
{
    uint32_t all = c->l.size * c->args.publish_parts;

    return all <= room / 4 ? all : room / 4 == 0 ? 1 : room / 4;
}

static enum epa_status launch_dispatch(struct ll_cuda *c, const struct epa_moe *m,
                                       uint32_t set, uint32_t halves)
{
    struct ll_args a = args_of(c, m, set);
    uint32_t room = c->resident[LL_DISPATCH], blocks, send = 0;
    uint64_t sends = (uint64_t)m->tokens * c->l.row_signals;
    uint64_t receives = (uint64_t)c->l.size * c->l.max_tokens;

    if (c->mode == LL_DEDUP)
        receives *= c->l.units;
    a.publishers = publishers_for(c, room / 2);
    blocks = device_blocks_for(room, halves == LL_SEND ? sends + a.publishers
                                                       : (receives + 3) / 4);
    if (halves == (LL_SEND | LL_RECEIVE) && room > 1) {
        /* The first blocks count, and others send: half of all; of whole rows a quarter, so
         * that the last are not long behind. */
        send = device_blocks_for(c->l.row_signals < c->l.units ? room / 4 : room / 2,
                                 sends + a.publishers);
        blocks = send + device_blocks_for(room - room / 2, (receives + 3) / 4);
    }
    a.stage = LL_DISPATCH;
    a.halves = halves;
    a.receivers_from = send;
    return launch(c, ll_dispatch_kernel(input_of(c, m), c->mode, c->profile != NULL), &a,
                  room > 1 ? blocks : 1);
}

static enum epa_status launch_combine(struct ll_cuda *c, const struct epa_moe *m,
                                      uint32_t set, uint32_t halves)
{
    struct ll_args a = args_of(c, m, set);
    uint64_t receives = (uint64_t)m->tokens * c->l.shares * (c->l.output_fp8 ? 2 : 1);
    uint64_t sends = (uint64_t)c->l.size * c->l.max_tokens * c->l.shares;
    uint32_t room = c->resident[LL_COMBINE];
    uint32_t blocks =
        device_blocks_for(room, c->l.pushes && sends > receives ? sends : receives);

    if (c->l.pushes && halves == (LL_SEND | LL_RECEIVE) && room > 1) {
        a.receivers_from = device_blocks_for(room / 2, sends);
        blocks = a.receivers_from + device_blocks_for(room - room / 2, receives);
    }
    a.stage = LL_COMBINE;
    a.halves = halves;
    return launch(c, ll_combine_kernel(ll_cuda_combine_kind(c)), &a, blocks);
}

static void publish_views(const struct ll_cuda *c, uint32_t set, struct epa_moe *m)
{
    const struct ll_layout *l = &c->l;
    const struct ll_set *s = &c->set[set];
    const char *recv =
        device_own(&c->d, device_region(&c->d, l->recv_at, l->recv_bytes, set));

    m->epoch = c->sets.epoch;
    m->recv_entries = l->entries;
    m->recv_rows = l->rows;
    m->recv_count = s->recv_count;
    m->recv_start = s->recv_start;
    m->recv_row = l->by_rank ? s->recv_row : NULL;
    m->recv_weight = l->by_rank ? s->recv_weight : NULL;
    m->recv = recv + l->token_at;
    m->recv_scale = l->fp8 ? (const float *)(const void *)(recv + l->scales_at) : NULL;
    m->origin = (const struct epa_origin *)(const void *)(recv + l->meta_at);
    m->recv_stride = m->scale_stride = m->origin_stride = l->message_bytes;
    m->y_space = l->fused ? NULL : device_own(&c->d, y_offset(c, set));
}

/* ---- stages ---- */

static enum epa_status check_half(struct ll_cuda *c, const char *call, enum ll_half wanted)
{
    static const char *const stage[] = {
        [LL_HALF_DISPATCH] = "dispatch", [LL_HALF_COMBINE] = "combine"};

    if (c->half == wanted)
        return EPA_OK;
    if (c->half != LL_NO_HALF)
        return device_fail(&c->d, EPA_ERR_CONFIG,
                           "%s: the second half of a %s is to come first", call,
                           stage[c->half]);
    return device_fail(&c->d, EPA_ERR_CONFIG, "%s: %s_send comes first", call,
                       stage[wanted]);
}

/* The sets take turns, on all ranks alike; the next one must have been given back. */
static enum epa_status dispatch_send(struct ll_cuda *c, struct epa_moe *m, uint32_t halves)
{
    uint32_t set = (uint32_t)(c->sets.epoch % c->sets.n);
    enum epa_status status;

    c->d.last.status = EPA_OK; /* of a call that was refused before */
    status = check_half(c, "dispatch", LL_NO_HALF);
    if (status != EPA_OK)
        return status;
    if (c->sets.set[set].open)
        return device_fail(
            &c->d, EPA_ERR_CONFIG,
            "dispatch: %u dispatches are open, as many as there are buffer sets: "
            "combine one first",
            c->sets.n);
    c->sets.set[set].open = true;
    c->sets.set[set].epoch = ++c->sets.epoch;
    c->dispatched = true;
    c->half = halves == LL_SEND ? LL_HALF_DISPATCH : LL_NO_HALF;
    publish_views(c, set, m);
    return launch_dispatch(c, m, set, halves);
}

static enum epa_status dispatch(struct epa_algorithm *a, struct epa_problem *problem)
{
    return dispatch_send(ll_cuda_of(a), &problem->u.moe, LL_SEND | LL_RECEIVE);
}

static enum epa_status dispatch_first(struct epa_algorithm *a, struct epa_problem *problem)
{
    return dispatch_send(ll_cuda_of(a), &problem->u.moe, LL_SEND);
}

static enum epa_status dispatch_second(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct ll_cuda *c = ll_cuda_of(a);
    const struct epa_moe *m = &problem->u.moe;
    enum epa_status status;

    c->d.last.status = EPA_OK;
    status = check_half(c, "dispatch_recv", LL_HALF_DISPATCH);
    if (status != EPA_OK)
        return status;
    if (m->epoch != c->sets.epoch)
        return device_fail(&c->d, EPA_ERR_CONFIG,
                           "dispatch_recv: the last dispatch_send was of dispatch %llu, "
                           "not %llu",
                           (unsigned long long)c->sets.epoch, (unsigned long long)m->epoch);
    c->half = LL_NO_HALF;
    return launch_dispatch(c, m, (uint32_t)((m->epoch - 1) % c->sets.n), LL_RECEIVE);
}

/* Expert outputs that stand elsewhere are brought to where peers pull them from. In a combine that
 * is called again peers may still pull those of the one before, which are the same. */
static enum epa_status copy_outputs(struct ll_cuda *c, const struct epa_moe *m,
                                    uint32_t set)
{
    void *y = device_own(&c->d, y_offset(c, set));

    if (c->l.fused || m->y == y || c->l.pushes)
        return EPA_OK;
    return device_copy(&c->d, "copying expert outputs", y, m->y, c->l.rows * c->l.output_bytes);
}

static enum epa_status combine_half(struct epa_algorithm *a, struct epa_problem *problem,
                                    uint32_t halves)
{
    struct ll_cuda *c = ll_cuda_of(a);
    const struct epa_moe *m = &problem->u.moe;
    uint32_t set = 0;
    bool second = halves == LL_RECEIVE;
    enum epa_status status;

    c->d.last.status = EPA_OK;
    status = device_find_set(&c->d, &c->sets, m->epoch, &set);
    if (status == EPA_OK)
        status = second ? check_half(c, "combine_recv", LL_HALF_COMBINE)
                        : check_half(c, "combine", LL_NO_HALF);
    if (status != EPA_OK)
        return status;
    if ((halves & LL_SEND) != 0) {
        c->combine_mode = c->dispatched ? 0 : 1 - c->combine_mode;
        c->dispatched = false;
        c->half = halves == LL_SEND ? LL_HALF_COMBINE : LL_NO_HALF;
        status = copy_outputs(c, m, set);
    }
    if (status == EPA_OK)
        status = launch_combine(c, m, set, halves);
    if (status == EPA_OK && (halves & LL_RECEIVE) != 0) {
        c->half = LL_NO_HALF;
        c->sets.combined = m->epoch;
        c->sets.set[set].open = false;
    }
    return status;
}

static enum epa_status combine(struct epa_algorithm *a, struct epa_problem *problem)
{
    return combine_half(a, problem, LL_SEND | LL_RECEIVE);
}

static enum epa_status combine_first(struct epa_algorithm *a, struct epa_problem *problem)
{
    return combine_half(a, problem, LL_SEND);
}

static enum epa_status combine_second(struct epa_algorithm *a, struct epa_problem *problem)
{
    return combine_half(a, problem, LL_RECEIVE);
}

enum epa_status ll_cuda_discard(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct ll_cuda *c = ll_cuda_of(a);
    uint64_t epoch = problem->u.moe.epoch;
    uint32_t set = (uint32_t)((epoch - 1) % c->sets.n);

    c->d.last.status = EPA_OK;
    if (epoch != c->sets.epoch || !c->sets.set[set].open || c->half != LL_NO_HALF)
        return device_fail(&c->d, EPA_ERR_CONFIG,
                           "dispatch %llu is not the last, or not open",
                           (unsigned long long)epoch);
    if (c->sets.n < 2)
        return device_fail(&c->d, EPA_ERR_CONFIG,
                           "a dispatch can be given up only with algorithm.buffers: 2");
    c->sets.set[set].open = false;
    return EPA_OK;
}

const struct epa_stage ll_cuda_fused[2] = {
    {.name = "dispatch", .kind = EPA_STAGE_DISPATCH, .run = dispatch},
    {.name = "combine", .kind = EPA_STAGE_COMBINE, .run = combine},
};

const struct epa_stage ll_cuda_split[4] = {
    {.name = "dispatch_send", .kind = EPA_STAGE_SEND, .run = dispatch_first},
    {.name = "dispatch_recv", .kind = EPA_STAGE_DISPATCH, .run = dispatch_second},
    {.name = "combine_send", .kind = EPA_STAGE_SEND, .run = combine_first},
    {.name = "combine_recv", .kind = EPA_STAGE_COMBINE, .run = combine_second},
};

/* ---- what went wrong ---- */

/* What a kernel gave up waiting for, in the words of the host code. */
static void explain_fault(const struct epa_fault *f, struct epa_error *err)
{
    bool dispatch = f->stage == LL_DISPATCH;
    const char *stage = dispatch ? "dispatch, wait" : "combine, recv_wait";

    if (f->what == LL_WAIT_ROOM)
        (void)epa_fail(
            err, EPA_ERR_CONFIG,
            "dispatch: %llu rows have come, and algorithm.capacity leaves room for "
            "%llu; raise it, or set it to 0 for the worst case",
            (unsigned long long)f->seen, (unsigned long long)f->wanted);
    else if (f->what == LL_WAIT_ENTRY)
        (void)epa_fail(
            err, (enum epa_status)f->status,
            "dispatch, wait: waited %.3f s for the row of entry %u: its signal is "
            "%llu, not %llu",
            (double)f->waited_ns * 1e-9, f->index, (unsigned long long)f->seen,
            (unsigned long long)f->wanted);
    else if (f->what == LL_DATA)
        (void)epa_fail(
            err, (enum epa_status)f->status,
            "%s: waited %.3f s for %s of rank %u %s token %u: its signal is %llu, "
            "not %llu%s",
            stage, (double)f->waited_ns * 1e-9, dispatch ? "the row" : "the answer",
            f->peer, dispatch ? "for its" : "to my", f->index, (unsigned long long)f->seen,
            (unsigned long long)f->wanted, device_missing(f));
    else
        (void)epa_fail(
            err, (enum epa_status)f->status,
            "%s: epoch %llu, %s of rank %u: waited %.3f s for its signal, which is "
            "%llu",
            stage, (unsigned long long)f->wanted,
            f->what == LL_COUNT ? "counts" : "expert outputs", f->peer,
            (double)f->waited_ns * 1e-9, (unsigned long long)f->seen);
}

/* After a fault of its kernels nothing works any more; a call may have been refused before
 * it. */
void ll_cuda_explain(struct epa_algorithm *a, struct epa_error *err)
{
    const struct ll_cuda *c = ll_cuda_of(a);

    if (c->d.backend->fault.status != EPA_OK)
        explain_fault(&c->d.backend->fault, err);
    else
        device_explain(&c->d, err);
}
