/* Models by name. A model is a file of keys of an experiment: `model` describes it, `moe` and
 * `expert` have the shape of its layers. Keys of an experiment override keys of a model. */
#include "config/model.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/program_data.h"
#include "base/text.h"
#include "config/diag.h"
#include "config/yaml.h"

static const char folder[] = "models";

uint32_t model_names(struct arena *arena, const char ***names)
{
    return program_data_names(folder, ".yaml", arena, names);
}

bool model_find(const char *name, char *path, size_t room, char hint[2 * NEAREST_ROOM])
{
    struct arena *arena = arena_create();
    struct nearest nearest = {.want = name};
    char near[NEAREST_ROOM], file[NAME_MAX + 16];
    const char **names;
    uint32_t n = model_names(arena, &names);
    bool found = false;

    for (uint32_t i = 0; i < n; i++) {
        nearest_try(&nearest, names[i]);
        found = found || strcmp(names[i], name) == 0;
    }
    for (uint32_t i = 0; i < n && nearest.name == NULL && *name != '\0'; i++)
        if (strcasestr(names[i], name) != NULL || strcasestr(name, names[i]) != NULL)
            nearest.name = names[i];
    snprintf(
        hint, 2 * NEAREST_ROOM, "%s",
        nearest_hint(&nearest, near,
                     n > 0 ? "`epa2a list models` shows all" : "the installation has no models"));
    arena_destroy(arena);
    snprintf(file, sizeof(file), "%s/%.*s.yaml", folder, NAME_MAX, name);
    return found && program_data_find(file, path, room);
}

static void mark_nodes(struct node *node)
{
    node->from_model = true;
    for (uint32_t i = 0; i < node->n; i++) {
        if (node->kind == NODE_MAP)
            node->key[i]->from_model = true;
        mark_nodes(node->item[i]);
    }
}

struct node *model_read(struct arena *arena, const struct node *name, struct diag *diag)
{
    char path[PATH_MAX], hint[2 * NEAREST_ROOM];
    struct node *model = NULL;

    if (name->kind != NODE_SCALAR || *name->text == '\0') {
        if (!name->refused)
            diag_error(diag, &name->location, "such as model: deepseek-v3",
                       "model: the name of a model is expected");
        return NULL;
    }
    if (!model_find(name->text, path, sizeof(path), hint)) {
        diag_error(diag, &name->location, hint, "there is no model '%.64s'", name->text);
        return NULL;
    }
    if (yaml_read(arena, arena_strndup(arena, path, strlen(path)), diag, &model) != EPA_OK ||
        model == NULL || model->kind != NODE_MAP)
        return NULL;
    mark_nodes(model);
    return model;
}
