#include "moe_check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "room.h"

/* ---- ranks ---- */

bool claim(struct rank *r, bool holds, const char *fmt, ...)
{
    va_list args;

    if (holds || r->failed)
        return holds;
    va_start(args, fmt);
    vsnprintf(r->of->result->text, sizeof(r->of->result->text), fmt, args);
    va_end(args);
    r->failed = true;
    return false;
}

bool works(struct rank *r, int status)
{
    return claim(r, status == EPA2A_OK, "%s: %s", epa2a_status_name(status), epa2a_last_error());
}

void fails(struct rank *r, int status, int wanted, const char *words)
{
    const char *text = epa2a_last_error(), *at = text;

    if (!claim(r, status == wanted, "%s instead of %s: %s", epa2a_status_name(status),
               epa2a_status_name(wanted), text))
        return;
    for (const char *word = words; *word != 0;) {
        const char *end = strstr(word, " .. ");
        size_t n = end != NULL ? (size_t)(end - word) : strlen(word);
        char one[128];

        snprintf(one, sizeof(one), "%.*s", (int)n, word);
        at = strstr(at, one);
        if (!claim(r, at != NULL, "'%s' has no '%s'", text, one))
            return;
        word = end != NULL ? end + 4 : word + n;
    }
}

struct epa2a_comm *create_comm(struct rank *r)
{
    EPA2A_STRUCT(epa2a_comm_params, p);
    struct epa2a_comm *comm = NULL;
    char options[160];

    snprintf(options, sizeof(options), "transport=%s%s", r->transport, room_options());
    if (r->stream == NULL)
        r->stream = room_stream(r->rank);
    p.version = EPA2A_VERSION;
    p.rank = r->rank;
    p.ranks = r->arg->ranks;
    p.allgather = group_allgather;
    p.arg = r->of;
    p.device = room_device(r->rank);
    p.options = options;
    p.heap_bytes = r->heap_bytes;
    (void)works(r, epa2a_comm_create(&p, &comm));
    return comm;
}

/* ---- a moe and its memory ---- */

static size_t hidden_of(const struct subject *t)
{
    return t->s->shape.hidden;
}

static size_t groups_of(const struct subject *t)
{
    return t->s->shape.hidden / t->s->shape.fp8_group;
}

static void *allocate(size_t n, size_t size)
{
    void *p = calloc(n + 1, size);

    if (p == NULL)
        abort();
    return p;
}

void subject_begin(struct subject *t, struct rank *r, const struct setting *s,
                   struct epa2a_comm *comm)
{
    size_t tokens = s->shape.max_tokens;
    struct epa2a_moe_shape shape = s->shape;

    *t = (struct subject){.r = r, .s = s, .comm = comm, .need = {.size = sizeof(t->need)}};
    shape.size = sizeof(shape);
    if (!works(r, epa2a_moe_need(comm, 0, EPA2A_HOST, &shape, &t->need)) ||
        !works(r, epa2a_moe_create(comm, &shape, &t->moe)))
        return;
    t->x = allocate(2 * tokens, hidden_of(t) * sizeof(*t->x));
    t->out = allocate(tokens, hidden_of(t) * sizeof(*t->out));
    t->bias = allocate(2 * tokens, hidden_of(t) * sizeof(*t->bias));
    t->codes = allocate(2 * tokens, hidden_of(t));
    t->code_scale = allocate(2 * tokens, (groups_of(t) + 1) * sizeof(float));
    t->weight = allocate(tokens * s->shape.topk, sizeof(*t->weight));
    t->expert = allocate(tokens * s->shape.topk, sizeof(*t->expert));
    t->wide = allocate(tokens * s->shape.topk, sizeof(*t->wide));
    if (!room_is_device())
        return;
    t->there.x = room_alloc(2 * tokens * hidden_of(t) * sizeof(*t->x));
    t->there.out = room_alloc(tokens * hidden_of(t) * sizeof(*t->out));
    t->there.y = room_alloc(t->need.rows * hidden_of(t) * 2);
    t->there.bias = room_alloc(2 * tokens * hidden_of(t) * sizeof(*t->bias));
    t->there.codes = room_alloc(2 * tokens * hidden_of(t));
    t->there.code_scale = room_alloc(tokens * (groups_of(t) + 1) * sizeof(float));
    t->there.weight = room_alloc(tokens * s->shape.topk * sizeof(*t->weight));
    t->there.expert = room_alloc(tokens * s->shape.topk * sizeof(*t->wide));
}

void subject_end(struct subject *t)
{
    epa2a_moe_destroy(t->moe);
    free(t->x);
    free(t->out);
    free(t->bias);
    free(t->codes);
    free(t->code_scale);
    free(t->weight);
    free(t->expert);
    free(t->wide);
    room_free(t->there.x);
    room_free(t->there.out);
    room_free(t->there.y);
    room_free(t->there.bias);
    room_free(t->there.codes);
    room_free(t->there.code_scale);
    room_free(t->there.weight);
    room_free(t->there.expert);
}

/* ---- memory of a dispatch ---- */

void slot_begin(const struct subject *t, struct slot *p, const struct way *w)
{
    size_t rows = t->need.rows, local = local_of(t->s), topk = t->s->shape.topk;
    struct epa2a_received *g = &p->got;

    *p = (struct slot){.own = w->own, .got = {.size = sizeof(*g)}};
    p->seen = allocate(local, sizeof(*p->seen));
    p->seen_before = allocate(local, sizeof(*p->seen));
    p->host_count = allocate(local + 1, sizeof(*p->host_count));
    g->host_count = p->host_count;
    if (w->routing)
        g->routing = p->room = room_alloc(t->need.routing_bytes);
    if (room_is_device() && w->own) {
        p->seen_there = room_alloc(local * sizeof(*p->seen));
        room_copy(p->seen_there, p->seen, local * sizeof(*p->seen), t->r->stream);
    }
    if (!w->own && is_rank_layout(t->s)) { /* the checks need both arrays */
        p->mine.source_token = g->source_token = room_alloc(rows * sizeof(*g->source_token));
        p->mine.source_range = g->source_range = room_alloc(t->s->ranks * sizeof(*g->source_range));
    }
    if (!w->own)
        return;
    g->x = room_alloc(rows * hidden_of(t) * 2);
    g->x_scale = room_alloc(rows * (groups_of(t) + 1) * sizeof(float));
    g->count = room_alloc(local * sizeof(*g->count));
    g->start = room_alloc(local * sizeof(*g->start));
    g->row = room_alloc(t->need.entries * sizeof(*g->row));
    g->topk_idx = room_alloc(rows * topk * sizeof(*g->topk_idx));
    g->topk_weight = room_alloc(rows * topk * sizeof(*g->topk_weight));
    g->source_token = room_alloc(rows * sizeof(*g->source_token));
    g->source_range = room_alloc(local * t->s->ranks * sizeof(*g->source_range));
    g->y = room_alloc(rows * hidden_of(t) * 2);
    p->mine = *g;
}

/* Frees the copies of a dispatch on a device. */
static void free_host(struct slot *p)
{
    free(p->host.x);
    free(p->host.x_scale);
    free(p->host.count);
    free(p->host.start);
    free(p->host.row);
    free(p->host.topk_idx);
    free(p->host.topk_weight);
    free(p->host.source_token);
    free(p->host.source_range);
    free(p->host.y);
    p->host = (struct epa2a_received){.size = 0};
}

void slot_end(struct slot *p)
{
    room_free(p->mine.x);
    room_free(p->mine.x_scale);
    room_free(p->mine.count);
    room_free(p->mine.start);
    room_free(p->mine.row);
    room_free(p->mine.topk_idx);
    room_free(p->mine.topk_weight);
    room_free(p->mine.source_token);
    room_free(p->mine.source_range);
    room_free(p->mine.y);
    if (room_is_device()) {
        free_host(p);
        room_free(p->seen_there);
    }
    room_free(p->room);
    free(p->seen);
    free(p->seen_before);
    free(p->host_count);
}

/* ---- dispatch ---- */

/* Copies the inputs to the device. */
static void move_inputs(struct subject *t, const struct slot *p, struct epa2a_tokens *in)
{
    size_t tokens = in->tokens, choices = tokens * t->s->shape.topk;
    void *x = in->x_scale != NULL ? t->there.codes : t->there.x, *stream = t->r->stream;
    size_t row = in->x_stride != 0 ? in->x_stride : hidden_of(t) * (in->x_scale != NULL ? 1 : 2);
    size_t scales = in->x_scale_stride != 0 ? in->x_scale_stride : groups_of(t) * sizeof(float);

    room_copy(x, in->x, tokens * row, stream);
    room_copy(t->there.expert, in->topk_idx, choices * (size_t)in->topk_idx_bytes, stream);
    in->x = x;
    in->topk_idx = t->there.expert;
    in->seen = p->seen_there;
    if (in->topk_weight != NULL) {
        room_copy(t->there.weight, in->topk_weight, choices * sizeof(float), stream);
        in->topk_weight = t->there.weight;
    }
    if (in->x_scale != NULL) {
        room_copy(t->there.code_scale, in->x_scale, tokens * scales, stream);
        in->x_scale = t->there.code_scale;
    }
}

void fill_inputs(struct subject *t, const struct slot *p, const struct way *w,
                 struct epa2a_tokens *in)
{
    const struct setting *s = t->s;
    size_t step = w->strided ? 2 * hidden_of(t) : hidden_of(t);
    uint32_t topk = s->shape.topk;

    for (uint32_t i = 0; i < p->tokens; i++) {
        model_x(s, t->r->rank, p->iteration, i, t->x + i * step);
        if (w->codes)
            model_row(s, t->x + i * step, t->codes + i * step,
                      t->code_scale + i * (groups_of(t) + w->strided));
        model_choices(s, t->r->rank, p->route, i, t->expert + (size_t)i * topk,
                      t->weight + (size_t)i * topk);
    }
    for (size_t i = 0; i < (size_t)p->tokens * topk; i++)
        t->wide[i] = t->expert[i];
    *in = (struct epa2a_tokens){.size = sizeof(*in),
                                .tokens = p->tokens,
                                .flags = s->flags,
                                .x = w->codes ? (const void *)t->codes : t->x,
                                .x_stride = w->strided ? step * (w->codes ? 1 : 2) : 0,
                                .topk_idx = w->wide ? (const void *)t->wide : t->expert,
                                .topk_idx_bytes = w->wide ? 8 : 4,
                                .topk_weight = w->late ? NULL : t->weight,
                                .seen = p->seen};
    if (w->codes) {
        in->x_scale = t->code_scale;
        in->x_scale_stride = w->strided ? (groups_of(t) + 1) * sizeof(float) : 0;
    }
    if (room_is_device())
        move_inputs(t, p, in);
}

static const void *row_at(const struct subject *t, const struct slot *p, uint64_t row)
{
    size_t bytes = hidden_of(t) * (model_is_fp8(t->s) ? 1 : 2);
    size_t stride = p->host.x_stride != 0 ? p->host.x_stride : bytes;

    return (const char *)p->host.x + row * stride;
}

/* Reads the scales of a row in any form. */
static void read_scales(const struct subject *t, const struct slot *p, uint64_t row, float *out)
{
    const struct setting *s = t->s;
    bool ue8m0 = (s->flags & EPA2A_SCALE_UE8M0) != 0;
    uint32_t groups = (uint32_t)groups_of(t), words = ue8m0 ? (groups + 3) / 4 : groups;
    uint64_t major = s->shape.layout == EPA2A_EXPERT_PADDED
                         ? (uint64_t)s->ranks * s->shape.max_tokens
                         : t->need.rows;

    for (uint32_t g = 0; g < groups; g++) {
        uint32_t w = ue8m0 ? g / 4 : g, word;
        uint64_t at =
            row * (p->host.x_scale_stride != 0 ? p->host.x_scale_stride : words * 4) + w * 4;

        if ((s->flags & EPA2A_SCALE_BY_GROUP) != 0)
            at = ((row / major * words + w) * major + row % major) * 4;
        memcpy(&word, (const char *)p->host.x_scale + at, sizeof(word));
        out[g] = float_of_bits(ue8m0 ? (word >> g % 4 * 8 & 255) << 23 : word);
        (void)claim(t->r, !ue8m0 || g + 1 < groups || g % 4 == 3 || word >> (g % 4 + 1) * 8 == 0,
                    "row %llu has unused bytes of 0x%x", (unsigned long long)row, word);
    }
}

static bool check_row(struct subject *t, const struct slot *p, uint64_t row, uint32_t rank,
                      uint32_t token)
{
    uint16_t x[MODEL_HIDDEN], want[MODEL_HIDDEN];
    float scale[MODEL_HIDDEN / 16], have[MODEL_HIDDEN / 16];
    bool fp8 = model_is_fp8(t->s);

    model_x(t->s, rank, p->iteration, token, x);
    model_row(t->s, x, want, scale);
    if (fp8)
        read_scales(t, p, row, have);
    return claim(t->r, p->host.source_token == NULL || (uint32_t)p->host.source_token[row] == token,
                 "row %llu has source_token %d instead of %u", (unsigned long long)row,
                 p->host.source_token != NULL ? p->host.source_token[row] : 0, token) &&
           claim(t->r, memcmp(row_at(t, p, row), want, hidden_of(t) * (fp8 ? 1 : 2)) == 0,
                 "row %llu is not token %u of rank %u", (unsigned long long)row, token, rank) &&
           claim(t->r, !fp8 || memcmp(have, scale, groups_of(t) * sizeof(float)) == 0,
                 "row %llu has other scales than token %u of rank %u", (unsigned long long)row,
                 token, rank);
}

/* Checks a RANK row's choices. Returns the number of choices of this rank. */
static uint32_t check_choices(struct subject *t, const struct slot *p, uint64_t row,
                              const int32_t *expert, const float *weight, bool late)
{
    uint32_t topk = t->s->shape.topk, local = local_of(t->s), n = 0;

    for (uint32_t k = 0; k < topk; k++) {
        bool here = expert[k] >= 0 && (uint32_t)expert[k] / local == t->r->rank;
        int32_t want = here ? expert[k] % (int32_t)local : -1;
        float by = here && !late ? weight[k] : 0;

        n += here;
        (void)claim(t->r,
                    p->host.topk_idx[row * topk + k] == want &&
                        bits_of_float(p->host.topk_weight[row * topk + k]) == bits_of_float(by),
                    "row %llu has choice %u %d with weight %g instead of %d, %g",
                    (unsigned long long)row, k, p->host.topk_idx[row * topk + k],
                    (double)p->host.topk_weight[row * topk + k], want, (double)by);
    }
    return n;
}

static bool selects(const struct subject *t, const int32_t *expert, uint32_t first, uint32_t n)
{
    for (uint32_t k = 0; k < t->s->shape.topk; k++)
        if (expert[k] >= (int32_t)first && expert[k] < (int32_t)(first + n))
            return true;
    return false;
}

/* Checks the rows of the experts `first` to `first` + n from all ranks, from row `begin` on. */
static uint64_t check_group(struct subject *t, const struct slot *p, uint32_t first, uint32_t n,
                            uint64_t begin, const int64_t *range, bool late)
{
    const struct setting *s = t->s;
    uint64_t row = begin, rows = 0;
    int32_t expert[32];
    float weight[32];

    for (uint32_t r = 0; r < s->ranks; r++) {
        uint64_t from;

        if (s->shape.layout == EPA2A_RANK_PADDED)
            row = (uint64_t)r * s->shape.max_tokens;
        from = row;
        for (uint32_t i = 0; i < model_tokens(s, r, p->route); i++) {
            model_choices(s, r, p->route, i, expert, weight);
            if (!selects(t, expert, first, n))
                continue;
            if (!check_row(t, p, row, r, i))
                return rows;
            if (is_rank_layout(s))
                (void)check_choices(t, p, row, expert, weight, late);
            row++;
            rows++;
        }
        (void)claim(
            t->r, range == NULL || range[r] == (int64_t)((from - begin) << 32 | (row - from)),
            "rows of rank %u have source_range 0x%llx", r, range != NULL ? (long long)range[r] : 0);
    }
    return rows;
}

/* Checks the entries of a RANK layout: each names a row that selects the expert, in order. */
static void check_entries(struct subject *t, const struct slot *p)
{
    uint32_t topk = t->s->shape.topk;

    for (uint32_t e = 0; e < local_of(t->s); e++)
        for (uint32_t i = 0; i < p->host.count[e]; i++) {
            uint32_t row = p->host.row[p->host.start[e] + i];
            bool found = false;

            for (uint32_t k = 0; k < topk && row < t->need.rows; k++)
                found = found || p->host.topk_idx[(size_t)row * topk + k] == (int32_t)e;
            (void)claim(t->r, found && (i == 0 || row > p->host.row[p->host.start[e] + i - 1]),
                        "entry %u of local expert %u is row %u", i, e, row);
        }
}

static bool counts_seen(const struct slot *p)
{
    return !room_is_device() || p->seen_there != NULL;
}

/* Returns a copy of memory of a device; NULL of NULL. */
static void *copy_here(const struct subject *t, const void *from, size_t bytes)
{
    void *to = from != NULL ? allocate(1, bytes) : NULL;

    if (to != NULL)
        room_copy(to, from, bytes, t->r->stream);
    return to;
}

/* Returns the bytes of all scales of a dispatch. */
static size_t scale_bytes(const struct subject *t, const struct epa2a_received *g)
{
    bool ue8m0 = (t->s->flags & EPA2A_SCALE_UE8M0) != 0;
    size_t rows = t->need.rows, row = (ue8m0 ? (groups_of(t) + 3) / 4 : groups_of(t)) * 4;

    if (g->x_scale_stride == 0 || (t->s->flags & EPA2A_SCALE_BY_GROUP) != 0)
        return rows * row;
    return (rows - 1) * g->x_scale_stride + row;
}

/* Sets the struct that the checks read, when the dispatch has ended. */
static void fetch_received(struct subject *t, struct slot *p)
{
    struct epa2a_received *g = &p->got;
    size_t rows = t->need.rows, local = local_of(t->s);
    size_t row = hidden_of(t) * (model_is_fp8(t->s) ? 1 : 2);

    if (!room_is_device()) {
        p->host = *g;
        return;
    }
    if (!works(t->r, epa2a_comm_sync(t->comm, t->r->stream)))
        return;
    free_host(p);
    p->host = *g;
    p->host.x = copy_here(t, g->x, g->x_stride != 0 ? (rows - 1) * g->x_stride + row : rows * row);
    p->host.x_scale = model_is_fp8(t->s) ? copy_here(t, g->x_scale, scale_bytes(t, g)) : NULL;
    p->host.count = copy_here(t, g->count, local * sizeof(*g->count));
    p->host.start = copy_here(t, g->start, local * sizeof(*g->start));
    p->host.row = copy_here(t, g->row, t->need.entries * sizeof(*g->row));
    p->host.topk_idx = copy_here(t, g->topk_idx, rows * t->s->shape.topk * sizeof(*g->topk_idx));
    p->host.topk_weight =
        copy_here(t, g->topk_weight, rows * t->s->shape.topk * sizeof(*g->topk_weight));
    p->host.source_token = copy_here(t, g->source_token, rows * sizeof(*g->source_token));
    p->host.source_range =
        copy_here(t, g->source_range,
                  (is_rank_layout(t->s) ? 1 : local) * t->s->ranks * sizeof(*g->source_range));
    p->host.y = allocate(rows, hidden_of(t) * 2);
    if (p->seen_there != NULL)
        room_copy(p->seen, p->seen_there, local * sizeof(*p->seen), t->r->stream);
}

static void check_received(struct subject *t, struct slot *p, bool late)
{
    const struct setting *s = t->s;
    uint32_t local = local_of(s), first = t->r->rank * local;
    uint64_t rows = 0, entries = 0, packed = 0;

    if (t->r->failed)
        return;
    for (uint32_t e = 0; e < local; e++) {
        uint32_t want = 0;

        for (uint32_t r = 0; r < s->ranks; r++)
            for (uint32_t i = 0; i < model_tokens(s, r, p->route); i++) {
                int32_t expert[32];
                float weight[32];

                model_choices(s, r, p->route, i, expert, weight);
                want += selects(t, expert, first + e, 1);
            }
        packed = s->shape.layout == EPA2A_EXPERT_PADDED
                     ? (uint64_t)e * s->ranks * s->shape.max_tokens
                     : entries;
        (void)claim(t->r,
                    p->host.count[e] == want && p->host.start[e] == packed &&
                        p->host_count[e] == want &&
                        (!counts_seen(p) || p->seen[e] == p->seen_before[e] + (int32_t)want),
                    "local expert %u: count %u, start %llu, host_count %u, seen %d instead of "
                    "%u, %llu",
                    e, p->host.count[e], (unsigned long long)p->host.start[e], p->host_count[e],
                    p->seen[e], want, (unsigned long long)packed);
        p->seen_before[e] = p->seen[e];
        entries += want;
        if (!is_rank_layout(s) && !t->r->failed)
            rows += check_group(
                t, p, first + e, 1, packed,
                p->host.source_range != NULL ? p->host.source_range + e * s->ranks : NULL, late);
    }
    if (is_rank_layout(s) && !t->r->failed) {
        rows = check_group(t, p, first, local, 0, p->host.source_range, late);
        check_entries(t, p);
    }
    (void)claim(t->r,
                p->got.source_token == p->mine.source_token &&
                    p->got.source_range == p->mine.source_range,
                "the sources of rows are not in memory of the caller");
    (void)claim(t->r, p->host_count[local] == rows, "host_count has %u rows instead of %llu",
                p->host_count[local], (unsigned long long)rows);
}

/* Waits for the other ranks without a call of the library. */
static void meet(const struct subject *t)
{
    (void)claim(t->r, group_meet(t->r->of), "a peer waits for a further call of another rank");
}

/* Runs the halves of a dispatch or combine: see `pauses` of struct way. */
static void end_halves(const struct subject *t, const struct way *w,
                       int (*recv)(const struct subject *, struct slot *), struct slot *p)
{
    bool pauses = w->pauses && t->need.overlaps != 0;
    bool first = pauses && p->iteration % t->s->ranks == t->r->rank;

    if (first)
        meet(t);
    (void)works(t->r, recv(t, p));
    if (pauses && !first)
        meet(t);
}

static int recv_dispatch(const struct subject *t, struct slot *p)
{
    return epa2a_dispatch_recv(t->moe, &p->got, t->r->stream);
}

static int recv_combine(const struct subject *t, struct slot *p)
{
    return epa2a_combine_recv(t->moe, &p->got, t->r->stream);
}

void dispatch(struct subject *t, struct slot *p, const struct way *w, uint64_t iteration)
{
    struct epa2a_tokens in;

    p->iteration = p->route = iteration;
    p->tokens = model_tokens(t->s, t->r->rank, iteration);
    fill_inputs(t, p, w, &in);
    if (t->r->failed)
        return;
    if (!w->halves) {
        (void)works(t->r, epa2a_dispatch(t->moe, &in, &p->got, t->r->stream));
    } else if (works(t->r, epa2a_dispatch_send(t->moe, &in, &p->got, t->r->stream))) {
        int status = epa2a_test(t->moe);

        (void)claim(t->r, status == EPA2A_OK || status == EPA2A_NOT_YET, "epa2a_test: %s",
                    epa2a_last_error());
        end_halves(t, w, recv_dispatch, p);
    }
    if (w->pauses)
        meet(t);
    fetch_received(t, p);
    check_received(t, p, w->late);
}

void dispatch_again(struct subject *t, struct slot *p, const struct way *w, uint64_t iteration)
{
    struct epa2a_tokens in;

    p->iteration = iteration;
    fill_inputs(t, p, w, &in);
    in.topk_idx = NULL;
    in.topk_weight = NULL;
    in.topk_idx_bytes = 0;
    if (!t->r->failed)
        (void)works(t->r, epa2a_dispatch_again(t->moe, &in, &p->got, t->r->stream));
    fetch_received(t, p);
    check_received(t, p, w->late);
}

/* ---- combine ---- */

/* Computes the outputs of the experts from the received rows. */
static void run_experts(struct subject *t, struct slot *p, uint16_t *y)
{
    const struct setting *s = t->s;
    uint32_t local = local_of(s), first = t->r->rank * local, topk = s->shape.topk;
    static _Thread_local uint16_t part[32][MODEL_HIDDEN];
    float scale[MODEL_HIDDEN / 16];

    for (uint32_t e = 0; e < local && !is_rank_layout(s); e++)
        for (uint64_t i = p->host.start[e]; i < p->host.start[e] + p->host.count[e]; i++) {
            if (model_is_fp8(s))
                read_scales(t, p, i, scale);
            model_output(s, first + e, row_at(t, p, i), scale, y + i * hidden_of(t));
        }
    for (uint32_t r = 0; r < s->ranks && is_rank_layout(s); r++) {
        uint64_t begin = (uint64_t)p->host.source_range[r] >> 32;

        for (uint64_t i = begin; i < begin + (uint32_t)p->host.source_range[r]; i++) {
            const uint16_t *of[32];
            float by[32];
            uint32_t n = 0;

            if (model_is_fp8(s))
                read_scales(t, p, i, scale);
            for (uint32_t k = 0; k < topk; k++) {
                int32_t e = p->host.topk_idx[i * topk + k];

                if (e < 0)
                    continue;
                model_output(s, first + (uint32_t)e, row_at(t, p, i), scale, part[n]);
                by[n] = p->host.topk_weight[i * topk + k];
                of[n] = part[n];
                n++;
            }
            model_sum(s, n, of, by, y + i * hidden_of(t));
        }
    }
}

static void check_sums(struct subject *t, const struct slot *p, const struct way *w)
{
    uint32_t topk = t->s->shape.topk;
    uint16_t want[MODEL_HIDDEN], bias[2][MODEL_HIDDEN];
    bool f16 = t->s->shape.dtype == EPA2A_F16;

    for (uint32_t i = 0; i < p->tokens && !t->r->failed; i++) {
        const uint16_t *have = t->out + i * hidden_of(t);

        model_combined(t->s, t->r->rank, p->route, p->iteration, i,
                       w->mask ? t->expert + (size_t)i * topk : NULL, want);
        for (uint32_t b = 0; b < 2 && w->bias; b++)
            model_bias(t->s, t->r->rank, p->iteration, i, b, bias[b]);
        for (uint32_t h = 0; h < hidden_of(t) && w->bias; h++) {
            float sum = float_of_word(f16, want[h]) + float_of_word(f16, bias[0][h]);

            want[h] = word_of_float(f16, sum + float_of_word(f16, bias[1][h]));
        }
        for (uint32_t h = 0; h < hidden_of(t); h++)
            if (!claim(t->r, have[h] == want[h],
                       "combine of iteration %llu: token %u, column %u is 0x%04x instead of "
                       "0x%04x",
                       (unsigned long long)p->iteration, i, h, have[h], want[h]))
                return;
    }
}

/* Weights that combine returns: a number for each choice at its rank. */
static float returned_weight(const struct slot *p, uint32_t rank, uint32_t token, uint32_t k)
{
    return (float)(p->iteration + 1) * 1e-3f + (float)rank * 100 + (float)token + (float)k / 64;
}

static void fill_returned(const struct subject *t, const struct slot *p, float *out)
{
    uint32_t topk = t->s->shape.topk;

    for (uint32_t r = 0; r < t->s->ranks; r++) {
        uint64_t begin = (uint64_t)p->host.source_range[r] >> 32;

        for (uint64_t i = begin; i < begin + (uint32_t)p->host.source_range[r]; i++)
            for (uint32_t k = 0; k < topk; k++)
                out[i * topk + k] =
                    p->host.topk_idx[i * topk + k] < 0
                        ? 77 /* ignored */
                        : returned_weight(p, r, (uint32_t)p->host.source_token[i], k);
    }
}

static void check_returned(struct subject *t, const struct slot *p, const float *have)
{
    uint32_t topk = t->s->shape.topk;

    for (uint32_t i = 0; i < p->tokens; i++)
        for (uint32_t k = 0; k < topk; k++) {
            float want =
                t->expert[(size_t)i * topk + k] < 0 ? 0 : returned_weight(p, t->r->rank, i, k);

            (void)claim(t->r, have[(size_t)i * topk + k] == want,
                        "out_weight of token %u, choice %u is %g instead of %g", i, k,
                        (double)have[(size_t)i * topk + k], (double)want);
        }
}

/* Drops the first choice of each third token. */
static void mask_choices(struct subject *t, const struct slot *p)
{
    uint32_t topk = t->s->shape.topk;

    for (uint32_t i = 0; i < p->tokens; i += 3)
        t->expert[(size_t)i * topk] = -1;
    for (size_t i = 0; i < (size_t)p->tokens * topk; i++)
        t->wide[i] = t->expert[i];
}

/* Copies the choices and weights of the combine to the device. Where the library has a copy from
 * the dispatch, garbage replaces the arrays that the combine does not pass. */
static void move_choices(struct subject *t, const struct slot *p, const struct way *w,
                         struct epa2a_outputs *o)
{
    static const char garbage[4096] = {0x7f, 0x7f, 0x7f, 0x7f};
    size_t choices = (size_t)p->tokens * t->s->shape.topk;
    bool kept = w->routing || w->wide;
    size_t bytes = choices * (o->topk_idx != NULL ? (size_t)o->topk_idx_bytes : sizeof(int32_t));
    const void *expert = o->topk_idx != NULL ? o->topk_idx : kept ? garbage : (void *)t->expert;
    const void *weight = o->topk_weight == NULL && kept ? garbage : (const void *)t->weight;

    room_copy(t->there.expert, expert, bytes, t->r->stream);
    room_copy(t->there.weight, weight, choices * sizeof(*t->weight), t->r->stream);
    if (o->topk_idx != NULL)
        o->topk_idx = t->there.expert;
    if (o->topk_weight != NULL)
        o->topk_weight = t->there.weight;
}

/* Copies the inputs of the combine to the device. */
static void move_outputs(struct subject *t, const struct slot *p, const struct way *w,
                         const uint16_t *y, bool elsewhere, struct epa2a_outputs *o)
{
    size_t rows = t->need.rows * hidden_of(t) * 2;
    size_t half = (size_t)t->s->shape.max_tokens * hidden_of(t);
    void *to = elsewhere ? t->there.y : p->got.y;

    room_copy(to, y, rows, t->r->stream);
    o->y = elsewhere ? to : NULL;
    o->out = t->there.out;
    room_copy(t->there.bias, t->bias, 2 * half * sizeof(*t->bias), t->r->stream);
    for (uint32_t b = 0; b < 2; b++)
        if (o->bias[b] != NULL)
            o->bias[b] = (uint16_t *)t->there.bias + b * half;
    move_choices(t, p, w, o);
}

void combine(struct subject *t, struct slot *p, const struct way *w, bool elsewhere)
{
    uint32_t topk = t->s->shape.topk;
    size_t choices = (size_t)t->s->shape.max_tokens * topk;
    uint16_t *y = elsewhere || t->s->logfmt ? allocate(t->need.rows, hidden_of(t) * 2) : NULL;
    float *back = allocate(t->need.rows * topk, sizeof(*back));
    float *returned = allocate(choices, sizeof(*returned));
    float *back_there = NULL, *returned_there = returned;
    struct epa2a_outputs o = {.size = sizeof(o), .y = y, .out = t->out};

    elsewhere = y != NULL;
    o.flags = t->s->logfmt ? EPA2A_COMBINE_LOGFMT : 0;
    for (uint32_t i = 0; i < p->tokens; i++) {
        model_choices(t->s, t->r->rank, p->route, i, t->expert + (size_t)i * topk,
                      t->weight + (size_t)i * topk);
        for (uint32_t b = 0; b < 2; b++)
            model_bias(t->s, t->r->rank, p->iteration, i, b,
                       t->bias + (b * t->s->shape.max_tokens + i) * hidden_of(t));
    }
    if (w->late)
        o.topk_weight = t->weight;
    if (w->mask) {
        mask_choices(t, p);
        o.topk_idx = w->wide ? (const void *)t->wide : t->expert;
        o.topk_idx_bytes = w->wide ? 8 : 4;
    }
    for (uint32_t b = 0; b < 2 && w->bias; b++)
        o.bias[b] = t->bias + (size_t)b * t->s->shape.max_tokens * hidden_of(t);
    if (!t->r->failed)
        run_experts(t, p, elsewhere ? y : p->host.y);
    if (room_is_device() && !t->r->failed)
        move_outputs(t, p, w, elsewhere ? y : p->host.y, elsewhere, &o);
    if (w->weights && !t->r->failed) {
        fill_returned(t, p, back);
        back_there = room_put(back, t->need.rows * topk * sizeof(*back), t->r->stream);
        returned_there = room_put(returned, choices * sizeof(*returned), t->r->stream);
        o.topk_weight = back_there;
        o.out_weight = returned_there;
    }
    memset(t->out, 0xee, (size_t)t->s->shape.max_tokens * hidden_of(t) * sizeof(*t->out));
    if (!t->r->failed && !w->halves)
        (void)works(t->r, epa2a_combine(t->moe, &p->got, &o, t->r->stream));
    else if (!t->r->failed && works(t->r, epa2a_combine_send(t->moe, &p->got, &o, t->r->stream)))
        end_halves(t, w, recv_combine, p);
    if (room_is_device() && !t->r->failed) {
        (void)works(t->r, epa2a_comm_sync(t->comm, t->r->stream));
        room_copy(t->out, t->there.out, (size_t)p->tokens * hidden_of(t) * sizeof(*t->out),
                  t->r->stream);
    }
    if (w->pauses)
        meet(t);
    check_sums(t, p, w);
    if (w->weights && !t->r->failed) {
        room_copy(returned, returned_there, choices * sizeof(*returned), t->r->stream);
        check_returned(t, p, returned);
    }
    room_drop(back_there);
    if (returned_there != returned)
        room_drop(returned_there);
    free(y);
    free(back);
    free(returned);
}
