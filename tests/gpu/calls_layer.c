/* See calls.h. */
#include "calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "calls_experts.h"

enum { GROUP = 128, PAGE = 4096 };

static const uint64_t timeout_ns = 20000000000u;

const struct epa_algorithm_plugin *calls_plugin;

/* One of each way that answers add up, with sizes that differ in everything. */
static const struct shape shapes[LAYERS] = {
    {.name = "direct",
     .max_tokens = 8,
     .hidden = 512,
     .experts = 16,
     .topk = 4,
     .buffers = 2,
     .layout = EPA_LAYOUT_EXPERT,
     .dispatch_dtype = ALGO_DTYPE_FP8},
    {.name = "once",
     .max_tokens = 5,
     .hidden = 272,
     .experts = 8,
     .topk = 3,
     .buffers = 2,
     .layout = EPA_LAYOUT_EXPERT,
     .dispatch_dtype = ALGO_DTYPE_NATIVE,
     .dedup = true,
     .apart = true},
    {.name = "by rank",
     .max_tokens = 16,
     .hidden = 384,
     .experts = 24,
     .topk = 6,
     .buffers = 2,
     .layout = EPA_LAYOUT_RANK,
     .dispatch_dtype = ALGO_DTYPE_FP8,
     .split_phase = true},
};

/* ---- set-up ---- */

static struct ll_config config_of(const struct shape *s, bool on_host)
{
    struct ll_config c;

    memcpy(&c, calls_plugin->plugin.options.defaults, sizeof(c));
    c.layout = s->layout;
    c.dedup = s->dedup;
    c.dispatch_dtype = s->dispatch_dtype;
    c.buffers = s->buffers;
    if (!on_host)
        c.split_phase = s->split_phase;
    return c;
}

static struct epa_problem problem_of(const struct shape *s)
{
    return (struct epa_problem){.op = EPA_OP_MOE,
                                .u.moe = {.max_tokens = s->max_tokens,
                                          .hidden = s->hidden,
                                          .experts = s->experts,
                                          .topk = s->topk,
                                          .fp8_group_size = GROUP,
                                          .dtype = EPA_BF16,
                                          .x_dtype = EPA_BF16}};
}

/* The plan of a shape, `heap_bytes` of it up to the next page. */
static enum epa_status plan(const struct subject *subject, uint32_t ranks, const struct shape *s,
                            struct epa_footprint *out, struct epa_error *err)
{
    struct ll_config c = config_of(s, subject->backend->memory == EPA_MEMORY_HOST);
    struct epa_problem problem = problem_of(s);
    struct epa_world world = {.size = ranks, .local_size = ranks, .local_cores = 1};
    enum epa_status status =
        calls_plugin->plan(&problem, &world, subject->plugin->flags, &c, out, err);

    out->heap_bytes = (out->heap_bytes + PAGE - 1) / PAGE * PAGE;
    return status;
}

void scene_plan(const struct subject *subject, uint32_t ranks, uint64_t *heap_bytes,
                uint32_t *signals)
{
    struct epa_footprint need = {0};
    struct epa_error err = {EPA_OK, ""};

    *heap_bytes = 0;
    *signals = 0;
    for (uint32_t i = 0; i < LAYERS; i++) {
        if (plan(subject, ranks, &shapes[i], &need, &err) != EPA_OK)
            fail_msg("%s: %s", shapes[i].name, err.text);
        *heap_bytes += need.heap_bytes;
        *signals += need.signals;
    }
}

bool layer_works(struct layer *l, enum epa_status status, const char *what)
{
    struct epa_error err = {EPA_OK, ""};

    if (status == EPA_OK)
        return true;
    if (l->a != NULL)
        l->a->explain(l->a, &err);
    l->r->backend->ops->explain(l->r->backend, &err); /* the first to say something wins */
    claim(l->r, false, "%s, %s: status %d: %s", l->shape->name, what, status, err.text);
    l->r->boot->abort(l->r->boot);
    return false;
}

static bool slot_open(struct layer *l, struct slot *s, uint64_t recv_rows)
{
    const struct epa_backend_ops *ops = l->r->backend->ops;
    const struct shape *shape = l->shape;
    size_t rows = (size_t)shape->max_tokens * shape->hidden * 2;
    size_t choices = (size_t)shape->max_tokens * shape->topk;
    size_t outputs = (size_t)recv_rows * shape->hidden * 2;
    struct epa_moe *m = &s->problem.u.moe;
    bool good;

    s->problem = problem_of(shape);
    good = layer_works(l, ops->alloc(l->r->backend, rows, &s->x), "x") &&
           layer_works(l, ops->alloc(l->r->backend, rows, &s->out), "out") &&
           layer_works(l, ops->alloc(l->r->backend, choices * 4, &s->expert), "expert") &&
           layer_works(l, ops->alloc(l->r->backend, choices * 4, &s->weight), "weight");
    if (good && shape->apart)
        good = layer_works(l, ops->alloc(l->r->backend, outputs, &s->y), "y");
    m->x = s->x;
    m->out = s->out;
    m->expert = s->expert;
    m->weight = s->weight;
    return good;
}

static bool layer_open(struct layer *l, uint64_t heap, uint32_t signal,
                       const struct epa_footprint *need)
{
    struct rank *r = l->r;
    const struct epa_transport_plugin *transport = r->subject->plugin;
    struct epa_problem problem = problem_of(l->shape);
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status =
        calls_plugin->create(&(struct epa_algorithm_params){.problem = &problem,
                                                            .world = r->boot->world,
                                                            .transport = r->t,
                                                            .backend = r->backend,
                                                            .config = &l->config,
                                                            .transport_flags = transport->flags,
                                                            .heap = heap,
                                                            .signal = signal,
                                                            .timeout_ns = timeout_ns},
                             &l->a, &err);
    bool good = claim(r, status == EPA_OK, "%s: %s", l->shape->name, err.text);

    for (uint32_t i = 0; i < SLOTS && good; i++)
        good = slot_open(l, &l->slot[i], need->u.moe.recv_rows);
    return good;
}

bool scene_open(struct rank *r, struct scene **out)
{
    struct scene *s = calloc(1, sizeof(*s));
    struct epa_footprint need = {0};
    struct epa_error err = {EPA_OK, ""};
    uint64_t heap = 0;
    uint32_t signal = 0;
    bool good = claim(r, s != NULL, "no memory for a scene");

    *out = s;
    for (uint32_t i = 0; i < LAYERS && good; i++) {
        struct layer *l = &s->layer[i];

        s->r = l->r = r;
        l->shape = &shapes[i];
        l->config = config_of(l->shape, r->backend->memory == EPA_MEMORY_HOST);
        good =
            claim(r, plan(r->subject, r->size, l->shape, &need, &err) == EPA_OK, "%s", err.text) &&
            layer_open(l, heap, signal, &need);
        heap += need.heap_bytes;
        signal += need.signals;
    }
    if (!good)
        r->boot->abort(r->boot);
    return good && meet(r);
}

void scene_close(struct scene *s)
{
    const struct epa_backend_ops *ops;

    if (s == NULL)
        return;
    ops = s->r->backend->ops;
    (void)ops->sync(s->r->backend); /* after a failure: kernels that still wait leave */
    meet(s->r);                     /* nobody uses what another takes away */
    for (uint32_t i = 0; i < LAYERS; i++) {
        struct layer *l = &s->layer[i];

        if (l->a != NULL)
            l->a->destroy(l->a);
        for (uint32_t j = 0; j < SLOTS; j++) {
            void *memory[] = {l->slot[j].x, l->slot[j].expert, l->slot[j].weight, l->slot[j].out,
                              l->slot[j].y};

            for (uint32_t k = 0; k < sizeof(memory) / sizeof(memory[0]); k++)
                ops->free(s->r->backend, memory[k]);
        }
    }
    free(s);
}

uint64_t scene_draw(struct scene *s, uint64_t n)
{
    s->common = s->common * 6364136223846793005u + 1442695040888963407u;
    return (s->common >> 33) % n;
}

/* ---- inputs, and what comes of them ---- */

/* One channel of a group holds what makes its scale 1. */
static void draw_row(struct layer *l, struct slot *s, uint32_t t)
{
    const struct shape *shape = l->shape;

    for (uint32_t c = 0; c < shape->hidden; c++) {
        float v = c % GROUP == t % GROUP ? 448.0f : (float)draw(l->r, 17) - 8;

        s->host_x[t * shape->hidden + c] = calls_bf16(v);
    }
}

static void draw_choices(struct layer *l, struct slot *s, uint32_t t)
{
    const struct shape *shape = l->shape;

    for (uint32_t k = 0; k < shape->topk; k++) {
        int32_t *row = &s->host_expert[t * shape->topk];
        bool taken = true;

        while (taken) {
            row[k] = (int32_t)draw(l->r, shape->experts);
            taken = false;
            for (uint32_t i = 0; i < k; i++)
                taken = taken || row[i] == row[k];
        }
        s->host_weight[t * shape->topk + k] = (float)(1 + draw(l->r, 255)) / 256 / 3;
    }
    for (uint32_t k = 0; k < shape->topk; k++) {
        if (draw(l->r, 8) == 0)
            s->host_expert[t * shape->topk + k] = -1;
    }
}

/* What one rank's experts answer for a token, in one channel; false: none of them is wanted. */
static bool rank_outputs(const struct layer *l, const struct slot *s, uint32_t t, uint32_t channel,
                         uint32_t rank, float *out)
{
    const struct shape *shape = l->shape;
    const int32_t *expert = &s->host_expert[t * shape->topk];
    const float *weight = &s->host_weight[t * shape->topk];
    uint32_t local = shape->experts / l->r->size;
    float x = calls_float(s->host_x[t * shape->hidden + channel]), sum = 0;
    uint16_t rounded = 0;
    bool any = false;

    for (uint32_t i = 0; i < (shape->layout == EPA_LAYOUT_RANK ? local : 1); i++) {
        for (uint32_t k = 0; k < shape->topk; k++) {
            uint32_t e = (uint32_t)expert[k];

            if (expert[k] < 0 || e / local != rank)
                continue;
            if (shape->layout == EPA_LAYOUT_EXPERT)
                sum = fmaf(weight[k], x * calls_factor(e), sum);
            else if (e % local == i)
                rounded = calls_add(rounded, weight[k], x * calls_factor(e));
            any = true;
        }
    }
    *out = shape->layout == EPA_LAYOUT_RANK ? calls_float(rounded) : calls_float(calls_bf16(sum));
    return any;
}

static uint16_t expected(const struct layer *l, const struct slot *s, uint32_t t, uint32_t channel)
{
    const struct shape *shape = l->shape;
    float x = calls_float(s->host_x[t * shape->hidden + channel]), sum = 0, output;

    if (shape->layout == EPA_LAYOUT_EXPERT && !shape->dedup) {
        for (uint32_t k = 0; k < shape->topk; k++) {
            int32_t e = s->host_expert[t * shape->topk + k];

            if (e >= 0)
                sum = fmaf(s->host_weight[t * shape->topk + k], x * calls_factor((uint32_t)e), sum);
        }
        return calls_bf16(sum);
    }
    for (uint32_t rank = 0; rank < l->r->size; rank++) {
        if (rank_outputs(l, s, t, channel, rank, &output))
            sum += output;
    }
    return calls_bf16(sum);
}

bool layer_spoil(struct layer *l, uint32_t slot)
{
    size_t bytes = (size_t)l->shape->max_tokens * l->shape->hidden * 2;

    return layer_works(l, l->r->backend->ops->fill(l->r->backend, l->slot[slot].out, 0xff, bytes),
                       "spoiling the output");
}

bool layer_inputs(struct layer *l, uint32_t slot, bool as_many)
{
    const struct shape *shape = l->shape;
    struct slot *s = &l->slot[slot];
    struct epa_backend *b = l->r->backend;
    struct epa_moe *m = &s->problem.u.moe;
    size_t choices;

    s->inputs++;
    if (!as_many)
        m->tokens = (uint32_t)draw(l->r, shape->max_tokens + 1);
    choices = (size_t)m->tokens * shape->topk;
    for (uint32_t t = 0; t < m->tokens; t++) {
        draw_row(l, s, t);
        draw_choices(l, s, t);
        for (uint32_t c = 0; c < shape->hidden; c++)
            s->want[t * shape->hidden + c] = expected(l, s, t, c);
    }
    return layer_works(l, b->ops->write(b, s->x, s->host_x, m->tokens * shape->hidden * 2),
                       "writing x") &&
           layer_works(l, b->ops->write(b, s->expert, s->host_expert, choices * 4),
                       "writing choices") &&
           layer_works(l, b->ops->write(b, s->weight, s->host_weight, choices * 4),
                       "writing weights") &&
           layer_spoil(l, slot);
}

bool layer_check(struct layer *l, uint32_t slot, const char *when)
{
    struct slot *s = &l->slot[slot];
    uint32_t hidden = l->shape->hidden, n = s->problem.u.moe.tokens * hidden, i = 0;
    bool good;

    if (!layer_works(l, l->r->backend->ops->read(l->r->backend, s->got, s->out, n * 2),
                     "reading the output"))
        return false;
    while (i < n && s->got[i] == s->want[i])
        i++;
    good = claim(l->r, i == n, "%s, %s, inputs %u: token %u, channel %u is %g (0x%04x), not %g",
                 when, l->shape->name, s->inputs, i / hidden, i % hidden,
                 i < n ? (double)calls_float(s->got[i]) : 0, i < n ? s->got[i] : 0,
                 i < n ? (double)calls_float(s->want[i]) : 0);
    if (!good)
        l->r->boot->abort(l->r->boot);
    return good;
}

/* ---- calls ---- */

static uint32_t dispatch_stages(const struct epa_algorithm *a)
{
    uint32_t n = 0;

    while (a->stages[n].kind != EPA_STAGE_DISPATCH)
        n++;
    return n + 1;
}

static enum epa_status run_stages(struct layer *l, struct epa_problem *p, uint32_t first,
                                  uint32_t last)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = first; i < last && status == EPA_OK; i++)
        status = l->a->stages[i].run(l->a, p);
    return status;
}

enum epa_status layer_try_dispatch(struct layer *l, struct epa_problem *p)
{
    return run_stages(l, p, 0, dispatch_stages(l->a));
}

enum epa_status layer_try_combine(struct layer *l, struct epa_problem *p)
{
    return run_stages(l, p, dispatch_stages(l->a), l->a->n_stages);
}

bool layer_dispatch(struct layer *l, uint32_t slot)
{
    return layer_works(l, layer_try_dispatch(l, &l->slot[slot].problem), "dispatch");
}

bool layer_output(struct layer *l, uint32_t slot)
{
    struct slot *s = &l->slot[slot];
    struct epa_moe *m = &s->problem.u.moe;
    uint16_t *y = l->shape->apart ? s->y : m->y_space;
    uint32_t local = m->experts / l->r->size;

    m->y = y;
    if (l->r->backend->memory == EPA_MEMORY_HOST) {
        for (uint32_t c = 0; c < m->hidden; c++)
            calls_output(m, l->r->me, local, c, y);
        return true;
    }
    return layer_works(
        l, kernel_output(l->r->backend, m, l->r->me, local, y) == 0 ? EPA_OK : EPA_ERR_SYSTEM,
        "the kernel of the experts");
}

bool layer_combine(struct layer *l, uint32_t slot)
{
    return layer_works(l, layer_try_combine(l, &l->slot[slot].problem), "combine");
}

bool layer_pair(struct layer *l, uint32_t slot)
{
    return layer_dispatch(l, slot) && layer_output(l, slot) && layer_combine(l, slot);
}

bool layer_sync(struct layer *l)
{
    return layer_works(l, l->r->backend->ops->sync(l->r->backend), "sync");
}

bool layer_round(struct layer *l, uint32_t slot, const char *when)
{
    return layer_inputs(l, slot, false) && layer_pair(l, slot) && layer_sync(l) &&
           layer_check(l, slot, when);
}
