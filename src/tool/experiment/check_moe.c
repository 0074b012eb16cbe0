/* Checks of the options of moe. */
#include "experiment/check_moe.h"

#include "base/memory.h"
#include "config/check.h"
#include "config/origin.h"
#include "epa2a/gemm.h"
#include "op/moe/routing.h"

static void check_moe_shape(const struct config_check *c)
{
    const struct moe_options *m = &c->x->problem.moe;
    uint32_t ranks = c->x->problem.ranks;

    if (m->experts % ranks != 0)
        check_conflict(c, "moe.experts", "ranks", check_multiples(c, "moe.experts", ranks),
                       "%s is not a multiple of %s", check_value(c, "moe.experts", m->experts),
                       check_value(c, "ranks", ranks));
    if (m->topk > m->experts)
        check_conflict(c, "moe.topk", "moe.experts", "a token goes to distinct experts",
                       "%s is larger than %s", check_value(c, "moe.topk", m->topk),
                       check_value(c, "moe.experts", m->experts));
    if (m->hidden % 16 != 0 && c->x->problem.expert.kind != EXPERT_MLP)
        check_conflict(c, "moe.hidden", NULL, check_multiples(c, "moe.hidden", 16),
                       "%s is not a multiple of 16", check_value(c, "moe.hidden", m->hidden));
    if (m->input_dtype == MOE_INPUT_FP8 && m->hidden % m->fp8_group_size != 0)
        check_conflict(c, "moe.hidden", "moe.fp8_group_size",
                       check_multiples(c, "moe.hidden", m->fp8_group_size),
                       "%s is not a multiple of %s, as moe.input_dtype: fp8 needs",
                       check_value(c, "moe.hidden", m->hidden),
                       check_value(c, "moe.fp8_group_size", m->fp8_group_size));
}

static void check_routing(const struct config_check *c)
{
    const struct routing_options *r = &c->x->problem.routing;
    const struct moe_options *m = &c->x->problem.moe;

    if (r->kind == ROUTING_FILE && r->path == NULL)
        check_conflict(c, "routing.kind", "routing.path",
                       "add path, or --set routing.path=FILE on the command line",
                       "routing.kind file needs 'path'");
    if (r->kind == ROUTING_MAXVIO && m->topk <= m->experts &&
        r->violation > routing_maxvio_most(m->experts, m->topk))
        check_conflict(c, "routing.violation", "moe.topk", "no more than each token can want it",
                       "routing.violation (%g) is above %g: with %s and %s that is one expert in "
                       "every token",
                       r->violation, routing_maxvio_most(m->experts, m->topk),
                       check_value(c, "moe.experts", m->experts),
                       check_value(c, "moe.topk", m->topk));
}

/* With tolerance: allclose the reference rounds sums at each step, and algorithms round once or twice.
 * The difference alone must not exceed rtol. */
static void check_tolerance(const struct config_check *c)
{
    const struct verify_options *v = &c->x->verify;
    uint32_t topk = c->x->problem.moe.topk;
    bool f16 = c->x->problem.moe.dtype == EPA_F16;
    double lost = (topk + 2) * (f16 ? 0x1p-11 : 0x1p-8);

    if (v->tolerance == TOLERANCE_ALLCLOSE && c->x->problem.routing.weights == WEIGHTS_SIGNED)
        check_conflict(c, "routing.weights", "verify.tolerance",
                       "set verify.tolerance: exact, or other weights",
                       "routing.weights: signed lets terms of a sum cancel, and verify.tolerance: "
                       "allclose rounds after each step: more than verify.rtol is lost");
    if (v->tolerance == TOLERANCE_ALLCLOSE && v->rtol < lost)
        check_conflict(c, "verify.rtol", "verify.tolerance",
                       "raise verify.rtol, or set verify.tolerance: exact",
                       "%s expert outputs added up in %s, rounded at each step, may be off by "
                       "%.3g, and verify.rtol (%.3g%s) is less",
                       check_value(c, "moe.topk", topk), f16 ? "f16" : "bf16", lost, v->rtol,
                       origin_find(c->x, "verify.rtol") == NULL ? ", the default" : "");
}

/* Checks the groups of channels that share a scale with FP8 weights. */
static void check_groups(const struct config_check *c, const char *channels_key, uint32_t channels,
                         const char *group_key, uint32_t group)
{
    const char *hint;

    if (group != 64 && group != 128)
        check_conflict(c, group_key, "expert.weights", "write 64 or 128",
                       "%s is neither 64 nor 128, as expert.weights: fp8 needs",
                       check_value(c, group_key, group));
    if ((group != 64 && group != 128) || channels % EPA_GEMM_STEP != 0 || channels % group == 0)
        return;
    hint = check_multiples(c, channels_key, group);
    if (c->trial == NULL && hint != NULL && check_takes(c, group_key, 64, NULL))
        hint = arena_printf(c->x->arena, "set %s: 64, or %s", group_key, hint);
    check_conflict(c, channels_key, group_key, hint,
                   "%s is not a multiple of %s, as expert.weights: fp8 needs",
                   check_value(c, channels_key, channels), check_value(c, group_key, group));
}

/* Checks the options of real experts. */
static void check_mlp(const struct config_check *c)
{
    const struct expert_options *e = &c->x->problem.expert;
    const struct moe_options *m = &c->x->problem.moe;
    bool f16 = m->dtype == EPA_F16;

    if (e->kind != EXPERT_MLP)
        return;
    if (m->hidden % EPA_GEMM_STEP != 0)
        check_conflict(c, "moe.hidden", "expert.kind",
                       check_multiples(c, "moe.hidden", EPA_GEMM_STEP),
                       "%s is not a multiple of %d, as expert.kind: mlp needs",
                       check_value(c, "moe.hidden", m->hidden), EPA_GEMM_STEP);
    if (e->ffn % EPA_GEMM_STEP != 0)
        check_conflict(c, "expert.ffn", NULL, check_multiples(c, "expert.ffn", EPA_GEMM_STEP),
                       "%s is not a multiple of %d", check_value(c, "expert.ffn", e->ffn),
                       EPA_GEMM_STEP);
    if (e->weights == (f16 ? EXPERT_WEIGHTS_BF16 : EXPERT_WEIGHTS_F16))
        check_conflict(c, "expert.weights", "moe.dtype", "write native, or fp8",
                       "expert.weights: %s needs moe.dtype: %s", f16 ? "bf16" : "f16",
                       f16 ? "bf16" : "f16");
    if (e->weights == EXPERT_WEIGHTS_FP8) {
        check_groups(c, "moe.hidden", m->hidden, "moe.fp8_group_size", m->fp8_group_size);
        check_groups(c, "expert.ffn", e->ffn, "expert.fp8_group_size", e->fp8_group_size);
    }
    if (e->values == EXPERT_VALUES_INTEGERS && c->x->problem.routing.hidden_states != NULL)
        check_conflict(c, "expert.values", "routing.hidden_states", "remove one of them",
                       "expert.values: integers are values of tokens too");
    if (e->library == EXPERT_LIBRARY_ONEDNN && (f16 || e->weights >= EXPERT_WEIGHTS_FP8))
        check_conflict(c, "expert.library", f16 ? "moe.dtype" : "expert.weights",
                       "write auto, or own", "expert.library: onednn multiplies bf16 alone");
    if (c->x->verify.nonfinite)
        check_conflict(c, "verify.nonfinite", "expert.kind", "remove it",
                       "verify.nonfinite is for synthetic experts: a NaN makes all outputs of a "
                       "real expert NaN");
    if (c->x->verify.tolerance == TOLERANCE_ALLCLOSE)
        check_conflict(c, "verify.tolerance", "expert.kind", "remove it",
                       "verify.tolerance: allclose is for synthetic experts; outputs of real ones "
                       "are held to a bound that follows from how they are computed");
}

void check_moe_options(const struct config_check *c)
{
    check_moe_shape(c);
    check_routing(c);
    check_tolerance(c);
    check_mlp(c);
}

void check_moe_footprint(const struct config_check *c, const struct epa_footprint *footprint)
{
    const struct experiment *x = c->x;
    const struct epa_moe_footprint *f = &footprint->u.moe;
    const char *name = x->algorithm.plugin->name;

    if (x->verify.tolerance == TOLERANCE_ALLCLOSE &&
        (f->recv_dtype == EPA_FP8_E4M3 || f->output_dtype == EPA_FP8_E4M3))
        check_conflict(c, "verify.tolerance", "algorithm.name",
                       "send rows and expert outputs as they are, or set exact",
                       "verify.tolerance: allclose is tighter than FP8, and '%s' as it is set up "
                       "sends %s in FP8",
                       name, f->recv_dtype == EPA_FP8_E4M3 ? "rows" : "expert outputs");
    /* An algorithm that computes real experts must announce the number of operations. */
    if (f->fused && x->problem.expert.kind == EXPERT_MLP && !(footprint->flops > 0))
        check_conflict(c, "expert.kind", "algorithm.name",
                       "leave the experts to epa2a (fuse_expert: false), or set another kind",
                       "expert.kind: mlp: '%s' as it is set up computes experts itself, and knows "
                       "synthetic ones alone",
                       name);
    if (x->problem.expert.library != EXPERT_LIBRARY_AUTO && x->problem.expert.kind == EXPERT_MLP &&
        (f->fused || !is_on_hosts(x)))
        check_conflict(c, "expert.library", f->fused ? "algorithm.name" : "backend.name",
                       "remove it", "expert.library says nothing: %s '%s' computes the experts",
                       f->fused ? "algorithm" : "backend",
                       f->fused ? name : x->backend.plugin->name);
    if (x->problem.expert.weights == EXPERT_WEIGHTS_INT8 && x->problem.expert.kind == EXPERT_MLP &&
        !is_on_hosts(x))
        check_conflict(c, "expert.weights", "backend.name", "write native, or fp8",
                       "expert.weights: int8 is for hosts; backend '%s' has no product of INT8",
                       x->backend.plugin->name);
    if (f->fused && x->problem.expert.output == OUTPUT_SEPARATE)
        check_conflict(
            c, "expert.output", "algorithm.name", "remove it",
            "expert.output: separate says nothing: '%s' as it is set up does the experts' "
            "work itself, in combine",
            name);
}
