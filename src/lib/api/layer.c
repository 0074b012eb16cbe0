/* A complete MoE layer: one stage of a fused algorithm, or dispatch, experts and combine. */
#include <epa2a.h>

#include <stdlib.h>

#include "api/alignment.h"
#include "api/error.h"
#include "api/object.h"
#include "api/shape.h"
#include "api/struct_size.h"
#include "api/tokens.h"
#include "ep/ep_explain.h"
#include "experts/host_experts.h"

enum { NATIVE_STEP = 32, FP8_STEP = MLP_BLOCK };

struct epa2a_layer {
    struct object object;
    struct epa_problem problem; /* shape and weights; inputs of the last call */
    struct mlp_shape shape;     /* with the weights of the caller */
    struct tokens tokens;
    /* Experts between dispatch and combine: of hosts or of the backend; both NULL if the algorithm
     * computes the experts. */
    struct host_experts *host;
    struct epa_experts *device;
    void *y; /* expert outputs in backend memory if the algorithm has no memory for them */
    /* Device memory, [max_tokens][topk]: choices that the caller passes with 8 bytes; NULL on hosts. */
    void *choices;
};

/* ---- creation ---- */

/* Checks one array of weights. */
static enum epa_status check_pointer(const void *pointer, const char *name, struct epa_error *err)
{
    return pointer != NULL ? EPA_OK
                           : epa_fail(err, EPA_ERR_CONFIG, "epa2a_experts: %s is NULL", name);
}

static enum epa_status read_experts(const struct epa2a_experts *from, const struct epa_moe *moe,
                                    bool cuda, struct mlp_shape *out, struct epa_error *err)
{
    struct epa2a_experts e;
    bool fp8, int8;
    uint32_t step;
    enum epa_status status = struct_read(&e, sizeof(e), from, "epa2a_experts", err);

    if (status != EPA_OK)
        return status;
    e.dtype = e.dtype != 0 ? e.dtype : moe->dtype;
    fp8 = e.dtype == EPA2A_FP8_E4M3;
    int8 = e.dtype == EPA2A_INT8;
    step = fp8 ? FP8_STEP : NATIVE_STEP;
    if (e.dtype != moe->dtype && !fp8 && !int8)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "epa2a_experts: dtype is %d; write the dtype of the shape (%d), "
                        "EPA2A_FP8_E4M3 or EPA2A_INT8",
                        e.dtype, moe->dtype);
    if (int8 && cuda)
        return epa_fail(
            err, EPA_ERR_UNSUPPORTED,
            "epa2a_experts: dtype EPA2A_INT8 is for hosts; write the dtype of the shape "
            "(%d) or EPA2A_FP8_E4M3",
            moe->dtype);
    if (e.activation != EPA_ACTIVATION_NONE && e.activation != EPA_ACTIVATION_SWIGLU)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "epa2a_experts: activation is %d; write 0 (none) or 1 (SwiGLU)",
                        e.activation);
    if (e.ffn == 0 || e.ffn % step != 0 || moe->hidden % step != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ffn (%u) and hidden (%u) must be multiples of %u with weights of this "
                        "type",
                        e.ffn, moe->hidden, step);
    if (fp8 && moe->fp8_group_size != 64 && moe->fp8_group_size != 128)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "fp8_group is %u; FP8 weights need 64 or 128 channels per scale",
                        moe->fp8_group_size);
    status = check_pointer(e.up, "up", err);
    if (status == EPA_OK)
        status = check_pointer(e.down, "down", err);
    if (status == EPA_OK && (fp8 || int8))
        status = check_pointer(e.up_scale, "up_scale", err);
    if (status == EPA_OK && (fp8 || int8))
        status = check_pointer(e.down_scale, "down_scale", err);
    if (status == EPA_OK)
        status = alignment_check_experts(&e, cuda, err);
    if (status != EPA_OK)
        return status;
    *out = (struct mlp_shape){.hidden = moe->hidden,
                              .mlp = {.ffn = e.ffn,
                                      .activation = e.activation,
                                      .dtype = e.dtype,
                                      .fp8_group_size = MLP_BLOCK,
                                      .up = e.up,
                                      .down = e.down,
                                      .up_scale = fp8 || int8 ? e.up_scale : NULL,
                                      .down_scale = fp8 || int8 ? e.down_scale : NULL}};
    return EPA_OK;
}

/* Creates the experts between dispatch and combine. */
static enum epa_status create_experts(struct epa2a_layer *layer, struct epa_error *err)
{
    const struct epa2a_comm *comm = layer->object.comm;
    struct epa_backend *b = comm->ep.backend;
    const struct epa_moe_footprint *f = &layer->object.footprint.u.moe;
    struct epa_moe shape = layer->problem.u.moe;
    const struct host_experts_params p = {
        .experts = {.moe = &shape,
                    .experts = shape.experts / comm->boot->world.size,
                    .recv_rows = f->recv_rows,
                    .recv_entries = f->recv_entries,
                    .layout = f->layout,
                    .recv_dtype = f->recv_dtype},
        .source = mlp_source_of_memory(&layer->shape)};

    shape.mlp = layer->shape.mlp;
    if (f->fused)
        return EPA_OK;
    if (b->memory == EPA_MEMORY_HOST)
        return host_experts_create(b, &p, &layer->host, err);
    if (b->ops->experts_create == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "the backend computes no experts; set algorithm=fused");
    return b->ops->experts_create(b, &p.experts, &layer->device, err);
}

/* Allocates memory that no call can allocate, since a CUDA graph may capture the call. */
static enum epa_status allocate_choices(struct epa2a_layer *layer, struct epa_error *err)
{
    struct epa_backend *b = layer->object.comm->ep.backend;
    const struct epa_moe *moe = &layer->problem.u.moe;
    size_t bytes = (size_t)moe->max_tokens * moe->topk * sizeof(int32_t);
    enum epa_status status = EPA_OK;

    if (b->memory == EPA_MEMORY_HOST)
        return EPA_OK;
    status = b->ops->alloc(b, bytes, &layer->choices);
    if (status != EPA_OK) /* the object is not open, so ep_explain_backend() cannot explain */
        b->ops->explain(b, err);
    return status;
}

static void free_layer(void *arg)
{
    struct epa2a_layer *layer = arg;
    struct epa_backend *b;

    if (layer == NULL)
        return;
    b = layer->object.comm != NULL ? layer->object.comm->ep.backend : NULL;
    host_experts_destroy(layer->host);
    if (layer->device != NULL)
        b->ops->experts_destroy(layer->device);
    if (layer->y != NULL)
        b->ops->free(b, layer->y);
    if (layer->choices != NULL)
        b->ops->free(b, layer->choices);
    object_free(&layer->object);
    tokens_finish(&layer->tokens);
    free(layer);
}

static enum epa_status create_layer(struct epa2a_comm *comm, struct epa2a_layer *layer,
                                    const struct epa2a_moe_shape *from,
                                    const struct epa2a_experts *experts, struct epa_error *err)
{
    struct epa_moe *moe = &layer->problem.u.moe;
    struct epa2a_moe_shape shape;
    struct object_params p = {.op = EPA_OP_MOE, .layer = true};
    enum epa_status status = shape_read(from, comm->boot->world.size, &shape, moe, err);

    layer->problem.op = EPA_OP_MOE;
    if (status == EPA_OK)
        status = read_experts(experts, moe, comm_is_cuda(comm), &layer->shape, err);
    if (status != EPA_OK)
        return status;
    moe->mlp = (struct epa_mlp){.ffn = layer->shape.mlp.ffn,
                                .activation = layer->shape.mlp.activation,
                                .dtype = layer->shape.mlp.dtype,
                                .fp8_group_size = layer->shape.mlp.fp8_group_size};
    p.options = shape.options;
    p.preset = shape.recv_dtype == EPA2A_FP8_E4M3 ? "dispatch_dtype=fp8" : "dispatch_dtype=native";
    status = object_plan(&layer->object, comm, &p, &layer->problem, err);
    if (status != EPA_OK)
        return status;
    if (layer->object.footprint.u.moe.fused)
        moe->mlp = layer->shape.mlp;
    status = tokens_init(&layer->tokens, moe, comm->ep.backend->memory, err);
    if (status == EPA_OK)
        status = allocate_choices(layer, err);
    if (status == EPA_OK)
        status = create_experts(layer, err);
    return status == EPA_OK ? object_open(&layer->object, &layer->problem, err) : status;
}

int epa2a_layer_create(struct epa2a_comm *comm, const struct epa2a_moe_shape *shape,
                       const struct epa2a_experts *experts, struct epa2a_layer **out)
{
    struct epa_error err = {EPA_OK, ""};
    struct epa2a_layer *layer = NULL;
    enum epa_status status = comm_enter(comm, "epa2a_layer_create", &err);

    if (status != EPA_OK)
        return api_fail(&err);
    layer = calloc(1, sizeof(*layer));
    if (layer == NULL)
        status = epa_fail(&err, EPA_ERR_NOMEM, "no memory for a layer");
    else if (out == NULL)
        status = epa_fail(&err, EPA_ERR_CONFIG, "the output pointer is NULL");
    else
        status = comm_check_capture(comm, &err);
    if (status == EPA_OK)
        status = create_layer(comm, layer, shape, experts, &err);
    status = comm_agree(comm, status, &err);
    if (status == EPA_OK)
        *out = layer;
    else
        free_layer(layer);
    return comm_leave(comm, status, &err);
}

void epa2a_layer_destroy(struct epa2a_layer *layer)
{
    if (layer != NULL)
        object_destroy(&layer->object, "epa2a_layer_destroy", free_layer, layer);
}

/* ---- a call ---- */

/* Computes the expert outputs of the dispatch. */
static enum epa_status run_experts(struct epa2a_layer *layer, struct epa_error *err)
{
    struct ep *ep = &layer->object.ep;
    struct epa_backend *b = ep->comm->backend;
    const struct epa_moe_footprint *f = &layer->object.footprint.u.moe;
    struct epa_moe *moe = &layer->problem.u.moe;
    uint64_t rows = f->layout == EPA_LAYOUT_RANK ? f->recv_rows : f->recv_entries;
    enum epa_status status = EPA_OK;

    if (moe->y_space == NULL && layer->y == NULL)
        status = b->ops->alloc(b, rows * moe->hidden * sizeof(uint16_t), &layer->y);
    if (status == EPA_OK) {
        moe->y = moe->y_space != NULL ? moe->y_space : layer->y;
        if (layer->host != NULL)
            return host_experts_run(layer->host, moe, (void *)(uintptr_t)moe->y, err);
        status = b->ops->experts_run(layer->device, moe, (void *)(uintptr_t)moe->y);
    }
    return ep_explain_backend(ep, status, err);
}

/* Reads and checks the tokens. *wide: choices of 8 bytes on a device, which a kernel has to convert; or
 * NULL. */
static enum epa_status read_tokens(struct epa2a_layer *layer, const struct epa2a_tokens *from,
                                   struct epa2a_tokens *in, const void **wide,
                                   struct epa_error *err)
{
    struct epa2a_tokens read;
    enum epa_status status = struct_read(&read, sizeof(read), from, "epa2a_tokens", err);

    if (status != EPA_OK)
        return status;
    *wide = NULL;
    if (layer->choices != NULL && read.topk_idx_bytes == sizeof(int64_t)) {
        *wide = read.topk_idx;
        read.topk_idx_bytes = sizeof(int32_t);
        status = alignment_check_choices(*wide, err);
    }
    return status == EPA_OK ? tokens_read(&layer->tokens, &read, in, &layer->problem.u.moe, err)
                            : status;
}

/* Queues the conversion of choices of 8 bytes. */
static enum epa_status convert_choices(struct epa2a_layer *layer, const void *wide,
                                       struct epa_error *err)
{
    struct epa_backend *b = layer->object.ep.comm->backend;
    struct epa_moe *moe = &layer->problem.u.moe;
    const struct epa_choices_copy copy = {.n = (uint64_t)moe->tokens * moe->topk,
                                          .expert = wide,
                                          .bytes = sizeof(int64_t),
                                          .to_expert = {layer->choices}};

    moe->expert = layer->choices;
    return ep_explain_backend(&layer->object.ep, b->ops->copy_choices(b, &copy), err);
}

static enum epa_status run_layer(struct epa2a_layer *layer, const struct epa2a_tokens *from,
                                 void *out, struct epa_error *err)
{
    const struct epa_algorithm *a = layer->object.ep.algorithm;
    struct epa_moe *moe = &layer->problem.u.moe;
    struct epa2a_tokens in;
    const void *wide;
    enum epa_status status = read_tokens(layer, from, &in, &wide, err);

    if (status != EPA_OK)
        return status;
    if (in.flags != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "flags must be 0: a layer delivers no rows");
    if (in.tokens > 0 && (in.topk_weight == NULL || out == NULL))
        return epa_fail(err, EPA_ERR_CONFIG, "%s is NULL, with %u tokens",
                        out == NULL ? "out" : "topk_weight", in.tokens);
    if (in.x_scale != NULL && layer->object.footprint.u.moe.recv_dtype != EPA_FP8_E4M3)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "x_scale: the layer dispatches rows in dtype; set recv_dtype to "
                        "EPA2A_FP8_E4M3");
    status = alignment_check(
        &(struct tensor){"out", out,
                         alignment_of_rows(comm_is_cuda(layer->object.comm), sizeof(uint16_t))},
        1, err);
    moe->out = out;
    if (status == EPA_OK && wide != NULL)
        status = convert_choices(layer, wide, err);
    for (uint32_t i = 0; i < a->n_stages && status == EPA_OK; i++) {
        status = object_call(&layer->object, &a->stages[i], &layer->problem, err);
        if (status == EPA_OK && a->stages[i].kind == EPA_STAGE_DISPATCH)
            status = object_stage_status(run_experts(layer, err), err);
    }
    return status;
}

int epa2a_layer_run(struct epa2a_layer *layer, const struct epa2a_tokens *in, void *out,
                    void *stream)
{
    struct epa_error err = {EPA_OK, ""};
    struct epa2a_comm *comm = layer != NULL ? layer->object.comm : NULL;

    if (comm_enter_stream(comm, "epa2a_layer_run", stream, &err) != EPA_OK)
        return api_fail(&err);
    return comm_leave(comm, run_layer(layer, in, out, &err), &err);
}
