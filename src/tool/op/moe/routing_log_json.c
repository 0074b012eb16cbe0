/* The document of `epa2a routing stats`. */
#include "op/moe/routing_log_json.h"

static json_t *load_json(const struct routing_load *l, uint64_t from)
{
    return json_object_of(
        "from", json_count(from), "tokens", json_count(l->tokens), "choices", json_count(l->kept),
        "dropped", json_count(l->dropped), "min", json_count(l->min), "max", json_count(l->max),
        "mean", json_number(l->mean), "imbalance", json_number(routing_load_imbalance(l)), "cv",
        json_number(l->cv), "idle_experts", json_integer(l->idle), "hottest_expert",
        l->kept > 0 ? json_integer(l->hottest[0]) : json_null(), NULL);
}

json_t *routing_log_json(const struct routing_log *log)
{
    const struct routing_table *t = &log->table;
    json_t *parts = json_array(), *ranks = json_array(), *experts = json_array();

    for (uint32_t i = 0; i < ROUTING_LOG_PARTS; i++)
        if (log->part[i].tokens > 0)
            json_array_append_new(parts, load_json(&log->part[i], log->part_from[i]));
    for (uint32_t n = 2; n <= t->experts && n <= ROUTING_LOG_RANKS; n++)
        if (t->experts % n == 0)
            json_array_append_new(
                ranks,
                json_object_of("ranks", json_integer(n), "imbalance",
                               json_number(routing_log_rank_imbalance(&log->whole, t->experts, n)),
                               NULL));
    for (uint32_t e = 0; e < t->experts; e++)
        json_array_append_new(experts, json_count(log->whole.of_expert[e]));
    return json_object_of("path", json_text(log->path), "tokens", json_count(t->tokens), "topk",
                          json_integer(t->topk), "experts", json_integer(t->experts), "repeated",
                          json_count(log->repeated), "skip", json_count(log->skip), "load",
                          load_json(&log->whole, log->skip), "choices_of_expert", experts, "ranks",
                          ranks, "parts", parts, "nearest",
                          log->whole.kept == 0
                              ? json_null()
                              : json_object_of("kind", json_text(log->fit.kind), log->fit.key,
                                               json_number(log->fit.parameter), "distance",
                                               json_number(log->fit.distance), NULL),
                          NULL);
}
