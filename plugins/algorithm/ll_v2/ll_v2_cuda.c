/* ll_v2 on GPUs: the protocol, and the kernel launches of each stage.
 *
 * A dispatch is one kernel, and a combine is one kernel (two each with split_phase: true). Kernels
 * count the earlier calls in device memory, so that a graph can be launched repeatedly. The host
 * alternates between the buffer sets, or with dedup takes the set of the last combine again; a graph
 * keeps the sets of its recording.
 *
 * Dispatches have the epochs 1, 2, 3..., and combines have their own epochs 1, 2, 3... Signals,
 * packets and lines (epa2a/packets.cuh) carry the epoch, and waits compare with >=. COUNT of a rank
 * denotes the packets with its counts and routes, or with few tokens its list of experts. A rank
 * stores into its peers' memory as soon as a kernel starts, without a handshake. Let p be a peer.
 * The stores are safe:
 *   - Rows, routes and counts of a dispatch m go to set s of p. p has finished the previous
 *     dispatch n of s. Either the combine of n has ended here: it waited for OUTPUT of p, which p
 *     sends after its experts have ended and its combine has started. Or n was discarded, and
 *     dispatch m - 1, in the other set, has ended here: it waited for COUNT of p, which p sends
 *     at the start of its dispatch m - 1, after its work with n. (Combine reads no routes:
 *     dispatch copies the data that combine needs.)
 *     Numbers of rows for a rank (row_order) follow the same rules as counts.
 *   - Rows from which combine computes expert outputs (fuse_expert: true), here or at the token's
 *     rank, are also written after that. A sender that stores rows at their final place first
 *     has COUNT m of all ranks, which have then ended combine n. Rows that arrive as lines are
 *     copied by their own rank, in its dispatch m.
 *   - y of the set of dispatch m is written after m has ended, which waited for COUNT m of every
 *     p. So p has entered m, and has pulled all its outputs from y before.
 *   - After a dispatch, pushed expert outputs go to the first of two regions. p last read the
 *     region in a combine before that dispatch. The dispatch has ended here, so p has entered
 *     it. A combine that follows a combine uses the other region, which p last read before the
 *     combine in between.
 * For this reason each dispatch waits for COUNT and each combine for OUTPUT of all ranks, including
 * ranks that exchange no row.
 *
 * Two sets let one dispatch run ahead: D1 D2 C1 D3 C2. One set suffices for D1 C1 D2 C2.
 *
 * Ranks of other nodes (ll_v2_far.cu): each call has a sending kernel, a kernel for puts, and a
 * receiving kernel. The first stores data for such a rank p in a mirror of p's heap. The second
 * puts the mirror to p in blocks, followed by COUNT or OUTPUT of this rank, and waits for the
 * signals of all such ranks. Signals of p then guarantee, in addition, that p's data of the call is
 * in place. A mirror is rewritten under the same condition as the memory that it mirrors: p has
 * then sent a signal after the receiving kernel of the call that filled the mirror, so the puts
 * from the mirror are complete. */
#include <cuda_runtime_api.h>

#include <stdlib.h>

#include <epa2a/packets.h>

#include "../../common/device_sets.h"
#include "ll_v2_cuda.h"

#include "ll_v2_combine_kernels.h"
#include "ll_v2_copy.h"
#include "ll_v2_device.h"
#include "ll_v2_dispatch.h"
#include "ll_v2_dispatch_copies.h"
#include "ll_v2_dispatch_few.h"
#include "ll_v2_dispatch_few_copies.h"
#include "ll_v2_dispatch_masked.h"
#include "ll_v2_empty.h"
#include "ll_v2_far.h"

/* Data of a dispatch that its combine needs. */
struct ll_set {
    uint32_t *recv_row, *wanted, *place;
    float *recv_weight;
    uint8_t *recv_k;
    struct ll_share *share;
    uint16_t *chosen;
    struct ll_order order;
};

/* The stage whose second half is outstanding. */
enum ll_half { LL_NO_HALF, LL_HALF_DISPATCH, LL_HALF_COMBINE };

struct ll_cuda {
    struct device d; /* first member */
    struct ll_layout l;
    struct ll_args args; /* arguments that all calls share, apart from the arguments in d */
    enum ll_mode mode;
    uint32_t outputs;              /* region to which the current or last combine pushes */
    bool dispatched;               /* true: a dispatch followed the last combine */
    unsigned long long last_graph; /* graph that recorded the last kernel; 0: none */
    cudaGraphNode_t last_node;     /* the last kernel in this graph */
    uint32_t last_stage;           /* stage of the last kernel: enum ll_cuda_stage */
    enum ll_half half;
    uint32_t last_set, next_set; /* set of the last and of the next dispatch */
    struct ll_loss *loss;        /* [2]: of each stage */
    struct ll_set set[2];
};

/* ---- calls ---- */

/* `copies`: makes the copies that set_copies() requests. */
static const void *dispatch_kernel(const struct ll_cuda *c, int x_dtype, bool copies)
{
    enum device_input in = device_input_of(c->l.fp8, c->l.dtype, x_dtype);

    if (c->l.masked)
        return ll_dispatch_masked_kernel(in);
    if (c->l.few)
        return copies ? ll_dispatch_few_copies_kernel(in, c->d.stamps)
                      : ll_dispatch_few_kernel(in, c->mode, c->d.stamps);
    return copies ? ll_dispatch_copies_kernel(in, c->d.stamps)
                  : ll_dispatch_kernel(in, c->mode, c->d.stamps);
}

static const void *combine_kernel(const struct ll_cuda *c)
{
    return ll_combine_kernel((struct ll_combine_kind){
        .mode = c->l.masked      ? LL_MASKED
                : c->l.by_choice ? LL_BY_CHOICE
                                 : c->mode,
        .from = !c->l.fused ? LL_FROM_Y
                : c->l.fp8  ? LL_FROM_CODES
                            : LL_FROM_ROWS,
        .f16 = c->l.dtype == EPA_F16,
        .fp8 = c->l.output_fp8,
        .pushed = c->l.pushes,
        .profile = c->d.stamps,
    });
}

static uint64_t y_offset(const struct ll_cuda *c, uint32_t set)
{
    return device_region(&c->d, c->l.y_at, c->l.y_bytes, set);
}

static struct ll_args args_of(const struct ll_cuda *c, const struct epa_moe *m,
                              enum ll_cuda_stage stage, uint32_t set, uint32_t halves)
{
    const struct ll_layout *l = &c->l;
    const struct ll_set *s = &c->set[set];
    struct ll_args a = c->args;

    a.c = device_args_of(&c->d, m, stage, set);
    a.halves = halves;
    a.counts = device_region(&c->d, l->counts_at, l->counts_bytes, set);
    a.routes = device_region(&c->d, l->routes_at, l->routes_bytes, set);
    a.totals = device_region(&c->d, l->totals_at, l->totals_bytes, set);
    a.arrival = device_region(&c->d, l->arrival_at, l->arrival_bytes, set);
    a.recv = device_region(&c->d, l->recv_at, l->recv_bytes, set);
    a.y_space = y_offset(c, set);
    a.outputs = device_region(&c->d, l->outputs_at, l->outputs_bytes, c->outputs);
    if (l->fused) { /* combine computes expert outputs from received rows */
        a.y_space = a.recv;
        a.c.y = device_own(&c->d, a.recv);
    }
    a.wanted = s->wanted;
    a.share = s->share;
    a.chosen = s->chosen;
    a.place = s->place;
    a.recv_row = s->recv_row;
    a.recv_weight = s->recv_weight;
    a.recv_k = s->recv_k;
    a.order = s->order;
    a.loss = c->loss + stage;
    return a;
}

/* Sets the copies that the caller requested from a dispatch. */
static void set_copies(const struct epa_moe *m, struct ll_args *a)
{
    const struct epa_choices_copy *keep = m->keep;
    const struct epa_delivery *into = m->into;

    for (int i = 0; i < 2 && keep != NULL; i++) {
        a->kept.expert[i] = keep->to_expert[i];
        a->kept.weight[i] = keep->to_weight[i];
    }
    if (into == NULL)
        return;
    a->into = (struct ll_into){.x = into->x,
                               .scales = into->x_scale,
                               .scale_rows = (uint32_t)into->scale_rows,
                               .words = into->exponents ? (into->groups + 3) / 4 : into->groups,
                               .exponents = into->exponents,
                               .count = into->count,
                               .start = into->start,
                               .token = into->source_token,
                               .seen = into->seen,
                               .range = into->source_range};
}

/* Returns the graph that the stream records; 0: none. *after is the only node of the graph that the
 * next kernel will depend on; NULL: several nodes, or none. */
static unsigned long long find_capture(const struct ll_cuda *c, cudaGraphNode_t *after)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaGraphEdgeData *edge = NULL;
    const cudaGraphNode_t *node = NULL;
    unsigned long long graph = 0;
    size_t n = 0;

    *after = NULL;
    if (cudaStreamGetCaptureInfo(c->d.backend->stream, &status, &graph, NULL, &node, &edge, &n) !=
        cudaSuccess) {
        (void)cudaGetLastError(); /* the default stream, while another one records */
        return 0;
    }
    if (status != cudaStreamCaptureStatusActive)
        return 0;
    if (n == 1 && (edge == NULL || edge->type == cudaGraphDependencyTypeDefault))
        *after = node[0];
    return graph;
}

/* Returns true if the previous kernel is of this object and counts calls of another kind. In a graph
 * of the program, the previous kernel is known. In a graph of an application other kernels may run in
 * between, so the previous node must be the last kernel. Outside a graph, or as the first kernel of a
 * graph, the previous kernel may belong to a graph that was launched in between. */
static bool counts_early(const struct ll_cuda *c, uint32_t stage, unsigned long long graph,
                         cudaGraphNode_t after)
{
    if (graph == 0 || c->last_graph != graph || c->last_stage == stage)
        return false;
    return !c->d.backend->shares_stream || (after != NULL && after == c->last_node);
}

static enum epa_status launch(struct ll_cuda *c, const void *kernel, struct ll_args *a,
                              uint32_t blocks)
{
    cudaGraphNode_t node;
    unsigned long long graph = find_capture(c, &node);
    enum epa_status status;

    a->counts_early = counts_early(c, a->c.stage, graph, node);
    status = device_launch(&c->d, kernel, &a->c, blocks, false);
    if (graph != 0)
        (void)find_capture(c, &c->last_node);
    c->last_graph = graph;
    c->last_stage = a->c.stage;
    return status;
}

/* Returns the number of counting blocks: one per part of each rank's experts, at most a quarter of
 * `room`. */
static uint32_t publishers_for(const struct ll_cuda *c, uint32_t room)
{
    uint32_t all = c->l.few ? 1 : c->l.size * c->args.publish_parts;

    return all <= room / 4 ? all : room / 4 == 0 ? 1 : room / 4;
}

/* Few tokens: number of units of work of a block, one for each scheduler of a multiprocessor. More
 * blocks with fewer units take longer to start and to end. */
enum { FEW_UNITS = 4 };

static enum epa_status launch_dispatch_half(struct ll_cuda *c, const struct epa_moe *m,
                                            uint32_t set, uint32_t halves)
{
    struct ll_args a = args_of(c, m, LL_DISPATCH, set, halves);
    uint32_t room = c->d.resident[LL_DISPATCH], blocks, send = 0;
    uint64_t sends = (uint64_t)m->tokens * c->l.row_signals;
    uint64_t receives = (uint64_t)c->l.size * c->l.max_tokens;

    set_copies(m, &a);
    if (c->mode == LL_DEDUP || c->l.few)
        receives *= c->l.units;
    if (c->l.few)
        sends = (sends + FEW_UNITS - 1) / FEW_UNITS;
    if (c->mode == LL_ORDERED) /* a warp for each part of a row */
        receives = (receives * c->l.row_signals + 1) / 2;
    a.publishers = publishers_for(c, room / 2);
    blocks = device_blocks_for(room, halves == LL_SEND ? sends + a.publishers : (receives + 3) / 4);
    if (halves == (LL_SEND | LL_RECEIVE) && room > 1) {
        /* The first blocks count and the next ones send: half of all blocks. If warps send whole
         * rows, only a quarter, so that the last rows do not end long after the others. With dedup
         * half of all blocks, which then help to receive. */
        bool quarter = c->l.row_signals < c->l.units && c->mode != LL_DEDUP;

        send = device_blocks_for(quarter ? room / 4 : room / 2, sends + a.publishers);
        blocks = send + device_blocks_for(room - room / 2, (receives + 3) / 4);
    }
    a.receivers_from = send;
    return launch(c, dispatch_kernel(c, m->x_dtype, m->keep != NULL || m->into != NULL), &a,
                  room > 1 ? blocks : 1);
}

enum { MANY_TURNS = 4 }; /* shares per warp with which combine has more senders than receivers */

static enum epa_status launch_combine_half(struct ll_cuda *c, const struct epa_moe *m, uint32_t set,
                                           uint32_t halves)
{
    struct ll_args a = args_of(c, m, LL_COMBINE, set, halves);
    uint64_t receives = (uint64_t)m->tokens * c->l.shares * (c->l.output_fp8 ? 2 : 1);
    uint64_t sends = (uint64_t)c->l.size * c->l.max_tokens * c->l.shares;
    uint32_t room = c->d.resident[LL_COMBINE], blocks;
    uint64_t warps = (uint64_t)room * DEVICE_WARPS;

    if (c->l.few) {
        receives = (receives + FEW_UNITS - 1) / FEW_UNITS;
        sends = (sends + FEW_UNITS - 1) / FEW_UNITS;
    }
    blocks = device_blocks_for(room, c->l.pushes && sends > receives ? sends : receives);
    if (c->l.pushes && halves == (LL_SEND | LL_RECEIVE) && room > 1) {
        /* With many tokens, sums at the experts' ranks take longer than sums of tokens. */
        bool many = c->mode == LL_DEDUP && !c->l.output_fp8 && sends >= MANY_TURNS * warps;
        uint32_t most = many ? room * 5 / 8 : room / 2;

        a.receivers_from = device_blocks_for(most, sends);
        blocks = a.receivers_from + device_blocks_for(room - most, receives);
    }
    return launch(c, combine_kernel(c), &a, blocks);
}

/* Launches a stage. With other nodes, up to three kernels: one sends, one puts data to other nodes
 * and waits for their data, one receives. */
static enum epa_status launch_stage(struct ll_cuda *c, const struct epa_moe *m,
                                    enum ll_cuda_stage stage, uint32_t set, uint32_t halves)
{
    enum epa_status (*launch_half)(struct ll_cuda *, const struct epa_moe *, uint32_t, uint32_t) =
        stage == LL_DISPATCH ? launch_dispatch_half : launch_combine_half;
    enum epa_status status = EPA_OK;
    struct ll_far_args far;

    if (c->d.mirrors == NULL)
        return launch_half(c, m, set, halves);
    far = (struct ll_far_args){.a = args_of(c, m, stage, set, halves),
                               .v = *c->d.t->view,
                               .ring = *c->d.t->ring,
                               .arrives = c->mode == LL_DEDUP};
    if ((halves & LL_SEND) != 0)
        status = launch_half(c, m, set, LL_SEND);
    if (status == EPA_OK)
        status = device_launch_far(&c->d, &far);
    if (status == EPA_OK && (halves & LL_RECEIVE) != 0)
        status = launch_half(c, m, set, LL_RECEIVE);
    return status;
}

/* row_order: publishes the copies of the rows. */
static void publish_order(const struct ll_layout *l, const struct ll_order *o, struct epa_moe *m)
{
    m->recv = o->rows;
    m->recv_scale = l->fp8 ? o->scales : NULL;
    m->origin = o->origin;
    m->recv_stride = l->token_bytes;
    m->scale_stride = l->fp8 ? l->hidden / l->group * sizeof(float) : 0;
    m->origin_stride = sizeof(*o->origin);
    m->recv_local = o->expert;
    m->recv_local_weight = o->weight;
    m->recv_range = o->range;
}

static void publish_views(const struct ll_cuda *c, uint32_t set, struct epa_moe *m)
{
    const struct ll_layout *l = &c->l;
    const char *recv = device_own(&c->d, device_region(&c->d, l->recv_at, l->recv_bytes, set));

    m->recv_entries = l->entries;
    m->recv_rows = l->rows;
    m->recv_row = l->by_rank ? c->set[set].recv_row : NULL;
    m->recv_weight = l->by_rank ? c->set[set].recv_weight : NULL;
    m->recv_k = l->by_rank ? c->set[set].recv_k : NULL;
    m->recv_local = NULL;
    m->recv_local_weight = NULL;
    m->recv_range = NULL;
    if (c->mode == LL_ORDERED)
        publish_order(l, &c->set[set].order, m);
    else
        epa_publish_messages(m, recv, l->token_at, l->fp8, l->scales_at, l->meta_at,
                             l->message_bytes);
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
        return device_fail(&c->d, EPA_ERR_CONFIG, call,
                           "the second half of a %s must be called first", stage[c->half]);
    return device_fail(&c->d, EPA_ERR_CONFIG, call, "%s_send must be called first", stage[wanted]);
}

/* Returns true if a dispatch takes the set of the last combine. The set is then in L2 where a pair
 * with the sets in turn would exceed L2. Only with dedup: rows of the next dispatch arrive as packets,
 * so views do not change before this rank makes the next dispatch itself. A rank that has lost another
 * one (masks) relies on sets in turn. */
static bool uses_set_again(const struct ll_cuda *c)
{
    return c->mode == LL_DEDUP && !c->l.masked;
}

static enum epa_status send_dispatch(struct ll_cuda *c, struct epa_moe *m, uint32_t halves)
{
    uint32_t set = c->next_set;
    enum epa_status status;

    c->d.last.status = EPA_OK; /* drop the error of an earlier rejected call */
    status = check_half(c, "dispatch", LL_NO_HALF);
    if (status == EPA_OK)
        status = device_open_set_at(&c->d, set, "dispatch", m);
    if (status != EPA_OK)
        return status;
    c->last_set = set;
    c->next_set = c->d.sets - 1 - set; /* also after a discard of this dispatch */
    c->dispatched = true;
    c->half = halves == LL_SEND ? LL_HALF_DISPATCH : LL_NO_HALF;
    publish_views(c, set, m);
    return launch_stage(c, m, LL_DISPATCH, set, halves);
}

static enum epa_status run_dispatch(struct epa_algorithm *a, struct epa_problem *problem)
{
    return send_dispatch((struct ll_cuda *)a, &problem->u.moe, LL_SEND | LL_RECEIVE);
}

static enum epa_status run_dispatch_send(struct epa_algorithm *a, struct epa_problem *problem)
{
    return send_dispatch((struct ll_cuda *)a, &problem->u.moe, LL_SEND);
}

static enum epa_status run_dispatch_recv(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct ll_cuda *c = (struct ll_cuda *)a;
    const struct epa_moe *m = &problem->u.moe;
    enum epa_status status;

    c->d.last.status = EPA_OK;
    status = check_half(c, "dispatch_recv", LL_HALF_DISPATCH);
    if (status != EPA_OK)
        return status;
    if (m->epoch != c->d.epoch)
        return device_fail(&c->d, EPA_ERR_CONFIG, "dispatch_recv",
                           "the last dispatch_send was of dispatch %llu, not %llu",
                           (unsigned long long)c->d.epoch, (unsigned long long)m->epoch);
    c->half = LL_NO_HALF;
    return launch_stage(c, m, LL_DISPATCH, c->last_set, LL_RECEIVE);
}

/* Copies expert outputs to the heap, from which other ranks pull them. */
static enum epa_status copy_outputs(struct ll_cuda *c, uint32_t set, const void *y)
{
    const struct ll_layout *l = &c->l;
    const struct ll_copy_args args = {.range = c->set[set].order.range,
                                      .from = y,
                                      .to = device_own(&c->d, y_offset(c, set)),
                                      .size = l->size,
                                      .max_tokens = l->max_tokens,
                                      .row_bytes = (uint32_t)l->output_bytes};
    int code;

    if (c->mode != LL_ORDERED)
        return device_copy_outputs(&c->d, y_offset(c, set), y, l->rows * l->output_bytes);
    if (y == args.to)
        return EPA_OK;
    code = cudaSetDevice(c->d.backend->device);
    if (code == cudaSuccess)
        code = ll_copy_rows(&args, c->d.backend->multiprocessors, c->d.backend->stream);
    return code == cudaSuccess ? EPA_OK : device_call_failed(&c->d, "copying expert outputs", code);
}

static enum epa_status combine_half(struct epa_algorithm *a, struct epa_problem *problem,
                                    uint32_t halves)
{
    struct ll_cuda *c = (struct ll_cuda *)a;
    const struct epa_moe *m = &problem->u.moe;
    uint32_t set = 0;
    bool second = halves == LL_RECEIVE;
    enum epa_status status;

    c->d.last.status = EPA_OK;
    status = device_find_set(&c->d, m->epoch, &set);
    if (status == EPA_OK)
        status = second ? check_half(c, "combine_recv", LL_HALF_COMBINE)
                        : check_half(c, "combine", LL_NO_HALF);
    if (status != EPA_OK)
        return status;
    if ((halves & LL_SEND) != 0) {
        c->outputs = c->dispatched ? 0 : 1 - c->outputs;
        c->dispatched = false;
        c->half = halves == LL_SEND ? LL_HALF_COMBINE : LL_NO_HALF;
        /* In a repeated combine, peers may still pull the outputs of the previous one, which are
         * equal. */
        if (!c->l.fused && !c->l.pushes)
            status = copy_outputs(c, set, m->y);
    }
    if (status == EPA_OK)
        status = launch_stage(c, m, LL_COMBINE, set, halves);
    if (status == EPA_OK && (halves & LL_RECEIVE) != 0) {
        c->half = LL_NO_HALF;
        device_close_set(&c->d, set);
        if (uses_set_again(c))
            c->next_set = set;
    }
    return status;
}

static enum epa_status run_combine(struct epa_algorithm *a, struct epa_problem *problem)
{
    return combine_half(a, problem, LL_SEND | LL_RECEIVE);
}

static enum epa_status run_combine_send(struct epa_algorithm *a, struct epa_problem *problem)
{
    return combine_half(a, problem, LL_SEND);
}

static enum epa_status run_combine_recv(struct epa_algorithm *a, struct epa_problem *problem)
{
    return combine_half(a, problem, LL_RECEIVE);
}

static enum epa_status discard_dispatch(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct ll_cuda *c = (struct ll_cuda *)a;
    enum epa_status status = check_half(c, "discard", LL_NO_HALF);

    return status == EPA_OK ? device_discard(a, problem) : status;
}

static const struct epa_stage whole_stages[] = {
    {.name = "dispatch", .kind = EPA_STAGE_DISPATCH, .run = run_dispatch},
    {.name = "combine", .kind = EPA_STAGE_COMBINE, .run = run_combine},
};

static const struct epa_stage split_stages[] = {
    {.name = "dispatch_send", .kind = EPA_STAGE_SEND, .run = run_dispatch_send},
    {.name = "dispatch_recv", .kind = EPA_STAGE_DISPATCH, .run = run_dispatch_recv},
    {.name = "combine_send", .kind = EPA_STAGE_SEND, .run = run_combine_send},
    {.name = "combine_recv", .kind = EPA_STAGE_COMBINE, .run = run_combine_recv},
};

/* ---- failures ---- */

/* Explains the wait that a kernel gave up, with the messages of the host code. */
static void explain_fault(const struct epa_fault *f, uint32_t rank, struct epa_error *err)
{
    bool dispatch = f->stage == LL_DISPATCH;
    const char *stage = dispatch ? "dispatch" : "combine";
    const char *phase = dispatch ? "wait" : "recv_wait";
    double waited = (double)f->waited_ns * 1e-9;
    unsigned long long seen = f->seen, wanted = f->wanted;
    enum epa_status status = (enum epa_status)f->status;

    (void)rank;
    if (f->what == LL_WAIT_ROOM)
        (void)epa_fail_stage(err, EPA_ERR_CONFIG, "algorithm.capacity", "dispatch", "",
                             "%llu rows arrived, but algorithm.capacity allows %llu; raise it, or "
                             "set it to 0 for the worst case",
                             seen, wanted);
    else if (f->what == LL_WAIT_RING)
        device_explain_ring(f, stage, "", err);
    else if (f->what == LL_WAIT_ENTRY)
        (void)epa_fail_stage(err, status, "", "dispatch", "wait",
                             "waited %.3f s for the row of entry %u: its signal is %llu, not %llu",
                             waited, f->index, seen, wanted);
    else if (f->what == LL_DATA)
        (void)epa_fail_stage(epa_awaits(err, f->peer), status, "", stage, phase,
                             "waited %.3f s for %s of rank %u %s token %u: its signal is %llu, "
                             "not %llu%s",
                             waited, dispatch ? "the row" : "the expert output", f->peer,
                             dispatch ? "for its" : "for", f->index, seen, wanted,
                             device_missing(f));
    else
        (void)epa_fail_stage(epa_awaits(err, f->peer), status, "", stage, phase,
                             "epoch %llu, %s of rank %u: waited %.3f s for its signal, which is "
                             "%llu",
                             wanted, f->what == LL_COUNT ? "counts" : "expert outputs", f->peer,
                             waited, seen);
}

/* ---- set-up ----
 *
 * Set-up fixes all values that depend only on the shape: the layout of a kernel's shared memory and
 * of this rank's own device memory. */

/* Returns the number of parts of a rank's experts. Multiprocessors have equal shares of the links,
 * so with many tokens several multiprocessors have to send the routes. */
static uint32_t parts_of(const struct ll_layout *l)
{
    return (uint64_t)l->max_tokens * l->topk <= 2 * LL_WINDOW || l->local < 4 ? 1 : 4;
}

/* Returns the number of experts of a part. */
static uint32_t experts_of(const struct ll_layout *l)
{
    return (l->local + parts_of(l) - 1) / parts_of(l);
}

/* Returns the number of windows that a block counts at a time. Limits are the choices that threads
 * hold and 46 KiB of shared memory for marks. */
static uint32_t words_of(const struct ll_layout *l)
{
    uint32_t fit = 46 * 1024 / (4 * (experts_of(l) + 1)) - 1;
    uint32_t held = LL_WINDOW / l->topk / LL_WINDOW_TOKENS;

    held = held < fit ? held : fit;
    return held < 8 ? held : 8;
}

static enum ll_mode mode_of(const struct ll_layout *l)
{
    if (l->by_rank)
        return l->order == EPA_ROWS_ANY ? LL_BY_RANK : LL_ORDERED;
    return l->dedup ? LL_DEDUP : LL_DIRECT;
}

/* Returns the bytes of tables by expert: marks and counts of a counting block, or cells and their
 * starts. */
static uint32_t table_bytes(const struct ll_cuda *c)
{
    const struct ll_layout *l = &c->l;
    uint32_t marks = 4 * (experts_of(l) + c->args.words * (experts_of(l) + 1));
    uint32_t tables = 4 * ((l->few ? 3 : 2) * l->experts + 2 * EPA_DEVICE_RANKS);

    return device_up16(marks > tables ? marks : tables);
}

static void place_order(const struct ll_layout *l, char *memory, uint64_t *at, struct ll_order *o)
{
    uint64_t slots = (uint64_t)l->size * l->max_tokens, choices = slots * l->topk;
    uint64_t groups = l->fp8 ? l->hidden / l->group : 0;
    uint64_t ranks = l->pushes ? 0 : l->size;

    o->rows = device_take(memory, at, slots * l->token_bytes);
    o->scales = device_take(memory, at, slots * groups * sizeof(*o->scales));
    o->origin = device_take(memory, at, slots * sizeof(*o->origin));
    o->expert = device_take(memory, at, choices * sizeof(*o->expert));
    o->weight = device_take(memory, at, choices * sizeof(*o->weight));
    o->range = device_take(memory, at, l->size * sizeof(*o->range));
    o->row = device_take(memory, at, slots * sizeof(*o->row));
    o->sent = device_take(memory, at, ranks * l->windows * sizeof(*o->sent));
    o->base = device_take(memory, at, ranks * sizeof(*o->base));
    o->sent = ranks != 0 ? o->sent : NULL;
    o->base = ranks != 0 ? o->base : NULL;
}

static void place_sets(struct device *d, char *memory, uint64_t *at)
{
    struct ll_cuda *c = (struct ll_cuda *)d;
    const struct ll_layout *l = &c->l;
    uint64_t slots = (uint64_t)l->size * l->max_tokens;
    uint64_t choices = (uint64_t)l->max_tokens * l->topk;
    uint64_t entries = c->mode == LL_DEDUP ? 0 : l->entries;
    uint64_t weights = l->by_rank ? l->entries : 0;
    uint64_t shares = c->mode == LL_DEDUP ? slots * l->topk : 0;
    uint64_t chosen = !l->fused ? 0 : c->mode == LL_DEDUP ? shares : l->pushes ? entries : 0;

    c->loss = device_take(memory, at, l->masked ? 2 * sizeof(*c->loss) : 0);
    for (uint32_t i = 0; i < l->buffers; i++) {
        struct ll_set *s = &c->set[i];

        s->recv_row = device_take(memory, at, entries * sizeof(*s->recv_row));
        s->recv_weight = device_take(memory, at, weights * sizeof(*s->recv_weight));
        s->recv_k = device_take(memory, at, weights * sizeof(*s->recv_k));
        s->wanted = device_take(memory, at, slots * sizeof(*s->wanted));
        s->share = device_take(memory, at, shares * sizeof(*s->share));
        s->chosen = device_take(memory, at, chosen * sizeof(*s->chosen));
        s->chosen = chosen != 0 ? s->chosen : NULL;
        s->place = device_take(memory, at, choices * sizeof(*s->place));
        if (c->mode == LL_ORDERED)
            place_order(l, memory, at, &s->order);
    }
}

/* Without row_order a slot belongs to one token of one rank forever, so set-up writes its META. Mirrors
 * need META, too, since slots of this rank's tokens are put whole. */
static enum epa_status write_origins(struct ll_cuda *c, uint32_t set, struct epa_error *err)
{
    const struct ll_layout *l = &c->l;
    uint32_t slots = l->size * l->max_tokens;
    uint64_t at = device_region(&c->d, l->recv_at, l->recv_bytes, set) + l->meta_at;
    struct ll_meta *meta = calloc(slots, sizeof(*meta));
    cudaError_t code = cudaSuccess;

    if (meta == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "ll_v2: no memory for %u origins", slots);
    for (uint32_t i = 0; i < slots; i++)
        meta[i].origin = (struct epa_origin){i / l->max_tokens, i % l->max_tokens};
    for (uint32_t r = 0; r < l->size && code == cudaSuccess; r++)
        if (r == c->d.t->rank || (c->args.far >> r & 1) != 0)
            code = cudaMemcpy2DAsync(c->d.args.v.peer_heap[r] + at, l->message_bytes, meta,
                                     sizeof(*meta), sizeof(*meta), slots, cudaMemcpyHostToDevice,
                                     c->d.backend->stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(c->d.backend->stream);
    free(meta);
    if (code != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "ll_v2: writing origins on GPU %d: %s",
                        c->d.backend->device, cudaGetErrorString(code));
    return EPA_OK;
}

/* Finds out whether the masks are in memory of the GPU. */
static enum epa_status find_masks(struct ll_cuda *c, uint64_t address, struct epa_error *err)
{
    int32_t *masks = (int32_t *)(uintptr_t)address; // NOLINT(performance-no-int-to-ptr)
    struct cudaPointerAttributes attributes = {0};
    cudaError_t code;

    if (address == 0)
        return EPA_OK;
    code = cudaPointerGetAttributes(&attributes, masks);
    if (code != cudaSuccess)
        (void)cudaGetLastError();
    if (code != cudaSuccess || attributes.type != cudaMemoryTypeDevice ||
        attributes.device != c->d.backend->device || address % sizeof(*masks) != 0)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "algorithm.masks",
            "ll_v2: masks is %#llx, but must be the address of an array of int32 in "
            "memory of GPU %d",
            (unsigned long long)address, c->d.backend->device);
    c->args.masks = masks;
    return EPA_OK;
}

/* A kernel that is loaded at its first launch could wait for kernels that wait for this rank. */
static enum epa_status load_copy(const struct ll_cuda *c, struct epa_error *err)
{
    int code = ll_copy_load();

    if (code == cudaSuccess)
        return EPA_OK;
    return epa_fail(err, EPA_ERR_SYSTEM, "ll_v2: loading a kernel on GPU %d: %s",
                    c->d.backend->device, cudaGetErrorString(code));
}

/* Loads a kernel that makes copies, and limits the blocks of dispatch to those that this kernel
 * can have resident together. */
static enum epa_status load_copies(struct ll_cuda *c, int x_dtype, struct epa_error *err)
{
    struct device_code code = {dispatch_kernel(c, x_dtype, true), "dispatch", DEVICE_THREADS,
                               c->d.shared_bytes[LL_DISPATCH]};
    uint32_t per = 0, most;
    enum epa_status status = device_load_kernel("ll_v2", c->d.backend, &code, &per, err);

    most = device_waiting_blocks(c->d.backend, per);
    if (status == EPA_OK && c->d.resident[LL_DISPATCH] > most)
        c->d.resident[LL_DISPATCH] = most;
    return status;
}

static const struct device_kind ll_v2_kind = {
    .name = "ll_v2",
    .stages = 2,
    .halves = 1,
    .phase =
        {
            [LL_QUANT_AND_PUT] = "quant_and_put",
            [LL_COUNT_PUT] = "count_put",
            [LL_WAIT] = "wait",
            [LL_POSTPROCESS] = "postprocess",
            [LL_COMBINE * DEVICE_PHASES + LL_COPY_AND_PUT] = "copy_and_put",
            [LL_COMBINE * DEVICE_PHASES + LL_RECV_WAIT] = "recv_wait",
            [LL_COMBINE * DEVICE_PHASES + LL_TOPK_REDUCE] = "topk_reduce",
        },
    .empty = ll_empty_kernel,
    .place = place_sets,
    .explain = explain_fault,
};

/* Number of loads of a payload of few tokens before a wait with a time limit: about 20 us. */
enum { TRIES = 50 };

static void fill_args(struct ll_cuda *c)
{
    const struct ll_layout *l = &c->l;

    c->args = (struct ll_args){
        .places = l->places,
        .units = l->units,
        .unit_channels = l->unit_channels,
        .shares = l->shares,
        .share_channels = l->share_channels,
        .row_signals = l->row_signals,
        .padded = l->padded,
        .gaps = l->order == EPA_ROWS_PADDED,
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
        .list_packets = l->list_packets,
        .tries = l->few ? TRIES : 0,
        .alive = l->alive_at,
    };
    c->args.payloads = table_bytes(c);
    c->args.payload = device_up16(l->unit_bytes);
    /* A payload buffer per warp follows the tables. */
    c->d.shared_bytes[LL_DISPATCH] =
        c->args.payloads + (c->mode == LL_DEDUP || l->few ? DEVICE_WARPS * c->args.payload : 0);
}

uint64_t ll_cuda_bytes(const struct ll_layout *l)
{
    struct ll_cuda c = {
        .d = {.kind = &ll_v2_kind, .sets = l->buffers}, .l = *l, .mode = mode_of(l)};

    c.d.args.local = l->local;
    return device_scratch_bytes(&c.d);
}

enum epa_status ll_cuda_create(const struct epa_algorithm_params *p, const struct ll_layout *l,
                               struct epa_algorithm **out, struct epa_error *err)
{
    const struct ll_config *config = p->config;
    bool splits = config->split_phase;
    struct ll_cuda *c;
    enum epa_status status =
        device_create(&ll_v2_kind, sizeof(*c), p, l->heap_bytes, l->buffers, config->pdl, &c, err);

    if (status != EPA_OK)
        return status;
    c->d.base.stages = splits ? split_stages : whole_stages;
    c->d.base.n_stages = splits ? 4 : 2;
    c->d.base.discard = l->buffers > 1 ? discard_dispatch : NULL;
    c->d.base.combines_again = true;
    c->l = *l;
    c->mode = mode_of(l);
    fill_args(c);
    status = find_masks(c, config->masks, err);
    if (status != EPA_OK)
        return device_created(&c->d, status, out);
    status =
        device_set_up(&c->d,
                      (struct device_kernel[]){
                          {dispatch_kernel(c, l->dtype, false),
                           l->fp8 ? dispatch_kernel(c, EPA_FP8_E4M3, false) : NULL, "dispatch"},
                          {combine_kernel(c), NULL, "combine"}},
                      config->blocks, err);
    if (status == EPA_OK && c->mode == LL_ORDERED && !l->pushes)
        status = load_copy(c, err);
    for (int i = 0; i < 2 && c->mode == LL_DEDUP && (i == 0 || l->fp8) && status == EPA_OK; i++)
        status = load_copies(c, i == 0 ? l->dtype : EPA_FP8_E4M3, err);
    if (status == EPA_OK)
        status = device_make_mirrors(&c->d, l->heap_bytes, l->signals, ll_far(), err);
    for (uint32_t r = 0; r < l->size; r++)
        c->args.far |= p->transport->view->peer_heap[r] == NULL ? 1u << r : 0;
    for (uint32_t i = 0; i < l->buffers && c->mode == LL_BY_RANK && status == EPA_OK; i++)
        status = write_origins(c, i, err);
    return device_created(&c->d, status, out);
}
