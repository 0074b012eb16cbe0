/* A view makes the delivered rows readable. It first checks that pointers are set and ranges are within
 * the limits of plan(), and then copies rows from a device to the host. It copies only rows with entries,
 * since a device may have far more room than rows. */
#include "op/moe/view.h"

#include <stdbool.h>
#include <stddef.h>

#include "op/moe/area.h"

enum {
    STAGE_COUNT,
    STAGE_START,
    STAGE_ROW,
    STAGE_WEIGHT,
    STAGE_K,
    STAGE_DATA,
    STAGE_SCALE,
    STAGE_ORIGIN
};

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
    const void *count = NULL, *start = NULL, *row = NULL, *weight = NULL, *k = NULL;
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
        if (status == EPA_OK && m->recv_k != NULL)
            status =
                stage_list(op, STAGE_K, m->recv_k, sizeof(*m->recv_k), op->run, v->n_runs, &k, err);
    }
    m->recv_row = row;
    m->recv_weight = weight;
    m->recv_k = k;
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
        (void)epa_fail_key(err, status, OP_PLACED, "rank %u, iteration %llu, dispatch: %.400s",
                           op->r.world.rank, (unsigned long long)s->iteration, why.text);
    return status;
}
