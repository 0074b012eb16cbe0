/* ll_v1 on GPUs: the protocol, and the kernels that each stage queues.
 *
 * Dispatch is one kernel and combine is one kernel. A kernel counts the calls of its mode in device
 * memory, so that a graph can be replayed any number of times. The position of a call is its count
 * mod 2. Rows by expert, y and the data of a dispatch that its combine needs are in sets. The host
 * assigns the sets to dispatches in turn; a graph keeps the sets of its recording.
 *
 * Splits, rows and expert outputs carry the count of their call (epa2a/packets.cuh). So does BEGUN,
 * a signal that each rank sends to all others at the start of its combine. Waits compare with >=. A
 * rank stores into its peers' memory as soon as a kernel starts, without a handshake. Let p be a
 * peer. The stores are safe:
 *   - Splits and rows of dispatch m go to position m mod 2 of p, which p last read in dispatch
 *     m - 2. Dispatch m - 1 has ended here. It waited for the splits of p, which p sends at the
 *     start of its m - 1, after the end of its m - 2.
 *   - Expert outputs that combine m pushes go to position m mod 2 of p, which p last read in
 *     combine m - 2. Combine m - 1 has ended here after it waited for BEGUN of p, as above.
 *   - With pulled expert outputs, this rank writes `starts` of a set at p after the splits of
 *     dispatch m have arrived from p, and writes y of the set after the end of dispatch m, which
 *     waited for the splits of every p. So p has started m and has ended the earlier combine that
 *     read both.
 * For this reason each dispatch waits for the splits of all ranks and each combine for BEGUN of all
 * ranks, including ranks that exchange no row. A call consumes all data that arrives for it, so two
 * positions suffice for any sequence of calls and any repetition of graphs. A discarded dispatch
 * and a repeated combine count like other calls.
 *
 * Ranks of other nodes (ll_v1_far.cu): each call has a sending kernel, a kernel for puts, and a
 * receiving kernel. The first stores data for such a rank p in a mirror of p's heap. The second
 * puts the mirror to p, followed by a signal of the mode and position (in combine, BEGUN itself),
 * and waits for the signals of all such ranks. Splits and BEGUN of p then guarantee, in addition,
 * that p's data of this call is in place. A mirror is rewritten under the same condition as the
 * memory that it mirrors: p has then sent a signal after the receiving kernel of the call that
 * filled the mirror, so the puts from the mirror are complete. */
#include "ll_v1_cuda.h"

#include "ll_v1_combine.h"
#include "ll_v1_device.h"
#include "ll_v1_dispatch.h"
#include "ll_v1_empty.h"
#include "ll_v1_far.h"

/* Data of a dispatch that its combine needs. */
struct v1_cuda_set {
    uint32_t *place, *far_slice;
    struct v1_back *back;
};

struct v1_cuda {
    struct device d; /* first */
    struct v1_layout l;
    struct v1_args args; /* arguments that are equal in all calls, in addition to those in d */
    struct v1_cuda_set set[2];
};

/* Offset of instance `which` of a region from the start of a rank's heap. */
static uint64_t region_at(const struct v1_cuda *c, const struct v1_region *r, uint32_t which)
{
    return device_region(&c->d, r->at, r->bytes, which);
}

/* ---- calls ---- */

static const void *dispatch_kernel(const struct v1_cuda *c, int x_dtype)
{
    return v1_dispatch_kernel(device_input_of(c->l.fp8, c->l.f16 ? EPA_F16 : EPA_BF16, x_dtype),
                              c->d.stamps);
}

static struct v1_args args_of(const struct v1_cuda *c, const struct epa_moe *m, enum v1_mode mode,
                              uint32_t set)
{
    const struct v1_layout *l = &c->l;
    struct v1_args a = c->args;

    a.c = device_args_of(&c->d, m, mode, set);
    a.recv = region_at(c, &l->recv, set);
    a.recv_scales = region_at(c, &l->recv_scales, set);
    a.origin = region_at(c, &l->origin, set);
    a.y_space = region_at(c, &l->y, set);
    a.starts = region_at(c, &l->starts, set);
    a.place = c->set[set].place;
    a.back = c->set[set].back;
    a.far_slice = c->set[set].far_slice;
    return a;
}

/* At most half of the blocks send; the others receive meanwhile. With few tokens a block takes one
 * token at a time, so that many blocks send. With many tokens a block takes about eight chunks in
 * turn, since each chunk requires a count of the choices before it. */
static enum epa_status launch_dispatch(struct v1_cuda *c, const struct epa_moe *m, uint32_t set,
                                       uint32_t halves)
{
    struct v1_args a = args_of(c, m, V1_DISPATCH, set);
    bool both = halves == (V1_SEND | V1_RECEIVE);
    uint32_t room = c->d.resident[V1_DISPATCH], most = both && room > 1 ? room / 2 : room, blocks;
    uint64_t comes = (uint64_t)c->l.max_tokens * c->l.topk * c->l.units;

    a.chunk = m->tokens / (8 * most);
    a.chunk = a.chunk < 1 ? 1 : a.chunk > V1_MOST_CHUNK ? V1_MOST_CHUNK : a.chunk;
    a.senders = device_blocks_for(most, (m->tokens + a.chunk - 1) / a.chunk);
    if (a.senders < c->l.size) /* enough senders for the splits to each rank */
        a.senders = device_blocks_for(most, c->l.size);
    blocks = room > 1 ? a.senders + device_blocks_for(room - most, (comes + 3) / 4) : 1;
    if (halves == V1_SEND)
        blocks = a.senders;
    if (halves == V1_RECEIVE) {
        blocks = device_blocks_for(room, (comes + 3) / 4);
        a.senders = 0;
    }
    a.halves = halves;
    return device_launch(&c->d, dispatch_kernel(c, m->x_dtype), &a.c, blocks, false);
}

static enum epa_status launch_combine(struct v1_cuda *c, const struct epa_moe *m, uint32_t set,
                                      uint32_t halves)
{
    struct v1_args a = args_of(c, m, V1_COMBINE, set);
    bool both = halves == (V1_SEND | V1_RECEIVE);
    uint32_t room = c->d.resident[V1_COMBINE], most = both && room > 1 ? room / 2 : room;
    uint64_t sums = (uint64_t)m->tokens * c->l.shares;
    uint32_t blocks = device_blocks_for(room, sums);

    if (!c->l.pull) {
        a.senders = device_blocks_for(most, c->l.rows * c->l.pieces);
        blocks = room > 1 ? a.senders + device_blocks_for(room - most, sums) : 1;
    }
    if (halves == V1_SEND)
        blocks = a.senders;
    if (halves == V1_RECEIVE) {
        blocks = device_blocks_for(room, sums);
        a.senders = 0;
    }
    a.halves = halves;
    return device_launch(&c->d, v1_combine_kernel(c->l.f16, c->l.pull, c->d.stamps), &a.c, blocks,
                         false);
}

/* With other nodes a call has three kernels; the middle one sends and receives the puts. */
static enum epa_status launch_call(struct v1_cuda *c, const struct epa_moe *m, enum v1_mode mode,
                                   uint32_t set)
{
    enum epa_status (*launch)(struct v1_cuda *, const struct epa_moe *, uint32_t, uint32_t) =
        mode == V1_DISPATCH ? launch_dispatch : launch_combine;
    struct v1_far_args far;
    enum epa_status status;

    if (c->d.mirrors == NULL)
        return launch(c, m, set, V1_SEND | V1_RECEIVE);
    far = (struct v1_far_args){
        .a = args_of(c, m, mode, set), .v = *c->d.t->view, .ring = *c->d.t->ring};
    status = launch(c, m, set, V1_SEND);
    if (status == EPA_OK)
        status = device_launch_far(&c->d, &far);
    return status == EPA_OK ? launch(c, m, set, V1_RECEIVE) : status;
}

/* ---- stages ---- */

static enum epa_status run_dispatch(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct v1_cuda *c = (struct v1_cuda *)a;
    const struct v1_layout *l = &c->l;
    struct epa_moe *m = &problem->u.moe;
    uint32_t set;
    enum epa_status status;

    c->d.last.status = EPA_OK; /* clears the failure of an earlier rejected call */
    status = device_open_set(&c->d, "dispatch", m, &set);
    if (status != EPA_OK)
        return status;
    m->recv_rows = m->recv_entries = l->rows;
    m->recv = device_own(&c->d, region_at(c, &l->recv, set));
    m->recv_scale = NULL;
    if (l->fp8)
        m->recv_scale =
            (const float *)(const void *)device_own(&c->d, region_at(c, &l->recv_scales, set));
    m->origin =
        (const struct epa_origin *)(const void *)device_own(&c->d, region_at(c, &l->origin, set));
    m->recv_stride = l->row_bytes;
    m->scale_stride = l->scales_bytes;
    m->origin_stride = sizeof(struct epa_origin);
    m->y_space = device_own(&c->d, region_at(c, &l->y, set));
    return launch_call(c, m, V1_DISPATCH, set);
}

/* Copies expert outputs from elsewhere to y, from which peers pull. In a repeated combine, peers
 * may still pull the outputs of the previous one, which are equal. */
static enum epa_status run_combine(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct v1_cuda *c = (struct v1_cuda *)a;
    const struct epa_moe *m = &problem->u.moe;
    uint32_t set = 0;
    enum epa_status status;

    c->d.last.status = EPA_OK;
    status = device_find_set(&c->d, m->epoch, &set);
    if (status == EPA_OK && c->l.pull)
        status = device_copy_outputs(&c->d, region_at(c, &c->l.y, set), m->y,
                                     c->l.rows * c->l.output_bytes);
    if (status == EPA_OK)
        status = launch_call(c, m, V1_COMBINE, set);
    if (status == EPA_OK)
        device_close_set(&c->d, set);
    return status;
}

static const struct epa_stage cuda_stages[] = {
    {.name = "dispatch", .kind = EPA_STAGE_DISPATCH, .run = run_dispatch},
    {.name = "combine", .kind = EPA_STAGE_COMBINE, .run = run_combine},
};

/* ---- failures ---- */

/* Explains the wait that a kernel gave up, with the messages of the host code. */
static void explain_fault(const struct epa_fault *f, uint32_t rank, struct epa_error *err)
{
    const char *stage = f->stage == V1_DISPATCH ? "dispatch" : "combine";
    double seconds = (double)f->waited_ns * 1e-9;
    unsigned long long call = f->wanted, seen = f->seen;
    enum epa_status status = (enum epa_status)f->status;

    if (f->what == V1_NO_ROOM)
        (void)epa_fail_stage(err, EPA_ERR_CONFIG, "algorithm.capacity", "dispatch", "",
                             "rank %u has %llu rows for rank %u, which has room for %llu from "
                             "each: raise algorithm.capacity, or set it to 0",
                             rank, seen, f->peer, call);
    else if (f->what == V1_WAIT_RING)
        device_explain_ring(f, stage, "wait", err);
    else if (f->what == V1_WAIT_ROW)
        (void)epa_fail_stage(epa_awaits(err, f->peer), status, "", stage, "wait",
                             "call %llu, rank %u: waited %.3f s for row %u of its block, which is "
                             "of call %llu%s",
                             call, f->peer, seconds, f->index, seen, device_missing(f));
    else if (f->what == V1_WAIT_OUTPUT)
        (void)epa_fail_stage(epa_awaits(err, f->peer), status, "", stage, "wait",
                             "call %llu, rank %u: waited %.3f s for its expert output for token "
                             "%u, which is of call %llu%s",
                             call, f->peer, seconds, f->index, seen, device_missing(f));
    else
        (void)epa_fail_stage(epa_awaits(err, f->peer), status, "", stage, "wait",
                             "call %llu, rank %u: waited %.3f s for %s is %llu", call, f->peer,
                             seconds,
                             f->what == V1_WAIT_SPLITS ? "its splits, whose call"
                             : f->what == V1_WAIT_FAR  ? "its data from another node, whose signal"
                                                       : "its signal that it has begun, which",
                             seen);
}

/* ---- set-up ----
 *
 * Set-up fixes all values that depend only on the shape: the layout of a kernel's shared memory and
 * of this rank's own device memory. */

static void place_sets(struct device *d, char *memory, uint64_t *at)
{
    struct v1_cuda *c = (struct v1_cuda *)d;
    uint64_t choices = (uint64_t)c->l.max_tokens * c->l.topk;

    for (uint32_t i = 0; i < d->sets; i++) {
        struct v1_cuda_set *s = &c->set[i];

        s->place = device_take(memory, at, choices * sizeof(*s->place));
        s->back = device_take(memory, at, (c->l.pull ? 0 : c->l.rows) * sizeof(*s->back));
        s->far_slice =
            device_take(memory, at, (c->l.puts ? 2 * c->l.size : 0) * sizeof(*s->far_slice));
    }
}

static const struct device_kind ll_v1_kind = {
    .name = "ll_v1",
    .stages = V1_MODES,
    .halves = 1,
    .phase =
        {
            [V1_SORT] = "sort",
            [V1_QUANTISE_AND_SEND] = "quantise_and_send",
            [V1_WAIT] = "wait",
            [V1_POSTPROCESS] = "postprocess",
            [V1_COMBINE * DEVICE_PHASES + V1_SEND_OUTPUTS] = "send_outputs",
            [V1_COMBINE * DEVICE_PHASES + V1_WAIT_OUTPUTS] = "wait_outputs",
            [V1_COMBINE * DEVICE_PHASES + V1_REDUCE] = "reduce",
        },
    .empty = v1_empty_kernel,
    .place = place_sets,
    .explain = explain_fault,
};

static void fill_args(struct v1_cuda *c)
{
    const struct v1_layout *l = &c->l;

    c->args = (struct v1_args){
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
        /* Senders need first[experts + 1], before and bits; receivers need less. */
        .payloads = device_up16((3 * (uint64_t)l->experts + 1) * sizeof(uint32_t)),
        .payload = device_up16(l->unit_bytes / EPA_PACKET * EPA_PACKET_WORDS * 8),
    };
    for (uint32_t i = 0; i < V1_POSITIONS; i++) {
        c->args.splits[i] = region_at(c, &l->splits, i);
        c->args.arrival[i] = region_at(c, &l->arrival, i);
        c->args.outputs[i] = region_at(c, &l->outputs, i);
    }
    c->d.shared_bytes[V1_DISPATCH] = c->args.payloads + DEVICE_WARPS * c->args.payload;
}

uint64_t v1_cuda_bytes(const struct v1_layout *l)
{
    struct v1_cuda c = {.d = {.kind = &ll_v1_kind, .sets = l->buffers}, .l = *l};

    c.d.args.local = l->local;
    return device_scratch_bytes(&c.d);
}

enum epa_status v1_cuda_create(const struct epa_algorithm_params *p, const struct v1_layout *l,
                               struct epa_algorithm **out, struct epa_error *err)
{
    const struct v1_config *config = p->config;
    struct v1_cuda *c;
    enum epa_status status =
        device_create(&ll_v1_kind, sizeof(*c), p, l->heap_bytes, l->buffers, config->pdl, &c, err);

    if (status != EPA_OK)
        return status;
    c->d.base.stages = cuda_stages;
    c->d.base.n_stages = 2;
    c->d.base.discard = device_discard;
    c->d.base.combines_again = true;
    c->l = *l;
    fill_args(c);
    status = device_set_up(&c->d,
                           (struct device_kernel[]){
                               {dispatch_kernel(c, EPA_BF16),
                                l->fp8 ? dispatch_kernel(c, EPA_FP8_E4M3) : NULL, "dispatch"},
                               {v1_combine_kernel(l->f16, l->pull, c->d.stamps), NULL, "combine"}},
                           config->blocks, err);
    if (status == EPA_OK)
        status = device_make_mirrors(&c->d, l->heap_bytes, V1_MODES * V1_POSITIONS * l->size,
                                     v1_far(), err);
    return device_created(&c->d, status, out);
}
