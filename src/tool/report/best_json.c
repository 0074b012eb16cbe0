/* The document of `epa2a best`. */
#include "report/best_json.h"

#include <string.h>

#include "op/op.h"

/* Returns a value or a bound of the figure; times are whole nanoseconds. */
static json_t *value_json(const struct best *b, double value)
{
    return b->wish->figure->kind == FIGURE_NS ? json_whole(value) : json_number(value);
}

static json_t *candidate_json(const struct best *b, const struct best_candidate *one)
{
    bool samples = best_is_by_samples(b);
    json_t *labels = json_array(), *id = json_text_or_null(one->first->run->id);

    for (uint32_t i = 0; i < one->n; i++)
        json_array_append_new(labels, json_text(one->first[i].run->label));
    return json_object_of("name", json_text(one->first->name), "id", id, "labels", labels,
                          "verdict", json_text(best_verdict_word(one)), "loss",
                          json_number(one->loss), "loss_low",
                          one->best ? json_null() : json_number(one->loss_low), "loss_high",
                          one->best ? json_null() : json_number(one->loss_high), "loss_text",
                          json_text(best_loss_text(b, one)), samples ? "median_ns" : "value",
                          value_json(b, one->spread.median), samples ? "low_ns" : "low",
                          value_json(b, one->spread.low), samples ? "high_ns" : "high",
                          value_json(b, one->spread.high), NULL);
}

/* Returns a value from its notation in JSON. */
static json_t *value_of(const char *shown)
{
    json_t *value = json_loads(shown, JSON_DECODE_ANY, NULL);

    return value != NULL ? value : json_null();
}

/* Keys of a group are whole paths, "moe.hidden"; only the measurement of time is nested. */
static json_t *question_json(const struct results_question *question)
{
    json_t *out = json_object();

    for (uint32_t i = 0; i < question->n; i++) {
        const struct question_key *key = &question->key[i];
        json_t *group = json_object_get(out, key->group);

        if (key->path[0] == '\0')
            json_object_set_new(out, key->group, value_of(key->shown));
        else if (strcmp(key->group, "timing") == 0)
            json_set_at(group, key->path, value_of(key->shown));
        else
            json_object_set_new(group, key->path, value_of(key->shown));
    }
    return out;
}

/* Returns the output properties; null: unknown. */
static json_t *delivers_json(const struct results_run *run)
{
    json_t *out = run->has_delivers ? json_object() : json_null();

    for (uint32_t i = 0; i < run->n_delivers; i++) {
        const struct op_property *one = &run->delivers[i];

        json_object_set_new(out, one->name,
                            one->value == NULL ? json_null()
                            : one->is_flag     ? json_boolean(strcmp(one->value, "true") == 0)
                                               : json_text(one->value));
    }
    return out;
}

static json_t *group_json(const struct best *b, const struct best_group *g)
{
    json_t *contests = json_array(), *overall = json_null();

    for (uint32_t k = 0; k < g->n; k++) {
        json_t *candidates = json_array();

        for (uint32_t i = 0; i < g->contest[k].n; i++)
            json_array_append_new(candidates, candidate_json(b, &g->contest[k].candidate[i]));
        json_array_append_new(contests, json_object_of("size", json_number(g->contest[k].size),
                                                       "runs", candidates, NULL));
    }
    if (g->overall.name != NULL)
        overall = json_object_of("name", json_text(g->overall.name), "mean_ratio",
                                 json_number(g->overall.mean), "worst_ratio",
                                 json_number(g->overall.worst), NULL);
    return json_object_of("title", json_text(g->title), "delivers", delivers_json(g->first->run),
                          "differs", json_text_or_null(g->note), "question",
                          question_json(&g->first->question), "contests", contests, "overall",
                          overall, NULL);
}

json_t *best_json(const struct best *b)
{
    json_t *groups = json_array(), *out;

    for (uint32_t i = 0; i < b->n_groups; i++)
        json_array_append_new(groups, group_json(b, &b->group[i]));
    out = json_object_of("schema", json_integer(1), "program", json_text("epa2a"), "stage",
                         json_text(b->entry[0].run->timed->name), "close",
                         json_number(b->wish->close), "best", groups, NULL);
    if (!best_is_by_samples(b)) {
        json_object_set_new(out, "figure", json_text(figure_name(b->wish->figure)));
        json_object_set_new(out, "unit", json_text(figure_unit(b->wish->figure)));
    }
    return out;
}
