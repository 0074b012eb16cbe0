/* The documents of `epa2a list`, and the words for capabilities. */
#ifndef LIST_JSON_H
#define LIST_JSON_H

#include "base/json.h"
#include "kernels/libraries.h"
#include "registry/registry.h"

/* Words for the bits of memory and of transports, ended by NULL. */
struct list_words {
    uint32_t bit;
    const char *text;
};
extern const struct list_words list_memory_words[], list_transport_words[];

/* A plugin. The path of GPU data is by doctor_gpu_data(); NULL: none. */
struct listed {
    const struct registry_entry *entry;
    const char *gpu_data;
};

json_t *list_json(const struct listed *, uint32_t n, const struct library_found *library,
                  uint32_t n_libraries);

/* Facts of a model. Texts NULL and numbers NaN: unknown. */
struct listed_model {
    const char *name, *dtype, *weights, *checkpoint, *source, *file;
    double hidden, ffn, experts, topk, layers, moe_layers, shared_experts, shared_ffn;
};

json_t *list_models_json(const struct listed_model *, uint32_t n);

/* A configuration. about "": its file has no comment; file NULL: not found. */
struct listed_config {
    const char *name, *about, *file;
};

json_t *list_configs_json(const struct listed_config *, uint32_t n);

#endif
