/* Conversion of YAML nodes to the structs that the option tables describe. A rejected value leaves
 * the default in place, so that reading continues and finds further errors. */
#include "config/options.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "config/diag.h"

bool option_is_note(const char *key)
{
    return strncmp(key, "x-", 2) == 0;
}

/* One option being read, for the functions below. */
struct reading {
    const struct epa_option *option;
    const char *key;
    struct arena *arena;
    struct diag *diag;
};

/* Reports the reason why the setter rejects the value. */
static void reject_node(const struct reading *r, struct node *value,
                        const struct value_error *error)
{
    value->refused = true;
    diag_error(r->diag, &value->location, error->hint, "%s: %s", r->key, error->what);
    if (value->variables != NULL)
        diag_note(r->diag, &value->location, "it is from the environment: %s", value->variables);
}

static struct option_value value_of(const struct node *node)
{
    static const enum option_form form[] = {
        [NODE_SCALAR] = OPTION_SCALAR, [NODE_MAP] = OPTION_MAP, [NODE_LIST] = OPTION_LIST};

    return (struct option_value){form[node->kind], node->text, node->quoted,
                                 node->variables != NULL};
}

static void read_list(const struct reading *r, struct node *value, struct epa_u32_list *out)
{
    struct option_value list = value_of(value);
    struct value_error error;
    uint32_t *item;

    if (!option_check_list(r->option, &list, &error)) {
        reject_node(r, value, &error);
        return;
    }
    item = arena_alloc(r->arena, (value->n + 1) * sizeof(*item));
    for (uint32_t i = 0; i < value->n; i++) {
        struct option_value number = value_of(value->item[i]);

        if (!value->item[i]->refused && !option_set_item(r->option, &number, &item[i], &error))
            reject_node(r, value->item[i], &error);
        value->refused = value->refused || value->item[i]->refused;
    }
    if (!value->refused)
        *out = (struct epa_u32_list){item, value->n};
}

void option_read(const struct epa_option *option, const char *key, struct node *value,
                 struct arena *arena, struct diag *diag, void *out)
{
    const struct reading r = {option, key, arena, diag};
    struct option_value scalar = value_of(value);
    struct value_error error;

    if (value->refused)
        return;
    if (option->type == EPA_OPTION_U32_LIST)
        read_list(&r, value, (void *)((char *)out + option->offset));
    else if (!option_set(option, &scalar, out, &error))
        reject_node(&r, value, &error);
}

/* Keys of earlier versions, and their successors. */
static const struct {
    const char *section, *key, *hint;
} removed_keys[] = {
    {"launcher", "prefix",
     "only fork prefixes lines; use mpirun --tag-output, srun --label or "
     "torchrun --tee 3"},
};

static void reject_unknown_key(const struct epa_options *options, const char *section,
                               const char *own, struct node *key, struct diag *diag)
{
    char hint[OPTION_HINT_ROOM];
    bool near = option_unknown_hint(options, own, key->text, hint, sizeof(hint));

    if (!near && strchr(key->text, ' ') != NULL)
        snprintf(hint, sizeof(hint), "a text with a comma in it needs quotes here");
    for (size_t i = 0; i < sizeof(removed_keys) / sizeof(removed_keys[0]); i++)
        if (strcmp(section, removed_keys[i].section) == 0 &&
            strcmp(key->text, removed_keys[i].key) == 0)
            snprintf(hint, sizeof(hint), "%s", removed_keys[i].hint);
    diag_error(diag, &key->location, hint, "unknown key '%.64s' in '%s'", key->text, section);
}

void options_read(const struct epa_options *options, const char *section, const char *own,
                  const struct node *map, struct arena *arena, struct diag *diag, void *out)
{
    if (options->size != 0)
        memcpy(out, options->defaults, options->size);
    for (uint32_t i = 0; map != NULL && i < map->n; i++) {
        const struct epa_option *option = option_find(options, map->key[i]->text);

        if (option_is_note(map->key[i]->text) ||
            (own != NULL && strcmp(map->key[i]->text, own) == 0))
            continue;
        if (option == NULL)
            reject_unknown_key(options, section, own, map->key[i], diag);
        else
            option_read(option, arena_printf(arena, "%s.%s", section, option->name), map->item[i],
                        arena, diag, out);
    }
}
