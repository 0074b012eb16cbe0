/* Weights that combine returns (RANK layouts). Algorithms return expert outputs in 16 bits only,
 * and add up the outputs of a token. A repeated dispatch and its combine carry the weights: each
 * byte of a weight is an element of a row of outputs, as a whole number from 0 to 255, which both
 * types of 16 bits represent exactly. Only the rank of the chosen expert has an element that is not
 * 0, so the sum over ranks is this element. */
#include "api/moe_weights.h"

#include "api/moe_open.h"

#include "base/dtype.h"
#include "ep/ep_explain.h"

#include <string.h>

enum { BYTES = sizeof(float) };

/* On hosts: writes bytes `first` to `first` + n of the weights of each row to the outputs. */
static void encode_rows(struct epa2a_moe *moe, uint32_t first, uint32_t n)
{
    const struct moe_places *p = &moe->lane.places;
    const struct epa_moe *m = &moe->lane.problem.u.moe;
    uint16_t *y = m->y_space;
    bool f16 = m->dtype == EPA_F16;

    for (uint64_t row = 0; row < m->recv_rows; row++)
        memset(y + row * m->hidden, 0, m->hidden * sizeof(*y));
    for (uint32_t e = 0; e < p->l.local; e++)
        for (uint32_t j = 0; j < p->count[e]; j++) {
            uint64_t entry = m->recv_start[e] + j;
            uint32_t row = m->recv_row[entry], k = m->recv_k[entry];
            size_t place = p->same ? row : p->at[row];
            unsigned char byte[BYTES];

            memcpy(byte, &moe->outputs.topk_weight[place * m->topk + k], BYTES);
            for (uint32_t b = 0; b < BYTES; b++)
                if (k * BYTES + b >= first && k * BYTES + b < first + n)
                    y[(size_t)row * m->hidden + k * BYTES + b - first] =
                        word_of_float(f16, (float)byte[b]);
        }
}

static void decode_tokens(const struct epa2a_moe *moe, uint32_t first, uint32_t n)
{
    const struct epa_moe *m = &moe->lane.problem.u.moe;
    unsigned char *out = (unsigned char *)moe->outputs.out_weight;
    const uint16_t *sum = moe->scratch;
    bool f16 = m->dtype == EPA_F16;

    for (uint32_t t = 0; t < m->tokens; t++)
        for (uint32_t i = 0; i < n; i++)
            out[(size_t)t * m->topk * BYTES + first + i] =
                (unsigned char)float_of_word(f16, sum[(size_t)t * m->hidden + i]);
}

enum epa_status moe_check_weights(const struct epa2a_moe *moe, const struct epa2a_outputs *o,
                                  struct epa_error *err)
{
    const struct epa_moe_footprint *f = &moe->plan.footprint.u.moe;

    if (o->out_weight == NULL)
        return EPA_OK;
    if (o->topk_weight == NULL && moe->plan.layout.rows != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "out_weight needs topk_weight, the weights that combine returns");
    if ((int)f->output_dtype != moe->plan.shape.dtype)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s quantises outputs (combine_dtype) and cannot return weights; set "
                        "combine_dtype=native, or out_weight to NULL",
                        moe->name);
    return EPA_OK;
}

/* On a device: queues writes of the bytes of the weights as outputs. */
static enum epa_status encode_there(struct epa2a_moe *moe, const struct epa_weight_bytes *bytes,
                                    struct epa_error *err)
{
    const struct epa_moe *m = &moe->lane.problem.u.moe;
    struct epa_backend *b = moe->device;

    return ep_explain_backend(
        &moe->ep, b->ops->encode_weights(b, m, bytes, moe->outputs.topk_weight, m->y_space), err);
}

static enum epa_status decode_there(struct epa2a_moe *moe, const struct epa_weight_bytes *bytes,
                                    struct epa_error *err)
{
    struct epa_backend *b = moe->device;

    return ep_explain_backend(&moe->ep,
                              b->ops->decode_weights(b, bytes, moe->lane.problem.u.moe.tokens,
                                                     moe->scratch, moe->outputs.out_weight),
                              err);
}

/* Returns bytes `first` to `first` + n of the weights of each token. */
static enum epa_status return_bytes(struct epa2a_moe *moe, uint32_t first, uint32_t n,
                                    struct epa_error *err)
{
    const struct moe_target *t = &moe->target;
    const struct epa2a_moe_shape *s = &moe->plan.shape;
    const struct epa_weight_bytes bytes = {.ranks = moe->plan.layout.ranks,
                                           .max_tokens = s->max_tokens,
                                           .topk = s->topk,
                                           .hidden = s->hidden,
                                           .first = first,
                                           .n = n,
                                           .dtype = (enum epa_dtype)s->dtype};
    struct epa_moe *m = &moe->lane.problem.u.moe;
    enum epa_status status = moe_open_lane(moe, t->tokens, t->expert, t->weight, err);

    if (status == EPA_OK && moe->device != NULL)
        status = encode_there(moe, &bytes, err);
    else if (status == EPA_OK)
        encode_rows(moe, first, n);
    if (status != EPA_OK)
        return status;
    m->y = m->y_space;
    m->out = moe->scratch;
    status = moe_run(moe, MOE_COMBINE, &moe->lane.problem, err);
    if (status == EPA_OK && moe->device != NULL)
        return decode_there(moe, &bytes, err);
    if (status == EPA_OK)
        decode_tokens(moe, first, n);
    return status;
}

enum epa_status moe_return_weights(struct epa2a_moe *moe, struct epa_error *err)
{
    uint32_t all = moe->plan.shape.topk * BYTES, hidden = moe->plan.shape.hidden;
    enum epa_status status = EPA_OK;

    moe->combined = NULL; /* the repeated dispatch takes the memory of the last one */
    for (uint32_t first = 0; first < all && status == EPA_OK; first += hidden)
        status = return_bytes(moe, first, all - first < hidden ? all - first : hidden, err);
    return status;
}
