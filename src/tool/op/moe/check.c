/* The oracle. It computes the expected rows of a rank from the seed with the scalar reference of dtype.h,
 * without kernels and without memory that an algorithm wrote. It files each received entry under its
 * choice (rank, token, k). A choice without entry is a missing row, a choice with two entries a duplicate.
 * One reference row serves all entries of a token. */
#include "op/moe/check.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/random.h"
#include "op/moe/check_state.h"
#include "op/moe/view.h"

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

/* Checks the counts of each source rank, and the order of the rows: all rows, or the rows of a local
 * expert. The counts of the sources are `stride` apart. */
static void check_sources(struct op_moe *op, const struct view *v, const uint32_t *count,
                          uint32_t stride, uint64_t first, uint64_t rows, const char *whose,
                          struct op_finding *f)
{
    uint64_t row = first, end = first + rows;

    for (uint32_t r = 0; r < op->r.world.size; r++) {
        uint32_t n = count[(size_t)r * stride], least = 0;

        if (n > end - row) {
            op_wrong(f, "%s: recv_source of rank %u is %u, but %llu rows are left", whose, r, n,
                     (unsigned long long)(end - row));
            return;
        }
        for (uint64_t last = row + n; row < last; row++) {
            struct epa_origin origin;

            memcpy(&origin, v->rows.origin + row * v->m.origin_stride, sizeof(origin));
            if (origin.rank != r || origin.token < least)
                op_wrong(f,
                         "%s: row %llu is token %u of rank %u; by recv_source it is a row of rank "
                         "%u, after token %u",
                         whose, (unsigned long long)row, origin.token, origin.rank, r, least);
            least = origin.token + 1;
        }
    }
    if (row != end)
        op_wrong(f, "%s: recv_source has %llu rows less than the list", whose,
                 (unsigned long long)(end - row));
}

static void check_all_sources(struct op_moe *op, const struct view *v, struct op_finding *f)
{
    const struct epa_moe *m = &v->m;
    bool by_rank = op->footprint.layout == EPA_LAYOUT_RANK;
    char whose[32];

    if (m->recv_source == NULL)
        return;
    if (by_rank)
        check_sources(op, v, m->recv_source, 1, 0, m->recv_rows, "all rows", f);
    for (uint32_t e = 0; !by_rank && e < op->local_experts; e++) {
        snprintf(whose, sizeof(whose), "local expert %u", e);
        check_sources(op, v, m->recv_source + e, op->local_experts, m->recv_start[e],
                      m->recv_count[e], whose, f);
    }
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
    if (m->recv_k == NULL)
        return;
    f->compared++;
    if (m->recv_k[v->first[e] + i] != k)
        op_wrong(f,
                 "expert %u, entry %llu: token %u of rank %u has choice %u in recv_k, should be %u",
                 expert, (unsigned long long)entry, origin.token, origin.rank,
                 m->recv_k[v->first[e] + i], k);
}

/* Returns true for NaN: the check accepts any NaN for a NaN. */
static bool is_nan_word(const struct op_moe *op, bool fp8, uint16_t word)
{
    return fp8 ? (word & 0x7f) == 0x7f : (word & 0x7fff) > (is_f16(op) ? 0x7c00 : 0x7f80);
}

/* Names a choice in messages. Only a wrong entry makes their text. */
struct choice_name {
    int32_t expert;
    uint32_t token, rank;
};

static void check_data(struct op_moe *op, const struct view *v, struct row_ref place,
                       const struct choice_name *whose, struct op_finding *f)
{
    const struct check_row *c = &op->check->own.row;
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
            op_wrong(
                f,
                "expert %d, token %u of rank %u, row %llu, column %u is 0x%02x, should be 0x%02x",
                whose->expert, whose->token, whose->rank, (unsigned long long)place.row, h, is,
                should);
    }
}

static void check_scales(struct op_moe *op, const struct view *v, struct row_ref place,
                         const struct choice_name *whose, struct op_finding *f)
{
    const struct check_row *c = &op->check->own.row;
    const char *have = v->rows.scale + place.here * v->m.scale_stride;

    for (uint32_t g = 0; g < hidden_groups(op); g++) {
        float is;

        memcpy(&is, have + g * sizeof(is), sizeof(is));
        f->compared++;
        if (bits_of_float(is) != bits_of_float(c->scale[g]))
            op_wrong(
                f,
                "expert %d, token %u of rank %u, row %llu, scale of group %u is %.9g, should be %.9g",
                whose->expert, whose->token, whose->rank, (unsigned long long)place.row, g,
                (double)is, (double)c->scale[g]);
    }
}

/* Checks that all entries of a token exist, in one row (layout rank), with the right values. */
static void check_token(struct op_moe *op, const struct view *v, uint32_t rank, uint32_t token,
                        struct op_finding *f)
{
    struct moe_check *c = op->check;
    size_t choice = check_choice(op, rank, token);
    uint64_t first_row = UINT64_MAX;

    for (uint32_t k = 0; k < v->m.topk; k++) {
        int32_t expert = c->expert[choice + k];
        struct choice_name whose = {expert, token, rank};
        struct row_ref place;
        uint32_t e;

        if (expert < 0 || (uint32_t)expert / op->local_experts != op->r.world.rank)
            continue;
        e = (uint32_t)expert % op->local_experts;
        if (c->filed[choice + k] == 0) {
            f->compared++;
            op_wrong(f, "expert %d, token %u of rank %u did not arrive", expert, token, rank);
            continue;
        }
        place = op_moe_row_ref(v, e, c->filed[choice + k] - 1 - v->m.recv_start[e]);
        if (first_row == UINT64_MAX) {
            check_load_row(op, rank, c->iteration, token, &c->own.row);
        } else if (v->m.recv_row != NULL) {
            f->compared++;
            if (place.row == first_row)
                continue;
            op_wrong(f, "expert %d, token %u of rank %u is in row %llu and again in row %llu",
                     expert, token, rank, (unsigned long long)first_row,
                     (unsigned long long)place.row);
        }
        first_row = place.row;
        check_data(op, v, place, &whose, f);
        if (op->footprint.recv_dtype == EPA_FP8_E4M3)
            check_scales(op, v, place, &whose, f);
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
    check_all_sources(op, &v, f);
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
