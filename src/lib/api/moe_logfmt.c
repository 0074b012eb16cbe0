#include "api/moe_logfmt.h"

#include "ep/ep_explain.h"
#include "kernels/kernels.h"

#include <epa2a/logfmt.h>

/* Returns true for memory of the moe. */
static bool is_of_moe(const struct epa2a_moe *moe, const void *y)
{
    for (uint32_t i = 0; i < moe->sets; i++)
        if (moe->record[i].problem.u.moe.y_space == y)
            return true;
    return y == NULL || moe->lane.problem.u.moe.y_space == y;
}

enum epa_status moe_check_logfmt(const struct epa2a_moe *moe, const struct epa2a_outputs *o,
                                 struct epa_error *err)
{
    const struct epa2a_moe_shape *s = &moe->plan.shape;

    if ((o->flags & ~(uint32_t)EPA2A_COMBINE_LOGFMT) != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "flags of the outputs has unknown bits: 0x%x; set only bits of enum "
                        "epa2a_combine_flag",
                        o->flags & ~(uint32_t)EPA2A_COMBINE_LOGFMT);
    if (o->flags == 0)
        return EPA_OK;
    if (moe_layout_is_rank(&moe->plan.layout))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "EPA2A_COMBINE_LOGFMT is for the EXPERT layouts; set flags to 0");
    if (s->dtype != EPA2A_BF16 || epa_logfmt_part(s->hidden) == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "EPA2A_COMBINE_LOGFMT needs dtype BF16 and a hidden that is a multiple of "
                        "%d; the shape has dtype %s and hidden %u",
                        EPA_LOGFMT_SHORT_PART, s->dtype == EPA2A_BF16 ? "BF16" : "F16", s->hidden);
    if (is_of_moe(moe, o->y))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "EPA2A_COMBINE_LOGFMT needs expert outputs in memory of the application; "
                        "set y to such memory");
    return EPA_OK;
}

/* On hosts: rounds n rows, from row `from` of y to row `to` of the algorithm. */
static void round_rows(const struct epa_moe *m, const uint16_t *y, uint64_t from, uint64_t to,
                       uint64_t n)
{
    const struct gemm_rows *rows = gemm_rows_get();
    uint16_t *out = m->y_space;

    for (uint64_t i = 0; i < n; i++)
        rows->round_logfmt(y + (from + i) * m->hidden, m->hidden, out + (to + i) * m->hidden);
}

enum epa_status moe_round_logfmt(struct epa2a_moe *moe, struct moe_record *r, const void *y,
                                 struct epa_error *err)
{
    const struct moe_places *p = &r->places;
    struct epa_moe *m = &r->problem.u.moe;
    struct epa_backend *b = moe->device;

    m->y = m->y_space;
    if (b != NULL)
        return ep_explain_backend(
            &moe->ep, b->ops->round_outputs(b, m, moe->plan.layout.local, y, m->y_space), err);
    for (uint32_t e = 0; p->same && e < p->l.local; e++)
        round_rows(m, y, p->start[e], p->start[e], p->count[e]);
    for (uint64_t n = 0; !p->same && n < p->rows; n++)
        round_rows(m, y, p->row[n], p->view[n], 1);
    return EPA_OK;
}
