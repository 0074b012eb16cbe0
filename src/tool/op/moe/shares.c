/* Entries of a view in order of rows. */
#include "op/moe/shares.h"

#include <string.h>

#include "op/moe/area.h"

/* A counting sort. */
enum epa_status op_moe_sort_shares(struct op_moe *op, const struct view *v, struct epa_error *err)
{
    const struct epa_moe *m = &v->m;
    uint32_t *first = op->row_first, sum = 0;
    enum epa_status status =
        op_moe_area(&op->share, "entries by row", v->entries * sizeof(struct share), err);
    struct share *share = op->share.data;

    if (status != EPA_OK)
        return status;
    memset(first, 0, (v->rows_end + 1) * sizeof(*first));
    for (uint32_t e = 0; e < op->local_experts; e++)
        for (uint32_t i = 0; i < m->recv_count[e]; i++)
            first[m->recv_row[v->first[e] + i] + 1]++;
    for (uint64_t row = 0; row <= v->rows_end; row++) {
        sum += first[row];
        first[row] = sum;
    }
    for (uint32_t e = 0; e < op->local_experts; e++)
        for (uint32_t i = 0; i < m->recv_count[e]; i++) {
            uint32_t entry = (uint32_t)v->first[e] + i;

            share[first[m->recv_row[entry]]++] = (struct share){.entry = entry, .expert = e};
        }
    /* The sort has advanced each `first` to the next row; moves them back. */
    memmove(first + 1, first, v->rows_end * sizeof(*first));
    first[0] = 0;
    return EPA_OK;
}
