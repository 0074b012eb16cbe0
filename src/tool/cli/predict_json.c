/* The document of `epa2a predict --dry-run`. */
#include "cli/predict_json.h"

#include "cli/predict_worlds.h"
#include "experiment/operation.h"
#include "report/origin_json.h"

static json_t *load_json(const struct predict_plan *p, const struct op_load *load)
{
    json_t *out = json_array();

    for (uint32_t k = 0; k < p->op->n_phases; k++)
        json_array_append_new(out, json_object_of("name", json_text(p->op->phase[k].name), "rows",
                                                  json_number(load[k].rows), "choices",
                                                  json_number(load[k].entries), "rank_bytes",
                                                  json_whole(load[k].rank_bytes), "node_bytes",
                                                  json_whole(load[k].node_bytes), "messages",
                                                  json_number(load[k].messages), NULL));
    return out;
}

static json_t *run_json(const struct predict_plan *p, const struct predict_run *run)
{
    json_t *sets = json_array();

    for (uint32_t i = 0; i < run->n_sets; i++)
        json_array_append_new(sets, json_text(run->set[i]));
    return json_object_of("ranks", json_count(run->ranks), "size", json_count(run->tokens), "topk",
                          json_count(run->copies), "share", json_number(run->share), "fitted",
                          json_boolean(!run->checks), "set", sets, "stages",
                          load_json(p, run->load), NULL);
}

static json_t *world_json(const struct predict_plan *p, const struct predict_world *world)
{
    json_t *out =
        json_object_of("ranks", json_count(world->ranks), "nodes", json_count(world->nodes), NULL);

    if (world->why != NULL) {
        json_object_set_new(out, "why", json_text(world->why));
    } else {
        json_object_set_new(out, "planned_ranks", json_count(world->planned_ranks));
        json_object_set_new(out, "heap_bytes", json_count(world->heap_bytes));
        json_object_set_new(out, "memory_bytes", json_count(world->memory_bytes));
        json_object_set_new(out, "stages", load_json(p, world->load));
    }
    return out;
}

json_t *predict_json(const struct predict_plan *p)
{
    json_t *runs = json_array(), *worlds = json_array();

    for (uint32_t i = 0; i < p->n_runs; i++)
        json_array_append_new(runs, run_json(p, &p->run[i]));
    for (uint32_t i = 0; i < p->n_worlds; i++)
        json_array_append_new(worlds, world_json(p, &p->world[i]));
    return json_object_of(
        "schema", json_integer(1), "program", json_text("epa2a"), "file", json_text(p->cli->arg[0]),
        "sweep", json_boolean(p->cli->predict.sweep != NULL), "low", json_count(p->low), "ranks",
        json_count(p->ranks), "per_node", json_count(p->per_node), "cores", json_count(p->cores),
        "threads", json_number(predict_threads(p->x)), "algorithm",
        json_text(p->x->algorithm.plugin->name), "size_key", json_text(p->op->size_key),
        "experiment", json_text(p->text), "runs", runs, "counted", worlds, "machine",
        machine_json(&p->machine), NULL);
}
