/* ll_v1 on GPUs: the protocol, and what is queued for each stage.
 *
 * A dispatch is one kernel and a combine is one. What a kernel needs to know of the calls
 * before it, how many of its mode there were, it counts itself in device memory, so that a
 * graph of them can be launched again and again; from that it also takes its position, call
 * mod 2. Rows by expert, y and what combine needs of its dispatch stand in sets, which the
 * host gives to dispatches in turn; a graph keeps those that it was recorded with.
 *
 * Splits, rows and expert outputs carry the count of their call (device/packets.cuh), and BEGUN, a
 * signal that each rank gives all others as its combine starts, does so too. All are waited
 * for with >=. A rank stores into its peers' memory as soon as a kernel starts, without
 * asking. That is safe:
 *   - splits and rows of dispatch m go to position m mod 2 of p, which p read last in dispatch
 *     m - 2. Dispatch m - 1 has ended here: it waited for splits of p, which p sends when its
 *     m - 1 starts, after its m - 2 has ended.
 *   - expert outputs that combine m pushes go to position m mod 2 of p, which p read last in combine
 *     m - 2. Combine m - 1 has ended here: it waited for BEGUN of p, in the same way.
 *   - `starts` of a set, where expert outputs are pulled, are written at p once splits of dispatch m
 *     have come from p; and y of the set that it took is written after it has ended, which
 *     waited for splits m of every p: p has begun m, so it has ended the combine before that
 *     read them.
 * For this each dispatch waits for splits and each combine for BEGUN of all ranks, also of
 * those with which no row is exchanged. What comes is used up in the call in which it comes,
 * so two positions are enough whatever calls come in between, and however a graph repeats
 * them; a dispatch that is given up and a combine that is called again are calls like any
 * other. */
#include "ll_v1_cuda_state.h"

/* ---- calls ---- */

static enum v1_input input_of(const struct v1_cuda *c, const struct epa_moe *m)
{
    if (!c->l.fp8)
        return V1_IN_DTYPE;
    return m->x_dtype == EPA_FP8_E4M3 ? V1_IN_FP8 : V1_IN_QUANTISE;
}

static struct v1_args args_of(const struct v1_cuda *c, const struct epa_moe *m,
                              uint32_t set)
{
    const struct v1_layout *l = &c->l;
    const struct v1_cuda_set *s = &c->set[set];
    struct v1_args a = c->args;

    a.tokens = m->tokens;
    a.recv = v1_cuda_region(c, &l->recv, set);
    a.recv_scales = v1_cuda_region(c, &l->recv_scales, set);
    a.origin = v1_cuda_region(c, &l->origin, set);
    a.y_space = v1_cuda_region(c, &l->y, set);
    a.starts = v1_cuda_region(c, &l->starts, set);
    a.x = m->x_dtype == EPA_FP8_E4M3 ? (const void *)m->x_fp8 : m->x;
    a.x_scale = m->x_scale;
    a.expert = m->expert;
    a.weight = m->weight;
    a.y = m->y;
    a.out = m->out;
    a.place = s->place;
    a.back = s->back;
    a.rows = s->rows;
    a.recv_count = s->recv_count;
    a.recv_start = s->recv_start;
    return a;
}

static enum epa_status launch(struct v1_cuda *c, const void *kernel, struct v1_args *a,
                              uint32_t blocks)
{
    a->calls = c->calls[a->mode];
    a->most_blocks = c->resident[a->mode];
    a->work_counters = c->work_counters[a->mode];
    return device_launch(&c->d, kernel, a,
                         (struct device_grid){.blocks = blocks,
                                              .threads = V1_THREADS,
                                              .shared_bytes = c->shared_bytes[a->mode]});
}

/* Half of the blocks send at most, the others are there to take in what comes meanwhile. A
 * block takes one token at a time where there are few, so that many send; with more it has
 * some eight chunks to take in turn, as each costs it a count of the choices in between. */
static enum epa_status launch_dispatch(struct v1_cuda *c, const struct epa_moe *m,
                                       uint32_t set)
{
    struct v1_args a = args_of(c, m, set);
    uint32_t room = c->resident[V1_DISPATCH], most = room > 1 ? room / 2 : 1, blocks;
    uint64_t comes = (uint64_t)c->l.max_tokens * c->l.topk * c->l.units;

    a.mode = V1_DISPATCH;
    a.chunk = m->tokens / (8 * most);
    a.chunk = a.chunk < 1 ? 1 : a.chunk > V1_MOST_CHUNK ? V1_MOST_CHUNK : a.chunk;
    a.senders = device_blocks_for(most, (m->tokens + a.chunk - 1) / a.chunk);
    if (a.senders < c->l.size) /* each may tell a rank its splits */
        a.senders = device_blocks_for(most, c->l.size);
    blocks = room > 1 ? a.senders + device_blocks_for(room - most, (comes + 3) / 4) : 1;
    return launch(c, v1_dispatch_kernel(input_of(c, m), c->l.f16, c->profile != NULL), &a,
                  blocks);
}

static enum epa_status launch_combine(struct v1_cuda *c, const struct epa_moe *m,
                                      uint32_t set)
{
    struct v1_args a = args_of(c, m, set);
    uint32_t room = c->resident[V1_COMBINE], most = room > 1 ? room / 2 : 1;
    uint64_t sums = (uint64_t)m->tokens * c->l.shares,
             blocks = device_blocks_for(room, sums);

    a.mode = V1_COMBINE;
    if (!c->l.pull) {
        a.senders = device_blocks_for(most, c->l.rows * c->l.pieces);
        blocks = room > 1 ? a.senders + device_blocks_for(room - most, sums) : 1;
    }
    return launch(c, v1_combine_kernel(c->l.f16, c->l.pull, c->profile != NULL), &a,
                  (uint32_t)blocks);
}

/* Where counts are is known; what they are is not, until the kernel has run. */
static void publish_views(const struct v1_cuda *c, uint32_t set, struct epa_moe *m)
{
    const struct v1_layout *l = &c->l;
    const struct v1_cuda_set *s = &c->set[set];

    m->epoch = c->sets.epoch;
    m->recv_rows = m->recv_entries = l->rows;
    m->recv_count = s->recv_count;
    m->recv_start = s->recv_start;
    m->recv_row = NULL;
    m->recv_weight = NULL;
    m->recv = device_own(&c->d, v1_cuda_region(c, &l->recv, set));
    m->recv_scale = NULL;
    if (l->fp8)
        m->recv_scale = (const float *)(const void *)device_own(
            &c->d, v1_cuda_region(c, &l->recv_scales, set));
    m->origin = (const struct epa_origin *)(const void *)device_own(
        &c->d, v1_cuda_region(c, &l->origin, set));
    m->recv_stride = l->row_bytes;
    m->scale_stride = l->scales_bytes;
    m->origin_stride = sizeof(struct epa_origin);
    m->y_space = device_own(&c->d, v1_cuda_region(c, &l->y, set));
}

/* ---- stages ---- */

/* The sets take turns, on all ranks alike; the next one must have been given back. */
static enum epa_status dispatch(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct v1_cuda *c = v1_cuda_of(a);
    struct epa_moe *m = &problem->u.moe;
    uint32_t set = (uint32_t)(c->sets.epoch % c->sets.n);

    c->d.last.status = EPA_OK; /* of a call that was refused before */
    if (c->sets.set[set].open)
        return device_fail(
            &c->d, EPA_ERR_CONFIG,
            "dispatch: dispatch %llu is open in the set whose turn it is, of %u that "
            "algorithm.buffers gives: combine that first",
            (unsigned long long)c->sets.set[set].epoch, c->sets.n);
    c->sets.set[set].open = true;
    c->sets.set[set].epoch = ++c->sets.epoch;
    publish_views(c, set, m);
    return launch_dispatch(c, m, set);
}

/* Expert outputs that stand elsewhere are brought to where peers pull them from. In a combine that
 * is called again peers may still pull those of the one before, which are the same. */
static enum epa_status copy_outputs(struct v1_cuda *c, const struct epa_moe *m,
                                    uint32_t set)
{
    void *y = device_own(&c->d, v1_cuda_region(c, &c->l.y, set));

    if (m->y == y || !c->l.pull)
        return EPA_OK;
    return device_copy(&c->d, "copying expert outputs", y, m->y, c->l.rows * c->l.output_bytes);
}

static enum epa_status combine(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct v1_cuda *c = v1_cuda_of(a);
    const struct epa_moe *m = &problem->u.moe;
    uint32_t set = 0;
    enum epa_status status;

    c->d.last.status = EPA_OK;
    status = device_find_set(&c->d, &c->sets, m->epoch, &set);
    if (status == EPA_OK)
        status = copy_outputs(c, m, set);
    if (status == EPA_OK)
        status = launch_combine(c, m, set);
    if (status == EPA_OK) {
        c->sets.combined = m->epoch;
        c->sets.set[set].open = false;
    }
    return status;
}

/* Nothing of it is wanted: no signal, no wait. */
enum epa_status v1_cuda_discard(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct v1_cuda *c = v1_cuda_of(a);
    uint64_t epoch = problem->u.moe.epoch;
    uint32_t set = (uint32_t)((epoch - 1) % c->sets.n);

    c->d.last.status = EPA_OK;
    if (epoch != c->sets.epoch || !c->sets.set[set].open)
        return device_fail(&c->d, EPA_ERR_CONFIG,
                           "dispatch %llu is not the last, or not open any more",
                           (unsigned long long)epoch);
    c->sets.set[set].open = false;
    return EPA_OK;
}

const struct epa_stage v1_cuda_stages[2] = {
    {.name = "dispatch", .kind = EPA_STAGE_DISPATCH, .run = dispatch},
    {.name = "combine", .kind = EPA_STAGE_COMBINE, .run = combine},
};

/* ---- what went wrong ---- */

/* What a kernel gave up waiting for, in the words of the host code. */
static void explain_fault(const struct epa_fault *f, uint32_t rank, struct epa_error *err)
{
    const char *stage = f->stage == V1_DISPATCH ? "dispatch, wait" : "combine, wait";
    double seconds = (double)f->waited_ns * 1e-9;
    unsigned long long call = f->wanted, seen = f->seen;
    enum epa_status status = (enum epa_status)f->status;

    if (f->what == V1_NO_ROOM)
        (void)epa_fail(err, EPA_ERR_CONFIG,
                       "dispatch: rank %u has %llu rows for rank %u, which has room for "
                       "%llu from each: raise algorithm.capacity, or set it to 0",
                       rank, seen, f->peer, call);
    else if (f->what == V1_WAIT_ROW)
        (void)epa_fail(err, status,
                       "%s: call %llu, rank %u: waited %.3f s for row %u of its block, "
                       "which is of call %llu%s",
                       stage, call, f->peer, seconds, f->index, seen, device_missing(f));
    else if (f->what == V1_WAIT_OUTPUT)
        (void)epa_fail(err, status,
                       "%s: call %llu, rank %u: waited %.3f s for its answer to my token "
                       "%u, which is of call %llu%s",
                       stage, call, f->peer, seconds, f->index, seen, device_missing(f));
    else
        (void)epa_fail(err, status, "%s: call %llu, rank %u: waited %.3f s for %s is %llu",
                       stage, call, f->peer, seconds,
                       f->what == V1_WAIT_SPLITS ? "its splits, whose call"
                                                 : "its signal that it has begun, which",
                       seen);
}

/* After a fault of its kernels nothing works any more; a call may have been refused before
 * it. */
void v1_cuda_explain(struct epa_algorithm *a, struct epa_error *err)
{
    const struct v1_cuda *c = v1_cuda_of(a);

    if (c->d.backend->fault.status != EPA_OK)
        explain_fault(&c->d.backend->fault, c->d.t->rank, err);
    else
        device_explain(&c->d, err);
}
