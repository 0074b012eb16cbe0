/* Names that distinguish runs. */
#include "report/results_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "config/experiment.h"
#include "op/operations.h"

/* Returns true for a key without a part in names: it does not distinguish runs, or the name
 * contains it already. */
static bool is_left_out_of_names(const struct results_run *run, const char *key)
{
    bool plugins = run->named[0] == '\0';

    for (uint32_t i = 0; operation_at(i) != NULL; i++)
        if (strcmp(key, operation_at(i)->size_key) == 0)
            return true;
    return strcmp(key, run->operation->size_key) == 0 || key_role_of(key) == KEY_MEASURES ||
           strcmp(key, "version") == 0 ||
           (plugins && (strcmp(key, "algorithm.name") == 0 || strcmp(key, "transport.name") == 0));
}

/* Returns true if the model of a run sets the value of a key. */
static bool may_be_of_model(const char *key)
{
    return strncmp(key, "moe.", 4) == 0 || strncmp(key, "expert.", 7) == 0;
}

/* Returns the number of bytes of a key's section, if the key selects the plugin or kind of the
 * section; 0: it does not. */
static size_t plugin_section_bytes(const char *key)
{
    const char *dot = strchr(key, '.');

    return dot != NULL && (strcmp(dot, ".name") == 0 || strcmp(dot, ".kind") == 0)
               ? (size_t)(dot - key)
               : 0;
}

/* The facts about a key among comparable runs: runs of one name and, for an option, of one plugin or
 * kind. */
struct slot {
    const char *name;
    uint32_t n;        /* runs with the key */
    const char *value; /* of the first, as `shown` */
    bool differs;      /* other values exist */
    bool beyond_model; /* the value differs among runs of one model, or of none */
};

/* Returns the slot of that name, and adds it if it is new. */
static struct slot *find_slot(struct results_names *names, const char *name)
{
    uint32_t from = 0, to = names->n;

    while (from < to) {
        uint32_t middle = from + (to - from) / 2;
        int order = strcmp(names->slot[middle]->name, name);

        if (order == 0)
            return names->slot[middle];
        if (order < 0)
            from = middle + 1;
        else
            to = middle;
    }
    if (names->arena == NULL)
        names->arena = arena_create();
    names->slot = memory_grow(names->slot, (names->n + 1) * sizeof(struct slot *));
    memmove(names->slot + from + 1, names->slot + from, (names->n - from) * sizeof(struct slot *));
    names->n++;
    names->slot[from] = arena_alloc(names->arena, sizeof(struct slot));
    names->slot[from]->name = arena_printf(names->arena, "%s", name);
    return names->slot[from];
}

static const char *text_or_empty(const char *text)
{
    return text != NULL ? text : "";
}

/* Returns the slot of a key of one model; `model` NULL: of all models. */
static struct slot *slot_of(struct results_names *names, const struct results_run *run,
                            const char *key, const char *model)
{
    const char *plugin = NULL, *kind = NULL;
    text_auto name = {0};

    if (model == NULL && strchr(key, '.') != NULL && plugin_section_bytes(key) == 0) {
        char section[64];

        snprintf(section, sizeof(section), "%.*s", (int)strcspn(key, "."), key);
        plugin = results_value(run, section, "name");
        kind = results_value(run, section, "kind");
    }
    if (model != NULL)
        text_add(&name, "%s\n=", model);
    text_add(&name, "%s\n%s\n%s\n%s", key, run->named, text_or_empty(plugin), text_or_empty(kind));
    return find_slot(names, name.data);
}

static void note_value(struct slot *slot, const char *value)
{
    slot->n++;
    if (slot->value == NULL)
        slot->value = value;
    else if (strcmp(slot->value, value) != 0)
        slot->differs = true;
}

/* Records a key that differs among runs of one model, or of none: the model does not set it
 * alone. */
static void note_of_model(struct results_names *names, const struct results_run *run,
                          const struct results_key *key)
{
    struct slot *one =
        slot_of(names, run, key->path, text_or_empty(results_value(run, "model", "name")));

    note_value(one, key->shown);
    if (one->differs)
        slot_of(names, run, key->path, NULL)->beyond_model = true;
}

void results_names_add(struct results_names *names, const struct results_run *run)
{
    char section[64] = "", one[64];

    for (uint32_t i = 0; i < run->n_keys; i++) {
        const struct results_key *key = &run->key[i];

        snprintf(one, sizeof(one), "%.*s.", (int)strcspn(key->path, "."), key->path);
        if (strchr(key->path, '.') != NULL &&
            strcmp(one, section) != 0) /* counts the runs with the section */
            note_value(slot_of(names, run, strcpy(section, one), NULL), "true");
        note_value(slot_of(names, run, key->path, NULL), key->shown);
        if (may_be_of_model(key->path))
            note_of_model(names, run, key);
    }
}

static bool is_of_model(struct results_names *names, const struct results_run *run, const char *key)
{
    return may_be_of_model(key) && slot_of(names, run, "model.name", NULL)->differs &&
           !slot_of(names, run, key, NULL)->beyond_model;
}

void results_name(struct results_names *names, const struct results_run *run, struct text *out)
{
    const char *algorithm = text_or_empty(results_value(run, "algorithm", "name"));
    const char *transport = text_or_empty(results_value(run, "transport", "name"));

    if (run->named[0] != '\0')
        text_add(out, "%s", run->named);
    else
        text_add(out, "%s/%s", algorithm[0] != '\0' ? algorithm : "?",
                 transport[0] != '\0' ? transport : "?");
    for (uint32_t i = 0; i < run->n_keys; i++) {
        const char *key = run->key[i].path;
        const struct slot *slot = slot_of(names, run, key, NULL);
        size_t chosen = plugin_section_bytes(key);
        char section[64];

        snprintf(section, sizeof(section), "%.*s.", (int)strcspn(key, "."), key);
        if ((is_left_out_of_names(run, key) && strcmp(key, "model.name") != 0) ||
            is_of_model(names, run, key) ||
            (!slot->differs && (chosen > 0 || strchr(key, '.') == NULL ||
                                slot->n == slot_of(names, run, section, NULL)->n)))
            continue;
        text_add(out, " %.*s=%s", (int)(chosen > 0 ? chosen : strlen(key)), key, run->key[i].value);
    }
    text_clean(out->data);
}

void results_names_free(struct results_names *names)
{
    free(names->slot);
    arena_destroy(names->arena);
    *names = (struct results_names){0};
}
