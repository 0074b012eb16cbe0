/* The document of `epa2a predict`. */
#include "cli/predict_json.h"

#include "cli/predict_points.h"
#include "report/origin_json.h"
#include "report/predict.h"

static json_t *measured_json(const struct prediction *p)
{
    json_t *out = json_array();

    for (uint32_t i = 0; i < p->n; i++) {
        const struct measured *m = &p->run[i];
        json_t *stages = json_array();

        for (uint32_t k = 0; k < p->op->n_phases; k++)
            json_array_append_new(
                stages, json_object_of("name", json_text(p->op->phase[k].name), "measured_ns",
                                       json_whole(m->point[k].ns), "predicted_ns",
                                       json_whole(predict_local(p->cost[0][k], &m->point[k])),
                                       "rows", json_number(m->load[k].rows), "choices",
                                       json_number(m->load[k].entries), NULL));
        json_array_append_new(
            out,
            json_object_of("ranks", json_count(m->ranks), "size", json_count(m->tokens), "topk",
                           json_count(m->copies), "share", json_number(m->point[0].share), "fitted",
                           json_boolean(!m->checks), "total_ns", json_number(m->total_ns),
                           "second_ns", json_number(m->second_ns), "stages", stages, NULL));
    }
    return out;
}

static json_t *costs_json(const struct prediction *p)
{
    static const char *const key[PREDICT_TERMS] = {
        [PREDICT_CALL] = "call_ns",
        [PREDICT_PEER] = "peer_ns",
        [PREDICT_ROW] = "row_ns",
        [PREDICT_CHOICE] = "choice_ns",
        [PREDICT_FEW_ROW] = "few_row_ns",
        [PREDICT_SHARED_CALL] = "shared_call_ns",
        [PREDICT_SHARED_ROW] = "shared_row_ns",
    };
    json_t *out = json_array();

    for (uint32_t k = 0; k < p->op->n_phases; k++) {
        json_t *costs = json_object_of("name", json_text(p->op->phase[k].name), NULL);

        for (uint32_t t = 0; t < PREDICT_TERMS; t++)
            json_object_set_new(costs, key[t], json_number(p->cost[0][k][t]));
        json_array_append_new(out, costs);
    }
    return out;
}

static json_t *stage_json(const struct predict_stage *stage)
{
    const struct predict_time *t = &stage->time;

    return json_object_of("name", json_text(stage->name), "ns", json_whole(t->ns), "low_ns",
                          json_whole(stage->low_ns), "high_ns", json_whole(stage->high_ns),
                          "local_ns", json_whole(t->local_ns), "bytes_ns", json_whole(t->bytes_ns),
                          "messages_ns", json_whole(t->messages_ns), "latency_ns",
                          json_whole(t->latency_ns), "link_bytes", json_whole(stage->link_bytes),
                          "bound", json_text(predict_bound_name(t->bound)), NULL);
}

/* Adds the traffic of a phase, from which other programs predict with other links and cores. */
static void add_load(json_t *stage, const struct op_load *load)
{
    json_object_set_new(stage, "rows", json_number(load->rows));
    json_object_set_new(stage, "choices", json_number(load->entries));
    json_object_set_new(stage, "rank_bytes", json_number(load->rank_bytes));
    json_object_set_new(stage, "node_bytes", json_number(load->node_bytes));
    json_object_set_new(stage, "messages", json_number(load->messages));
}

static json_t *world_json(const struct predict_world *world)
{
    json_t *out =
        json_object_of("ranks", json_count(world->ranks), "nodes", json_count(world->nodes), NULL);
    json_t *stages;

    if (world->why != NULL) {
        json_object_set_new(out, "why", json_text(world->why));
    } else {
        stages = json_array();
        for (uint32_t i = 0; i < world->n_stages; i++) {
            json_array_append_new(stages, stage_json(&world->stage[i]));
            add_load(json_array_get(stages, i), &world->stage[i].load);
        }
        json_object_set_new(out, "planned_ranks", json_count(world->planned_ranks));
        json_object_set_new(out, "heap_bytes", json_count(world->heap_bytes));
        json_object_set_new(out, "memory_bytes", json_count(world->memory_bytes));
        json_object_set_new(out, "tokens_per_s", json_number(world->tokens_per_s));
        json_object_set_new(out, "stages", stages);
        json_object_set_new(out, "total", stage_json(&world->total));
    }
    json_object_set_new(out, "times", json_number(world->times));
    return out;
}

static json_t *link_json(const struct predict_link *link)
{
    if (link == NULL)
        return json_null();
    return json_object_of("rate", json_number(link->bytes_per_ns), "latency_ns",
                          json_whole(link->latency_ns), "message_ns", json_whole(link->message_ns),
                          "of", json_text(link->node ? "node" : "rank"), NULL);
}

static json_t *checks_json(const struct predict_report *d)
{
    json_t *out = d->n_checks > 0 ? json_array() : json_null();

    for (uint32_t i = 0; i < d->n_checks; i++) {
        const struct predict_check *check = &d->check[i];

        json_array_append_new(out, json_object_of("name", json_text(check->name), "predicted_ns",
                                                  json_whole(check->predicted_ns), "measured_ns",
                                                  json_whole(check->measured_ns), "ratio",
                                                  json_number(check->ratio), NULL));
    }
    return out;
}

json_t *predict_json(const struct prediction *p)
{
    const struct predict_report *d = &p->report;
    json_t *worlds = json_array(), *notes = json_array();

    for (uint32_t i = 0; i < d->n_worlds; i++)
        json_array_append_new(worlds, world_json(&d->world[i]));
    for (uint32_t i = 0; i < d->n_notes; i++)
        json_array_append_new(notes, json_text(d->note[i]));
    return json_object_of(
        "schema", json_integer(1), "program", json_text("epa2a"), "file", json_text(d->file),
        "sweep", json_boolean(d->sweep), "link", link_json(d->link), "cores", json_count(p->cores),
        "per_node", json_count(p->per_node), "threads", json_number(prediction_threads(p->x)),
        "signal_ns", json_number(p->signal_ns), "worlds", worlds, "scales",
        json_object_of("ranks", json_count(d->scales_to), "first", json_count(d->scales_from),
                       "text", json_text(d->scales), NULL),
        "measured", measured_json(p), "measured_text", json_text(d->measured), "costs",
        costs_json(p), "notes", notes, "error",
        json_object_of("part", json_number(d->error_part), "text", json_text(d->error), NULL),
        "check", checks_json(d), "machine", machine_json(&p->machine), NULL);
}

void predict_json_text(const struct prediction *p, struct text *out)
{
    json_auto_t *document = predict_json(p);

    json_write(out, document, JSON_COMPACT | JSON_DIGITS);
}
