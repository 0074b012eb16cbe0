/* ll_v1 on GPUs: the protocol, and what is queued for each stage.
 *
 * A dispatch is one kernel and a combine is one. What a kernel needs to know of the calls
 * before it, how many of its mode there were, it counts itself in device memory, so that a
 * graph of them can be launched again and again; from that it also takes its position, call
 * mod 2. Rows by expert, y and what combine needs of its dispatch are in sets, which the
 * host gives to dispatches in turn; a graph keeps those that it was recorded with.
 *
 * Splits, rows and expert outputs carry the count of their call (epa2a/packets.cuh), and BEGUN, a
 * signal that each rank gives all others as its combine starts, does so too. All are waited
 * for with >=. A rank stores into its peers' memory as soon as a kernel starts, without
 * asking. That is safe:
 *   - splits and rows of dispatch m go to position m mod 2 of p, which p read last in dispatch
 *     m - 2. Dispatch m - 1 has ended here: it waited for splits of p, which p sends when its
 *     m - 1 starts, after its m - 2 has ended.
 *   - expert outputs that combine m pushes go to position m mod 2 of p, which p read last in
 *     combine m - 2. Combine m - 1 has ended here: it waited for BEGUN of p, in the same way.
 *   - `starts` of a set, where expert outputs are pulled, are written at p once splits of dispatch
 *     m have arrived from p; and y of the set that it took is written after it has ended, which
 *     waited for splits m of every p: p has begun m, so it has ended the combine before that
 *     read them.
 * For this each dispatch waits for splits and each combine for BEGUN of all ranks, also of
 * those with which no row is exchanged. What comes is used up in the call in which it comes,
 * so two positions are enough whatever calls come in between, and however a graph repeats
 * them; a dispatch that is given up and a combine that is called again are calls like any
 * other.
 *
 * Ranks of other nodes (ll_v1_far.cu): each call is two kernels, that sends and that receives, with
 * a third between them. The first stores what is for such a rank p in a mirror of p's heap. The
 * third has it put to p, with a signal of the mode and position behind it, in a combine BEGUN
 * itself; then it waits for those of all such ranks. So splits and BEGUN of p say as much as above
 * and more: what p sent in the call is in place. A mirror is written again when the memory that it
 * mirrors may be: by then p has given a signal after the receiving kernel of the call that
 * filled it, so all of it has left. */
#include "ll_v1_cuda.h"

/* What a dispatch leaves for its combine. */
struct v1_cuda_set {
    uint32_t *place, *far_slice;
    struct v1_back *back;
};

struct v1_cuda {
    struct device d; /* first */
    struct v1_layout l;
    struct v1_args args; /* what is the same in all calls, beside those of d */
    struct v1_cuda_set set[2];
};

/* Offset of one of a region's buffers, from the start of any rank's heap. */
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

/* Half of the blocks send at most, the others are there to take in what comes meanwhile. A
 * block takes one token at a time where there are few, so that many send; with more it has
 * some eight chunks to take in turn, as each costs it a count of the choices in between. */
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
    if (a.senders < c->l.size) /* each may send a rank its splits */
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

/* Where there are other nodes in three kernels: what one sends leaves, and what the last receives
 * arrives, between them. */
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

    c->d.last.status = EPA_OK; /* of a call that was refused before */
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

/* Expert outputs that are elsewhere are brought to where peers pull them from. In a combine that
 * is called again peers may still pull those of the one before, which are the same. */
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

/* ---- what went wrong ---- */

/* What a kernel gave up waiting for, in the words of the host code. */
static void explain_fault(const struct epa_fault *f, uint32_t rank, struct epa_error *err)
{
    const char *stage = f->stage == V1_DISPATCH ? "dispatch/wait" : "combine/wait";
    double seconds = (double)f->waited_ns * 1e-9;
    unsigned long long call = f->wanted, seen = f->seen;
    enum epa_status status = (enum epa_status)f->status;

    if (f->what == V1_NO_ROOM)
        (void)epa_fail(err, EPA_ERR_CONFIG,
                       "dispatch: rank %u has %llu rows for rank %u, which has room for "
                       "%llu from each: raise algorithm.capacity, or set it to 0",
                       rank, seen, f->peer, call);
    else if (f->what == V1_WAIT_RING)
        device_explain_ring(f, stage, err);
    else if (f->what == V1_WAIT_ROW)
        (void)epa_fail(err, status,
                       "%s: call %llu, rank %u: waited %.3f s for row %u of its block, "
                       "which is of call %llu%s",
                       stage, call, f->peer, seconds, f->index, seen, device_missing(f));
    else if (f->what == V1_WAIT_OUTPUT)
        (void)epa_fail(err, status,
                       "%s: call %llu, rank %u: waited %.3f s for its expert output of "
                       "my token %u, which is of call %llu%s",
                       stage, call, f->peer, seconds, f->index, seen, device_missing(f));
    else
        (void)epa_fail(err, status, "%s: call %llu, rank %u: waited %.3f s for %s is %llu", stage,
                       call, f->peer, seconds,
                       f->what == V1_WAIT_SPLITS ? "its splits, whose call"
                       : f->what == V1_WAIT_FAR  ? "what it sends from another node, whose signal"
                                                 : "its signal that it has begun, which",
                       seen);
}

/* ---- set-up ----
 *
 * All that depends on the shape alone is settled here: what a kernel's shared memory holds, and
 * where things are in this rank's own device memory. */

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
            [V1_COMBINE * DEVICE_PHASES + V1_SEND_OUTPUTS] = "send_answers",
            [V1_COMBINE * DEVICE_PHASES + V1_WAIT_OUTPUTS] = "wait_answers",
            [V1_COMBINE * DEVICE_PHASES + V1_REDUCE] = "reduce",
        },
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
        /* Who sends has first [experts + 1], before and bits; who receives has less. */
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
