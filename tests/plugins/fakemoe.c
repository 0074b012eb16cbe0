/* plainmoe for fakegpu: an algorithm with graphs whose kernels are functions of the host. `whole`
 * makes dispatch, experts and combine one stage, which also runs on the host.
 *
 * Kernels count their calls in their own memory, since a repeated launch must continue counting.
 * The buffer set of a call is fixed when it is queued; a kernel that finds the wrong set fails. */
#include "fakegpu.h"
#include <epa2a/algorithm.h>

#define epa_plugin plainmoe
#include "plainmoe.c"
#undef epa_plugin

enum fakemoe_stage { DISPATCH, COMBINE };
enum { WRONG_SET = 1, NO_SIGNAL };

struct config {
    bool split, discard, again, in_place, fused, whole;
    uint32_t spoil, hang;
    uint64_t scratch;
};

struct fakemoe {
    struct epa_algorithm base; /* first member */
    struct config config;
    struct plain *plain; /* its epoch: dispatches that kernels have begun */
    struct epa_backend *backend;
    uint64_t combines;          /* combines that kernels have ended */
    uint64_t ends[2][EPA_ENDS]; /* times of the last ends of dispatches and combines, by number */
    /* Counters of the host: queued calls, and dispatches without a combine. */
    uint64_t queued_dispatches, queued_combines;
    uint32_t open;
};

/* Parameters of a kernel. */
struct call {
    struct fakemoe *a;
    struct epa_moe moe; /* in a combine, the epoch identifies the dispatch */
    uint32_t set;       /* buffer set of the dispatch, or of the combine */
    bool keeps_end;
};

/* ---- kernels ---- */

static enum epa_status give_up(struct fakemoe *a, enum epa_status status, uint32_t stage,
                               uint32_t what, uint32_t peer, uint64_t seen, uint64_t wanted)
{
    struct epa_fault *fault =
        a->backend->stream != NULL ? a->backend->device_fault : &a->backend->fault;

    if (status != EPA_ERR_ABORTED && fault->claimed == 0)
        *fault = (struct epa_fault){.claimed = 1,
                                    .status = status,
                                    .stage = stage,
                                    .what = what,
                                    .peer = peer,
                                    .seen = seen,
                                    .wanted = wanted,
                                    .waited_ns = a->plain->timeout_ns};
    return status;
}

/* Waits until all ranks have reached call `n` of the stage. */
static enum epa_status wait_for_ranks(struct fakemoe *a, uint32_t stage, uint64_t n)
{
    struct plain *p = a->plain;
    enum epa_status status = wait_all(p, stage == DISPATCH ? ROWS : OUTPUTS, n);

    for (uint32_t r = 0; r < p->s.size && status != EPA_OK; r++) {
        uint64_t seen = p->t->ops->read(p->t, p->signal + stage * p->s.size + r);

        if (r != p->world.rank && seen < n)
            return give_up(a, status, stage, NO_SIGNAL, r, seen, n);
    }
    return status;
}

static enum epa_status send_tokens(void *arg)
{
    const struct call *c = arg;
    struct plain *p = c->a->plain;

    if (c->set != ++p->epoch % SETS)
        return give_up(c->a, EPA_ERR_CONFIG, DISPATCH, WRONG_SET, p->world.rank, c->set, p->epoch);
    /* until the other ranks time out */
    if (p->epoch == c->a->config.hang && p->world.rank + 1 == p->s.size)
        return epa_wait(p->t, p->signal, UINT64_MAX, 10 * p->timeout_ns);
    return send_rows(p, &c->moe, c->set);
}

static enum epa_status receive_tokens(void *arg)
{
    struct call *c = arg;
    enum epa_status status = wait_for_ranks(c->a, DISPATCH, c->a->plain->epoch);

    if (status == EPA_OK)
        take_rows(c->a->plain, &c->moe, c->set);
    if (c->keeps_end)
        c->a->ends[DISPATCH][c->a->plain->epoch % EPA_ENDS] = epa_now_ns();
    return status;
}

/* Runs the experts if the stage contains them. */
static void run_experts(struct plain *p, struct epa_moe *m)
{
    fakegpu_experts(m, p->s.local, m->expert_factor + p->world.rank * p->s.local, m->y_space);
    m->y = m->y_space;
}

static enum epa_status queued_outputs(void *arg)
{
    struct call *c = arg;
    struct fakemoe *a = c->a;
    uint64_t n = a->combines + 1;

    if (c->set != n % SETS)
        return give_up(a, EPA_ERR_CONFIG, COMBINE, WRONG_SET, a->plain->world.rank, c->set, n);
    if (a->config.fused || a->config.whole)
        run_experts(a->plain, &c->moe);
    return send_outputs(a->plain, &c->moe, n);
}

static enum epa_status receive_outputs(void *arg)
{
    const struct call *c = arg;
    struct fakemoe *a = c->a;
    const struct epa_moe *m = &c->moe;
    enum epa_status status = wait_for_ranks(a, COMBINE, ++a->combines);

    if (status != EPA_OK)
        return status;
    reduce(m, here(a->plain, slots_of(a->plain, m, a->combines)));
    if (a->config.spoil != 0 && a->combines >= a->config.spoil && m->tokens > 0)
        ((uint16_t *)m->out)[7] ^= 0x40;
    if (c->keeps_end)
        a->ends[COMBINE][a->combines % EPA_ENDS] = epa_now_ns();
    return EPA_OK;
}

/* ---- stages ---- */

static enum epa_status queue(struct fakemoe *a, enum epa_status (*run)(void *),
                             const struct call *c)
{
    struct fakegpu_stream *stream = a->backend->stream;
    struct call copy = *c;

    copy.keeps_end = a->base.keeps_ends;
    if (stream == NULL)
        return run(&copy);
    return stream->push(stream, run, &copy, sizeof(copy));
}

static enum epa_status queue_send(struct epa_algorithm *base, struct epa_problem *problem)
{
    struct fakemoe *a = (struct fakemoe *)base;
    struct epa_moe *m = &problem->u.moe;

    if (a->open == SETS)
        return EPA_ERR_CONFIG;
    a->open++;
    m->epoch = ++a->queued_dispatches;
    return queue(a, send_tokens, &(struct call){a, *m, (uint32_t)(m->epoch % SETS)});
}

static enum epa_status queue_receive(struct epa_algorithm *base, struct epa_problem *problem)
{
    struct fakemoe *a = (struct fakemoe *)base;
    struct epa_moe *m = &problem->u.moe;
    const struct shape *s = &a->plain->s;
    uint32_t set = (uint32_t)(m->epoch % SETS);

    show_rows(a->plain, m, set, (uint64_t)s->size * s->most);
    m->y_space = here(a->plain, s->y + set * m->recv_rows * m->hidden * 2);
    return queue(a, receive_tokens, &(struct call){a, *m, set});
}

static enum epa_status queue_dispatch(struct epa_algorithm *base, struct epa_problem *problem)
{
    enum epa_status status = queue_send(base, problem);

    return status == EPA_OK ? queue_receive(base, problem) : status;
}

static enum epa_status queue_outputs(struct epa_algorithm *base, struct epa_problem *problem)
{
    struct fakemoe *a = (struct fakemoe *)base;
    struct epa_moe *m = &problem->u.moe;
    uint32_t set = (uint32_t)(++a->queued_combines % SETS);

    if (a->config.fused || a->config.whole ? m->y != NULL
                                           : a->config.in_place && m->y != m->y_space)
        return EPA_ERR_CONFIG;
    a->open -= a->open > 0;
    return queue(a, queued_outputs, &(struct call){a, *m, set});
}

static enum epa_status queue_sum(struct epa_algorithm *base, struct epa_problem *problem)
{
    struct fakemoe *a = (struct fakemoe *)base;

    return queue(a, receive_outputs, &(struct call){a, problem->u.moe, 0});
}

static enum epa_status queue_combine(struct epa_algorithm *base, struct epa_problem *problem)
{
    enum epa_status status = queue_outputs(base, problem);

    return status == EPA_OK ? queue_sum(base, problem) : status;
}

static enum epa_status queue_layer(struct epa_algorithm *base, struct epa_problem *problem)
{
    enum epa_status status = queue_dispatch(base, problem);

    return status == EPA_OK ? queue_combine(base, problem) : status;
}

static enum epa_status do_nothing(void *arg)
{
    return EPA_OK;
}

static enum epa_status queue_empty(struct epa_algorithm *base, struct epa_problem *problem)
{
    struct fakemoe *a = (struct fakemoe *)base;

    return queue(a, do_nothing, &(struct call){a, problem->u.moe, 0});
}

static enum epa_status read_ends(struct epa_algorithm *base, enum epa_stage_kind kind, uint32_t n,
                                 uint64_t *ns)
{
    const struct fakemoe *a = (const struct fakemoe *)base;
    enum fakemoe_stage stage = kind == EPA_STAGE_COMBINE ? COMBINE : DISPATCH;
    uint64_t last = stage == COMBINE ? a->combines : a->plain->epoch;

    for (uint32_t i = 0; i < n; i++)
        ns[i] = a->ends[stage][(last - (n - 1 - i)) % EPA_ENDS];
    return EPA_OK;
}

static enum epa_status give_back(struct epa_algorithm *base, struct epa_problem *problem)
{
    ((struct fakemoe *)base)->open--;
    return EPA_OK;
}

static void explain_fault(struct epa_algorithm *base, struct epa_error *err)
{
    struct fakemoe *a = (struct fakemoe *)base;
    const struct epa_fault *f = &a->backend->fault;
    const char *stage = f->stage == DISPATCH ? "dispatch" : "combine";

    if (f->what == NO_SIGNAL)
        (void)epa_fail_stage(epa_awaits(err, f->peer), (enum epa_status)f->status, "", stage, "",
                             "rank %u was heard %llu times, %llu were waited for, %.3f s", f->peer,
                             (unsigned long long)f->seen, (unsigned long long)f->wanted,
                             (double)f->waited_ns / 1e9);
    else if (f->what == WRONG_SET)
        (void)epa_fail_stage(err, (enum epa_status)f->status, "", stage, "",
                             "call %llu was recorded for buffer set %llu",
                             (unsigned long long)f->wanted, (unsigned long long)f->seen);
    else
        (void)epa_fail(err, EPA_ERR_CONFIG,
                       "%u dispatches are open already, or expert outputs are out of place",
                       a->open);
}

/* ---- the plugin ---- */

static void destroy_both(struct epa_algorithm *base)
{
    destroy(&((struct fakemoe *)base)->plain->base);
    free(base);
}

static enum epa_status create_queued(const struct epa_algorithm_params *p,
                                     struct epa_algorithm **out, struct epa_error *err)
{
    static const struct epa_stage two[] = {{"dispatch", EPA_STAGE_DISPATCH, queue_dispatch},
                                           {"combine", EPA_STAGE_COMBINE, queue_combine}};
    static const struct epa_stage halves[] = {{"dispatch_send", EPA_STAGE_SEND, queue_send},
                                              {"dispatch", EPA_STAGE_DISPATCH, queue_receive},
                                              {"combine_send", EPA_STAGE_SEND, queue_outputs},
                                              {"combine", EPA_STAGE_COMBINE, queue_sum}};
    static const struct epa_stage empty = {"empty", EPA_STAGE_WHOLE, queue_empty};
    static const struct epa_stage layer[] = {{"layer", EPA_STAGE_WHOLE, queue_layer}};
    const struct config *c = p->config;
    struct epa_algorithm *plain = NULL;
    struct fakemoe *a;

    if (p->backend->stream == NULL && !c->whole)
        return epa_fail(err, EPA_ERR_CONFIG, "fakemoe on the host needs whole: true");
    for (uint64_t i = 0; i < shape_of(&p->problem->u.moe, p->world.size).heap; i++)
        if (p->transport->heap[p->heap + i] != 0)
            return epa_fail(err, EPA_ERR_CONFIG, "fakemoe: the heap is not empty");
    a = fakegpu_alloc(sizeof(*a));
    (void)create(p, &plain, err);
    *a = (struct fakemoe){.base = {.stages = c->whole   ? layer
                                             : c->split ? halves
                                                        : two,
                                   .n_stages = c->whole   ? 1
                                               : c->split ? 4
                                                          : 2,
                                   .discard = c->discard ? give_back : NULL,
                                   .combines_again = c->again,
                                   .empty = &empty,
                                   .ended = read_ends,
                                   .explain = explain_fault,
                                   .destroy = destroy_both},
                          .config = *c,
                          .plain = (struct plain *)plain,
                          .backend = p->backend};
    *out = &a->base;
    return EPA_OK;
}

static enum epa_status plan_queued(const struct epa_problem *problem, const struct epa_world *world,
                                   uint32_t transport_flags, const void *config,
                                   struct epa_footprint *out, struct epa_error *err)
{
    const struct epa_moe *m = &problem->u.moe;
    const struct config *c = config;
    enum epa_status status = plan(problem, world, transport_flags, NULL, out, err);

    if (status != EPA_OK)
        return status;
    out->stages = NULL;
    out->device_bytes = c->scratch;
    out->flops = c->whole ? 2.0 * m->max_tokens * m->topk * m->hidden : 0;
    out->discards = c->discard;
    out->combines_again = c->again;
    out->u.moe.fused = c->fused || c->whole;
    out->u.moe.dispatch_row_bytes = m->hidden * 2;
    out->u.moe.control_bytes = 0;
    return EPA_OK;
}

static const struct config defaults = {.discard = true, .again = true, .in_place = true};

static const struct epa_option options[] = {
    {.name = "split_phase", EPA_BOOL(struct config, split), .help = "stages in halves"},
    {.name = "discard", EPA_BOOL(struct config, discard), .help = "can give up a dispatch"},
    {.name = "again", EPA_BOOL(struct config, again), .help = "can combine twice"},
    {.name = "in_place",
     EPA_BOOL(struct config, in_place),
     .help = "takes outputs from y_space alone"},
    {.name = "fused", EPA_BOOL(struct config, fused), .help = "combine does experts' work"},
    {.name = "whole", EPA_BOOL(struct config, whole), .help = "one stage, inputs to output"},
    {.name = "scratch", EPA_BYTES(struct config, scratch), .help = "device memory that it plans"},
    {.name = "spoil",
     EPA_U32(struct config, spoil),
     .help = "first combine that is wrong; 0: none"},
    {.name = "hang", EPA_U32(struct config, hang), .help = "dispatch without the last rank"},
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "fakemoe", .summary = "dispatch and combine on fakegpu",
               .options = {options, sizeof(struct config), &defaults}},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST | EPA_MEMORY_CUDA,
    .needs_host = EPA_TRANSPORT_LOAD_STORE,
    .needs_cuda = EPA_TRANSPORT_LOAD_STORE,
    .plan = plan_queued,
    .create = create_queued,
};
