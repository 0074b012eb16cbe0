/* The document of a search. */
#include "cli/tune_json.h"

#include "base/exit_code.h"
#include "cli/tune_report.h"
#include "report/origin_json.h"

static json_t *setting_json(const struct tune *t, const struct tune_setting *s)
{
    json_t *set = json_array();

    for (uint32_t i = 0; i < s->n; i++)
        json_array_append_new(set, json_text(s->set[i]));
    return json_object_of("setting", json_text(s->name), "set", set, "pass", json_count(s->pass),
                          "rounds", json_count(s->rounds), "median_ns", json_whole(tune_median(s)),
                          "ratio", json_number(tune_ratio(s)), "estimate",
                          json_number(tune_estimate(t, s)), "outcome",
                          json_text(tune_outcome(t, s)), NULL);
}

static json_t *not_tried_json(const struct tune *t)
{
    json_t *out = json_array();

    for (const struct tune_skipped *one = t->not_tried; one != NULL; one = one->next)
        json_array_append_new(out, json_object_of("setting", json_text(one->setting), "why",
                                                  json_text(one->why), NULL));
    return out;
}

json_t *tune_json(const struct tune *t)
{
    json_t *settings = json_array(), *turns = json_null();

    for (uint32_t k = 0; k < t->n; k++)
        json_array_append_new(settings, setting_json(t, t->setting[k]));
    if (t->rounds > 0)
        turns = json_object_of("rounds", json_count(t->rounds), "file_ns", json_whole(t->last.a),
                               "best_ns", json_whole(t->last.b), "ratio",
                               json_number(t->last.ratio), "low", json_number(t->last.low), "high",
                               json_number(t->last.high), "p", json_number(t->last.p), NULL);
    return json_object_of(
        "schema", json_integer(1), "program", json_text("epa2a"), "file", json_text(t->cli->arg[0]),
        "percentile", json_number(t->permille / 10.0), "budget_s",
        json_number((double)t->budget_ns / 1e9), "spent_s", json_number((double)t->spent_ns / 1e9),
        "turns", json_count(t->turns), "samples", json_count(t->samples), "settings", settings,
        "not_tried", not_tried_json(t), "best", setting_json(t, t->best), "in_turns", turns,
        "better", json_boolean(t->is_better), "interrupted", json_boolean(t->stopped != EXIT_OK),
        "machine", machine_json(t->machine), NULL);
}

json_t *tune_tasks_json(const struct tune_tasks *all, const char *from, bool interrupted)
{
    json_t *tasks = json_array();

    for (uint32_t i = 0; i < all->n; i++) {
        const struct tune_searched *one = &all->row[i];
        json_t *document = one->failed == NULL
                               ? tune_json(one->search)
                               : json_object_of("error", json_text(one->failed), NULL);

        json_object_set_new(document, "task", json_text(one->task));
        json_array_append_new(tasks, document);
    }
    return json_object_of("schema", json_integer(1), "program", json_text("epa2a"), "file",
                          json_text(from), "budget_s", json_number((double)all->budget_ns / 1e9),
                          "spent_s", json_number((double)all->spent_ns / 1e9), "turns",
                          json_count(all->turns), "tasks", tasks, "interrupted",
                          json_boolean(interrupted), NULL);
}

void tune_json_name(const char *name, struct text *out)
{
    json_auto_t *key = json_text(name);

    json_write(out, key, JSON_ENCODE_ANY);
}
