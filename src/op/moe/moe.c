/* Mixture of experts as an operation: its table, the checks of its options, and its part of the
 * report. */
#include "op/moe/moe.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "config/experiment.h"
#include "config/check.h"
#include "config/origin.h"
#include "epa2a/gemm.h"
#include "op/moe/check.h"
#include "op/moe/check_combine.h"
#include "op/moe/experts.h"
#include "op/moe/experts_mlp.h"
#include "op/moe/inputs.h"
#include "op/moe/moe_create.h"
#include "op/moe/routing.h"

/* ---- options ---- */

static void check_moe_shape(const struct config_check *c)
{
    const struct moe_options *m = &c->x->moe;
    uint32_t ranks = c->x->ranks;

    if (m->experts % ranks != 0)
        check_conflict(c, "moe.experts", "ranks", check_multiples(c, "moe.experts", ranks),
                       "%s is not a multiple of %s", check_value(c, "moe.experts", m->experts),
                       check_value(c, "ranks", ranks));
    if (m->topk > m->experts)
        check_conflict(c, "moe.topk", "moe.experts", "a token goes to distinct experts",
                       "%s is larger than %s", check_value(c, "moe.topk", m->topk),
                       check_value(c, "moe.experts", m->experts));
    if (m->hidden % 16 != 0 && c->x->expert.kind != EXPERT_MLP)
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
    const struct routing_options *r = &c->x->routing;
    const struct moe_options *m = &c->x->moe;

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
    uint32_t topk = c->x->moe.topk;
    bool f16 = c->x->moe.dtype == EPA_F16;
    double lost = (topk + 2) * (f16 ? 0x1p-11 : 0x1p-8);

    if (v->tolerance == TOLERANCE_ALLCLOSE && c->x->routing.weights == WEIGHTS_SIGNED)
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
    const struct expert_options *e = &c->x->expert;
    const struct moe_options *m = &c->x->moe;
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
    if (e->values == EXPERT_VALUES_INTEGERS && c->x->routing.hidden_states != NULL)
        check_conflict(c, "expert.values", "routing.hidden_states", "remove one of them",
                       "expert.values: integers are values of tokens too");
    if (e->library == EXPERT_LIBRARY_ONEDNN && (f16 || e->weights == EXPERT_WEIGHTS_FP8))
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

static void moe_check_options(const struct config_check *c)
{
    check_moe_shape(c);
    check_routing(c);
    check_tolerance(c);
    check_mlp(c);
}

bool op_moe_takes(const struct experiment *x, const char *key, uint64_t value, char *why,
                  size_t room)
{
    struct experiment copy = *x;
    const struct config_check c = {&copy, NULL, moe_check_options, NULL};
    const char *reason = NULL;
    bool good;

    copy.arena = arena_create();
    good = check_takes(&c, key, value, &reason);
    snprintf(why, room, "%s", reason != NULL ? reason : "");
    arena_destroy(copy.arena);
    return good;
}

static void moe_check_footprint(const struct config_check *c, const struct epa_footprint *footprint)
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
    if (f->fused && x->expert.kind == EXPERT_MLP && !(footprint->flops > 0))
        check_conflict(c, "expert.kind", "algorithm.name",
                       "leave the experts to epa2a (fuse_expert: false), or set another kind",
                       "expert.kind: mlp: '%s' as it is set up computes experts itself, and knows "
                       "synthetic ones alone",
                       name);
    if (x->expert.library != EXPERT_LIBRARY_AUTO && x->expert.kind == EXPERT_MLP &&
        (f->fused || !is_on_hosts(x)))
        check_conflict(c, "expert.library", f->fused ? "algorithm.name" : "backend.name",
                       "remove it", "expert.library says nothing: %s '%s' computes the experts",
                       f->fused ? "algorithm" : "backend",
                       f->fused ? name : x->backend.plugin->name);
    if (f->fused && x->expert.output == OUTPUT_SEPARATE)
        check_conflict(
            c, "expert.output", "algorithm.name", "remove it",
            "expert.output: separate says nothing: '%s' as it is set up does the experts' "
            "work itself, in combine",
            name);
}

static void moe_shape(const struct experiment *x, struct epa_problem *out)
{
    const struct moe_options *m = &x->moe;

    *out = (struct epa_problem){
        .op = EPA_OP_MOE,
        .u.moe = {.max_tokens = m->max_tokens,
                  .hidden = m->hidden,
                  .experts = m->experts,
                  .topk = m->topk,
                  .fp8_group_size = m->fp8_group_size,
                  .dtype = m->dtype,
                  .x_dtype = m->input_dtype == MOE_INPUT_FP8 ? (int)EPA_FP8_E4M3 : m->dtype,
                  .mlp = weights_shape(x)},
    };
}

/* ---- a rank ---- */

static void moe_set_weights(const struct op_rank *rank, struct epa_problem *out)
{
    out->u.moe.mlp = op_moe_of(rank)->mlp;
}

/* Real experts are part of a real layer and are timed; synthetic experts are not. */
static bool experts_are_timed(const struct experiment *x, const struct epa_footprint *footprint)
{
    return x->expert.kind == EXPERT_MLP && !footprint->u.moe.fused;
}

/* Points combine to the expert outputs of an earlier iteration. */
static void outputs_in_graph(struct op_rank *rank, uint32_t slot)
{
    const struct op_moe *op = op_moe_of(rank);
    struct epa_moe *moe = &rank->slot[slot].problem.u.moe;

    if (!op->footprint.fused && op->r.x->expert.output == OUTPUT_IN_PLACE && moe->y_space != NULL)
        moe->y = moe->y_space;
}

static enum epa_status moe_check(struct op_rank *rank, enum epa_stage_kind kind, uint32_t slot,
                                 struct op_finding *f)
{
    return (kind == EPA_STAGE_DISPATCH ? op_moe_check_dispatch : op_moe_check_out)(rank, slot, f);
}

/* ---- the report ---- */

_Static_assert(sizeof(struct routing_stats) <= OP_STATS_BYTES, "room for them");

static void spread_line(const char *of, const struct routing_spread *s, const char *note,
                        struct text *out)
{
    text_add(out, "%s: min %llu, mean %.1f, max %llu, imbalance %.2f%s\n", of,
             (unsigned long long)s->min, s->mean, (unsigned long long)s->max, s->imbalance, note);
}

static void stats_lines(const void *stats, struct text *out)
{
    const struct routing_stats *r = stats;
    char tokens[32], choices[32], dropped[32];

    if (r->iterations == 0)
        return;
    text_add(out, "routed: %s tokens, %s choices, %s dropped in %llu iteration%s\n",
             text_count(tokens, sizeof(tokens), r->tokens),
             text_count(choices, sizeof(choices), r->choices),
             text_count(dropped, sizeof(dropped), r->dropped), (unsigned long long)r->iterations,
             r->iterations == 1 ? "" : "s");
    if (r->choices == r->dropped)
        return;
    spread_line("tokens per expert", &r->expert, " (max / mean)", out);
    spread_line("choices per rank", &r->rank, "", out);
}

static json_t *spread_json(const struct routing_spread *s)
{
    return json_pack("{s:I, s:f, s:I, s:f}", "min", (json_int_t)s->min, "mean", s->mean, "max",
                     (json_int_t)s->max, "imbalance", s->imbalance);
}

static json_t *stats_json(const void *stats, const struct op_source *source)
{
    const struct routing_stats *r = stats;

    if (r->iterations == 0)
        return json_null();
    return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:I}", "iterations",
                     (json_int_t)r->iterations, "tokens", (json_int_t)r->tokens, "choices",
                     (json_int_t)r->choices, "dropped", (json_int_t)r->dropped, "tokens_per_expert",
                     spread_json(&r->expert), "tokens_per_rank", spread_json(&r->rank),
                     "file_tokens", source != NULL ? json_count(source->table.tokens) : json_null(),
                     "skipped_tokens", source != NULL ? (json_int_t)source->skipped : 0);
}

/* The layout of rows is visible only if the core computes the experts. Outputs that stay float32 in
 * transit are as precise as outputs in dtype. */
static json_t *moe_delivers(const struct experiment *x, const struct epa_footprint *footprint)
{
    static const char *const names[] = {
        [EPA_F32] = "f32", [EPA_BF16] = "bf16", [EPA_FP8_E4M3] = "fp8", [EPA_F16] = "f16"};
    const struct epa_moe_footprint *f = &footprint->u.moe;
    const char *layout = f->layout == EPA_LAYOUT_RANK ? "rank" : "expert";
    bool narrow = f->output_dtype == EPA_FP8_E4M3;

    return json_object_of("layout", f->fused ? json_null() : json_text(layout), "rows",
                          json_text(names[f->recv_dtype]), "outputs",
                          json_text(names[narrow ? EPA_FP8_E4M3 : x->moe.dtype]), "fused",
                          json_boolean(f->fused), NULL);
}

static void moe_warn(const struct experiment *x, const struct op_source *source,
                     uint64_t iterations, struct text *out)
{
    unsigned long long period = routing_period(source, x), made = iterations,
                       tokens = source != NULL ? source->table.tokens : 0;
    uint64_t leading, repeats = routing_repeats(source, x, iterations, &leading);
    char held[64] = ""; /* empty if only the hidden states are from a file */

    if (repeats > 0)
        text_add(
            out,
            "in %llu of %llu iterations most tokens are one token repeated, such as a server's "
            "warm-up%s",
            (unsigned long long)repeats, made < period ? made : period, leading == 0 ? "\n" : ": ");
    if (repeats > 0 && leading > 0)
        text_add(out,
                 "routing.skip=auto leaves those at the start of the file out, as does "
                 "routing.skip=%llu\n",
                 (unsigned long long)(source->skipped + leading));
    if (period >= made)
        return;
    if (tokens != 0)
        snprintf(held, sizeof(held), " (%llu tokens with routing)", tokens);
    if (period == 0)
        text_add(out,
                 "the input files start again within one iteration: %u ranks x %u tokens "
                 "are more than they hold%s\n",
                 x->ranks, x->moe.max_tokens, held);
    else
        text_add(out,
                 "the input files start again after iteration %llu of %llu: they hold no "
                 "more%s\n",
                 period, made, held);
}

/* Synthetic experts have no options that influence results. */
static const char *moe_head_also(const struct experiment *x)
{
    return x->expert.kind == EXPERT_MLP ? "expert" : NULL;
}

static const char *const head[] = {"moe", NULL, "routing", "tokens", NULL, NULL};

static enum epa_status moe_measure(struct op_rank *rank, struct op_peaks *out,
                                   struct epa_error *err)
{
    const struct epa_mlp *mlp = &op_moe_of(rank)->weights.mlp;

    *out = (struct op_peaks){0, 0};
    return mlp->ffn == 0 ? EPA_OK : op_measure_peaks(rank, (enum epa_dtype)mlp->dtype, out, err);
}

static uint32_t moe_choices(const struct experiment *x)
{
    return x->moe.topk;
}

const struct operation op_moe = {
    .op = EPA_OP_MOE,
    .name = "moe",
    .size_key = "moe.max_tokens",
    .size_label = "tokens of a rank",
    .size = op_moe_most_tokens,
    .copies_key = "moe.topk",
    .copies = moe_choices,
    .weights_keys = ", moe.experts, expert.ffn",
    .head = head,
    .head_also = moe_head_also,
    .check_options = moe_check_options,
    .refuse_footprint = op_moe_refuse,
    .check_footprint = moe_check_footprint,
    .shape = moe_shape,
    .open = routing_open,
    .close = routing_close,
    .state_bytes = sizeof(struct op_moe),
    .unit = "tokens",
    .most_units = op_moe_most_tokens,
    .arrays = op_moe_arrays,
    .init = op_moe_init,
    .finish = op_moe_finish,
    .bytes = op_moe_bytes,
    .weights_bytes = op_moe_mlp_bytes,
    .weights = moe_set_weights,
    .measure = moe_measure,
    .between_by = op_moe_mlp_by,
    .inputs = op_moe_inputs,
    .between = op_moe_experts,
    .between_name = "experts",
    .between_is_timed = experts_are_timed,
    .between_in_graph = outputs_in_graph,
    .check = moe_check,
    .partly =
        "expert.values: random: the float64 reference of real experts takes as many tokens as "
        "2^26 multiply-adds an iteration allow; expert.values: integers compares all outputs",
    .check_kept = op_moe_check_views,
    .traffic = op_moe_traffic,
    .load = op_moe_load,
    .n_phases = 2,
    .phase = {{"dispatch", EPA_STAGE_DISPATCH}, {"combine", EPA_STAGE_COMBINE}},
    .stats_add = op_moe_stats_add,
    .stats_lines = stats_lines,
    .stats_key = "routing",
    .stats_json = stats_json,
    .delivers = moe_delivers,
    .warn = moe_warn,
};
