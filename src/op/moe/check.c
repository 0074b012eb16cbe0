/* The oracle. What a rank should have got is worked out again from the seed with the scalar
 * reference of dtype.h: none of the kernels, nothing that an algorithm touched. Each
 * received entry is filed under the choice that it is for, (rank, token, k); what is left
 * empty then is missing, what would be filed twice is a duplicate, and one reference row
 * serves all entries of a token. */
#include "op/moe/check.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

static void lay_out(const struct experiment *x, struct check *c)
{
    size_t hidden = x->moe.hidden, choices = (size_t)x->ranks * x->moe.max_tokens * x->moe.topk;
    struct pool *p = &c->pool;

    c->tokens = pool_alloc(p, x->ranks, sizeof(*c->tokens));
    c->expert = pool_alloc(p, choices, sizeof(*c->expert));
    c->weight = pool_alloc(p, choices, sizeof(*c->weight));
    c->filed = pool_alloc(p, choices, sizeof(*c->filed));
    c->range = pool_alloc(p, x->moe.experts / x->ranks, sizeof(*c->range));
    c->x = pool_alloc(p, hidden, sizeof(*c->x));
    c->q = pool_alloc(p, hidden, sizeof(*c->q));
    c->scale = pool_alloc(p, hidden, sizeof(*c->scale)); /* one of each group, and more room */
    c->value = pool_alloc(p, hidden, sizeof(*c->value));
    check_combine_lay_out(x, c);
}

uint64_t op_moe_check_bytes(const struct experiment *x)
{
    struct check c = {.pool = {.counting = true}};

    lay_out(x, &c);
    return c.pool.bytes + check_combine_bytes(x);
}

void op_moe_check_destroy(struct check *c)
{
    if (c == NULL)
        return;
    reference_destroy(c->reference);
    pool_free(&c->pool);
    free(c);
}

enum epa_status check_create(struct op_moe *op, struct epa_error *err)
{
    struct check *c;

    if (op->check != NULL)
        return EPA_OK;
    c = memory_alloc(1, sizeof(*c));
    lay_out(op->x, c);
    if (c->pool.failed) {
        op_moe_check_destroy(c);
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the checks: %llu bytes",
                        (unsigned long long)op_moe_check_bytes(op->x));
    }
    for (uint32_t q = 0; q < 256; q++)
        c->decode[q] = float_of_e4m3((uint8_t)q);
    op->check = c;
    return EPA_OK;
}

/* Index of choice 0 of a token in the arrays over all choices. */
static size_t choice_of(const struct op_moe *op, uint32_t rank, uint32_t token)
{
    return ((size_t)rank * op->x->moe.max_tokens + token) * op->x->moe.topk;
}

static void load_routing(struct op_moe *op, uint64_t iteration)
{
    struct check *c = op->check;

    if (c->loaded && c->iteration == iteration)
        return;
    for (uint32_t r = 0; r < op->world.size; r++) {
        size_t at = choice_of(op, r, 0);

        c->tokens[r] = routing_tokens_of(op->x, r, iteration);
        routing_fill(op->x, op->source, r, iteration, c->tokens[r], c->expert + at, c->weight + at);
    }
    c->iteration = iteration;
    c->loaded = true;
}

void check_load_row(struct op_moe *op, uint32_t rank, uint64_t iteration, uint32_t token)
{
    struct check *c = op->check;
    uint32_t hidden = op->x->moe.hidden, group = op->x->moe.fp8_group_size;
    bool f16 = is_f16(op);

    op_moe_token(op, rank, iteration, token, c->x);
    if (op->footprint.recv_dtype != EPA_FP8_E4M3) {
        for (uint32_t h = 0; h < hidden; h++)
            c->value[h] = float_of_word(f16, c->x[h]);
        return;
    }
    for (uint32_t h = 0; h < hidden; h += group) {
        float scale = e4m3_group_of(f16, c->x + h, group, c->q + h);

        c->scale[h / group] = scale;
        for (uint32_t i = h; i < h + group; i++)
            c->value[i] = c->decode[c->q[i]] * scale;
    }
}

static int by_start(const void *a, const void *b)
{
    const struct range *x = a, *y = b;

    return x->start < y->start ? -1 : x->start > y->start;
}

static void check_counts(struct op_moe *op, const struct epa_moe *m, struct op_finding *f)
{
    struct check *c = op->check;
    uint32_t n = 0, first = op->world.rank * op->local_experts;

    for (uint32_t e = 0; e < op->local_experts; e++) {
        uint32_t want = 0;

        for (uint32_t r = 0; r < op->world.size; r++)
            for (size_t i = choice_of(op, r, 0); i < choice_of(op, r, c->tokens[r]); i++)
                want += c->expert[i] == (int32_t)(first + e);
        f->compared++;
        if (m->recv_count[e] != want)
            op_wrong(f, "expert %u (local %u) has recv_count %u, should be %u", first + e, e,
                     m->recv_count[e], want);
        if (m->recv_count[e] != 0)
            c->range[n++] = (struct range){.start = m->recv_start[e],
                                           .end = m->recv_start[e] + m->recv_count[e],
                                           .expert = first + e};
    }
    qsort(c->range, n, sizeof(*c->range), by_start);
    f->compared += n;
    for (uint32_t i = 1; i < n; i++)
        if (c->range[i].start < c->range[i - 1].end)
            op_wrong(f, "entries of experts %u and %u overlap at entry %llu",
                     c->range[i - 1].expert, c->range[i].expert,
                     (unsigned long long)c->range[i].start);
}

/* Files entry `i` of a local expert under the choice that it came for. */
static void file_entry(struct op_moe *op, const struct view *v, uint32_t e, uint32_t i,
                       struct op_finding *f)
{
    struct check *c = op->check;
    const struct epa_moe *m = &v->m;
    struct row_ref place = op_moe_row_ref(v, e, i);
    uint64_t entry = m->recv_start[e] + i, row = place.row;
    uint32_t expert = op->world.rank * op->local_experts + e, k = 0;
    struct epa_origin origin;
    float weight;
    size_t choice;

    memcpy(&origin, v->rows.origin + place.here * m->origin_stride, sizeof(origin));
    f->compared++;
    if (origin.rank >= op->world.size || origin.token >= c->tokens[origin.rank]) {
        op_wrong(f,
                 "expert %u, entry %llu, row %llu: origin is token %u of rank %u, which "
                 "does not exist",
                 expert, (unsigned long long)entry, (unsigned long long)row, origin.token,
                 origin.rank);
        return;
    }
    choice = choice_of(op, origin.rank, origin.token);
    while (k < m->topk && c->expert[choice + k] != (int32_t)expert)
        k++;
    if (k == m->topk) {
        op_wrong(f,
                 "expert %u, entry %llu, row %llu: token %u of rank %u did not choose "
                 "this expert",
                 expert, (unsigned long long)entry, (unsigned long long)row, origin.token,
                 origin.rank);
        return;
    }
    if (c->filed[choice + k] != 0) {
        op_wrong(f, "expert %u, entries %u and %llu: both are token %u of rank %u", expert,
                 c->filed[choice + k] - 1, (unsigned long long)entry, origin.token, origin.rank);
        return;
    }
    c->filed[choice + k] = (uint32_t)entry + 1;
    if (m->recv_weight == NULL)
        return;
    f->compared++;
    weight = m->recv_weight[v->first[e] + i];
    if (bits_of_float(weight) != bits_of_float(c->weight[choice + k]))
        op_wrong(f,
                 "expert %u, entry %llu: token %u of rank %u has weight %.9g, should be "
                 "%.9g",
                 expert, (unsigned long long)entry, origin.token, origin.rank, (double)weight,
                 (double)c->weight[choice + k]);
}

static void check_data(struct op_moe *op, const struct view *v, struct row_ref place,
                       const char *whose, struct op_finding *f)
{
    const struct check *c = op->check;
    const struct epa_moe *m = &v->m;
    bool fp8 = op->footprint.recv_dtype == EPA_FP8_E4M3;
    const unsigned char *have = (const unsigned char *)v->rows.data + place.here * m->recv_stride;
    const void *want = fp8 ? (const void *)c->q : c->x;
    size_t bytes = fp8 ? 1 : sizeof(uint16_t);

    f->compared += m->hidden;
    if (memcmp(have, want, m->hidden * bytes) == 0)
        return;
    for (uint32_t h = 0; h < m->hidden; h++) {
        uint16_t is, should = fp8 ? c->q[h] : c->x[h];

        if (fp8)
            is = have[h];
        else
            memcpy(&is, have + h * bytes, sizeof(is));
        if (is != should)
            op_wrong(f, "%s, row %llu, column %u is 0x%02x, should be 0x%02x", whose,
                     (unsigned long long)place.row, h, is, should);
    }
}

static void check_scales(struct op_moe *op, const struct view *v, struct row_ref place,
                         const char *whose, struct op_finding *f)
{
    const struct check *c = op->check;
    const char *have = v->rows.scale + place.here * v->m.scale_stride;

    for (uint32_t g = 0; g < hidden_groups(op); g++) {
        float is;

        memcpy(&is, have + g * sizeof(is), sizeof(is));
        f->compared++;
        if (bits_of_float(is) != bits_of_float(c->scale[g]))
            op_wrong(f, "%s, row %llu, scale of group %u is %.9g, should be %.9g", whose,
                     (unsigned long long)place.row, g, (double)is, (double)c->scale[g]);
    }
}

/* All entries of a token: there, in one row (layout rank), and right. */
static void check_token(struct op_moe *op, const struct view *v, uint32_t rank, uint32_t token,
                        struct op_finding *f)
{
    struct check *c = op->check;
    size_t choice = choice_of(op, rank, token);
    uint64_t first_row = UINT64_MAX;
    char whose[96];

    for (uint32_t k = 0; k < v->m.topk; k++) {
        int32_t expert = c->expert[choice + k];
        struct row_ref place;
        uint32_t e;

        if (expert < 0 || (uint32_t)expert / op->local_experts != op->world.rank)
            continue;
        e = (uint32_t)expert % op->local_experts;
        snprintf(whose, sizeof(whose), "expert %d, token %u of rank %u", expert, token, rank);
        if (c->filed[choice + k] == 0) {
            f->compared++;
            op_wrong(f, "%s did not arrive", whose);
            continue;
        }
        place = op_moe_row_ref(v, e, c->filed[choice + k] - 1 - v->m.recv_start[e]);
        if (first_row == UINT64_MAX) {
            check_load_row(op, rank, c->iteration, token);
        } else if (v->m.recv_row != NULL) {
            f->compared++;
            if (place.row == first_row)
                continue;
            op_wrong(f, "%s is in row %llu and again in row %llu", whose,
                     (unsigned long long)first_row, (unsigned long long)place.row);
        }
        first_row = place.row;
        check_data(op, v, place, whose, f);
        if (op->footprint.recv_dtype == EPA_FP8_E4M3)
            check_scales(op, v, place, whose, f);
    }
}

enum epa_status op_moe_check_dispatch(struct op_rank *rank, uint32_t slot, uint64_t *compared,
                                      uint64_t *wrong, struct epa_error *err)
{
    struct op_moe *op = op_moe_of(rank);
    struct slot *s = &op->slot[slot];
    struct op_finding f = {
        .stage = "dispatch", .rank = op->world.rank, .iteration = s->iteration, .err = err};
    enum epa_status status = check_create(op, err);
    struct check *c;
    struct view v;

    if (status != EPA_OK)
        return status;
    c = op->check;
    load_routing(op, s->iteration);
    status = op_moe_view(op, s, &v, err);
    if (status == EPA_OK)
        status = op_moe_read_all(op, &v, err);
    if (status == EPA_ERR_MISMATCH) {
        *compared += 1;
        *wrong += 1;
    }
    if (status != EPA_OK)
        return status;
    memset(c->filed, 0, choice_of(op, op->world.size, 0) * sizeof(*c->filed));
    check_counts(op, &v.m, &f);
    for (uint32_t e = 0; e < op->local_experts; e++)
        for (uint32_t i = 0; i < v.m.recv_count[e]; i++)
            file_entry(op, &v, e, i, &f);
    for (uint32_t r = 0; r < op->world.size; r++)
        for (uint32_t t = 0; t < c->tokens[r]; t++)
            check_token(op, &v, r, t, &f);
    return op_finding_end(&f, compared, wrong);
}
