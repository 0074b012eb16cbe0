/* The oracle. It computes the expected rows of a rank from the seed with the scalar reference of dtype.h,
 * without kernels and without memory that an algorithm wrote. It files each received entry under its
 * choice (rank, token, k). A choice without entry is a missing row, a choice with two entries a duplicate.
 * One reference row serves all entries of a token. */
#include "op/moe/check.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/random.h"
#include "op/moe/check_combine.h"
#include "op/moe/inputs.h"
#include "op/moe/routing.h"

/* ---- views ----
 *
 * A view makes the delivered rows readable. It first checks that pointers are set and ranges are within
 * the limits of plan(), and then copies rows from a device to the host. It copies only rows with entries,
 * since a device may have far more room than rows. */

enum { STAGE_COUNT, STAGE_START, STAGE_ROW, STAGE_WEIGHT, STAGE_DATA, STAGE_SCALE, STAGE_ORIGIN };

enum { PIECES = 3 }; /* pieces of a received row: token, scales, origin */

/* A part of each element of a list: `bytes` bytes at from, at from + stride, and so on. */
struct piece {
    const char *from;
    size_t stride, bytes; /* bytes 0: not needed */
};

static bool on_host(const struct op_moe *op)
{
    return op->r.backend->memory == EPA_MEMORY_HOST;
}

/* Copies a piece of each element of the runs to host memory, where the elements are contiguous. */
static enum epa_status stage_pieces(struct op_moe *op, uint32_t which, const struct piece *p,
                                    const struct run *run, uint32_t runs, const void **out,
                                    struct epa_error *err)
{
    uint64_t n = 0;
    enum epa_status status;
    char *to;

    for (uint32_t i = 0; i < runs; i++)
        n += run[i].n;
    status = op_moe_area(&op->staged[which], "reading rows back", n * p->stride + p->bytes, err);
    if (status != EPA_OK)
        return status;
    to = op->staged[which].data;
    *out = to;
    for (uint32_t i = 0; i < runs && status == EPA_OK; to += run[i++].n * p->stride) {
        const struct epa_backend_ops *ops = op->r.backend->ops;
        const char *from = p->from + run[i].first * p->stride;
        size_t bytes = (run[i].n - 1) * p->stride + p->bytes;

        if (run[i].n != 0)
            status = op_backend_done(op->r.backend, ops->read(op->r.backend, to, from, bytes), err,
                                     "cannot read %zu bytes back", bytes);
    }
    return status;
}

/* Copies a whole list. */
static enum epa_status stage_list(struct op_moe *op, uint32_t which, const void *from, size_t bytes,
                                  const struct run *run, uint32_t runs, const void **out,
                                  struct epa_error *err)
{
    const struct piece p = {from, bytes, bytes};

    if (!on_host(op))
        return stage_pieces(op, which, &p, run, runs, out, err);
    *out = from;
    return EPA_OK;
}

static enum epa_status check_pointers(const struct op_moe *op, const struct epa_moe *m,
                                      struct epa_error *err)
{
    const struct epa_moe_footprint *f = &op->footprint;
    bool scales = f->recv_dtype == EPA_FP8_E4M3, ranks = f->layout == EPA_LAYOUT_RANK;
    bool any = m->recv_entries != 0;
    const struct {
        const char *name;
        bool needed;
        const void *is;
    } list[] = {{"recv_count", true, m->recv_count},
                {"recv_start", true, m->recv_start},
                {"recv", any, m->recv},
                {"origin", any, m->origin},
                {"recv_scale", any && scales, m->recv_scale},
                {"recv_row", any && ranks, m->recv_row},
                {"recv_weight", any && ranks, m->recv_weight}};

    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)
        if (list[i].needed && list[i].is == NULL)
            return epa_fail(err, EPA_ERR_MISMATCH, "%s is NULL", list[i].name);
    if (m->recv_rows > f->recv_rows || m->recv_entries > f->recv_entries)
        return epa_fail(err, EPA_ERR_MISMATCH,
                        "%llu rows and %llu entries; plan() said at most %llu and %llu",
                        (unsigned long long)m->recv_rows, (unsigned long long)m->recv_entries,
                        (unsigned long long)f->recv_rows, (unsigned long long)f->recv_entries);
    if (!ranks && m->recv_rows != m->recv_entries)
        return epa_fail(err, EPA_ERR_MISMATCH,
                        "recv_rows is %llu, recv_entries is %llu; layout expert has as many "
                        "of both",
                        (unsigned long long)m->recv_rows, (unsigned long long)m->recv_entries);
    if (any && scales && ((uintptr_t)m->recv_scale | m->scale_stride) % sizeof(float) != 0)
        return epa_fail(err, EPA_ERR_MISMATCH, "scales are not aligned to float32");
    if (any && !scales && ((uintptr_t)m->recv | m->recv_stride) % sizeof(uint16_t) != 0)
        return epa_fail(err, EPA_ERR_MISMATCH, "rows are not aligned to %s",
                        is_f16(op) ? "f16" : "bf16");
    return EPA_OK;
}

/* Checks the ranges of entries; *entries is the number of all entries. */
static enum epa_status check_ranges(const struct op_moe *op, const struct epa_moe *m,
                                    uint64_t *entries, struct epa_error *err)
{
    uint64_t room = op->footprint.recv_entries, sum = 0;

    for (uint32_t e = 0; e < op->local_experts; e++) {
        uint64_t start = m->recv_start[e], count = m->recv_count[e];

        sum += count;
        if (count == 0)
            continue;
        if (start > room || count > room - start)
            return epa_fail(err, EPA_ERR_MISMATCH,
                            "expert %u (local %u) has %llu entries from %llu; plan() said at most "
                            "%llu",
                            op->r.world.rank * op->local_experts + e, e, (unsigned long long)count,
                            (unsigned long long)start, (unsigned long long)room);
    }
    if (sum > m->recv_entries)
        return epa_fail(err, EPA_ERR_MISMATCH, "counts add up to %llu, recv_entries is %llu",
                        (unsigned long long)sum, (unsigned long long)m->recv_entries);
    *entries = sum;
    return EPA_OK;
}

/* Checks the rows of entries; *end is the end of the used rows. */
static enum epa_status check_rows(const struct op_moe *op, const struct view *v, uint64_t *end,
                                  struct epa_error *err)
{
    const struct epa_moe *m = &v->m;

    *end = 0;
    for (uint32_t e = 0; e < op->local_experts; e++)
        for (uint32_t i = 0; i < m->recv_count[e]; i++) {
            uint64_t row = m->recv_row[v->first[e] + i];

            if (row >= m->recv_rows)
                return epa_fail(err, EPA_ERR_MISMATCH,
                                "entry %llu of expert %u is in row %llu; "
                                "there are %llu",
                                (unsigned long long)m->recv_start[e] + i,
                                op->r.world.rank * op->local_experts + e, (unsigned long long)row,
                                (unsigned long long)m->recv_rows);
            *end = row >= *end ? row + 1 : *end;
        }
    return EPA_OK;
}

/* Assigns the positions of each expert's entries in host memory. Ranges that are contiguous on the device
 * form one run, so that compact rows need one copy. */
static void list_runs(struct op_moe *op, struct view *v)
{
    const struct epa_moe *m = &v->m;
    uint64_t at = 0;

    v->first = op->first;
    v->n_runs = 0;
    for (uint32_t e = 0; e < op->local_experts; e++) {
        struct run *last = v->n_runs > 0 ? &op->run[v->n_runs - 1] : NULL;

        op->first[e] = on_host(op) ? m->recv_start[e] : at;
        at += m->recv_count[e];
        if (last != NULL && last->first + last->n == m->recv_start[e])
            last->n += m->recv_count[e];
        else if (m->recv_count[e] != 0)
            op->run[v->n_runs++] = (struct run){m->recv_start[e], m->recv_count[e]};
    }
}

/* Returns true if all pieces are parts of one message; *out is then the piece to copy. */
static bool join_pieces(const struct piece *p, struct piece *out)
{
    uintptr_t low = (uintptr_t)p[0].from, high = low + p[0].bytes;

    for (uint32_t i = 1; i < PIECES; i++) {
        uintptr_t from = (uintptr_t)p[i].from;

        if (p[i].bytes == 0)
            continue;
        if (p[i].stride != p[0].stride)
            return false;
        low = from < low ? from : low;
        high = from + p[i].bytes > high ? from + p[i].bytes : high;
    }
    *out = (struct piece){(const char *)low, p[0].stride, high - low};
    return out->bytes <= out->stride;
}

static enum epa_status read_runs(struct op_moe *op, struct view *v, const struct run *run,
                                 uint32_t runs, struct epa_error *err)
{
    const struct epa_moe *m = &v->m;
    bool fp8 = op->footprint.recv_dtype == EPA_FP8_E4M3, one;
    const struct piece p[PIECES] = {
        {m->recv, m->recv_stride, m->hidden * (fp8 ? 1 : sizeof(uint16_t))},
        {(const char *)m->recv_scale, m->scale_stride, fp8 ? hidden_groups(op) * sizeof(float) : 0},
        {(const char *)m->origin, m->origin_stride, sizeof(*m->origin)}};
    struct piece message;
    const void *here[PIECES] = {NULL}, *whole = NULL;
    enum epa_status status = EPA_OK;

    one = join_pieces(p, &message);
    if (one)
        status = stage_pieces(op, STAGE_DATA, &message, run, runs, &whole, err);
    for (uint32_t i = 0; i < PIECES && status == EPA_OK; i++) {
        if (p[i].bytes == 0)
            continue;
        if (one)
            here[i] = (const char *)whole + ((uintptr_t)p[i].from - (uintptr_t)message.from);
        else
            status = stage_pieces(op, STAGE_DATA + i, &p[i], run, runs, &here[i], err);
    }
    v->rows = (struct row_view){here[0], here[1], here[2]};
    return status;
}

static enum epa_status make_view(struct op_moe *op, const struct op_slot *s, struct view *v,
                                 struct epa_error *err)
{
    struct run experts = {0, op->local_experts};
    struct epa_moe *m = &v->m;
    const void *count = NULL, *start = NULL, *row = NULL, *weight = NULL;
    bool by_rank = op->footprint.layout == EPA_LAYOUT_RANK;
    enum epa_status status;

    *v = (struct view){.m = s->problem.u.moe, .iteration = s->iteration};
    status = check_pointers(op, m, err);
    if (status == EPA_OK)
        status = stage_list(op, STAGE_COUNT, m->recv_count, sizeof(*m->recv_count), &experts, 1,
                            &count, err);
    if (status == EPA_OK)
        status = stage_list(op, STAGE_START, m->recv_start, sizeof(*m->recv_start), &experts, 1,
                            &start, err);
    if (status != EPA_OK)
        return status;
    m->recv_count = count;
    m->recv_start = start;
    status = check_ranges(op, m, &v->entries, err);
    if (status != EPA_OK)
        return status;
    list_runs(op, v);
    if (by_rank && v->entries != 0) {
        status = stage_list(op, STAGE_ROW, m->recv_row, sizeof(*m->recv_row), op->run, v->n_runs,
                            &row, err);
        if (status == EPA_OK)
            status = stage_list(op, STAGE_WEIGHT, m->recv_weight, sizeof(*m->recv_weight), op->run,
                                v->n_runs, &weight, err);
    }
    m->recv_row = row;
    m->recv_weight = weight;
    if (status == EPA_OK && row != NULL)
        status = check_rows(op, v, &v->rows_end, err);
    v->rows = (struct row_view){m->recv, (const char *)m->recv_scale, (const char *)m->origin};
    if (status != EPA_OK || on_host(op) || v->entries == 0)
        return status;
    return read_runs(op, v, by_rank ? &(struct run){0, v->rows_end} : op->run,
                     by_rank ? 1 : v->n_runs, err);
}

enum epa_status op_moe_view(struct op_moe *op, const struct op_slot *s, struct view *out,
                            struct epa_error *err)
{
    struct epa_error why = {EPA_OK, ""};
    enum epa_status status = make_view(op, s, out, &why);

    if (status != EPA_OK)
        (void)epa_fail(err, status, "rank %u, iteration %llu, dispatch: %.400s", op->r.world.rank,
                       (unsigned long long)s->iteration, why.text);
    return status;
}

/* ---- the checks ---- */

static void allocate_check(const struct experiment *x, struct moe_check *c)
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
    c->scale = pool_alloc(p, hidden, sizeof(*c->scale)); /* one per group; larger than needed */
    c->value = pool_alloc(p, hidden, sizeof(*c->value));
    check_combine_lay_out(x, c);
}

uint64_t op_moe_check_bytes(const struct experiment *x)
{
    struct moe_check c = {.pool = {.counting = true}};

    allocate_check(x, &c);
    return c.pool.bytes + check_combine_bytes(x);
}

void op_moe_check_destroy(struct moe_check *c)
{
    if (c == NULL)
        return;
    reference_destroy(c->reference);
    pool_free(&c->pool);
    free(c);
}

size_t check_choice(const struct op_moe *op, uint32_t rank, uint32_t token)
{
    return ((size_t)rank * op->r.x->moe.max_tokens + token) * op->r.x->moe.topk;
}

enum epa_status check_begin(struct op_moe *op, uint64_t iteration, struct epa_error *err)
{
    struct moe_check *c = op->check;

    if (c != NULL && c->iteration == iteration)
        return EPA_OK;
    if (c == NULL) {
        c = memory_alloc(1, sizeof(*c));
        allocate_check(op->r.x, c);
        if (c->pool.failed) {
            op_moe_check_destroy(c);
            return epa_fail(err, EPA_ERR_NOMEM, "no memory for the checks: %llu bytes",
                            (unsigned long long)op_moe_check_bytes(op->r.x));
        }
        for (uint32_t q = 0; q < 256; q++)
            c->decode[q] = float_of_e4m3((uint8_t)q);
        op->check = c;
    }
    for (uint32_t r = 0; r < op->r.world.size; r++) {
        size_t at = check_choice(op, r, 0);

        c->tokens[r] = routing_tokens_of(op->r.x, r, iteration);
        op_moe_route(op, r, iteration, c->tokens[r], c->expert + at, c->weight + at);
    }
    c->iteration = iteration;
    return EPA_OK;
}

void check_load_row(struct op_moe *op, uint32_t rank, uint64_t iteration, uint32_t token)
{
    struct moe_check *c = op->check;
    uint32_t hidden = op->r.x->moe.hidden, group = op->r.x->moe.fp8_group_size;
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
    struct moe_check *c = op->check;
    uint32_t n = 0, first = op->r.world.rank * op->local_experts;

    for (uint32_t e = 0; e < op->local_experts; e++) {
        uint32_t want = 0;

        for (uint32_t r = 0; r < op->r.world.size; r++)
            for (size_t i = check_choice(op, r, 0); i < check_choice(op, r, c->tokens[r]); i++)
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

/* Files entry `i` of a local expert under its choice. */
static void file_entry(struct op_moe *op, const struct view *v, uint32_t e, uint32_t i,
                       struct op_finding *f)
{
    struct moe_check *c = op->check;
    const struct epa_moe *m = &v->m;
    struct row_ref place = op_moe_row_ref(v, e, i);
    uint64_t entry = m->recv_start[e] + i, row = place.row;
    uint32_t expert = op->r.world.rank * op->local_experts + e, k = 0;
    struct epa_origin origin;
    float weight;
    size_t choice;

    memcpy(&origin, v->rows.origin + place.here * m->origin_stride, sizeof(origin));
    f->compared++;
    if (origin.rank >= op->r.world.size || origin.token >= c->tokens[origin.rank]) {
        op_wrong(f,
                 "expert %u, entry %llu, row %llu: origin is token %u of rank %u, which "
                 "does not exist",
                 expert, (unsigned long long)entry, (unsigned long long)row, origin.token,
                 origin.rank);
        return;
    }
    choice = check_choice(op, origin.rank, origin.token);
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

/* Returns true for NaN: the check accepts any NaN for a NaN. */
static bool is_nan_word(const struct op_moe *op, bool fp8, uint16_t word)
{
    return fp8 ? (word & 0x7f) == 0x7f : (word & 0x7fff) > (is_f16(op) ? 0x7c00 : 0x7f80);
}

static void check_data(struct op_moe *op, const struct view *v, struct row_ref place,
                       const char *whose, struct op_finding *f)
{
    const struct moe_check *c = op->check;
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
        if (is != should && !(is_nan_word(op, fp8, is) && is_nan_word(op, fp8, should)))
            op_wrong(f, "%s, row %llu, column %u is 0x%02x, should be 0x%02x", whose,
                     (unsigned long long)place.row, h, is, should);
    }
}

static void check_scales(struct op_moe *op, const struct view *v, struct row_ref place,
                         const char *whose, struct op_finding *f)
{
    const struct moe_check *c = op->check;
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

/* Checks that all entries of a token exist, in one row (layout rank), with the right values. */
static void check_token(struct op_moe *op, const struct view *v, uint32_t rank, uint32_t token,
                        struct op_finding *f)
{
    struct moe_check *c = op->check;
    size_t choice = check_choice(op, rank, token);
    uint64_t first_row = UINT64_MAX;
    char whose[96];

    for (uint32_t k = 0; k < v->m.topk; k++) {
        int32_t expert = c->expert[choice + k];
        struct row_ref place;
        uint32_t e;

        if (expert < 0 || (uint32_t)expert / op->local_experts != op->r.world.rank)
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

/* Returns a hash of all entries of a view. */
static uint64_t digest_views(const struct op_moe *op, const struct view *v)
{
    const struct epa_moe *m = &v->m;
    bool fp8 = op->footprint.recv_dtype == EPA_FP8_E4M3;
    size_t row = m->hidden * (fp8 ? 1 : sizeof(uint16_t));
    uint64_t sum = random_digest(1, m->recv_count, op->local_experts * sizeof(*m->recv_count));

    for (uint32_t e = 0; e < op->local_experts; e++)
        for (uint32_t i = 0; i < m->recv_count[e]; i++) {
            struct row_ref at = op_moe_row_ref(v, e, i);

            sum = random_digest(sum, v->rows.data + at.here * m->recv_stride, row);
            sum = random_digest(sum, v->rows.origin + at.here * m->origin_stride,
                                sizeof(struct epa_origin));
            if (fp8)
                sum = random_digest(sum, v->rows.scale + at.here * m->scale_stride,
                                    hidden_groups(op) * sizeof(float));
            if (m->recv_weight != NULL)
                sum = random_digest(sum, &m->recv_weight[v->first[e] + i], sizeof(float));
        }
    return sum;
}

enum epa_status op_moe_check_dispatch(struct op_rank *rank, uint32_t slot, struct op_finding *f)
{
    struct op_moe *op = op_moe_of(rank);
    struct op_slot *s = &op->r.slot[slot];
    enum epa_status status = check_begin(op, s->iteration, f->err);
    struct moe_check *c = op->check;
    struct view v;

    if (status != EPA_OK)
        return status;
    status = op_moe_view(op, s, &v, f->err);
    if (status == EPA_ERR_MISMATCH) {
        f->compared++;
        f->wrong++;
    }
    if (status != EPA_OK)
        return status;
    memset(c->filed, 0, check_choice(op, op->r.world.size, 0) * sizeof(*c->filed));
    check_counts(op, &v.m, f);
    for (uint32_t e = 0; e < op->local_experts; e++)
        for (uint32_t i = 0; i < v.m.recv_count[e]; i++)
            file_entry(op, &v, e, i, f);
    for (uint32_t r = 0; r < op->r.world.size; r++)
        for (uint32_t t = 0; t < c->tokens[r]; t++)
            check_token(op, &v, r, t, f);
    op->kept[slot] = (struct kept){.known = false};
    if (f->wrong == 0 && op_keeps(s->iteration))
        op->kept[slot] = (struct kept){s->iteration, digest_views(op, &v), true};
    return EPA_OK;
}

/* Runs the check of dispatch again, which names the changed element. */
enum epa_status op_moe_check_views(struct op_rank *rank, uint32_t slot, struct op_finding *f)
{
    struct op_moe *op = op_moe_of(rank);
    struct op_slot *s = &op->r.slot[slot];
    const struct kept kept = op->kept[slot];
    enum epa_status status;
    struct view v;

    if (!kept.known || kept.iteration != s->iteration)
        return EPA_OK;
    snprintf(f->where, sizeof(f->where), "combine changed a view of dispatch");
    status = op_moe_view(op, s, &v, f->err);
    if (status == EPA_ERR_MISMATCH)
        f->wrong++;
    if (status != EPA_OK || digest_views(op, &v) == kept.digest)
        return status;
    status = op_moe_check_dispatch(rank, slot, f);
    if (status == EPA_OK && f->wrong == 0)
        op_wrong(f, "entries are in another order");
    return status;
}
