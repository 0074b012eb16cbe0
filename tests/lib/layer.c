/* Tests of epa2a_layer_*: outputs of complete layers equal the reference of the program, for fused and
 * separate experts, over several transports, with ranks as processes and as threads. */
#include "../unit/test.h"

#include <epa2a.h>

#include "group.h"
#include "room.h"
#include "op/moe/moe_state.h"
#include "oracle.h"

enum { ITERATIONS = 6, SIZES = 4, TEXT = 600 };

/* The options of the algorithm in YAML and as text must be equal. */
static const struct {
    const char *yaml, *options;
    bool fp8;
} layers[] = {
    {"algorithm: {name: ll_v2}", "algorithm=ll_v2", false},
    {"algorithm: {name: ll_v2, layout: rank}", "algorithm=ll_v2, layout=rank", false},
    {"algorithm: {name: ll_v2, dispatch_dtype: fp8}", "algorithm=ll_v2", true},
    {"algorithm: {name: ll_v1}", "algorithm=ll_v1", false},
    {"algorithm: {name: token_flag, dispatch_dtype: fp8}", "algorithm=token_flag", true},
    {"algorithm: {name: fused}", "algorithm=fused", false},
    {"algorithm: {name: fused, dedup: true}", "algorithm=fused, dedup=true", false},
    {"algorithm: {name: fused, dispatch_dtype: fp8}", NULL, true},
};

static const struct {
    const char *dtype, *weights, *activation;
    int32_t dtypes[2];
} experts[] = {
    {"bf16", "native", "swiglu", {EPA2A_BF16, EPA2A_BF16}},
    {"f16", "native", "none", {EPA2A_F16, EPA2A_F16}},
    {"bf16", "fp8", "none", {EPA2A_BF16, EPA2A_FP8_E4M3}},
    {"f16", "int8", "swiglu", {EPA2A_F16, EPA2A_INT8}},
};

struct task {
    const struct experiment *x;
    const char *transport, *options;
    int32_t dtype, weights, recv_dtype;
    const struct task *also; /* another layer of the same comm; NULL: none */
};

/* Weights of one rank in the memory of the caller. */
struct arrays {
    char *data[MLP_MATRICES];
    float *scale[MLP_MATRICES];
};

static struct arrays make_weights(const struct op_moe *op)
{
    const struct weights *w = &op->weights;
    const struct mlp_shape *s = &w->shape;
    struct arrays out;

    for (enum mlp_matrix m = MLP_UP; m < MLP_MATRICES; m++) {
        size_t row = mlp_columns(s, m) * mlp_element(s), scales = mlp_scales(s, m);

        out.data[m] = calloc(op->local_experts * mlp_rows(s, m), row);
        /* unlike_rank() declares INT8, which has a scale for each row. */
        out.scale[m] = calloc(op->local_experts * (scales + mlp_rows(s, m)), sizeof(float));
        for (uint32_t e = 0; e < op->local_experts; e++) {
            uint32_t expert = op->r.world.rank * op->local_experts + e;

            for (uint32_t i = 0; i < mlp_rows(s, m); i++)
                weights_row(w, expert, m, i, out.data[m] + (e * mlp_rows(s, m) + i) * row);
            for (uint32_t b = 0; scales != 0 && b < mlp_blocks(s, m); b++)
                weights_scales(w, expert, m, b, out.scale[m] + e * scales + mlp_scale_at(s, m, b));
        }
    }
    return out;
}

/* Replaces the weights by copies on the device. */
static void move_weights(const struct op_moe *op, struct arrays *w, void *stream)
{
    const struct mlp_shape *s = &op->weights.shape;

    for (enum mlp_matrix m = MLP_UP; m < MLP_MATRICES && room_is_device(); m++) {
        size_t bytes =
            (size_t)op->local_experts * mlp_rows(s, m) * mlp_columns(s, m) * mlp_element(s);
        size_t scales = op->local_experts * mlp_scales(s, m);
        void *data = room_put(w->data[m], bytes, stream);
        void *scale = room_put(w->scale[m], scales * sizeof(float), stream);

        free(w->data[m]);
        free(w->scale[m]);
        w->data[m] = data;
        w->scale[m] = scale;
    }
}

static int rank_fails(struct group_rank *me, const char *what, const char *why)
{
    snprintf(me->result->text, sizeof(me->result->text), "%s: %s", what, why);
    return me->result->code = 1;
}

/* A layer of a rank with its oracle. */
struct running {
    const struct task *task;
    struct op_rank *op;
    struct arrays weights;
    struct epa2a_layer *layer;
    struct epa2a_comm *comm;
    void *stream;
};

/* Odd iterations pass indices of 8 bytes and, on hosts, rows with gaps. */
static int run_iteration(struct group_rank *me, const struct running *r, uint64_t iteration)
{
    struct epa_moe *m = &oracle_inputs(r->op, iteration)->u.moe;
    struct epa2a_layer *layer = r->layer;
    struct epa2a_comm *comm = r->comm;
    void *stream = r->stream;
    size_t row = (size_t)m->hidden * 2, stride = row + 32;
    int64_t *wide = calloc((size_t)m->max_tokens * m->topk, sizeof(*wide));
    char *apart = calloc(m->max_tokens, stride);
    struct epa_error err = {EPA_OK, ""};
    bool is_wide = iteration % 2 != 0, has_gaps = is_wide && !room_is_device();
    size_t choices = (size_t)m->tokens * m->topk;
    void *out = room_put(m->out, m->tokens * row, stream);
    void *x = room_put(m->x, m->tokens * row, stream);
    void *weight = room_put(m->weight, choices * sizeof(*m->weight), stream);
    void *expert;
    int status;
    EPA2A_STRUCT(epa2a_tokens, in);

    for (uint32_t i = 0; i < m->tokens * m->topk; i++)
        wide[i] = m->expert[i];
    expert = is_wide ? room_put(wide, choices * sizeof(*wide), stream)
                     : room_put(m->expert, choices * sizeof(*m->expert), stream);
    for (uint32_t i = 0; i < m->tokens; i++)
        memcpy(apart + i * stride, (const char *)m->x + i * row, row);
    in.tokens = m->tokens;
    in.x = has_gaps ? apart : x;
    in.x_stride = has_gaps ? stride : 0;
    in.topk_idx = expert;
    in.topk_idx_bytes = is_wide ? 8 : 4;
    in.topk_weight = weight;
    status = epa2a_layer_run(layer, &in, out, stream);
    if (status == EPA2A_OK && room_is_device())
        status = epa2a_comm_sync(comm, stream);
    room_copy(m->out, out, m->tokens * row, stream);
    room_drop(out);
    room_drop(x);
    room_drop(expert);
    room_drop(weight);
    free(wide);
    free(apart);
    if (status != EPA2A_OK)
        return rank_fails(me, "run", epa2a_last_error());
    /* A complete call needs no further call of this rank for the data of its peers. */
    if (!group_meet(me))
        return rank_fails(me, "run", "a peer is not complete");
    if (oracle_check(r->op, r->task->x->footprint.u.moe.fused ? EPA_STAGE_WHOLE : EPA_STAGE_COMBINE,
                     &err) != EPA_OK)
        return rank_fails(me, "check", err.text);
    return 0;
}

static void fill_shape(const struct task *task, struct epa2a_moe_shape *shape)
{
    const struct moe_options *moe = &task->x->problem.moe;

    shape->max_tokens = moe->max_tokens;
    shape->hidden = moe->hidden;
    shape->experts = moe->experts;
    shape->topk = moe->topk;
    shape->dtype = task->dtype;
    shape->recv_dtype = task->recv_dtype;
    shape->options = task->options;
}

static void fill_experts(const struct task *task, const struct arrays *w, struct epa2a_experts *e)
{
    e->ffn = task->x->problem.expert.ffn;
    e->activation = task->x->problem.expert.activation;
    e->dtype = task->weights;
    e->up = w->data[MLP_UP];
    e->down = w->data[MLP_DOWN];
    e->up_scale = w->scale[MLP_UP];
    e->down_scale = w->scale[MLP_DOWN];
}

static int create_layer(struct epa2a_comm *comm, const struct task *task, const struct arrays *w,
                        struct epa2a_layer **out)
{
    EPA2A_STRUCT(epa2a_moe_shape, shape);
    EPA2A_STRUCT(epa2a_experts, e);

    fill_shape(task, &shape);
    fill_experts(task, w, &e);
    return epa2a_layer_create(comm, &shape, &e, out);
}

static int create_comm(struct group_rank *me, const char *options, struct epa2a_comm **out)
{
    EPA2A_STRUCT(epa2a_comm_params, p);

    p.version = EPA2A_VERSION;
    p.rank = me->rank;
    p.ranks = me->ranks;
    p.allgather = group_allgather;
    p.arg = me;
    p.device = room_device(me->rank);
    p.options = options;
    return epa2a_comm_create(&p, out);
}

static bool begin_layer(struct group_rank *me, struct epa2a_comm *comm, struct running *r)
{
    struct epa_error err = {EPA_OK, ""};

    r->op = oracle_create(r->task->x, me->rank, &err);
    if (r->op == NULL)
        return rank_fails(me, "oracle", err.text) == 0;
    r->comm = comm;
    r->stream = room_stream(me->rank);
    r->weights = make_weights(op_moe_of(r->op));
    move_weights(op_moe_of(r->op), &r->weights, r->stream);
    if (create_layer(comm, r->task, &r->weights, &r->layer) != EPA2A_OK)
        return rank_fails(me, "layer", epa2a_last_error()) == 0;
    return true;
}

static void end_layer(struct running *r)
{
    epa2a_layer_destroy(r->layer);
    if (r->op == NULL)
        return;
    op_destroy(r->op);
    for (enum mlp_matrix m = MLP_UP; m < MLP_MATRICES; m++) {
        room_free(r->weights.data[m]);
        room_free(r->weights.scale[m]);
    }
    room_stream_end(r->stream);
}

/* Calls the layers of the tasks in turns. */
static void layer_rank(struct group_rank *me)
{
    struct running running[2] = {{.task = NULL}};
    struct epa2a_comm *comm = NULL;
    uint32_t n = 0;

    if (create_comm(me, ((const struct task *)me->arg)->transport, &comm) != EPA2A_OK) {
        (void)rank_fails(me, "comm", epa2a_last_error());
        return;
    }
    for (const struct task *task = me->arg; task != NULL && me->result->code <= 0;
         task = task->also, n++) {
        running[n].task = task;
        if (!begin_layer(me, comm, &running[n]))
            break;
    }
    for (uint64_t i = 0; i < ITERATIONS * n && me->result->code <= 0; i++) {
        struct running *r = &running[i % n];

        (void)run_iteration(me, r, i / n);
    }
    while (n-- > 0)
        end_layer(&running[n]);
    epa2a_comm_destroy(comm);
}

/* Runs a task on all ranks; each must succeed. */
static void run_ranks(const struct task *task, uint32_t ranks, enum group_kind kind,
                      void (*rank_main)(struct group_rank *))
{
    struct group *group = group_run(ranks, kind, rank_main, task);

    for (uint32_t r = 0; r < ranks; r++)
        if (group_result(group, r)->code != 0)
            fail_msg("rank %u of %u, %s, %s: %s", r, ranks, task->transport,
                     task->options != NULL ? task->options : "defaults",
                     group_result(group, r)->text);
    group_free(group);
}

/* Returns the task of a layer with exact results. */
static struct task make_task(uint32_t layer, uint32_t expert, uint32_t ranks, const char *transport)
{
    char yaml[TEXT];

    snprintf(yaml, sizeof(yaml),
             "{version: 1, ranks: %u, %s, %s, seed: %u, "
             "moe: {max_tokens: 9, hidden: 128, experts: 12, topk: 3, dtype: %s}, "
             "expert: {kind: mlp, ffn: 128, values: integers, weights: %s, "
             "activation: %s}, tokens: {kind: random, min: 0}, "
             "routing: {kind: masked, share: 0.2}}",
             ranks, room_experiment(), layers[layer].yaml, ranks + layer, experts[expert].dtype,
             experts[expert].weights, experts[expert].activation);
    return (struct task){.x = oracle_read(yaml),
                         .transport = transport,
                         .options = layers[layer].options,
                         .dtype = experts[expert].dtypes[0],
                         .weights = experts[expert].dtypes[1],
                         .recv_dtype =
                             layers[layer].fp8 ? EPA2A_FP8_E4M3 : experts[expert].dtypes[0]};
}

/* On devices fused computes products of FP8 weights from rows in FP8 only, and INT8 weights are for
 * hosts. */
static bool is_supported(uint32_t layer, uint32_t expert)
{
    if (room_is_device() && experts[expert].dtypes[1] == EPA2A_INT8)
        return false;
    return !room_is_device() || strstr(layers[layer].yaml, "fused") == NULL || layers[layer].fp8 ||
           experts[expert].dtypes[1] != EPA2A_FP8_E4M3;
}

static void check_layers(const char *transport, enum group_kind kind, uint32_t least, uint32_t most)
{
    if (room_is_device() != (strstr(transport, "nvlink") != NULL))
        skip();
    for (uint32_t i = 0; i < LENGTH(layers); i++)
        for (uint32_t e = 0; e < LENGTH(experts); e++)
            for (uint32_t ranks = least; ranks <= most && is_supported(i, e); ranks++) {
                struct task task = make_task(i, e, ranks, transport);

                run_ranks(&task, ranks, kind, layer_rank);
            }
}

TEST(processes_over_shm_equal_the_reference)
{
    check_layers("transport=shm", GROUP_PROCESSES, 1, SIZES);
}

TEST(threads_over_shm_equal_the_reference)
{
    check_layers("transport=shm", GROUP_THREADS, 2, 3);
}

TEST(processes_over_reorder_equal_the_reference)
{
    check_layers("transport=reorder", GROUP_PROCESSES, SIZES, SIZES);
}

/* Transports of two layers share no signal and no heap. */
TEST(two_layers_of_a_comm_are_independent)
{
    if (room_is_device())
        skip();
    for (uint32_t i = 0; i < 2; i++) {
        struct task fused = make_task(5, 0, 3, "transport=shm");
        struct task task = make_task(i, 0, 3, i == 0 ? "transport=shm" : "transport=reorder");

        task.also = &fused;
        run_ranks(&task, 3, GROUP_PROCESSES, layer_rank);
    }
}

static int expect(struct group_rank *me, int status, const char *words)
{
    char text[300];

    if (status == EPA2A_ERR_CONFIG && strstr(epa2a_last_error(), words) != NULL)
        return 0;
    snprintf(text, sizeof(text), "status %d, %.200s", status, epa2a_last_error());
    return rank_fails(me, words, text);
}

/* Wrong arguments on all ranks fail before any rank sends data; the layer stays usable. */
static void refused_rank(struct group_rank *me)
{
    struct running r = {.task = me->arg};
    struct epa2a_comm *comm = NULL;
    uint16_t x[128] = {0}, out[128];
    float weight[3] = {0}, scale[1] = {1};
    int32_t expert[] = {0, 1, 12};
    EPA2A_STRUCT(epa2a_tokens, in);

    if (create_comm(me, r.task->transport, &comm) != EPA2A_OK || !begin_layer(me, comm, &r)) {
        (void)rank_fails(me, "create", epa2a_last_error());
        return;
    }
    in.tokens = 1;
    in.x = x;
    in.topk_idx = expert;
    in.topk_idx_bytes = 4;
    in.topk_weight = weight;
    (void)expect(me, epa2a_layer_run(NULL, &in, out, NULL), "NULL");
    (void)expect(me, epa2a_layer_run(r.layer, &in, out, NULL), "expert 12");
    expert[2] = 2;
    (void)expect(me, epa2a_layer_run(r.layer, &in, NULL, NULL), "out is NULL");
    in.topk_weight = NULL;
    (void)expect(me, epa2a_layer_run(r.layer, &in, out, NULL), "topk_weight is NULL");
    in.topk_weight = weight;
    in.flags = EPA2A_RECV_FP8;
    (void)expect(me, epa2a_layer_run(r.layer, &in, out, NULL), "flags");
    in.flags = 0;
    in.x_scale = scale;
    (void)expect(me, epa2a_layer_run(r.layer, &in, out, NULL), "recv_dtype");
    in.x_scale = NULL;
    in.size = 0;
    (void)expect(me, epa2a_layer_run(r.layer, &in, out, NULL), "size 0");
    for (uint64_t i = 0; i < ITERATIONS && me->result->code <= 0; i++)
        (void)run_iteration(me, &r, i);
    end_layer(&r);
    epa2a_comm_destroy(comm);
}

TEST(wrong_arguments_of_a_call_are_named)
{
    struct task task = make_task(0, 0, 2, "transport=shm");

    if (room_is_device())
        skip();
    run_ranks(&task, 2, GROUP_THREADS, refused_rank);
}

/* Each creation has one wrong value, on rank 1 only; it fails on all ranks. */
static void unlike_rank(struct group_rank *me)
{
    static const struct {
        size_t offset; /* in the experts or, from 1000 on, in the shape */
        uint32_t value;
        const char *words;
    } wrong[] = {
        {offsetof(struct epa2a_experts, ffn), 96, "another shape"},
        {offsetof(struct epa2a_experts, ffn), 100, "ffn (100)"},
        {offsetof(struct epa2a_experts, activation), 2, "activation is 2"},
        {offsetof(struct epa2a_experts, dtype), EPA2A_F16, "dtype is 3"},
        {offsetof(struct epa2a_experts, dtype), EPA2A_INT8, "another shape"},
        {1000 + offsetof(struct epa2a_moe_shape, topk), 2, "another shape"},
        {1000 + offsetof(struct epa2a_moe_shape, experts), 11, "experts is 11"},
    };
    struct running r = {.task = me->arg};
    struct epa2a_comm *comm = NULL;

    if (create_comm(me, r.task->transport, &comm) != EPA2A_OK || !begin_layer(me, comm, &r)) {
        (void)rank_fails(me, "create", epa2a_last_error());
        return;
    }
    for (uint32_t i = 0; i < LENGTH(wrong); i++) {
        struct epa2a_layer *layer = NULL;
        EPA2A_STRUCT(epa2a_moe_shape, shape);
        EPA2A_STRUCT(epa2a_experts, e);

        fill_shape(r.task, &shape);
        fill_experts(r.task, &r.weights, &e);
        if (me->rank == 1)
            memcpy(wrong[i].offset < 1000 ? (char *)&e + wrong[i].offset
                                          : (char *)&shape + wrong[i].offset - 1000,
                   &wrong[i].value, sizeof(wrong[i].value));
        (void)expect(me, epa2a_layer_create(comm, &shape, &e, &layer), wrong[i].words);
    }
    (void)run_iteration(me, &r, 0);
    end_layer(&r);
    epa2a_comm_destroy(comm);
}

TEST(a_wrong_value_on_one_rank_fails_the_creation_on_all_ranks)
{
    struct task task = make_task(0, 0, 3, "transport=shm");

    if (room_is_device())
        skip();
    run_ranks(&task, 3, GROUP_PROCESSES, unlike_rank);
}

TEST(devices_equal_the_reference)
{
    if (room_missing())
        exit(77);
    /* Processes first: a child of a process that used CUDA cannot use CUDA. */
    check_layers("transport=nvlink, backend.share=true", GROUP_PROCESSES, 2, 2);
    check_layers("transport=nvlink, backend.share=true", GROUP_THREADS, 1, 2);
}
