/* A dispatch and combine for fakegpu, as plain as can be: what a GPU's algorithm does for
 * graphs, with kernels that are functions of the host. `whole` makes one stage of both, with
 * the experts' work in between, which runs on the host, too.
 *
 * Kernels count their calls in memory of their own, as a launch that is repeated must go on
 * counting; which of the two buffer sets a call uses is fixed when it is queued, and a
 * kernel that finds itself on the wrong one gives up. Two sets are enough: who is in call
 * n + 2 has heard from all in call n + 1, and they had ended call n. */
#include <epa2a/algorithm.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "fakegpu.h"
#include "fakemoe.h"

enum fakemoe_stage { DISPATCH, COMBINE };
enum { WRONG_SET = 1, NO_SIGNAL };

struct config {
    bool split, discard, again, in_place, fused, whole;
    uint32_t spoil, hang;
    uint64_t scratch;
};

/* A received row's choice, for its way back. */
struct route {
    struct epa_origin origin;
    uint32_t k;
};

struct algorithm {
    struct epa_algorithm base; /* first */
    struct config config;
    struct layout l;
    struct epa_world world;
    struct epa_transport *transport;
    struct epa_backend *backend;
    uint64_t heap, timeout_ns;
    uint32_t signal, local;
    /* Of the host: calls that were queued, and dispatches without combine. */
    uint64_t queued_dispatches, queued_combines;
    uint32_t open;
    /* Of the device. */
    uint64_t dispatches, combines; /* that ended */
    uint32_t *count[SETS];
    uint64_t *start[SETS];
    struct route *route[SETS];
};

/* A kernel's parameters. */
struct call {
    struct algorithm *a;
    struct epa_moe moe;
    uint32_t set;  /* of this dispatch, or of the combine's own buffers */
    uint32_t from; /* combine: the set of its dispatch */
};

/* ---- kernels ---- */

static enum epa_status give_up(struct algorithm *a, enum epa_status status, uint32_t stage,
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
                                    .waited_ns = a->timeout_ns};
    return status;
}

static enum epa_status tell_all(struct algorithm *a, uint32_t stage, uint64_t epoch)
{
    enum epa_status status = EPA_OK;

    for (uint32_t p = 0; p < a->world.size && status == EPA_OK; p++)
        status = a->transport->ops->signal(a->transport,
                                           a->signal + stage * a->world.size + a->world.rank, epoch,
                                           EPA_SIGNAL_SET, p);
    return status;
}

static enum epa_status hear_all(struct algorithm *a, uint32_t stage, uint64_t epoch)
{
    for (uint32_t p = 0; p < a->world.size; p++) {
        uint32_t signal = a->signal + stage * a->world.size + p;
        enum epa_status status =
            a->transport->ops->wait(a->transport, signal, EPA_GE, epoch, a->timeout_ns);

        if (status != EPA_OK)
            return give_up(a, status, stage, NO_SIGNAL, p,
                           a->transport->ops->read(a->transport, signal), epoch);
    }
    return EPA_OK;
}

static char *at(const struct algorithm *a, uint32_t rank, uint64_t offset)
{
    return a->transport->peer_heap[rank] + a->heap + offset;
}

static enum epa_status send_tokens(void *arg)
{
    const struct call *c = arg;
    struct algorithm *a = c->a;
    const struct epa_moe *m = &c->moe;
    uint64_t epoch = a->dispatches + 1;

    if (c->set != epoch % SETS)
        return give_up(a, EPA_ERR_CONFIG, DISPATCH, WRONG_SET, a->world.rank, c->set, epoch);
    for (uint32_t p = 0; p < a->world.size; p++) {
        char *box = at(a, p, c->set * a->l.inbox_bytes + a->world.rank * a->l.box_bytes);

        memcpy(box, &m->tokens, sizeof(m->tokens));
        memcpy(box + 8, m->expert, (size_t)m->tokens * m->topk * 4);
        memcpy(box + 8 + (size_t)m->max_tokens * m->topk * 4, m->x,
               (size_t)m->tokens * m->hidden * 2);
    }
    if (epoch == a->config.hang && a->world.rank + 1 == a->world.size)
        return EPA_OK;
    return tell_all(a, DISPATCH, epoch);
}

/* Rows of one rank for local expert e. */
static uint64_t take_rows(struct algorithm *a, const struct call *c, uint32_t source, uint32_t e,
                          uint64_t row)
{
    const struct epa_moe *m = &c->moe;
    const char *box = at(a, a->world.rank, c->set * a->l.inbox_bytes + source * a->l.box_bytes);
    const char *x = box + 8 + (size_t)m->max_tokens * m->topk * 4;
    char *recv = at(a, a->world.rank, a->l.recv_at + c->set * a->l.rows_bytes);
    uint32_t tokens;

    memcpy(&tokens, box, sizeof(tokens));
    for (uint32_t i = 0; i < tokens * m->topk; i++) {
        int32_t expert;

        memcpy(&expert, box + 8 + (size_t)i * 4, sizeof(expert));
        if (expert != (int32_t)(a->world.rank * a->local + e))
            continue;
        memcpy(recv + row * m->hidden * 2, x + (size_t)(i / m->topk) * m->hidden * 2,
               m->hidden * 2);
        a->route[c->set][row++] = (struct route){{source, i / m->topk}, i % m->topk};
    }
    return row;
}

static enum epa_status receive_tokens(void *arg)
{
    const struct call *c = arg;
    struct algorithm *a = c->a;
    enum epa_status status = hear_all(a, DISPATCH, ++a->dispatches);
    uint64_t row = 0;

    if (status != EPA_OK)
        return status;
    for (uint32_t e = 0; e < a->local; e++) {
        a->start[c->set][e] = row;
        for (uint32_t source = 0; source < a->world.size; source++)
            row = take_rows(a, c, source, e, row);
        a->count[c->set][e] = (uint32_t)(row - a->start[c->set][e]);
    }
    return EPA_OK;
}

/* The answer of local expert `e` to a row: from y, or made here. */
static void send_output(const struct call *c, uint32_t e, uint64_t row, char *to)
{
    const struct algorithm *a = c->a;
    const struct epa_moe *m = &c->moe;
    uint32_t rank = a->world.rank;
    const uint16_t *x = (const void *)at(a, rank, a->l.recv_at + c->from * a->l.rows_bytes);

    if (!a->config.fused && !a->config.whole) {
        memcpy(to, (const char *)m->y + row * m->hidden * 2, m->hidden * 2);
        return;
    }
    for (uint32_t h = 0; h < m->hidden; h++) {
        uint16_t y = bf16_of_float(float_of_bf16(x[row * m->hidden + h]) *
                                   m->expert_factor[rank * a->local + e]);

        memcpy(to + (size_t)h * 2, &y, sizeof(y));
    }
}

static enum epa_status send_outputs(void *arg)
{
    const struct call *c = arg;
    struct algorithm *a = c->a;
    const struct epa_moe *m = &c->moe;
    uint64_t epoch = a->combines + 1;

    if (c->set != epoch % SETS)
        return give_up(a, EPA_ERR_CONFIG, COMBINE, WRONG_SET, a->world.rank, c->set, epoch);
    for (uint32_t e = 0; e < a->local; e++) {
        for (uint32_t i = 0; i < a->count[c->from][e]; i++) {
            uint64_t row = a->start[c->from][e] + i;
            struct route route = a->route[c->from][row];
            uint64_t choice = (uint64_t)route.origin.token * m->topk + route.k;

            send_output(c, e, row,
                        at(a, route.origin.rank,
                           a->l.outputs_at + c->set * a->l.outputs_bytes + choice * m->hidden * 2));
        }
    }
    return tell_all(a, COMBINE, epoch);
}

static enum epa_status receive_outputs(void *arg)
{
    const struct call *c = arg;
    struct algorithm *a = c->a;
    const struct epa_moe *m = &c->moe;
    uint16_t *out = m->out;
    enum epa_status status = hear_all(a, COMBINE, ++a->combines);
    const uint16_t *output =
        (const void *)at(a, a->world.rank, a->l.outputs_at + c->set * a->l.outputs_bytes);

    if (status != EPA_OK)
        return status;
    for (uint32_t t = 0; t < m->tokens; t++) {
        for (uint32_t h = 0; h < m->hidden; h++) {
            float sum = 0;

            for (uint32_t k = t * m->topk; k < (t + 1) * m->topk; k++)
                if (m->expert[k] >= 0)
                    sum = fmaf(m->weight[k], float_of_bf16(output[(size_t)k * m->hidden + h]), sum);
            out[(size_t)t * m->hidden + h] = bf16_of_float(sum);
        }
    }
    if (a->config.spoil != 0 && a->combines >= a->config.spoil && m->tokens > 0)
        out[7] ^= 0x40;
    return EPA_OK;
}

/* ---- stages ---- */

static enum epa_status queue(struct algorithm *a, enum epa_status (*run)(void *),
                             const struct call *c)
{
    struct fakegpu_stream *stream = a->backend->stream;
    struct call copy = *c;

    if (stream == NULL)
        return run(&copy);
    return stream->push(stream, run, c, sizeof(*c));
}

static enum epa_status queue_send(struct epa_algorithm *base, struct epa_problem *problem)
{
    struct algorithm *a = (struct algorithm *)base;
    struct epa_moe *m = &problem->u.moe;
    uint32_t set;

    if (a->open == SETS)
        return EPA_ERR_CONFIG;
    a->open++;
    m->epoch = ++a->queued_dispatches;
    set = (uint32_t)(m->epoch % SETS);
    return queue(a, send_tokens, &(struct call){a, *m, set, set});
}

static enum epa_status queue_receive(struct epa_algorithm *base, struct epa_problem *problem)
{
    struct algorithm *a = (struct algorithm *)base;
    struct epa_moe *m = &problem->u.moe;
    uint32_t set = (uint32_t)(m->epoch % SETS);

    m->recv_rows = m->recv_entries = a->l.entries;
    m->recv_count = a->count[set];
    m->recv_start = a->start[set];
    m->recv = at(a, a->world.rank, a->l.recv_at + set * a->l.rows_bytes);
    m->origin = &a->route[set]->origin;
    m->recv_stride = m->hidden * 2;
    m->origin_stride = sizeof(struct route);
    m->y_space = at(a, a->world.rank, a->l.y_at + set * a->l.rows_bytes);
    return queue(a, receive_tokens, &(struct call){a, *m, set, set});
}

static enum epa_status queue_dispatch(struct epa_algorithm *base, struct epa_problem *problem)
{
    enum epa_status status = queue_send(base, problem);

    return status == EPA_OK ? queue_receive(base, problem) : status;
}

static enum epa_status queue_outputs(struct epa_algorithm *base, struct epa_problem *problem)
{
    struct algorithm *a = (struct algorithm *)base;
    struct epa_moe *m = &problem->u.moe;
    uint32_t set = (uint32_t)(++a->queued_combines % SETS);

    if (a->config.fused || a->config.whole ? m->y != NULL
                                           : a->config.in_place && m->y != m->y_space)
        return EPA_ERR_CONFIG;
    a->open -= a->open > 0;
    return queue(a, send_outputs, &(struct call){a, *m, set, m->epoch % SETS});
}

static enum epa_status queue_sum(struct epa_algorithm *base, struct epa_problem *problem)
{
    struct algorithm *a = (struct algorithm *)base;
    uint32_t set = (uint32_t)(a->queued_combines % SETS);

    return queue(a, receive_outputs, &(struct call){a, problem->u.moe, set, 0});
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

static enum epa_status discard(struct epa_algorithm *base, struct epa_problem *problem)
{
    (void)problem;
    ((struct algorithm *)base)->open--;
    return EPA_OK;
}

static void explain(struct epa_algorithm *base, struct epa_error *err)
{
    struct algorithm *a = (struct algorithm *)base;
    const struct epa_fault *f = &a->backend->fault;
    const char *stage = f->stage == DISPATCH ? "dispatch" : "combine";

    if (f->what == NO_SIGNAL)
        (void)epa_fail(err, (enum epa_status)f->status,
                       "%s: rank %u was heard %llu times, %llu were waited for, %.3f s", stage,
                       f->peer, (unsigned long long)f->seen, (unsigned long long)f->wanted,
                       (double)f->waited_ns / 1e9);
    else if (f->what == WRONG_SET)
        (void)epa_fail(err, (enum epa_status)f->status,
                       "%s: call %llu was recorded for buffer set %llu", stage,
                       (unsigned long long)f->wanted, (unsigned long long)f->seen);
    else
        (void)epa_fail(err, EPA_ERR_CONFIG,
                       "%u dispatches are open already, or expert outputs are out of place",
                       a->open);
}

/* ---- the plugin ---- */

static void destroy(struct epa_algorithm *base)
{
    struct algorithm *a = (struct algorithm *)base;

    for (uint32_t set = 0; set < SETS; set++) {
        free(a->count[set]);
        free(a->start[set]);
        free(a->route[set]);
    }
    free(a);
}

static void set_stages(struct algorithm *a)
{
    static const struct epa_stage whole[] = {{"dispatch", EPA_STAGE_DISPATCH, queue_dispatch},
                                             {"combine", EPA_STAGE_COMBINE, queue_combine}};
    static const struct epa_stage halves[] = {{"dispatch_send", EPA_STAGE_SEND, queue_send},
                                              {"dispatch", EPA_STAGE_DISPATCH, queue_receive},
                                              {"combine_send", EPA_STAGE_SEND, queue_outputs},
                                              {"combine", EPA_STAGE_COMBINE, queue_sum}};
    static const struct epa_stage layer[] = {{"layer", EPA_STAGE_WHOLE, queue_layer}};

    a->base.stages = a->config.whole ? layer : a->config.split ? halves : whole;
    a->base.n_stages = a->config.whole ? 1 : a->config.split ? 4 : 2;
    a->base.discard = a->config.discard ? discard : NULL;
    a->base.combines_again = a->config.again;
    a->base.explain = explain;
    a->base.destroy = destroy;
}

static enum epa_status create(const struct epa_algorithm_params *p, struct epa_algorithm **out,
                              struct epa_error *err)
{
    const struct epa_moe *m = &p->problem->u.moe;
    struct algorithm *a = calloc(1, sizeof(*a));

    if (a == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "fakemoe: no memory");
    a->config = *(const struct config *)p->config;
    if (p->backend->stream == NULL && !a->config.whole) {
        free(a);
        return epa_fail(err, EPA_ERR_CONFIG, "fakemoe on the host needs whole: true");
    }
    a->l = layout_of(m, p->world.size);
    a->world = p->world;
    a->transport = p->transport;
    a->backend = p->backend;
    a->heap = p->heap;
    a->signal = p->signal;
    a->timeout_ns = p->timeout_ns;
    a->local = m->experts / p->world.size;
    for (uint32_t set = 0; set < SETS; set++) {
        a->count[set] = calloc(a->local, sizeof(uint32_t));
        a->start[set] = calloc(a->local, sizeof(uint64_t));
        a->route[set] = calloc(a->l.entries, sizeof(struct route));
        if (a->count[set] == NULL || a->start[set] == NULL || a->route[set] == NULL) {
            destroy(&a->base);
            return epa_fail(err, EPA_ERR_NOMEM, "fakemoe: no memory");
        }
    }
    for (uint64_t i = 0; i < a->l.heap_bytes; i++) {
        if (a->transport->heap[a->heap + i] != 0) {
            destroy(&a->base);
            return epa_fail(err, EPA_ERR_CONFIG, "fakemoe: the heap is not empty");
        }
    }
    set_stages(a);
    *out = &a->base;
    return EPA_OK;
}

static enum epa_status plan(const struct epa_problem *problem, const struct epa_world *world,
                            uint32_t transport_flags, const void *config, struct epa_footprint *out,
                            struct epa_error *err)
{
    const struct epa_moe *m = &problem->u.moe;
    const struct config *c = config;
    struct layout l = layout_of(m, world->size);

    (void)transport_flags;
    if (m->x_dtype != EPA_BF16)
        return epa_fail(err, EPA_ERR_CONFIG, "fakemoe takes moe.input_dtype: native");
    *out = (struct epa_footprint){.heap_bytes = l.heap_bytes,
                                  .device_bytes = c->scratch,
                                  .signals = 2 * world->size,
                                  .flops = c->whole ? 2.0 * m->max_tokens * m->topk * m->hidden : 0,
                                  .u.moe.recv_rows = l.entries,
                                  .u.moe.recv_entries = l.entries,
                                  .u.moe.layout = EPA_LAYOUT_EXPERT,
                                  .u.moe.recv_dtype = EPA_BF16,
                                  .u.moe.sum = EPA_SUM_ORDERED,
                                  .u.moe.output_dtype = EPA_BF16,
                                  .u.moe.fused = c->fused || c->whole,
                                  .in_flight = SETS,
                                  .discards = c->discard,
                                  .combines_again = c->again,
                                  .u.moe.dispatch_row_bytes = m->hidden * 2,
                                  .u.moe.dispatch_token_bytes = m->hidden * 2,
                                  .u.moe.combine_row_bytes = m->hidden * 2,
                                  .u.moe.combine_token_bytes = m->hidden * 2};
    return EPA_OK;
}

static const struct config defaults = {.discard = true, .again = true, .in_place = true};

static const struct epa_option options[] = {
    {.name = "split_phase", EPA_BOOL(struct config, split), .help = "stages in halves"},
    {.name = "discard",
     EPA_BOOL(struct config, discard),
     .help = "whether a dispatch can be given up"},
    {.name = "again",
     EPA_BOOL(struct config, again),
     .help = "whether combine may be called again"},
    {.name = "in_place",
     EPA_BOOL(struct config, in_place),
     .help = "whether combine takes expert outputs from y_space alone"},
    {.name = "fused",
     EPA_BOOL(struct config, fused),
     .help = "whether combine does the experts' work"},
    {.name = "whole", EPA_BOOL(struct config, whole), .help = "one stage, inputs to output"},
    {.name = "scratch",
     EPA_BYTES(struct config, scratch),
     .help = "memory of the device that it says it needs"},
    {.name = "spoil",
     EPA_U32(struct config, spoil),
     .help = "from which call on combine has an element wrong; 0: never"},
    {.name = "hang",
     EPA_U32(struct config, hang),
     .help = "at which dispatch the last rank is silent; 0: never"},
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
    .plan = plan,
    .create = create,
};
