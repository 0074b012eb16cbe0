/* Which options say something with the others as they are: those that do not are refused
 * where they are given, and not shown. */
#include "config/experiment_table.h"

#include <string.h>

#include "config/options.h"

/* Options that say something for some kinds only. */
static const struct kind_rule {
    const char *section, *option;
    uint32_t kinds; /* bits, by value of the section's kind */
    const char *needs;
} kind_rules[] = {
    {"routing", "exponent", 1u << ROUTING_ZIPF, "kind: zipf"},
    {"routing", "sigma", 1u << ROUTING_LOGNORMAL, "kind: lognormal"},
    {"routing", "share", 1u << ROUTING_HOT | 1u << ROUTING_MASKED, "kind: hot or masked"},
    {"routing", "violation", 1u << ROUTING_MAXVIO, "kind: maxvio"},
    {"routing", "path", 1u << ROUTING_FILE, "kind: file"},
    {"routing", "layer", 1u << ROUTING_FILE, "kind: file"},
    {"routing", "skip", 1u << ROUTING_FILE, "kind: file"},
    {"routing", "weights", ~(1u << ROUTING_FILE), "a kind other than file, which has weights"},
    {"fault", "rank", ~(1u << FAULT_NONE), "a kind other than none"},
    {"fault", "stage", ~(1u << FAULT_NONE), "a kind other than none"},
    {"fault", "iteration", ~(1u << FAULT_NONE), "a kind other than none"},
    {"fault", "for", 1u << FAULT_STOP | 1u << FAULT_STRAGGLE, "kind: stop or straggle"},
    {"fault", "every", 1u << FAULT_STOP | 1u << FAULT_STRAGGLE, "kind: stop or straggle"},
    {"tokens", "min", 1u << TOKENS_RANDOM, "kind: random"},
    {"tokens", "per_rank", 1u << TOKENS_LIST, "kind: list"},
    {"expert", "ffn", 1u << EXPERT_MLP, "kind: mlp"},
    {"expert", "activation", 1u << EXPERT_MLP, "kind: mlp"},
    {"expert", "weights", 1u << EXPERT_MLP, "kind: mlp"},
    {"expert", "fp8_group_size", 1u << EXPERT_MLP, "kind: mlp"},
    {"expert", "values", 1u << EXPERT_MLP, "kind: mlp"},
};

/* A graph may hold several calls, but of cold ones only one; hosts have none. */
static bool calls_apply(const struct experiment *x)
{
    const struct epa_backend_plugin *backend = (const void *)x->backend.plugin;
    const struct bench_options *b = &x->bench;
    bool host = backend != NULL && backend->memory == EPA_MEMORY_HOST;

    return b->cache == CACHE_WARM && (b->clock == CLOCK_GRAPH || (b->clock == CLOCK_AUTO && !host));
}

bool option_has_kind(const struct section *section, const char *option, const char *kind)
{
    const struct epa_option *kinds = option_find(&section->options, section->main);

    for (size_t i = 0; i < sizeof(kind_rules) / sizeof(kind_rules[0]); i++) {
        const struct kind_rule *rule = &kind_rules[i];

        if (strcmp(rule->section, section->name) != 0 || strcmp(rule->option, option) != 0)
            continue;
        for (const struct epa_choice *c = kinds->choices; c->name != NULL; c++)
            if (strcmp(c->name, kind) == 0)
                return (rule->kinds >> c->value & 1u) != 0;
        return false;
    }
    return true;
}

bool option_applies(const struct experiment *x, const struct section *section, const char *option,
                    const char **needs)
{
    if (strcmp(section->name, "expert") == 0 && strcmp(option, "fp8_group_size") == 0) {
        *needs = "kind: mlp and weights: fp8";
        return x->expert.kind == EXPERT_MLP && x->expert.weights == EXPERT_WEIGHTS_FP8;
    }
    for (size_t i = 0; i < sizeof(kind_rules) / sizeof(kind_rules[0]); i++) {
        const struct kind_rule *rule = &kind_rules[i];
        const struct epa_option *kind;
        const char *at = (const char *)x + section->offset;

        if (strcmp(rule->section, section->name) != 0 || strcmp(rule->option, option) != 0)
            continue;
        kind = option_find(&section->options, section->main);
        *needs = rule->needs;
        return (rule->kinds >> *(const int *)(const void *)(at + kind->offset) & 1u) != 0;
    }
    if (strcmp(section->name, "profile") == 0 && strcmp(option, "iterations") == 0) {
        *needs = "profile.file";
        return x->profile.file != NULL;
    }
    if (strcmp(section->name, "bench") == 0 && strcmp(option, "calls_per_graph") == 0) {
        *needs = "clock: graph and cache: warm";
        return calls_apply(x);
    }
    if (strcmp(section->name, "bench") == 0 && strcmp(option, "barrier") == 0) {
        *needs = "a clock other than end_to_end, which has barriers of its own";
        if (x->bench.clock == CLOCK_END_TO_END)
            return false;
        *needs = "arrivals: closed; an open loop has no barriers";
        return x->bench.arrivals == ARRIVALS_CLOSED;
    }
    if (strcmp(section->name, "bench") == 0 &&
        (strcmp(option, "load") == 0 || strcmp(option, "rate") == 0)) {
        *needs = "arrivals: constant or poisson";
        return x->bench.arrivals != ARRIVALS_CLOSED;
    }
    if (strcmp(section->name, "bench") == 0 &&
        (strcmp(option, "min_iterations") == 0 || strcmp(option, "min_time") == 0)) {
        *needs = "ci95, which may stop before";
        return x->bench.ci95 > 0;
    }
    if (strcmp(section->name, "verify") == 0 &&
        (strcmp(option, "rtol") == 0 || strcmp(option, "atol") == 0)) {
        *needs = "tolerance: allclose";
        return x->verify.tolerance == TOLERANCE_ALLCLOSE;
    }
    return true;
}
