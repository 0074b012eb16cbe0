/* Dispatch and combine in memory of a CUDA device.
 *
 * The library never reads data of the device, so a CUDA graph can capture the calls. Received rows
 * are views of the memory of the algorithm, whose rows of an expert, or in the RANK layouts all rows,
 * are ordered by source rank, then by token. A kernel of the backend copies the rows to memory of the
 * caller. The choices and weights
 * of a dispatch stay in memory of the caller until the combine, since a copy would cost a kernel in
 * each call. A dispatch with `routing` and a dispatch with choices of 8 bytes make the copy. An
 * algorithm with epa_moe_footprint.direct makes both copies in its own kernels. Tokens with gaps
 * between rows are copied to dense rows, which the algorithms need. */
#include "api/moe_device.h"

#include <string.h>

#include "api/alignment.h"
#include "api/moe_logfmt.h"
#include "api/moe_open.h"
#include "api/moe_routing.h"
#include "api/moe_weights.h"
#include "api/struct_size.h"
#include "ep/ep_explain.h"
#include "options/option.h"

/* ---- plan ---- */

/* Returns the row at which expert e begins, divided by e; 0: no gaps between experts. */
static uint64_t stride_of(const struct moe_plan *p)
{
    return p->layout.layout == EPA2A_EXPERT_PADDED
               ? (uint64_t)p->layout.ranks * p->layout.max_tokens
               : 0;
}

/* Returns true if the algorithm has the option recv_layout with the value "padded". */
static bool pads_rows(const struct ep_choice *algorithm)
{
    const struct epa_option *option = option_find(&algorithm->plugin->options, "recv_layout");
    int value;

    if (option == NULL || option->type != EPA_OPTION_CHOICE)
        return false;
    memcpy(&value, (const char *)algorithm->config + option->offset, sizeof(value));
    for (const struct epa_choice *c = option->choices; c->name != NULL; c++)
        if (c->value == value)
            return strcmp(c->name, "padded") == 0;
    return false;
}

/* RANK: checks the order of the rows. */
static enum epa_status check_row_order(const struct moe_plan *p, struct epa_error *err)
{
    bool padded = p->layout.layout == EPA2A_RANK_PADDED;

    if (p->footprint.u.moe.row_order == (padded ? EPA_ROWS_PADDED : EPA_ROWS_PACKED))
        return EPA_OK;
    return epa_fail(err, EPA_ERR_UNSUPPORTED,
                    "%s does not store the rows in the order of the layout; remove the option "
                    "row_order, or use algorithm=ll_v2",
                    p->algorithm.plugin->name);
}

enum epa_status moe_device_check(const struct moe_plan *p, struct epa_error *err)
{
    const char *name = p->algorithm.plugin->name;

    if (moe_layout_is_rank(&p->layout))
        return check_row_order(p, err);
    if (pads_rows(&p->algorithm) == (stride_of(p) != 0))
        return EPA_OK;
    if (stride_of(p) != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s stores the rows of an expert behind the rows of the previous expert; "
                        "set layout of the shape to EPA2A_EXPERT_PACKED, or use algorithm=ll_v2",
                        name);
    return epa_fail(err, EPA_ERR_UNSUPPORTED,
                    "%s has recv_layout=padded, and layout of the shape is EPA2A_EXPERT_PACKED; "
                    "remove the option",
                    name);
}

/* ---- dispatch ---- */

/* Returns true for a view that an earlier dispatch has stored in the struct of the caller. */
static bool is_view(const struct epa2a_moe *moe, const void *pointer)
{
    for (uint32_t i = 0; i < moe->sets; i++)
        for (int a = 0; a < MOE_ARRAYS; a++)
            if (pointer == moe->record[i].array[a])
                return true;
    for (uint32_t i = 0; i < moe->sets; i++)
        if (pointer == moe->record[i].formed || pointer == moe->record[i].formed_scale)
            return true;
    return false;
}

static bool is_of_caller(const struct epa2a_moe *moe, const void *pointer)
{
    return pointer != NULL && !is_view(moe, pointer);
}

static enum epa_status check_form(const struct moe_form *f, struct epa_error *err)
{
    const uint32_t step = 4; /* channels of a lane, see epa_delivery */

    if (f->fp8 && !f->sent_fp8 && f->group % step != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "EPA2A_RECV_FP8 on a CUDA device needs an fp8_group that is a multiple of "
                        "%u; the shape has %u",
                        step, f->group);
    return EPA_OK;
}

/* Checks the struct of a dispatch, whose tokens have been read. */
static enum epa_status check_received(const struct epa2a_moe *moe, const struct epa2a_received *got,
                                      struct epa_error *err)
{
    const struct moe_form *f = &moe->input.form;
    bool converts = f->fp8 != f->sent_fp8;
    struct epa_backend *b = moe->device;

    if (got->host_count != NULL && b->ops->captures(b))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "host_count makes the call wait, which a CUDA graph cannot capture; set "
                        "host_count to NULL and read `count` on the device");
    if (moe_layout_is_rank(&moe->plan.layout) || !(converts || f->ue8m0 || f->by_group))
        return EPA_OK;
    if ((converts && !is_of_caller(moe, got->x)) || !is_of_caller(moe, got->x_scale))
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "on a CUDA device the moe has no memory for rows or scales in the form "
                        "that flags of the tokens select; set %sx_scale of epa2a_received to "
                        "memory of the application",
                        converts ? "x and " : "");
    return EPA_OK;
}

static int32_t *expert_of_route(const struct moe_route *route)
{
    return (int32_t *)(void *)route->memory;
}

static float *weight_of_route(const struct epa2a_moe *moe, const struct moe_route *route)
{
    const struct epa2a_moe_shape *s = &moe->plan.shape;

    return (float *)(void *)(expert_of_route(route) + (size_t)s->max_tokens * s->topk);
}

/* Replaces the choices and weights of the tokens by the routes of an earlier dispatch. */
static enum epa_status read_route(const struct epa2a_moe *moe, const struct moe_route *route,
                                  struct epa2a_tokens *t, struct epa_error *err)
{
    if (route->tokens != t->tokens)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%u tokens cannot follow routes of %u tokens; pass as many tokens as in "
                        "the dispatch of the routes",
                        t->tokens, route->tokens);
    t->topk_idx = expert_of_route(route);
    t->topk_idx_bytes = sizeof(int32_t);
    t->topk_weight = route->weighted ? weight_of_route(moe, route) : NULL;
    return EPA_OK;
}

/* Replaces tokens in dtype by codes that a kernel will write: only the source has the values that
 * power-of-two scales need. */
static void read_codes(struct epa2a_moe *moe)
{
    struct moe_input *in = &moe->input;

    in->native = in->m.x;
    in->m.x = NULL;
    in->m.x_fp8 = moe->codes;
    in->m.x_scale = moe->code_scales;
    in->m.x_dtype = EPA_FP8_E4M3;
}

/* Checks the tokens. Choices and weights of `route` replace the ones of the tokens; or NULL. */
static enum epa_status read_device_input(struct epa2a_moe *moe, const struct epa2a_tokens *from,
                                         const struct moe_route *route, struct epa_error *err)
{
    struct moe_input *in = &moe->input;
    const struct moe_plan *p = &moe->plan;
    struct epa2a_tokens t, read;
    enum epa_status status = struct_read(&read, sizeof(read), from, "epa2a_tokens", err);

    if (status == EPA_OK && route != NULL)
        status = read_route(moe, route, &read, err);
    if (status != EPA_OK)
        return status;
    in->m = p->problem.u.moe;
    in->wide = in->native = NULL;
    if (read.topk_idx_bytes == sizeof(int64_t)) {
        in->wide = read.topk_idx;
        in->m.wide = p->footprint.u.moe.direct;
        read.topk_idx_bytes = sizeof(int32_t);
        status = alignment_check_choices(in->wide, err);
    }
    if (status == EPA_OK)
        status = tokens_read(&moe->tokens, &read, &t, &in->m, err);
    if (status == EPA_OK)
        status = moe_form_select(&in->m, p->footprint.u.moe.recv_dtype, p->shape.recv_dtype,
                                 t.flags, t.x_scale != NULL, moe->name, &in->form, err);
    if (status == EPA_OK)
        status = check_form(&in->form, err);
    if (status != EPA_OK)
        return status;
    if (in->form.sent_fp8 && in->form.pow2 && t.x_scale == NULL)
        read_codes(moe);
    in->seen = t.seen;
    in->weighted = in->m.weight != NULL;
    if (!in->weighted && p->footprint.u.moe.sum == EPA_SUM_BY_RANK && t.tokens != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s with dedup applies the weights before the outputs return and needs "
                        "topk_weight in dispatch; pass topk_weight, or set dedup=false",
                        moe->name);
    if (!in->weighted)
        in->m.weight = moe->no_weight;
    return EPA_OK;
}

/* Lists new routes at `memory`. */
static const struct moe_route *add_route(struct epa2a_moe *moe, void *memory)
{
    const struct moe_route route = {.memory = memory,
                                    .number = ++moe->routes,
                                    .tokens = moe->input.m.tokens,
                                    .weighted = moe->input.weighted};

    moe_routes_add(&moe->list, route, moe_routing_bytes(&moe->plan.shape));
    return moe_routes_find(&moe->list, memory);
}

/* Copies the choices to the record, and to new routes, or NULL: in the dispatch, or by a kernel. */
static enum epa_status keep_choices(struct epa2a_moe *moe, struct moe_record *r,
                                    const struct moe_route *new, struct epa_error *err)
{
    struct moe_input *in = &moe->input;
    struct epa_moe *m = &r->problem.u.moe;
    struct epa_choices_copy copy = {.n = (uint64_t)m->tokens * m->topk,
                                    .expert = in->wide != NULL ? in->wide : m->expert,
                                    .bytes = in->wide != NULL ? 8 : 4,
                                    .weight = in->weighted ? m->weight : NULL,
                                    .to_expert = {r->expert},
                                    .to_weight = {r->weight}};

    if (new != NULL) {
        copy.to_expert[1] = expert_of_route(new);
        copy.to_weight[1] = weight_of_route(moe, new);
    }
    r->sent_expert = r->expert;
    r->sent_weight = r->weight;
    if (moe->plan.footprint.u.moe.direct) {
        r->keep = copy;
        m->keep = &r->keep;
        return EPA_OK;
    }
    m->expert = r->expert;
    m->weight = r->weight;
    return ep_explain_backend(&moe->ep, moe->device->ops->copy_choices(moe->device, &copy), err);
}

/* Queues dense copies of the rows. */
static enum epa_status make_device_dense(struct epa2a_moe *moe, struct epa_error *err)
{
    const struct tokens *t = &moe->tokens;
    struct epa_backend *b = moe->device;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < t->copies && status == EPA_OK && moe->input.m.tokens != 0; i++)
        status = b->ops->copy_rows(b, t->copy[i].to, t->copy[i].from, t->copy[i].stride,
                                   t->copy[i].row_bytes, moe->input.m.tokens);
    return ep_explain_backend(&moe->ep, status, err);
}

/* Queues the quantisation of tokens. */
static enum epa_status quantise_device_tokens(struct epa2a_moe *moe, struct epa_error *err)
{
    const struct moe_input *in = &moe->input;
    const struct epa_quantise tokens = {.rows = in->m.tokens,
                                        .hidden = in->m.hidden,
                                        .group = in->m.fp8_group_size,
                                        .dtype = (enum epa_dtype)in->m.dtype,
                                        .pow2 = true,
                                        .x = in->native,
                                        .codes = moe->codes,
                                        .scale = moe->code_scales};

    return ep_explain_backend(&moe->ep, moe->device->ops->quantise(moe->device, &tokens), err);
}

/* Turns the checked input into the input of a dispatch that `r` describes. */
static enum epa_status begin_device_record(struct epa2a_moe *moe, struct moe_record *r,
                                           void *routing, const struct moe_route *route,
                                           struct epa_error *err)
{
    struct epa_moe *m = &r->problem.u.moe;
    const struct moe_route *new = NULL;
    enum epa_status status = EPA_OK;

    if (routing != NULL && route == NULL)
        route = new = add_route(moe, routing);
    r->id = ++moe->dispatches;
    r->route = route != NULL ? route->number : 0;
    r->weighted = moe->input.weighted;
    r->problem.op = EPA_OP_MOE;
    *m = moe->input.m;
    r->state = MOE_OPEN;
    r->sent_expert = m->expert;
    r->sent_weight = m->weight;
    if (route != NULL || moe->input.wide != NULL)
        status = keep_choices(moe, r, new, err);
    if (status == EPA_OK)
        status = make_device_dense(moe, err);
    return status == EPA_OK && moe->input.native != NULL ? quantise_device_tokens(moe, err)
                                                         : status;
}

enum epa_status moe_device_dispatch_send(struct epa2a_moe *moe, const struct epa2a_tokens *t,
                                         struct epa2a_received *got, bool again,
                                         struct epa_error *err)
{
    const struct moe_route *route = again ? moe_routes_find(&moe->list, got->routing) : NULL;
    struct moe_record *r = NULL;
    enum epa_status status = EPA_OK;

    if (again && route == NULL)
        status = epa_fail(err, EPA_ERR_CONFIG,
                          "`routing` holds no routes of a dispatch of this moe; pass the memory "
                          "that was `routing` of an earlier dispatch");
    if (status == EPA_OK)
        status = read_device_input(moe, t, route, err);
    if (status == EPA_OK)
        status = check_received(moe, got, err);
    if (status == EPA_OK && got->routing != NULL && !again)
        status = moe_routes_reserve(&moe->list, err);
    if (status == EPA_OK)
        status = moe_open_record(moe, &r, err);
    if (status == EPA_OK)
        status = begin_device_record(moe, r, got->routing, route, err);
    if (status != EPA_OK)
        return status;
    moe->combined = NULL;
    moe->halved = r;
    if (moe->send[MOE_DISPATCH].run != NULL)
        status = moe_stage(moe, &moe->send[MOE_DISPATCH], &r->problem, err);
    if (status == EPA_OK)
        moe->half = MOE_DISPATCH_SENT;
    return status;
}

/* Replaces a pointer that is NULL or an earlier view by a view. Returns NULL then, else the pointer,
 * to which the rows have to be copied. */
static void *set_view(const struct epa2a_moe *moe, void **pointer, const void *view)
{
    void *of_caller = *pointer;

    if (is_of_caller(moe, of_caller))
        return of_caller;
    *pointer = (void *)(uintptr_t)view;
    return NULL;
}

/* Returns the distance of two words of scales with EPA2A_SCALE_BY_GROUP; 0: without the flag. */
static uint64_t scale_rows_of(const struct epa2a_moe *moe, const struct moe_form *f)
{
    const struct moe_layout *l = &moe->plan.layout;

    if (!f->by_group)
        return 0;
    return l->layout == EPA2A_EXPERT_PADDED ? (uint64_t)l->ranks * l->max_tokens : l->rows;
}

/* Returns the copies of all forms and layouts, without the arrays of the caller. */
static struct epa_delivery begin_delivery(const struct epa2a_moe *moe,
                                          const struct epa2a_received *got)
{
    const struct moe_form *f = &moe->input.form;

    return (struct epa_delivery){.experts = moe->plan.layout.local,
                                 .ranks = moe->plan.layout.ranks,
                                 .max_tokens = moe->plan.layout.max_tokens,
                                 .stride = stride_of(&moe->plan),
                                 .topk = moe->plan.shape.topk,
                                 .row_bytes = (uint32_t)moe_form_row_bytes(f),
                                 .groups = f->fp8 ? moe_form_groups(f) : 0,
                                 .quantised_group = f->fp8 && !f->sent_fp8 ? f->group : 0,
                                 .dtype = f->f16 ? EPA_F16 : EPA_BF16,
                                 .pow2 = f->pow2,
                                 .exponents = f->ue8m0,
                                 .scale_rows = scale_rows_of(moe, f),
                                 .source_token = got->source_token,
                                 .source_range = got->source_range,
                                 .seen = moe->input.seen};
}

/* Sets the pointers of rows and scales. `formed`: memory of the moe for rows in another form than the
 * view. */
static void deliver_rows(const struct epa2a_moe *moe, const struct moe_record *r,
                         struct epa2a_received *got, struct epa_delivery *to)
{
    const struct epa_moe *m = &r->problem.u.moe;
    const struct moe_form *f = &moe->input.form;
    bool by_rank = moe_layout_is_rank(&moe->plan.layout), converts = f->fp8 != f->sent_fp8;
    void *formed = by_rank && converts ? r->formed : NULL, *scale = got->x_scale;
    void *formed_scale = by_rank && (converts || f->ue8m0 || f->by_group) ? r->formed_scale : NULL;

    to->x = set_view(moe, &got->x, formed != NULL ? formed : m->recv);
    got->x_stride = to->x != NULL ? 0 : formed != NULL ? to->row_bytes : m->recv_stride;
    to->x = formed != NULL ? got->x : to->x;
    got->x_scale_stride = 0;
    if (!f->fp8)
        return;
    to->x_scale = set_view(moe, &scale, formed_scale != NULL ? formed_scale : m->recv_scale);
    if (to->x_scale == NULL && formed_scale != NULL)
        got->x_scale_stride =
            (to->scale_rows != 0 ? to->scale_rows : moe_form_words(f)) * sizeof(uint32_t);
    else if (to->x_scale == NULL)
        got->x_scale_stride = m->scale_stride;
    to->x_scale = formed_scale != NULL ? scale : to->x_scale;
    got->x_scale = scale;
}

/* RANK: sets the pointers of the lists of entries and choices. */
static void deliver_choices(struct epa2a_moe *moe, struct moe_record *r, struct epa2a_received *got,
                            struct epa_delivery *to)
{
    const struct epa_moe *m = &r->problem.u.moe;
    void *row = got->row, *topk_idx = got->topk_idx, *topk_weight = got->topk_weight;

    to->row = set_view(moe, &row, m->recv_row);
    to->topk_idx = set_view(moe, &topk_idx, m->recv_local);
    to->topk_weight = set_view(moe, &topk_weight, m->recv_local_weight);
    got->row = row;
    got->topk_idx = topk_idx;
    got->topk_weight = topk_weight;
    r->array[MOE_ROW] = (void *)(uintptr_t)m->recv_row;
    r->array[MOE_TOPK_IDX] = (void *)(uintptr_t)m->recv_local;
    r->array[MOE_TOPK_WEIGHT] = (void *)(uintptr_t)m->recv_local_weight;
}

/* Returns true if the dispatch can store the rows in memory of the caller. */
static bool is_direct(const struct epa2a_moe *moe, const struct epa2a_received *got)
{
    const struct moe_form *f = &moe->input.form;

    return moe->plan.footprint.u.moe.direct && f->fp8 == f->sent_fp8 && is_of_caller(moe, got->x) &&
           (!f->fp8 || is_of_caller(moe, got->x_scale));
}

/* Returns the arrays of the caller in which the dispatch stores rows and lists. */
static struct epa_delivery direct_delivery(const struct epa2a_moe *moe,
                                           const struct epa2a_received *got)
{
    struct epa_delivery to = begin_delivery(moe, got);

    to.x = got->x;
    to.x_scale = moe->input.form.fp8 ? got->x_scale : NULL;
    to.count = is_of_caller(moe, got->count) ? got->count : NULL;
    to.start = is_of_caller(moe, got->start) ? got->start : NULL;
    return to;
}

/* Sets the pointers of the struct to views, and, without `delivered`, queues copies to memory of the
 * caller. */
static enum epa_status deliver(struct epa2a_moe *moe, struct moe_record *r, bool delivered,
                               struct epa2a_received *got, struct epa_error *err)
{
    const struct epa_moe *m = &r->problem.u.moe;
    struct epa_backend *b = moe->device;
    struct epa_delivery to = begin_delivery(moe, got);
    void *count = got->count, *start = got->start;

    deliver_rows(moe, r, got, &to);
    to.count = set_view(moe, &count, m->recv_count);
    to.start = set_view(moe, &start, m->recv_start);
    (void)set_view(moe, &got->y, m->y_space);
    got->count = count;
    got->start = start;
    if (moe_layout_is_rank(&moe->plan.layout)) {
        deliver_choices(moe, r, got, &to);
    } else {
        got->row = NULL;
        got->topk_idx = NULL;
        got->topk_weight = NULL;
    }
    r->array[MOE_X] = (void *)(uintptr_t)m->recv;
    r->array[MOE_X_SCALE] = (void *)(uintptr_t)m->recv_scale;
    r->array[MOE_COUNT] = (void *)(uintptr_t)m->recv_count;
    r->array[MOE_START] = (void *)(uintptr_t)m->recv_start;
    r->array[MOE_Y] = m->y_space;
    if (delivered || (to.x == NULL && to.x_scale == NULL && to.count == NULL && to.start == NULL &&
                      to.source_token == NULL && to.source_range == NULL && to.seen == NULL &&
                      to.row == NULL && to.topk_idx == NULL && to.topk_weight == NULL))
        return EPA_OK;
    return ep_explain_backend(&moe->ep, b->ops->deliver(b, m, &to), err);
}

/* RANK: reads the number of all rows. */
static enum epa_status read_device_rows(struct epa2a_moe *moe, const struct moe_record *r,
                                        uint32_t *rows)
{
    enum { CHUNK = 16 };
    const int64_t *from = r->problem.u.moe.recv_range;
    struct epa_backend *b = moe->device;
    uint32_t ranks = moe->plan.layout.ranks;
    enum epa_status status = EPA_OK;
    int64_t range[CHUNK];

    *rows = 0;
    for (uint32_t at = 0; at < ranks && status == EPA_OK; at += CHUNK) {
        uint32_t n = ranks - at < CHUNK ? ranks - at : CHUNK;

        status = b->ops->read(b, range, from + at, n * sizeof(*range));
        for (uint32_t i = 0; i < n && status == EPA_OK; i++)
            *rows += (uint32_t)range[i];
    }
    return status;
}

/* Waits for the counts. */
static enum epa_status read_counts(struct epa2a_moe *moe, const struct moe_record *r,
                                   uint32_t *host_count, struct epa_error *err)
{
    struct epa_backend *b = moe->device;
    uint32_t local = moe->plan.layout.local, *rows = host_count + local;
    enum epa_status status = ep_sync(&moe->ep, err);

    if (status == EPA_OK)
        status = ep_explain_backend(
            &moe->ep,
            b->ops->read(b, host_count, r->problem.u.moe.recv_count, local * sizeof(*host_count)),
            err);
    if (status != EPA_OK)
        return status;
    if (moe_layout_is_rank(&moe->plan.layout))
        return ep_explain_backend(&moe->ep, read_device_rows(moe, r, rows), err);
    *rows = 0;
    for (uint32_t e = 0; e < local; e++)
        *rows += host_count[e];
    return EPA_OK;
}

enum epa_status moe_device_dispatch_recv(struct epa2a_moe *moe, struct epa2a_received *got,
                                         struct epa_error *err)
{
    struct moe_record *r = moe->halved;
    struct epa_moe *m = &r->problem.u.moe;
    enum epa_status status = check_received(moe, got, err);
    bool direct = is_direct(moe, got);
    struct epa_delivery into;

    if (status != EPA_OK)
        return status;
    moe->half = MOE_WHOLE;
    if (direct) {
        into = direct_delivery(moe, got);
        m->into = &into;
    }
    status = moe_stage(moe, &moe->recv[MOE_DISPATCH], &r->problem, err);
    m->keep = NULL;
    m->into = NULL;
    m->wide = false;
    moe->last_epoch = r->problem.u.moe.epoch;
    if (r->route != 0)
        r->state = MOE_LINGERS;
    got->id = r->id;
    got->rows = moe->plan.layout.rows;
    got->entries = moe->plan.layout.entries;
    if (status == EPA_OK)
        status = deliver(moe, r, direct, got, err);
    if (status == EPA_OK && got->host_count != NULL)
        status = read_counts(moe, r, got->host_count, err);
    return status;
}

enum epa_status moe_device_discard(struct epa2a_moe *moe, const struct epa2a_received *got,
                                   struct epa_error *err)
{
    const struct moe_record *r = NULL;

    for (uint32_t i = 0; i < moe->sets; i++)
        if (moe->record[i].state == MOE_LINGERS && moe->record[i].id == got->id)
            r = &moe->record[i];
    if (r == NULL && moe->ep.algorithm->discard == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s cannot discard a dispatch with these options; set in_flight of the "
                        "shape to 2, use algorithm=ll_v1, pass `routing` to the dispatch, or "
                        "combine the dispatch",
                        moe->name);
    return moe_open_discard(moe, got, err);
}

/* ---- combine ---- */

static enum epa_status find_device_route(struct epa2a_moe *moe, const void *memory,
                                         struct moe_target *out, struct epa_error *err)
{
    const struct moe_route *route = moe_routes_find(&moe->list, memory);

    if (route == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "`routing` holds no routes of a dispatch of this moe; pass the struct "
                        "epa2a_received of the dispatch");
    *out = (struct moe_target){.record = moe_open_find_route(moe, route->number),
                               .tokens = route->tokens,
                               .weighted = route->weighted,
                               .expert = expert_of_route(route),
                               .weight = weight_of_route(moe, route)};
    out->id = out->record != NULL ? out->record->id : 0;
    return EPA_OK;
}

static enum epa_status find_device_dispatch(struct epa2a_moe *moe, uint64_t id,
                                            struct moe_target *out, struct epa_error *err)
{
    struct moe_record *r = NULL;
    bool again;
    enum epa_status status = moe_open_find(moe, id, &r, &again, err);

    if (status != EPA_OK)
        return status;
    if (again && !moe->ep.algorithm->combines_again)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s cannot repeat a combine; pass `routing` to the dispatch, or use "
                        "algorithm=ll_v1 or algorithm=ll_v2",
                        moe->name);
    *out = (struct moe_target){.record = r,
                               .id = id,
                               .tokens = r->problem.u.moe.tokens,
                               .weighted = r->weighted,
                               .expert = r->sent_expert,
                               .weight = r->sent_weight};
    return EPA_OK;
}

static enum epa_status check_device_expert_outputs(const struct epa2a_moe *moe,
                                                   const struct epa2a_outputs *o,
                                                   const struct moe_target *t,
                                                   struct epa_error *err)
{
    const struct epa_moe_footprint *f = &moe->plan.footprint.u.moe;

    if (o->out_weight != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "out_weight is for the RANK layouts; set out_weight to NULL");
    if (o->topk_idx != NULL && o->topk_idx_bytes != 4 && o->topk_idx_bytes != 8)
        return epa_fail(err, EPA_ERR_CONFIG, "topk_idx_bytes is %d; write 4 or 8",
                        o->topk_idx_bytes);
    if (o->topk_weight != NULL && f->sum == EPA_SUM_BY_RANK)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s with dedup applies the weights before the outputs return; pass "
                        "topk_weight to dispatch, or set dedup=false",
                        moe->name);
    if (o->topk_weight == NULL && !t->weighted && t->tokens != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "neither the dispatch nor the combine has topk_weight; pass topk_weight to "
                        "one of them");
    return EPA_OK;
}

static enum epa_status check_device_rank_outputs(const struct epa2a_moe *moe,
                                                 const struct epa2a_outputs *o,
                                                 struct epa_error *err)
{
    if (o->topk_idx != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "topk_idx in combine is for the EXPERT layouts; set topk_idx to NULL");
    return moe_check_weights(moe, o, err);
}

static enum epa_status check_device_outputs(const struct epa2a_moe *moe,
                                            const struct epa2a_received *got,
                                            const struct epa2a_outputs *o,
                                            const struct moe_target *t, struct epa_error *err)
{
    const void *y = o->y != NULL ? o->y : got->y;
    enum epa_status status;

    if (o->out == NULL && t->tokens != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "out is NULL, with %u tokens", t->tokens);
    if (y == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "y is NULL in the outputs and in the received rows; pass expert outputs");
    if (t->record == NULL && is_view(moe, y))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "other calls have used the memory of y since the dispatch; for a combine "
                        "that does not follow its dispatch, set y to memory of the application");
    status = moe_check_logfmt(moe, o, err);
    if (status != EPA_OK)
        return status;
    return moe_layout_is_rank(&moe->plan.layout) ? check_device_rank_outputs(moe, o, err)
                                                 : check_device_expert_outputs(moe, o, t, err);
}

/* Sets the choices of the combine: the array of the caller, or, unless the algorithm reads choices of 8
 * bytes, a copy in 4 bytes. */
static enum epa_status set_choices(struct epa2a_moe *moe, const struct epa2a_outputs *o,
                                   struct epa_moe *m, struct epa_error *err)
{
    struct epa_choices_copy copy = {.n = (uint64_t)m->tokens * m->topk,
                                    .expert = o->topk_idx,
                                    .bytes = 8,
                                    .to_expert = {moe->masked}};

    m->expert = o->topk_idx != NULL ? o->topk_idx : moe->target.expert;
    m->wide = o->topk_idx != NULL && o->topk_idx_bytes == 8 && moe->plan.footprint.u.moe.direct;
    if (m->wide || o->topk_idx == NULL || o->topk_idx_bytes == 4)
        return EPA_OK;
    m->expert = moe->masked;
    return ep_explain_backend(&moe->ep, moe->device->ops->copy_choices(moe->device, &copy), err);
}

/* Opens the dispatch of the target, in order, and gives the problem its outputs. */
static enum epa_status prepare_device_combine(struct epa2a_moe *moe, struct epa_error *err)
{
    const struct moe_target *t = &moe->target;
    const struct epa2a_outputs *o = &moe->outputs;
    bool by_rank = moe_layout_is_rank(&moe->plan.layout);
    struct moe_record *r = t->record;
    enum epa_status status;
    struct epa_moe *m;

    if (r != NULL) {
        status = moe_open_order(moe, r, err);
    } else {
        r = &moe->lane;
        r->id = t->id;
        status = moe_open_lane(moe, t->tokens, t->expert, t->weight, err);
    }
    m = &r->problem.u.moe;
    if (status == EPA_OK)
        status = set_choices(moe, o, m, err);
    m->weight = o->topk_weight != NULL && !by_rank ? o->topk_weight : t->weight;
    m->y = o->y;
    m->out = o->out;
    moe->halved = r;
    if (status == EPA_OK && (o->flags & EPA2A_COMBINE_LOGFMT) != 0)
        status = moe_round_logfmt(moe, r, o->y, err);
    return status;
}

enum epa_status moe_device_combine_send(struct epa2a_moe *moe, const struct epa2a_received *got,
                                        const struct epa2a_outputs *o, struct epa_error *err)
{
    struct moe_target *t = &moe->target;
    enum epa_status status = got->routing != NULL ? find_device_route(moe, got->routing, t, err)
                                                  : find_device_dispatch(moe, got->id, t, err);

    if (status == EPA_OK)
        status = check_device_outputs(moe, got, o, t, err);
    if (status == EPA_OK && t->record != NULL)
        status = moe_open_check_order(moe, t->record, err);
    if (status == EPA_OK && (t->record == NULL || o->out_weight != NULL))
        status = moe_open_check_lane(moe, t->record, err);
    if (status != EPA_OK)
        return status;
    moe->outputs = *o;
    if (o->y == NULL)
        moe->outputs.y = got->y;
    status = prepare_device_combine(moe, err);
    if (status == EPA_OK && moe->send[MOE_COMBINE].run != NULL)
        status = moe_stage(moe, &moe->send[MOE_COMBINE], &moe->halved->problem, err);
    if (status == EPA_OK)
        moe->half = MOE_COMBINE_SENT;
    return status;
}

enum epa_status moe_device_combine_recv(struct epa2a_moe *moe, struct epa_error *err)
{
    const struct epa2a_outputs *o = &moe->outputs;
    const struct epa2a_moe_shape *s = &moe->plan.shape;
    struct moe_record *r = moe->halved;
    enum epa_status status = moe_stage(moe, &moe->recv[MOE_COMBINE], &r->problem, err);

    moe->half = MOE_WHOLE;
    if (status != EPA_OK)
        return status;
    r->state = MOE_FREE;
    if (r != &moe->lane)
        moe->combined = r;
    if (o->bias[0] != NULL || o->bias[1] != NULL)
        status = ep_explain_backend(
            &moe->ep,
            moe->device->ops->add_bias(moe->device, o->bias, (enum epa_dtype)s->dtype,
                                       (uint64_t)moe->target.tokens * s->hidden, o->out),
            err);
    return status == EPA_OK && o->out_weight != NULL ? moe_return_weights(moe, err) : status;
}
