/* Plan of a moe: the shape as a problem, the options that follow from the shape, and the memory
 * requirements. */
#include "api/moe_plan.h"

#include "api/moe_outputs.h"
#include "api/moe_routing.h"

#include <stdio.h>

void moe_plan_preset(const struct epa2a_moe_shape *s, bool cuda, char *out, size_t room)
{
    bool by_rank = s->layout == EPA2A_RANK_PACKED || s->layout == EPA2A_RANK_PADDED;

    snprintf(out, room, "dispatch_dtype=%s, layout=%s, recv_layout=%s, buffers=%u%s",
             s->recv_dtype == EPA2A_FP8_E4M3 ? "fp8" : "native", by_rank ? "rank" : "expert",
             s->layout == EPA2A_EXPERT_PADDED ? "padded" : "packed", s->in_flight,
             !cuda || !by_rank                ? ""
             : s->layout == EPA2A_RANK_PADDED ? ", row_order=padded"
                                              : ", row_order=packed");
}

static const char *dtype_name(int dtype)
{
    return dtype == EPA2A_FP8_E4M3 ? "EPA2A_FP8_E4M3"
           : dtype == EPA2A_F16    ? "EPA2A_F16"
                                   : "EPA2A_BF16";
}

static enum epa_status check_footprint(const struct moe_plan *p, struct epa_error *err)
{
    const struct epa_moe_footprint *f = &p->footprint.u.moe;
    const char *name = p->algorithm.plugin->name;
    bool by_rank = moe_layout_is_rank(&p->layout);

    if (f->fused)
        return epa_fail(
            err, EPA_ERR_UNSUPPORTED,
            "algorithm %s computes the experts itself; create a layer instead of a moe, "
            "or set fuse_expert=false",
            name);
    if ((f->layout == EPA_LAYOUT_RANK) != by_rank)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "algorithm %s has no rows per %s; use a layout EPA2A_%s_..., or "
                        "algorithm=ll_v2",
                        name, by_rank ? "rank" : "expert", by_rank ? "EXPERT" : "RANK");
    if ((int)f->recv_dtype != p->shape.recv_dtype)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "algorithm %s delivers %s; set recv_dtype of the shape to this type", name,
                        dtype_name((int)f->recv_dtype));
    if (p->footprint.in_flight < p->shape.in_flight)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "algorithm %s allows one dispatch without combine; set in_flight of the "
                        "shape to 1",
                        name);
    if (f->recv_rows >= UINT32_MAX || p->layout.rows >= UINT32_MAX)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "a rank would have 2^32 rows or more; lower max_tokens (%u)",
                        p->shape.max_tokens);
    return EPA_OK;
}

/* Computes the capacity of the layout. The option `capacity` of an algorithm limits packed rows. */
static void size_layout(struct moe_plan *p)
{
    const struct epa_moe_footprint *f = &p->footprint.u.moe;
    struct moe_layout *l = &p->layout;
    uint64_t tokens = (uint64_t)l->ranks * l->max_tokens;
    uint64_t entries = tokens * (p->shape.topk < l->local ? p->shape.topk : l->local);

    l->entries = entries < f->recv_entries ? entries : f->recv_entries;
    switch (l->layout) {
    case EPA2A_EXPERT_PADDED:
        l->most = l->entries;
        l->rows = l->entries = tokens * l->local;
        break;
    case EPA2A_EXPERT_PACKED:
        l->most = l->rows = l->entries;
        break;
    case EPA2A_RANK_PACKED:
    case EPA2A_RANK_PADDED:
        l->most = l->rows = tokens;
        if (l->layout == EPA2A_RANK_PACKED && f->recv_rows < tokens)
            l->most = l->rows = f->recv_rows;
        break;
    }
}

enum epa_status moe_plan_make(const struct epa2a_moe_shape *shape, const struct epa_moe *m,
                              const struct ep_choice *algorithm, const struct epa_world *world,
                              uint32_t flags, struct moe_plan *out, struct epa_error *err)
{
    struct moe_plan p = {.shape = *shape,
                         .problem = {.op = EPA_OP_MOE, .u.moe = *m},
                         .algorithm = *algorithm,
                         .transport_flags = flags,
                         .layout = {.layout = (enum epa2a_layout)shape->layout,
                                    .rank = world->rank,
                                    .ranks = world->size,
                                    .local = shape->experts / world->size,
                                    .max_tokens = shape->max_tokens}};
    enum epa_status status;

    p.shape.options = NULL;
    status = ep_plan(algorithm, &p.problem, world, flags, &p.footprint, err);
    if (status == EPA_OK) {
        size_layout(&p);
        status = check_footprint(&p, err);
    }
    if (status != EPA_OK)
        return status;
    *out = p;
    return EPA_OK;
}

/* Returns the bytes of all arrays that a dispatch can return, without the small ones. */
static uint64_t output_bytes(const struct moe_plan *p)
{
    const struct epa2a_moe_shape *s = &p->shape;
    const struct moe_layout *l = &p->layout;
    bool by_rank = moe_layout_is_rank(l);
    uint64_t row = 4 * (uint64_t)s->hidden + s->hidden / s->fp8_group * sizeof(float) +
                   sizeof(int32_t) + (by_rank ? s->topk * 8 : 0);

    return l->rows * row + (by_rank ? l->entries * sizeof(uint32_t) : 0);
}

/* Returns the bytes of tokens that a kernel quantises. */
static uint64_t code_bytes(const struct moe_plan *p)
{
    const struct epa2a_moe_shape *s = &p->shape;

    if (p->footprint.u.moe.recv_dtype != EPA_FP8_E4M3)
        return 0;
    return s->max_tokens * ((uint64_t)s->hidden + s->hidden / s->fp8_group * sizeof(float));
}

/* Returns the bytes of received rows in another form on a device. */
static uint64_t device_row_bytes(const struct moe_plan *p)
{
    if (!moe_layout_is_rank(&p->layout))
        return 0;
    return p->shape.in_flight *
           (moe_outputs_bytes(p, MOE_X) / 2 + moe_outputs_bytes(p, MOE_X_SCALE));
}

void moe_plan_need(const struct moe_plan *p, bool cuda, struct epa2a_need *out)
{
    const struct epa2a_moe_shape *s = &p->shape;
    uint64_t choices = (uint64_t)s->max_tokens * s->topk;
    const char *const *stage = p->footprint.stages;
    uint32_t stages = 0;

    while (stage != NULL && stage[stages] != NULL)
        stages++;
    out->heap_bytes = p->footprint.heap_bytes;
    out->private_bytes =
        p->footprint.private_bytes + s->in_flight * output_bytes(p) +
        (s->in_flight + 1) * moe_places_bytes(&p->layout) + (s->in_flight + 2) * choices * 8 +
        6 * (uint64_t)s->max_tokens * s->hidden + (s->experts + 1) * sizeof(uint32_t);
    if (cuda)
        out->private_bytes = p->footprint.device_bytes + (s->in_flight + 1) * choices * 8 +
                             2 * (uint64_t)s->max_tokens * s->hidden + code_bytes(p) +
                             device_row_bytes(p);
    out->rows = p->layout.rows;
    out->entries = p->layout.entries;
    out->routing_bytes = moe_routing_bytes(s);
    out->algorithm = p->algorithm.plugin->name;
    out->overlaps = stages > 2;
}
