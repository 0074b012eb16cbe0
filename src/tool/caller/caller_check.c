/* Experiments that the public interface cannot run, with the reason. */
#include "caller/caller_check.h"

#include <stdlib.h>

/* Channels of a scale of the intermediate, and of a block of FP8 weights, in a layer of epa2a.h. */
enum { FFN_GROUP = 128 };

/* Fails with the key of the option at fault. */
#define REFUSE(key, ...) epa_fail_key(err, EPA_ERR_UNSUPPORTED, key, "api: " __VA_ARGS__)

bool caller_uses_layer(const struct experiment *x)
{
    return algorithm_of(x)->op == EPA_OP_MOE && (x->api == API_LAYER || x->footprint.u.moe.fused);
}

static enum epa_status check_set_up(const struct experiment *x, struct epa_error *err)
{
    if (x->profile.file != NULL)
        return REFUSE("profile.file api",
                      "epa2a.h has no traces; remove profile, or run with api: none");
    if (secure_getenv("EPA2A_OPTIONS") != NULL)
        return REFUSE("api", "the library would read EPA2A_OPTIONS after the options of the "
                             "experiment; unset this environment variable");
    return EPA_OK;
}

static enum epa_status check_layer(const struct experiment *x, struct epa_error *err)
{
    const struct expert_options *e = &x->problem.expert;

    if (e->kind != EXPERT_MLP)
        return REFUSE("expert.kind api",
                      "epa2a_layer_run() computes real experts; set expert.kind: mlp%s",
                      x->api == API_LAYER ? ", or api: calls" : "");
    if (e->library == EXPERT_LIBRARY_ONEDNN)
        return REFUSE("expert.library api",
                      "a layer has no option for the library of the experts; remove "
                      "expert.library, or set api: calls");
    if (e->weights == EXPERT_WEIGHTS_FP8 && e->fp8_group_size != FFN_GROUP)
        return REFUSE("expert.fp8_group_size api",
                      "a layer quantises the intermediate in groups of 128 channels; remove "
                      "expert.fp8_group_size");
    if (e->weights == EXPERT_WEIGHTS_FP8 &&
        (x->problem.moe.hidden % FFN_GROUP != 0 || e->ffn % FFN_GROUP != 0))
        return REFUSE(
            "moe.hidden expert.ffn api",
            "a layer with FP8 weights needs multiples of 128 as moe.hidden and expert.ffn");
    if (x->verify.order == ORDER_DISCARD || x->verify.order == ORDER_AGAIN)
        return REFUSE("verify.order api",
                      "a layer has no single dispatch and combine; set verify.order: lockstep");
    return EPA_OK;
}

enum epa_status caller_check(const struct experiment *x, struct epa_error *err)
{
    enum epa_status status;

    if (x->api == API_NONE)
        return EPA_OK;
    if (algorithm_of(x)->op == EPA_OP_ALLGATHER)
        return REFUSE("algorithm.name api",
                      "epa2a.h has no AllGather; use an algorithm of moe or ag_gemm");
    if (algorithm_of(x)->op != EPA_OP_MOE && x->api == API_LAYER)
        return REFUSE("algorithm.name api", "layer needs an algorithm of moe; set api: calls");
    status = check_set_up(x, err);
    if (status == EPA_OK && caller_uses_layer(x))
        status = check_layer(x, err);
    if (status == EPA_OK && x->verify.epoch != 0)
        return REFUSE("verify.epoch api",
                      "objects of epa2a.h begin with dispatch 1; remove verify.epoch");
    return status;
}

uint64_t caller_bytes(const struct experiment *x)
{
    const struct epa_moe_footprint *f = &x->footprint.u.moe;
    const struct moe_options *m = &x->problem.moe;
    uint64_t rows = f->recv_entries > f->recv_rows ? f->recv_entries : f->recv_rows;
    uint64_t choices = (uint64_t)m->max_tokens * m->topk;

    if (x->api == API_NONE || algorithm_of(x)->op != EPA_OP_MOE || caller_uses_layer(x))
        return 0;
    /* Received rows and outputs of two dispatches, of the caller and of the library, and lists. */
    return 4 * rows * (4 * (uint64_t)m->hidden + 16 * m->topk + 64) + 64 * choices;
}
