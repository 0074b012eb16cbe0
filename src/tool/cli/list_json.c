/* Writes plugins, libraries, models and configurations as JSON. */
#include "cli/list_json.h"

#include <epa2a/algorithm.h>

#include "doctor/doctor_json.h"
#include "op/operations.h"
#include "registry/check.h"

const struct list_words list_memory_words[] = {
    {EPA_MEMORY_HOST, "host memory"},
    {EPA_MEMORY_CUDA, "CUDA memory"},
    {0},
};
const struct list_words list_transport_words[] = {
    {EPA_TRANSPORT_HOST, "puts by the CPU"},
    {EPA_TRANSPORT_DEVICE, "puts by GPU kernels"},
    {EPA_TRANSPORT_LOAD_STORE, "loads and stores"},
    {EPA_TRANSPORT_SIGNAL_ADD, "adding signals"},
    {EPA_TRANSPORT_ANY_SOURCE, "puts from outside the heap"},
    {EPA_TRANSPORT_NODES, "several nodes"},
    {EPA_TRANSPORT_THREADS, "several threads"},
    {0},
};

static json_t *words_json(const struct list_words *words, uint32_t bits)
{
    json_t *out = json_array();

    for (; words->text != NULL; words++)
        if ((bits & words->bit) != 0)
            json_array_append_new(out, json_text(words->text));
    return out;
}

/* Returns the facts of a plugin: memory, and the capabilities that it needs or provides. */
static json_t *plugin_json(const struct listed *of)
{
    const struct registry_entry *entry = of->entry;
    const struct epa_algorithm_plugin *algorithm = (const void *)entry->plugin;
    const struct epa_transport_plugin *transport = (const void *)entry->plugin;
    const struct epa_backend_plugin *backend = (const void *)entry->plugin;
    json_t *out = json_object_of(
        "kind", json_text(plugin_kind_name(entry->kind)), "name", json_text(entry->name), "file",
        json_text_or_null(entry->file), "hides", json_text_or_null(entry->hides), "why_not",
        json_text_or_null(entry->plugin == NULL ? entry->why : NULL), "summary",
        json_text_or_null(entry->plugin != NULL ? entry->plugin->summary : NULL), NULL);

    if (entry->plugin == NULL)
        return out;
    if (entry->kind == EPA_PLUGIN_ALGORITHM) {
        const struct operation *op = operation_of(algorithm->op);

        json_object_set_new(out, "solves", json_text_or_null(op != NULL ? op->name : NULL));
        json_object_set_new(out, "memory", words_json(list_memory_words, algorithm->memory));
        json_object_set_new(out, "needs_host",
                            words_json(list_transport_words, algorithm->needs_host));
        json_object_set_new(out, "needs_cuda",
                            words_json(list_transport_words, algorithm->needs_cuda));
    } else if (entry->kind == EPA_PLUGIN_TRANSPORT) {
        json_object_set_new(out, "memory", words_json(list_memory_words, transport->memory));
        json_object_set_new(out, "gives", words_json(list_transport_words, transport->flags));
        json_object_set_new(out, "between_nodes", json_boolean(transport->between_nodes != NULL));
        json_object_set_new(out, "data_of_gpus", json_text_or_null(of->gpu_data));
    } else if (entry->kind == EPA_PLUGIN_BACKEND) {
        json_object_set_new(out, "memory", words_json(list_memory_words, backend->memory));
    }
    return out;
}

json_t *list_json(const struct listed *listed, uint32_t n, const struct library_found *library,
                  uint32_t n_libraries)
{
    json_t *plugins = json_array();

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(plugins, plugin_json(&listed[i]));
    return json_object_of("schema", json_integer(1), "program", json_text("epa2a"), "plugin_abi",
                          json_integer(EPA_ABI), "plugins", plugins, "libraries",
                          libraries_json(library, n_libraries), NULL);
}

static json_t *model_json(const struct listed_model *m)
{
    return json_object_of(
        "name", json_text_or_null(m->name), "hidden", json_whole(m->hidden), "ffn",
        json_whole(m->ffn), "experts", json_whole(m->experts), "topk", json_whole(m->topk),
        "layers", json_whole(m->layers), "moe_layers", json_whole(m->moe_layers), "shared_experts",
        json_whole(m->shared_experts), "dtype", json_text_or_null(m->dtype), "weights",
        json_text_or_null(m->weights), "shared_ffn", json_whole(m->shared_ffn), "checkpoint",
        json_text_or_null(m->checkpoint), "source", json_text_or_null(m->source), "file",
        json_text_or_null(m->file), NULL);
}

json_t *list_models_json(const struct listed_model *model, uint32_t n)
{
    json_t *models = json_array();

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(models, model_json(&model[i]));
    return json_object_of("schema", json_integer(1), "program", json_text("epa2a"), "models",
                          models, NULL);
}

json_t *list_configs_json(const struct listed_config *config, uint32_t n)
{
    json_t *configs = json_array();

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(configs, json_object_of("name", json_text(config[i].name), "about",
                                                      json_text_or_null(config[i].about), "file",
                                                      json_text_or_null(config[i].file), NULL));
    return json_object_of("schema", json_integer(1), "program", json_text("epa2a"), "configs",
                          configs, NULL);
}
