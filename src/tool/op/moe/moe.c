/* Mixture of experts as an operation: its table, and its part of the report. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "op/moe/check.h"
#include "op/moe/check_combine.h"
#include "op/moe/experts.h"
#include "op/moe/experts_mlp.h"
#include "op/moe/inputs.h"
#include "op/moe/moe_create.h"
#include "op/moe/moe_shape.h"
#include "op/moe/routing.h"
#include "op/moe/routing_source.h"

/* ---- a rank ---- */

static void moe_set_weights(const struct op_rank *rank, struct epa_problem *out)
{
    out->u.moe.mlp = op_moe_of(rank)->mlp;
}

/* Real experts are part of a real layer and are timed; synthetic experts are not. */
static bool experts_are_timed(const struct problem_params *x, const struct epa_footprint *footprint)
{
    return x->expert.kind == EXPERT_MLP && !footprint->u.moe.fused;
}

/* Points combine to the expert outputs of an earlier iteration. */
static void outputs_in_graph(struct op_rank *rank, uint32_t slot)
{
    const struct op_moe *op = op_moe_of(rank);
    struct epa_moe *moe = &rank->slot[slot].problem.u.moe;

    if (!op->footprint.fused && op->r.params->expert.output == OUTPUT_IN_PLACE &&
        moe->y_space != NULL)
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

static uint32_t list_stats(const void *stats, const struct op_source *source,
                           struct op_statistic *out)
{
    const struct routing_stats *r = stats;
    const struct op_statistic all[] = {
        {"iterations", (double)r->iterations, true},
        {"tokens", (double)r->tokens, true},
        {"choices", (double)r->choices, true},
        {"dropped", (double)r->dropped, true},
        {"tokens_per_expert.min", (double)r->expert.min, true},
        {"tokens_per_expert.mean", r->expert.mean, false},
        {"tokens_per_expert.max", (double)r->expert.max, true},
        {"tokens_per_expert.imbalance", r->expert.imbalance, false},
        {"tokens_per_rank.min", (double)r->rank.min, true},
        {"tokens_per_rank.mean", r->rank.mean, false},
        {"tokens_per_rank.max", (double)r->rank.max, true},
        {"tokens_per_rank.imbalance", r->rank.imbalance, false},
        {"file_tokens", source != NULL ? (double)source->table.tokens : NAN, true},
        {"skipped_tokens", source != NULL ? (double)source->skipped : 0, true},
    };

    _Static_assert(sizeof(all) / sizeof(all[0]) <= OP_STATISTICS, "room for them");
    if (r->iterations == 0)
        return 0;
    memcpy(out, all, sizeof(all));
    return sizeof(all) / sizeof(all[0]);
}

/* The layout of rows is visible only if the core computes the experts. Outputs that stay float32 in
 * transit are as precise as outputs in dtype. */
static uint32_t moe_delivers(const struct problem_params *x, const struct epa_footprint *footprint,
                             struct op_property *out)
{
    static const char *const names[] = {
        [EPA_F32] = "f32", [EPA_BF16] = "bf16", [EPA_FP8_E4M3] = "fp8", [EPA_F16] = "f16"};
    const struct epa_moe_footprint *f = &footprint->u.moe;
    const char *layout = f->layout == EPA_LAYOUT_RANK ? "rank" : "expert";
    bool narrow = f->output_dtype == EPA_FP8_E4M3;

    out[0] = (struct op_property){"layout", f->fused ? NULL : layout, false};
    out[1] = (struct op_property){"rows", names[f->recv_dtype], false};
    out[2] = (struct op_property){"outputs", names[narrow ? EPA_FP8_E4M3 : x->moe.dtype], false};
    out[3] = (struct op_property){"fused", f->fused ? "true" : "false", true};
    return 4;
}

static void moe_warn(const struct problem_params *x, const struct op_source *source,
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
static const char *moe_head_also(const struct problem_params *x)
{
    return x->expert.kind == EXPERT_MLP ? "expert" : NULL;
}

static const char *const moe_head[] = {"moe", NULL, "routing", "tokens", NULL, NULL};

static enum epa_status moe_measure(struct op_rank *rank, struct op_peaks *out,
                                   struct epa_error *err)
{
    const struct epa_mlp *mlp = &op_moe_of(rank)->weights.shape.mlp;

    return mlp->ffn == 0 ? op_measure_memory(rank, out, err)
                         : op_measure_peaks(rank, (enum epa_dtype)mlp->dtype, out, err);
}

static uint32_t moe_choices(const struct problem_params *x)
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
    .head = moe_head,
    .head_also = moe_head_also,
    .refuse_footprint = op_moe_refuse,
    .shape = op_moe_shape,
    .source_open = routing_open,
    .source_close = routing_close,
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
    .stats_list = list_stats,
    .delivers = moe_delivers,
    .warn = moe_warn,
};
