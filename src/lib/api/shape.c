/* Shapes of the caller. */
#include "api/shape.h"

#include "api/struct_size.h"

enum { HIDDEN_STEP = 16, TOPK_MAX = 32, EXPERTS_MAX = 4096, TOKENS_MAX = 32768, FP8_GROUP = 128 };

/* Checks numbers; shape_read() has set the defaults. */
static enum epa_status check_numbers(const struct epa2a_moe_shape *s, uint32_t ranks,
                                     struct epa_error *err)
{
    if (s->max_tokens == 0 || s->max_tokens > TOKENS_MAX)
        return epa_fail(err, EPA_ERR_CONFIG, "max_tokens is %u; write 1 to %d", s->max_tokens,
                        TOKENS_MAX);
    if (s->hidden == 0 || s->hidden % HIDDEN_STEP != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "hidden is %u; write a multiple of %d", s->hidden,
                        HIDDEN_STEP);
    if (s->experts == 0 || s->experts > EXPERTS_MAX || s->experts % ranks != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "experts is %u; write a multiple of the number of ranks (%u), at most %d",
                        s->experts, ranks, EXPERTS_MAX);
    if (s->topk == 0 || s->topk > TOPK_MAX || s->topk > s->experts)
        return epa_fail(err, EPA_ERR_CONFIG, "topk is %u; write 1 to %u", s->topk,
                        s->experts < TOPK_MAX ? s->experts : TOPK_MAX);
    if (s->in_flight > 2)
        return epa_fail(err, EPA_ERR_CONFIG, "in_flight is %u; write 1 or 2", s->in_flight);
    return EPA_OK;
}

enum epa_status shape_read(const struct epa2a_moe_shape *from, uint32_t ranks,
                           struct epa2a_moe_shape *out, struct epa_moe *moe, struct epa_error *err)
{
    struct epa2a_moe_shape s;
    enum epa_status status = struct_read(&s, sizeof(s), from, "epa2a_moe_shape", err);

    if (status != EPA_OK)
        return status;
    s.fp8_group = s.fp8_group != 0 ? s.fp8_group : FP8_GROUP;
    s.in_flight = s.in_flight != 0 ? s.in_flight : 1;
    s.dtype = s.dtype != 0 ? s.dtype : EPA2A_BF16;
    s.recv_dtype = s.recv_dtype != 0 ? s.recv_dtype : s.dtype;
    status = check_numbers(&s, ranks, err);
    if (status != EPA_OK)
        return status;
    if (s.dtype != EPA2A_BF16 && s.dtype != EPA2A_F16)
        return epa_fail(err, EPA_ERR_CONFIG, "dtype is %d; write EPA2A_BF16 or EPA2A_F16", s.dtype);
    if (s.recv_dtype != s.dtype && s.recv_dtype != EPA2A_FP8_E4M3)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "recv_dtype is %d; write the dtype of the shape (%d) or EPA2A_FP8_E4M3",
                        s.recv_dtype, s.dtype);
    if (s.recv_dtype == EPA2A_FP8_E4M3 && s.hidden % s.fp8_group != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "hidden (%u) is not a multiple of fp8_group (%u), as EPA2A_FP8_E4M3 needs",
                        s.hidden, s.fp8_group);
    if (s.layout < EPA2A_EXPERT_PADDED || s.layout > EPA2A_RANK_PADDED)
        return epa_fail(err, EPA_ERR_CONFIG, "layout is %d; write a value of enum epa2a_layout",
                        s.layout);
    *out = s;
    *moe = (struct epa_moe){.max_tokens = s.max_tokens,
                            .hidden = s.hidden,
                            .experts = s.experts,
                            .topk = s.topk,
                            .fp8_group_size = s.fp8_group,
                            .dtype = s.dtype,
                            .x_dtype = s.dtype};
    return EPA_OK;
}
