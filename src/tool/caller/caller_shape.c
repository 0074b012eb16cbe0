/* Shapes of moes and layers for the public interface. */
#include "caller/caller_shape.h"

#include <string.h>

#include "base/text.h"
#include "caller/caller_check.h"
#include "caller/caller_memory.h"
#include "caller/caller_status.h"
#include "config/option_text.h"
#include "options/option.h"

enum { IN_FLIGHT = 2 }; /* maximum of epa2a_moe_shape.in_flight */

/* Returns true if the rows of a layout have gaps: by the options of the algorithm, or for rows per
 * expert by the capacity. With memory of the library, and on devices, rows have the layout of the
 * algorithm. */
static bool is_padded(const struct caller *c)
{
    const struct experiment *x = c->x;
    const struct epa_moe_footprint *f = &x->footprint.u.moe;
    const struct epa_option *o = option_find(&x->algorithm.plugin->options, "recv_layout");
    uint64_t tokens = (uint64_t)x->problem.ranks * x->problem.moe.max_tokens;

    if (f->row_order != EPA_ROWS_ANY)
        return f->row_order == EPA_ROWS_PADDED;
    if (o != NULL) {
        text_auto value = {0};

        option_text(o, x->algorithm.config, &value);
        return strcmp(value.data, "padded") == 0;
    }
    return !caller_is_on_device(c) && !c->params.library_memory && f->layout == EPA_LAYOUT_EXPERT &&
           f->recv_rows >= tokens * (x->problem.moe.experts / x->problem.ranks);
}

void caller_shape(const struct caller *c, struct epa2a_moe_shape *out)
{
    const struct experiment *x = c->x;
    const struct epa_moe_footprint *f = &x->footprint.u.moe;
    bool by_rank = f->layout == EPA_LAYOUT_RANK, padded = is_padded(c);

    out->max_tokens = x->problem.moe.max_tokens;
    out->hidden = x->problem.moe.hidden;
    out->experts = x->problem.moe.experts;
    out->topk = x->problem.moe.topk;
    out->dtype = x->problem.moe.dtype;
    out->recv_dtype = f->recv_dtype;
    out->layout = by_rank ? (padded ? EPA2A_RANK_PADDED : EPA2A_RANK_PACKED)
                          : (padded ? EPA2A_EXPERT_PADDED : EPA2A_EXPERT_PACKED);
    out->fp8_group = x->problem.moe.fp8_group_size;
    out->in_flight = x->footprint.in_flight < IN_FLIGHT ? 1 : IN_FLIGHT;
    out->options = c->options.data;
}

enum epa_status caller_raise_rows(struct caller *c, struct epa_footprint *f, struct epa_error *err)
{
    EPA2A_STRUCT(epa2a_moe_shape, s);
    EPA2A_STRUCT(epa2a_need, need);
    enum epa_status status;

    if (algorithm_of(c->x)->op != EPA_OP_MOE || caller_uses_layer(c->x))
        return EPA_OK;
    caller_shape(c, &s);
    status = caller_set_up(c, epa2a_moe_need(c->comm, 0, EPA2A_HOST, &s, &need), err);
    if (status != EPA_OK)
        return status;
    f->u.moe.recv_rows = need.rows > f->u.moe.recv_rows ? need.rows : f->u.moe.recv_rows;
    f->u.moe.recv_entries =
        need.entries > f->u.moe.recv_entries ? need.entries : f->u.moe.recv_entries;
    return EPA_OK;
}
