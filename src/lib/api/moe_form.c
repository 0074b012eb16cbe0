/* FP8 rows with plain scales are sent by the algorithm or quantised here, with the same result:
 * problem.h defines each bit. Power-of-two scales change the codes, so only the original row yields
 * them: the source quantises the row, or the receiver, where rows travel in dtype. */
#include "api/moe_form.h"

#include "base/dtype.h"

#include <epa2a/quant.h>

static const uint32_t scale_flags = EPA2A_SCALE_POW2 | EPA2A_SCALE_UE8M0 | EPA2A_SCALE_BY_GROUP;

static enum epa_status check_flags(const struct moe_form *f, uint32_t flags, bool x_scale,
                                   const char *name, struct epa_error *err)
{
    const uint32_t all = scale_flags | EPA2A_RECV_NATIVE | EPA2A_RECV_FP8;

    if ((flags & ~all) != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "flags of the tokens has unknown bits: 0x%x; set only bits of enum "
                        "epa2a_dispatch_flag",
                        flags & ~all);
    if ((flags & EPA2A_RECV_NATIVE) != 0 && (flags & EPA2A_RECV_FP8) != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "EPA2A_RECV_NATIVE and EPA2A_RECV_FP8 exclude each other; set one of them");
    if (!f->fp8 && (flags & scale_flags) != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "flags for scales need FP8 rows: set EPA2A_RECV_FP8, or recv_dtype of the "
                        "shape to EPA2A_FP8_E4M3");
    if ((f->fp8 || x_scale) && (f->group == 0 || f->hidden % f->group != 0))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "FP8 needs hidden (%u) to be a multiple of fp8_group (%u)", f->hidden,
                        f->group);
    if (f->sent_fp8 && !f->fp8)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s of this moe sends FP8 and cannot deliver rows in dtype; set recv_dtype "
                        "of the shape to dtype, and EPA2A_RECV_FP8 in dispatches with FP8 rows",
                        name);
    if (x_scale && !f->sent_fp8)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s of this moe sends rows in dtype and cannot send FP8 input (x_scale); "
                        "set recv_dtype of the shape to EPA2A_FP8_E4M3",
                        name);
    return EPA_OK;
}

enum epa_status moe_form_select(const struct epa_moe *m, enum epa_dtype sent, int32_t recv_dtype,
                                uint32_t flags, bool x_scale, const char *name,
                                struct moe_form *out, struct epa_error *err)
{
    struct moe_form f = {
        .hidden = m->hidden,
        .group = m->fp8_group_size,
        .topk = m->topk,
        .f16 = m->dtype == EPA_F16,
        .sent_fp8 = sent == EPA_FP8_E4M3,
        .fp8 = (flags & EPA2A_RECV_FP8) != 0 ||
               (recv_dtype == EPA2A_FP8_E4M3 && (flags & EPA2A_RECV_NATIVE) == 0),
        .pow2 = (flags & (EPA2A_SCALE_POW2 | EPA2A_SCALE_UE8M0)) != 0,
        .ue8m0 = (flags & EPA2A_SCALE_UE8M0) != 0,
        .by_group = (flags & EPA2A_SCALE_BY_GROUP) != 0,
    };
    enum epa_status status = check_flags(&f, flags, x_scale, name, err);

    if (status == EPA_OK)
        *out = f;
    return status;
}

float moe_form_pow2(float scale)
{
    const uint32_t least = 1u << 23, mantissa = least - 1;
    uint32_t bits = bits_of_float(scale);

    if (bits < least)
        return float_of_bits(least);
    return float_of_bits((bits + mantissa) & ~mantissa);
}

void moe_form_quantise(const struct moe_form *f, const uint16_t *x, uint8_t *q, float *scale)
{
    if (!f->pow2) {
        const struct epa_kernels *kernels = epa_kernels_get(f->f16 ? EPA_F16 : EPA_BF16, NULL);

        kernels->quantise(x, f->hidden, f->group, NULL, q, scale);
        return;
    }
    for (uint32_t g = 0; g < moe_form_groups(f); g++) {
        const uint16_t *from = x + (size_t)g * f->group;
        uint8_t *to = q + (size_t)g * f->group;
        uint16_t amax = largest_finite_of(from, f->group, f->f16 ? 0x7c00 : 0x7f80);
        float by = 1.0f;

        if (amax != 0)
            by = moe_form_pow2(float_of_word(f->f16, amax) * (1.0f / 448.0f));
        scale[g] = by;
        for (uint32_t i = 0; i < f->group; i++)
            to[i] = e4m3_of_float(float_of_word(f->f16, from[i]) / by);
    }
}

bool moe_form_scales(const struct moe_form *f, const float *scale, uint32_t *out)
{
    uint32_t groups = moe_form_groups(f);

    if (!f->ue8m0) {
        memcpy(out, scale, groups * sizeof(*scale));
        return true;
    }
    memset(out, 0, moe_form_words(f) * sizeof(*out));
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t bits = bits_of_float(scale[g]), exponent = bits >> 23;

        if ((bits & ((1u << 23) - 1)) != 0 || exponent < 1 || exponent > 254)
            return false;
        out[g / 4] |= exponent << g % 4 * 8;
    }
    return true;
}
