/* Form of delivered rows: element type, and type and order of FP8 scales. */
#ifndef API_MOE_FORM_H
#define API_MOE_FORM_H

#include <epa2a.h>
#include <epa2a/problem.h>
#include <epa2a/status.h>

#include <stdbool.h>

struct moe_form {
    uint32_t hidden, group, topk;
    bool f16;      /* dtype is float16; false: bfloat16 */
    bool sent_fp8; /* the algorithm delivers FP8 */
    bool fp8;      /* the caller receives FP8 */
    bool pow2;     /* scales are powers of two */
    bool ue8m0;    /* scales are exponents of a byte; requires pow2 */
    bool by_group; /* the group is the major dimension of scales */
};

static inline uint32_t moe_form_groups(const struct moe_form *f)
{
    return f->hidden / f->group;
}

static inline size_t moe_form_row_bytes(const struct moe_form *f)
{
    return (size_t)f->hidden * (f->fp8 ? 1 : 2);
}

/* Returns the number of 32-bit words of the scales of a row. */
static inline uint32_t moe_form_words(const struct moe_form *f)
{
    return f->ue8m0 ? (moe_form_groups(f) + 3) / 4 : moe_form_groups(f);
}

/* Selects the form from the flags of a dispatch. `m` has the shape, `sent` is the type that the
 * algorithm `name` delivers, recv_dtype is the default of the shape, and x_scale states that the
 * input is FP8. EPA_ERR_CONFIG: the flags contradict each other. EPA_ERR_UNSUPPORTED: the form
 * cannot be computed exactly from the rows of the algorithm. */
EPA_CHECKED enum epa_status moe_form_select(const struct epa_moe *m, enum epa_dtype sent,
                                            int32_t recv_dtype, uint32_t flags, bool x_scale,
                                            const char *name, struct moe_form *out,
                                            struct epa_error *);

/* Quantises a row of dtype to FP8 with the scales of the form, `pow2` included. */
void moe_form_quantise(const struct moe_form *, const uint16_t *x, uint8_t *q, float *scale);

/* Returns the least power of two, but at least 2^-126, that is not below a positive scale. */
float moe_form_pow2(float scale);

/* Converts the scales of a row to moe_form_words() words. Returns false if the form has exponents
 * and a scale is not a power of two from 2^-126 to 2^127. */
bool moe_form_scales(const struct moe_form *, const float *scale, uint32_t *out);

#endif
