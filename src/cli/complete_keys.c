/* KEY=VALUE of --set: keys one part after the other, since all of them together are a page;
 * then what the key's option may be. Options of a plugin are those of the plugin that the
 * file or an earlier --set names. */
#include "cli/complete.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "cli/topics.h"
#include "config/diag.h"
#include "config/options.h"
#include "config/tree.h"

enum { LABELS_MOST = 256 }; /* nobody reads more */

/* The name of the section's plugin in the tree; NULL: it says none. */
static const char *name_in(struct arena *arena, const struct node *root,
                           const struct section *section)
{
    struct node *map = node_find(root, section->name), *name;

    if (map == NULL)
        return NULL;
    name = node_find(tree_whole(arena, section, map), section->main);
    return name == NULL || name->kind != NODE_SCALAR ? NULL : name->text;
}

/* As the files and settings before the cursor have it. */
static const struct epa_plugin *chosen(struct completing *c, const struct section *section)
{
    struct tree tree = {.arena = arena_create(), .diag = diag_create()};
    struct registry *registry = complete_registry(c);
    const char *name = section->chosen, *named;
    const struct epa_plugin *plugin = NULL;
    struct epa_error ignored = {EPA_OK, ""};
    struct source_location nowhere = {.file = ""};

    for (uint32_t i = 0; i < c->n_files && tree.root == NULL; i++)
        batch_read_tree(&tree, c->file[i], NULL, 0);
    if (tree.root == NULL || tree.root->kind != NODE_MAP)
        tree.root = node_make(tree.arena, NODE_MAP, &nowhere);
    for (uint32_t i = 0; i < c->n_sets; i++)
        tree_set(&tree, c->set[i]);
    named = name_in(tree.arena, tree.root, section);
    if (named != NULL)
        name = named;
    if (strcmp(name, "auto") == 0 && section->kind == EPA_PLUGIN_LAUNCHER)
        name = "fork";
    if (registry == NULL ||
        registry_find(registry, section->kind, name, &plugin, &ignored) != EPA_OK)
        plugin = NULL;
    diag_destroy(tree.diag);
    arena_destroy(tree.arena);
    return plugin;
}

static const struct epa_options *options_of(struct completing *c, const struct section *section)
{
    static const struct epa_options none = {0};
    const struct epa_plugin *plugin;

    if (!section->plugin)
        return &section->options;
    plugin = chosen(c, section);
    return plugin == NULL ? &none : &plugin->options;
}

/* ---- keys ---- */

static void offer_names(struct completing *c)
{
    const struct epa_plugin *algorithm;

    for (const struct epa_option *o = experiment_options.table; o->name != NULL; o++)
        complete_offer(c, o->help, "%s=", o->name);
    for (const struct batch_key *key = batch_keys; key->name != NULL; key++)
        if (strcmp(key->name, "include") != 0 && strcmp(key->name, "runs") != 0)
            complete_offer(c, key->help, strcmp(key->name, "repeat") == 0 ? "%s=" : "%s.",
                           key->name);
    algorithm = chosen(c, section_find("algorithm"));
    for (const struct section *s = experiment_sections; s->name != NULL; s++) {
        if (!section_is_for(s, (const struct epa_algorithm_plugin *)(const void *)algorithm))
            continue;
        if (s->main != NULL)
            complete_offer(c, s->help, "%s=", s->name);
        complete_offer(c, s->help, "%s.", s->name);
    }
}

static void offer_keys(struct completing *c, const struct section *section)
{
    const struct epa_options *of = options_of(c, section);

    if (section->plugin)
        complete_offer(c, section->help, "%s.%s=", section->name, section->main);
    for (const struct epa_option *o = of->table; o != NULL && o->name != NULL; o++)
        complete_offer(c, o->help, "%s.%s=", section->name, o->name);
}

/* ---- values ---- */

static void offer_plugins(struct completing *c, const struct section *section, int key)
{
    const struct registry_entry *entry;
    uint32_t n = complete_plugins(c, &entry);

    if (section->kind == EPA_PLUGIN_LAUNCHER)
        complete_offer(c, "fork, or whoever has started us", "%.*sauto", key, c->word);
    for (uint32_t i = 0; i < n; i++)
        if (entry[i].kind == section->kind)
            complete_offer(c, entry[i].plugin == NULL ? entry[i].why : entry[i].plugin->summary,
                           "%.*s%s", key, c->word, entry[i].name);
}

/* A number's default is a candidate that says what else may be there. */
static void offer_number(struct completing *c, const struct epa_option *option,
                         const void *defaults, int key)
{
    struct text value = {0}, help = {0}, range = {0};

    if (option_is_set(option, defaults)) {
        option_text(option, defaults, &value);
        option_range(option, &range);
        text_add(&help, "the default; %s%s%s", option_type(option), range.bytes == 0 ? "" : ", ",
                 range.bytes == 0 ? "" : range.data);
        complete_offer(c, help.data, "%.*s%s", key, c->word, value.data);
    }
    text_free(&value);
    text_free(&range);
    text_free(&help);
}

static void offer_values(struct completing *c, const struct epa_option *option,
                         const void *defaults, int key)
{
    switch (option->type) {
    case EPA_OPTION_BOOL:
        complete_offer(c, NULL, "%.*strue", key, c->word);
        complete_offer(c, NULL, "%.*sfalse", key, c->word);
        break;
    case EPA_OPTION_CHOICE:
        for (const struct epa_choice *o = option->choices; o->name != NULL; o++)
            complete_offer(c, o->help, "%.*s%s", key, c->word, o->name);
        break;
    case EPA_OPTION_STRING: /* mostly a path */
        c->word += key;
        complete_files(c, "");
        break;
    case EPA_OPTION_U32:
    case EPA_OPTION_U64:
    case EPA_OPTION_REAL:
    case EPA_OPTION_BYTES:
    case EPA_OPTION_DURATION:
        offer_number(c, option, defaults, key);
        break;
    case EPA_OPTION_U32_LIST:
        break;
    }
}

/* `key` bytes of the word are KEY=. */
static void offer_value(struct completing *c, const struct section *section, int key)
{
    const char *point = memchr(c->word, '.', (size_t)key);
    const struct epa_options *of = &experiment_options;
    const struct epa_option *option;
    char name[64];

    if (section != NULL && section->plugin && (point == NULL || strncmp(point, ".name=", 6) == 0)) {
        offer_plugins(c, section, key);
        return;
    }
    if (section != NULL)
        of = options_of(c, section);
    if (section != NULL && point == NULL)
        snprintf(name, sizeof(name), "%s", section->main == NULL ? "" : section->main);
    else
        snprintf(name, sizeof(name), "%.*s",
                 key - 1 - (int)(point == NULL ? 0 : point + 1 - c->word),
                 point == NULL ? c->word : point + 1);
    option = option_find(of, name);
    if (option != NULL)
        offer_values(c, option, of->defaults, key);
}

static void offer_labels(struct completing *c, struct arena *arena, const char *name,
                         const struct points *matrix, const struct points *zip)
{
    for (uint32_t m = 0; m < matrix->n; m++)
        for (uint32_t z = 0; z < zip->n; z++) {
            const char *label = batch_label(arena, name, matrix->item[m], zip->item[z], 0);

            if (label != NULL)
                complete_offer(c, "a run of the file", "%s", label);
        }
}

void complete_runs(struct completing *c)
{
    struct tree tree = {.arena = arena_create(), .diag = diag_create()};
    struct points matrix = {0}, zip = {0};
    const struct node *runs;

    for (uint32_t i = 0; i < c->n_files && tree.root == NULL; i++)
        batch_read_tree(&tree, c->file[i], c->set, c->n_sets);
    runs = node_find(tree.root, "runs");
    if (tree.root != NULL) {
        points_of_matrix(&tree, node_find(tree.root, "matrix"), LABELS_MOST, &matrix);
        points_of_zip(&tree, node_find(tree.root, "zip"), LABELS_MOST, &zip);
    }
    for (uint32_t i = 0; runs != NULL && runs->kind == NODE_MAP && i < runs->n; i++)
        offer_labels(c, tree.arena, runs->key[i]->text, &matrix, &zip);
    if (runs == NULL)
        offer_labels(c, tree.arena, NULL, &matrix, &zip);
    diag_destroy(tree.diag);
    arena_destroy(tree.arena);
}

void complete_keys(struct completing *c)
{
    const char *equals, *point;
    const struct section *section;
    char name[64];

    if (strncmp(c->word, "matrix.", 7) == 0 || strncmp(c->word, "zip.", 4) == 0)
        c->word = strchr(c->word, '.') + 1;
    equals = strchr(c->word, '=');
    point = strpbrk(c->word, ".=");
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(c->word, ".="), c->word);
    section = section_find(name);
    if (equals != NULL)
        offer_value(c, section, (int)(equals + 1 - c->word));
    else if (point == NULL)
        offer_names(c);
    else if (section != NULL)
        offer_keys(c, section);
}
