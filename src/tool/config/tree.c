/* Changes trees from the root down: follows a path, creates missing maps, and expands short forms
 * on the way. A key takes the source location of its last setting, so that errors point there. */
#include "config/tree.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>

#include "base/memory.h"
#include "config/diag.h"
#include "config/experiment.h"
#include "config/model.h"
#include "config/node.h"
#include "options/option.h"
#include "config/yaml.h"

struct node *tree_whole(struct arena *arena, const struct section *section, struct node *value)
{
    struct node *map;

    if (value->kind == NODE_MAP || section == NULL || section->main == NULL || value->refused)
        return value;
    map = node_make(arena, NODE_MAP, &value->location);
    if (value->kind == NODE_SCALAR) {
        node_set(arena, map, tree_word(arena, section->main, &value->location), value);
        return map;
    }
    if (strcmp(section->name, "tokens") != 0)
        return value;
    node_set(arena, map, tree_word(arena, "kind", &value->location),
             tree_word(arena, "list", &value->location));
    node_set(arena, map, tree_word(arena, "per_rank", &value->location), value);
    return map;
}

/* Returns the section that `key` of `map` denotes; NULL: none. `map` is the root, or a section for a
 * nested one. */
static const struct section *section_at(const struct tree *tree, const struct node *map,
                                        const char *key)
{
    if (map == tree->root)
        return section_find(key);
    for (const struct section *s = experiment_sections; s->name != NULL; s++)
        if (s->nested != NULL && strcmp(section_key(s->nested), key) == 0 &&
            node_find(tree->root, s->name) == map)
            return s->nested;
    return NULL;
}

/* Returns the map under `key`, and creates it if it is missing; NULL: the value is not a map, which
 * is reported. */
static struct node *enter_map(struct tree *tree, struct node *map, struct node *key)
{
    struct node *child = node_find(map, key->text);

    if (child == NULL) {
        child = node_make(tree->arena, NODE_MAP, &key->location);
        node_set(tree->arena, map, key, child);
        return child;
    }
    child = tree_whole(tree->arena, section_at(tree, map, key->text), child);
    if (child->kind != NODE_MAP) {
        diag_error(tree->diag, &key->location, NULL, "'%.64s' is a value and has no keys",
                   key->text);
        return NULL;
    }
    node_set(tree->arena, map, key, child);
    return child;
}

/* Walks to the map that contains the last part of `path`, which becomes *last. NULL: an error was
 * reported. `place` is the source location of the path. */
static struct node *walk_path(struct tree *tree, const char *path,
                              const struct source_location *start, struct node **last)
{
    struct node *map = tree->root;
    struct source_location location = *start;
    const char *part = path;

    while (map != NULL) {
        size_t n = strcspn(part, ".");

        location.column = start->column + (uint32_t)(part - path);
        location.width = (uint32_t)n;
        if (n == 0) {
            diag_error(tree->diag, &location, NULL, "a key is missing at the point");
            return NULL;
        }
        *last = tree_word(tree->arena, arena_strndup(tree->arena, part, n), &location);
        if (part[n] == 0)
            return map;
        map = enter_map(tree, map, *last);
        part += n + 1;
    }
    return NULL;
}

static void merge_maps(struct tree *tree, struct node *map, const struct node *over);

/* Returns true if `expert: mlp` or `expert: {kind: mlp}` keeps keys of a model in the section
 * `have`. */
static bool keeps_model(const struct section *section, const struct node *have)
{
    return section != NULL && section->main != NULL && have != NULL && have->kind == NODE_MAP &&
           strcmp(section->name, "model") != 0;
}

/* Returns `value`, which replaces the section `have`, merged over the keys of a model in it. */
static struct node *replace_section(struct tree *tree, const struct section *section,
                                    const struct node *have, const struct node *value)
{
    struct node *copy = tree_whole(tree->arena, section, tree_copy(tree->arena, value));
    struct node *map;

    if (!keeps_model(section, have) || copy->kind != NODE_MAP)
        return copy;
    map = node_make(tree->arena, NODE_MAP, &copy->location);
    for (uint32_t i = 0; i < have->n; i++)
        if (have->item[i]->from_model)
            node_append(tree->arena, map, have->key[i], have->item[i]);
    if (map->n == 0)
        return tree_copy(tree->arena, value);
    merge_maps(tree, map, copy);
    return map;
}

/* Stores a copy of `value` under `key`, or merges it with the existing map. */
static void store_value(struct tree *tree, struct node *map, struct node *key,
                        const struct node *value)
{
    const struct section *section = section_at(tree, map, key->text);
    struct node *have = node_find(map, key->text);

    if (have != NULL && section != NULL)
        have = tree_whole(tree->arena, section, have);
    if (have == NULL || have->kind != NODE_MAP || value->kind != NODE_MAP ||
        (section != NULL && section->main != NULL && node_find(value, section->main) != NULL)) {
        node_set(tree->arena, map, key, replace_section(tree, section, have, value));
        return;
    }
    node_set(tree->arena, map, key, have);
    merge_maps(tree, have, value);
}

static void merge_maps(struct tree *tree, struct node *map, const struct node *over)
{
    for (uint32_t i = 0; i < over->n; i++)
        store_value(tree, map, over->key[i], over->item[i]);
}

/* Returns true if `model: NAME` or "model.name" names a model; a map under `model` describes
 * one. */
static bool names_model(const struct node *key, const struct node *value, bool dotted)
{
    return (strcmp(key->text, "model") == 0 && value->kind != NODE_MAP) ||
           (dotted && strcmp(key->text, "model.name") == 0);
}

/* Errors about the section `model` point to the key that names the model. */
static void merge_model(struct tree *tree, const struct node *key, const struct node *name)
{
    struct node *model = model_read(tree->arena, name, tree->diag), *own;

    if (model == NULL)
        return;
    for (uint32_t i = 0; i < model->n; i++) {
        own = model->key[i];
        if (strcmp(own->text, "model") == 0)
            own = tree_word(tree->arena, own->text, &key->location);
        store_value(tree, tree->root, own, model->item[i]);
    }
}

void tree_lay(struct tree *tree, const struct node *over, bool dotted)
{
    for (uint32_t i = 0; i < over->n; i++)
        if (names_model(over->key[i], over->item[i], dotted))
            merge_model(tree, over->key[i], over->item[i]);
    for (uint32_t i = 0; i < over->n; i++) {
        struct node *key = over->key[i], *map = tree->root;

        if (names_model(key, over->item[i], dotted))
            continue;

        if (dotted && strchr(key->text, '.') != NULL) {
            struct source_location location = key->location;

            location.column += key->quoted;
            map = walk_path(tree, key->text, &location, &key);
        }
        if (map != NULL)
            store_value(tree, map, key, over->item[i]);
    }
}

void tree_expand_model(struct tree *tree)
{
    struct node *own = tree->root, *name = node_find(own, "model");

    if (name == NULL || name->kind == NODE_MAP)
        return;
    tree->root = node_make(tree->arena, NODE_MAP, &own->location);
    tree_lay(tree, own, false);
}

/* Returns true if a bare `value` should not drop this option of `have`, since it could keep the
 * option: another plugin has other options, another kind has some of them. */
static bool should_keep(const struct section *section, const struct node *have, const char *option,
                        const struct node *value)
{
    const struct node *named = node_find(have, section->main);
    const struct epa_choice *kind;

    if (section->plugin)
        return named == NULL || strcmp(named->text, value->text) == 0;
    for (const struct option_rule *r = option_rules; r->section != NULL; r++) {
        if (strcmp(r->section, section->name) != 0 || strcmp(r->option, option) != 0 ||
            strcmp(r->other, section->main) != 0 || r->values == 0)
            continue;
        for (kind = option_find(&section->options, section->main)->choices; kind->name != NULL;
             kind++)
            if (strcmp(kind->name, value->text) == 0)
                return (r->values >> kind->value & 1u) != 0;
        return false;
    }
    return true;
}

/* Replaces `have`, which is a section or not (NULL), by the `value` of --set. Rejects a value that
 * would drop values of an earlier --set, or values of the file that it does not mention. */
static void check_replaced(struct tree *tree, const struct source_location *location,
                           const struct section *section, const struct node *have,
                           const struct node *value)
{
    int bytes = (int)strcspn(location->source, "="); /* of the key */
    bool bare = section != NULL && section->main != NULL && value->kind == NODE_SCALAR;

    for (uint32_t i = 0; have->kind == NODE_MAP && i < have->n; i++) {
        const struct node *lost = have->key[i];
        bool set = strcmp(lost->location.file, "--set") == 0;
        bool kept = keeps_model(section, have) && have->item[i]->from_model;
        char hint[128] = "set the whole first, then its parts";

        if (kept || (bare && strcmp(lost->text, section->main) == 0) ||
            (value->kind == NODE_MAP && node_find(value, lost->text) != NULL) ||
            (!set && !(bare && should_keep(section, have, lost->text, value))))
            continue;
        if (bare && section->plugin)
            snprintf(hint, sizeof(hint), "--set %.*s.%s=%.64s keeps it", bytes, location->source,
                     section->main, value->text);
        else if (bare)
            snprintf(hint, sizeof(hint), "--set %.*s='{%s: %.32s, %.32s: ...}' sets both", bytes,
                     location->source, section->main, value->text, lost->text);
        if (set)
            diag_error(tree->diag, location, hint, "--set %.80s would drop --set %.80s",
                       location->source, lost->location.source);
        else
            diag_error(tree->diag, location, hint, "--set %.80s would drop %.*s.%.64s",
                       location->source, bytes, location->source, lost->text);
        diag_note(tree->diag, &lost->location, "it is set here");
    }
}

void tree_set(struct tree *tree, const char *argument)
{
    const char *set = arena_strndup(tree->arena, argument, strlen(argument));
    const char *equals = strchr(set, '=');
    struct source_location location = {"--set", set, 1, 1, (uint32_t)strcspn(set, "=")};
    struct node *map, *key, *value, *have;
    const struct section *section;
    char *path;

    if (equals == NULL || equals == set) {
        diag_error(tree->diag, &location, "such as bench.iterations=100", "--set needs key=value");
        return;
    }
    if (equals[1 + strspn(equals + 1, " ")] == 0) {
        diag_error(tree->diag, &location, "for an empty string write \"\"", "no value behind '='");
        return;
    }
    yaml_parse(tree->arena, "--set", set, strlen(set), (size_t)(equals + 1 - set), false,
               tree->diag, &value);
    if (value == NULL)
        return;
    path = arena_strndup(tree->arena, set, (size_t)(equals - set));
    if (strncmp(path, "matrix.", 7) == 0 || strncmp(path, "zip.", 4) == 0) {
        size_t head = strcspn(path, ".");
        struct source_location rest = location;

        location.width = (uint32_t)head;
        rest.column += (uint32_t)head + 1;
        rest.width -= (uint32_t)head + 1;
        key = tree_word(tree->arena, path + head + 1, &rest);
        map = enter_map(tree, tree->root,
                        tree_word(tree->arena, arena_strndup(tree->arena, path, head), &location));
    } else {
        if (names_model(&(struct node){.text = path}, value, true)) {
            merge_model(tree, tree_word(tree->arena, path, &location), value);
            return;
        }
        map = walk_path(tree, path, &location, &key);
    }
    if (map == NULL)
        return;
    section = section_at(tree, map, key->text);
    have = node_find(map, key->text);
    if (have != NULL)
        check_replaced(tree, &location, section, have, value);
    if (keeps_model(section, have))
        value = replace_section(tree, section, have, value);
    node_set(tree->arena, map, key, value);
}

/* ---- include: each file overrides the file that it includes; the innermost file is applied first.
 * A file must not include itself, directly or indirectly; device and inode identify files, so that
 * links cannot hide a cycle. ---- */

enum { DEPTH = 16 };

/* An open file, and the file that includes it. */
struct file {
    const struct file *by;
    const char *file;
    dev_t device;
    ino_t inode;
    uint32_t depth;
};

const char *tree_beside(struct arena *arena, const char *file, const char *path)
{
    const char *slash = strrchr(file, '/');

    if (*path == '/' || slash == NULL)
        return path;
    return arena_printf(arena, "%.*s%s", (int)(slash - file) + 1, file, path);
}

static bool is_file_name(struct diag *diag, struct node *value)
{
    if (value->refused)
        return false;
    if (value->kind == NODE_SCALAR && *value->text != 0)
        return true;
    value->refused = true;
    diag_error(diag, &value->location, "such as include: base.yaml",
               "include: the name of a file is expected");
    return false;
}

/* Checked here, so that the error points to the include that names the file. */
static bool may_include(struct file *next, const struct node *value, struct diag *diag)
{
    struct stat at;

    if (stat(next->file, &at) != 0 || access(next->file, R_OK) != 0) {
        diag_error(diag, &value->location, NULL, "include: cannot read %s: %s", next->file,
                   strerror(errno));
        return false;
    }
    if (!S_ISREG(at.st_mode)) {
        diag_error(diag, &value->location, NULL, "include: %s is not a file", next->file);
        return false;
    }
    next->device = at.st_dev;
    next->inode = at.st_ino;
    for (const struct file *r = next->by; r != NULL; r = r->by) {
        if (r->device != at.st_dev || r->inode != at.st_ino)
            continue;
        diag_error(diag, &value->location, NULL, "include: %s includes itself%s%s", r->file,
                   r == next->by ? "" : ", by way of ", r == next->by ? "" : next->by->file);
        return false;
    }
    if (next->depth <= DEPTH)
        return true;
    diag_error(diag, &value->location, NULL, "files include each other more than %d deep", DEPTH);
    return false;
}

/* Treats `include: model/NAME` as `model: NAME`, which the file may repeat. */
static enum epa_status include_model(struct tree *tree, struct node *value)
{
    struct source_location location = value->location;
    uint32_t before = diag_errors(tree->diag);
    struct node *own = tree->root, *base = node_make(tree->arena, NODE_MAP, &own->location);

    location.column += (uint32_t)strlen(MODEL_PREFIX) + value->quoted;
    location.width = (uint32_t)strlen(value->text + strlen(MODEL_PREFIX));
    node_append(tree->arena, base, tree_word(tree->arena, "model", &value->location),
                tree_word(tree->arena, value->text + strlen(MODEL_PREFIX), &location));
    node_drop(own, "include");
    tree->root = base;
    tree_expand_model(tree);
    tree_lay(tree, own, false);
    return diag_errors(tree->diag) == before ? EPA_OK : EPA_ERR_CONFIG;
}

static enum epa_status read_below(struct arena *arena, const struct file *reading,
                                  struct diag *diag, struct node **out)
{
    enum epa_status status = yaml_read(arena, reading->file, diag, out), below;
    struct node *value = node_find(*out, "include");
    struct tree tree = {.arena = arena, .diag = diag, .root = *out};
    struct file next = {.by = reading, .depth = reading->depth + 1};

    if (value == NULL) {
        tree_expand_model(&tree);
        *out = tree.root;
        return status;
    }
    if (!is_file_name(diag, value))
        return EPA_ERR_CONFIG;
    if (strncmp(value->text, MODEL_PREFIX, strlen(MODEL_PREFIX)) == 0) {
        below = include_model(&tree, value);
        *out = tree.root;
        return below != EPA_OK ? below : status;
    }
    tree.root = NULL;
    next.file = tree_beside(arena, reading->file, value->text);
    if (!may_include(&next, value, diag))
        return EPA_ERR_CONFIG;
    below = read_below(arena, &next, diag, &tree.root);
    if (tree.root == NULL)
        return below;
    if (tree.root->kind != NODE_MAP) {
        diag_error(diag, &tree.root->location, "such as ranks: 2",
                   "an experiment is a map of keys");
        return EPA_ERR_CONFIG;
    }
    node_drop(tree.root, "include");
    node_drop(*out, "include");
    tree_lay(&tree, *out, false);
    tree.root->location = (*out)->location;
    *out = tree.root;
    return below != EPA_OK ? below : status;
}

enum epa_status tree_read_file(struct arena *arena, const char *file, struct diag *diag,
                               struct node **out)
{
    struct file reading = {.file = file};
    struct stat at;

    if (stat(file, &at) == 0) {
        reading.device = at.st_dev;
        reading.inode = at.st_ino;
    }
    return read_below(arena, &reading, diag, out);
}
