/* What an algorithm delivered, made readable: its views checked for being there and for
 * lying within what plan() promised, before anyone follows them, and copied to the host
 * where a device holds them. */
#include "moe/op_moe_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

enum {
    STAGE_COUNT,
    STAGE_START,
    STAGE_ROW,
    STAGE_WEIGHT,
    STAGE_DATA,
    STAGE_SCALE,
    STAGE_ORIGIN
};

/* The bytes at `from` for the host: as they are, or a copy. */
static enum epa_status stage(struct op_moe *op, uint32_t which, const void *from,
                             size_t bytes, const void **out, struct epa_error *err)
{
    void *data = op->staged[which].data;
    enum epa_status status;

    if (op->backend->memory == EPA_MEMORY_HOST || from == NULL) {
        *out = from;
        return EPA_OK;
    }
    if (bytes > op->staged[which].bytes || data == NULL) {
        data = realloc(data, bytes + 1);
        if (data == NULL)
            return epa_fail(err, EPA_ERR_NOMEM, "no memory to read %zu bytes back", bytes);
        op->staged[which].data = data;
        op->staged[which].bytes = bytes;
    }
    *out = data;
    if (bytes == 0)
        return EPA_OK;
    status = op->backend->ops->read(op->backend, data, from, bytes);
    if (status != EPA_OK)
        op->backend->ops->explain(op->backend, err);
    return status == EPA_OK
               ? EPA_OK
               : epa_fail(err, status, "%zu bytes could not be read back", bytes);
}

static enum epa_status missing(const char *what, struct epa_error *err)
{
    return epa_fail(err, EPA_ERR_MISMATCH, "%s is NULL", what);
}

static enum epa_status refuse_pointers(const struct op_moe *op, const struct epa_moe *m,
                                       struct epa_error *err)
{
    const struct epa_footprint *f = &op->footprint;
    bool scales = f->recv_dtype == EPA_FP8_E4M3, ranks = f->layout == EPA_LAYOUT_RANK;

    if (m->recv_count == NULL)
        return missing("recv_count", err);
    if (m->recv_start == NULL)
        return missing("recv_start", err);
    if (m->recv_rows > f->recv_rows || m->recv_entries > f->recv_entries)
        return epa_fail(
            err, EPA_ERR_MISMATCH,
            "%llu rows and %llu entries; plan() said at "
            "most %llu and %llu",
            (unsigned long long)m->recv_rows, (unsigned long long)m->recv_entries,
            (unsigned long long)f->recv_rows, (unsigned long long)f->recv_entries);
    if (!ranks && m->recv_rows != m->recv_entries)
        return epa_fail(
            err, EPA_ERR_MISMATCH,
            "recv_rows is %llu, recv_entries is %llu; layout expert has as many "
            "of both",
            (unsigned long long)m->recv_rows, (unsigned long long)m->recv_entries);
    if (m->recv_entries == 0)
        return EPA_OK;
    if (m->recv == NULL)
        return missing("recv", err);
    if (m->origin == NULL)
        return missing("origin", err);
    if (scales && m->recv_scale == NULL)
        return missing("recv_scale", err);
    if (scales && ((uintptr_t)m->recv_scale | m->scale_stride) % sizeof(float) != 0)
        return epa_fail(err, EPA_ERR_MISMATCH, "scales stand where no float32 can be read");
    if (!scales && ((uintptr_t)m->recv | m->recv_stride) % sizeof(uint16_t) != 0)
        return epa_fail(err, EPA_ERR_MISMATCH, "rows stand where no bf16 can be read");
    if (ranks && m->recv_row == NULL)
        return missing("recv_row", err);
    return ranks && m->recv_weight == NULL ? missing("recv_weight", err) : EPA_OK;
}

/* Ranges of entries; *end is past the last entry of any expert. */
static enum epa_status refuse_ranges(const struct op_moe *op, const struct epa_moe *m,
                                     uint64_t *end, struct epa_error *err)
{
    uint64_t room = op->footprint.recv_entries, sum = 0;

    *end = 0;
    for (uint32_t e = 0; e < op->local_experts; e++) {
        uint64_t start = m->recv_start[e], count = m->recv_count[e];

        sum += count;
        if (count == 0)
            continue;
        if (start > room || count > room - start)
            return epa_fail(err, EPA_ERR_MISMATCH,
                            "expert %u (local %u) has %llu entries from "
                            "%llu; plan() said at most %llu",
                            op->world.rank * op->local_experts + e, e,
                            (unsigned long long)count, (unsigned long long)start,
                            (unsigned long long)room);
        *end = start + count > *end ? start + count : *end;
    }
    if (sum > m->recv_entries)
        return epa_fail(err, EPA_ERR_MISMATCH,
                        "counts add up to %llu, recv_entries is %llu",
                        (unsigned long long)sum, (unsigned long long)m->recv_entries);
    return EPA_OK;
}

static enum epa_status refuse_rows(const struct op_moe *op, const struct epa_moe *m,
                                   struct epa_error *err)
{
    for (uint32_t e = 0; e < op->local_experts; e++)
        for (uint32_t i = 0; i < m->recv_count[e]; i++) {
            uint64_t entry = m->recv_start[e] + i;

            if (m->recv_row[entry] >= m->recv_rows)
                return epa_fail(err, EPA_ERR_MISMATCH,
                                "entry %llu of expert %u is in row %u; "
                                "there are %llu",
                                (unsigned long long)entry,
                                op->world.rank * op->local_experts + e, m->recv_row[entry],
                                (unsigned long long)m->recv_rows);
        }
    return EPA_OK;
}

static enum epa_status stage_rows(struct op_moe *op, struct epa_moe *m, uint64_t rows,
                                  uint64_t entries, struct epa_error *err)
{
    bool fp8 = op->footprint.recv_dtype == EPA_FP8_E4M3;
    size_t row_bytes = m->hidden * (fp8 ? 1 : sizeof(uint16_t));
    size_t before = rows != 0 ? rows - 1 : 0; /* rows; the last one is not a stride long */
    const void *row, *weight, *data, *scale, *origin;
    enum epa_status status;

    if (rows == 0)
        return EPA_OK;
    status = stage(op, STAGE_ROW, m->recv_row, entries * sizeof(uint32_t), &row, err);
    if (status == EPA_OK)
        status =
            stage(op, STAGE_WEIGHT, m->recv_weight, entries * sizeof(float), &weight, err);
    if (status == EPA_OK)
        status =
            stage(op, STAGE_DATA, m->recv, before * m->recv_stride + row_bytes, &data, err);
    if (status == EPA_OK)
        status = stage(op, STAGE_SCALE, fp8 ? m->recv_scale : NULL,
                       before * m->scale_stride + hidden_groups(op) * sizeof(float), &scale,
                       err);
    if (status == EPA_OK)
        status = stage(op, STAGE_ORIGIN, m->origin,
                       before * m->origin_stride + sizeof(*m->origin), &origin, err);
    if (status != EPA_OK)
        return status;
    m->recv_row = row;
    m->recv_weight = weight;
    m->recv = data;
    m->recv_scale = scale;
    m->origin = origin;
    return EPA_OK;
}

static enum epa_status view(struct op_moe *op, const struct slot *s, struct epa_moe *out,
                            struct epa_error *err)
{
    struct epa_moe m = s->problem.u.moe;
    bool by_rank = op->footprint.layout == EPA_LAYOUT_RANK;
    enum epa_status status = refuse_pointers(op, &m, err);
    const void *count, *start;
    uint64_t end;

    if (status == EPA_OK)
        status = stage(op, STAGE_COUNT, m.recv_count, op->local_experts * sizeof(uint32_t),
                       &count, err);
    if (status == EPA_OK)
        status = stage(op, STAGE_START, m.recv_start, op->local_experts * sizeof(uint64_t),
                       &start, err);
    if (status != EPA_OK)
        return status;
    m.recv_count = count;
    m.recv_start = start;
    if (!by_rank) {
        m.recv_row = NULL;
        m.recv_weight = NULL;
    }
    status = refuse_ranges(op, &m, &end, err);
    if (status == EPA_OK)
        status = stage_rows(op, &m, by_rank ? m.recv_rows : end, end, err);
    if (status == EPA_OK && by_rank)
        status = refuse_rows(op, &m, err);
    if (status == EPA_OK)
        *out = m;
    return status;
}

enum epa_status op_moe_view(struct op_moe *op, const struct slot *s, struct epa_moe *out,
                            struct epa_error *err)
{
    struct epa_error why = {EPA_OK, ""};
    enum epa_status status = view(op, s, out, &why);

    if (status == EPA_OK)
        return EPA_OK;
    return epa_fail(err, status, "iteration %llu, dispatch on rank %u: %.400s",
                    (unsigned long long)s->iteration, op->world.rank, why.text);
}

enum epa_status op_moe_out(struct op_moe *op, const struct slot *s, const uint16_t **out,
                           struct epa_error *err)
{
    size_t bytes = (size_t)op->x->moe.max_tokens * op->x->moe.hidden * sizeof(**out);
    enum epa_status status = EPA_OK;

    if (s->out.here != s->out.there)
        status = op->backend->ops->read(op->backend, s->out.here, s->out.there, bytes);
    if (status != EPA_OK) {
        op->backend->ops->explain(op->backend, err);
        return epa_fail(err, status, "outputs could not be read back");
    }
    *out = s->out.here;
    return EPA_OK;
}
