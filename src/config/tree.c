/* Trees are changed from the root down: a path is walked, maps are made where there are none,
 * and short forms are written out on the way. A key takes the place of who set it last, so
 * that errors stand there. */
#include "config/tree.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "config/experiment.h"
#include "config/options.h"

struct node *tree_word(struct arena *arena, const char *text,
                       const struct source_location *location)
{
    struct node *node = node_make(arena, NODE_SCALAR, location);

    node->text = text;
    return node;
}

struct node *tree_copy(struct arena *arena, const struct node *from)
{
    struct node *node = arena_alloc(arena, sizeof(*node));

    *node = *from;
    node->n = 0;
    for (uint32_t i = 0; i < from->n; i++)
        node_append(arena, node, from->kind == NODE_MAP ? from->key[i] : NULL,
                    tree_copy(arena, from->item[i]));
    return node;
}

bool tree_equal(const struct node *a, const struct node *b)
{
    if (a->kind != b->kind || a->n != b->n || strcmp(a->text, b->text) != 0)
        return false;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct node *other = a->kind == NODE_MAP ? node_find(b, a->key[i]->text) : b->item[i];

        if (other == NULL || !tree_equal(a->item[i], other))
            return false;
    }
    return true;
}

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

/* The map under `key`, made where there is none; NULL: there is something else, reported. */
static struct node *descend(struct tree *tree, struct node *map, struct node *key)
{
    struct node *child = node_find(map, key->text);

    if (child == NULL) {
        child = node_make(tree->arena, NODE_MAP, &key->location);
        node_set(tree->arena, map, key, child);
        return child;
    }
    if (map == tree->root)
        child = tree_whole(tree->arena, section_find(key->text), child);
    if (child->kind != NODE_MAP) {
        diag_error(tree->diag, &key->location, NULL, "'%.64s' is a value and has no keys",
                   key->text);
        return NULL;
    }
    node_set(tree->arena, map, key, child);
    return child;
}

/* Walks to the map that the last part of `path` is a key of, which becomes *last. NULL: the
 * reason was reported. `place` is that of the path. */
static struct node *walk(struct tree *tree, const char *path, const struct source_location *start,
                         struct node **last)
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
        map = descend(tree, map, *last);
        part += n + 1;
    }
    return NULL;
}

static void merge(struct tree *tree, struct node *map, const struct node *over);

/* Puts a copy of `value` under `key`, or merges it with the map that is there. */
static void put(struct tree *tree, struct node *map, struct node *key, const struct node *value)
{
    const struct section *section = map == tree->root ? section_find(key->text) : NULL;
    struct node *have = node_find(map, key->text);

    if (have != NULL && section != NULL)
        have = tree_whole(tree->arena, section, have);
    if (have == NULL || have->kind != NODE_MAP || value->kind != NODE_MAP ||
        (section != NULL && section->main != NULL && node_find(value, section->main) != NULL)) {
        node_set(tree->arena, map, key, tree_copy(tree->arena, value));
        return;
    }
    node_set(tree->arena, map, key, have);
    merge(tree, have, value);
}

static void merge(struct tree *tree, struct node *map, const struct node *over)
{
    for (uint32_t i = 0; i < over->n; i++)
        put(tree, map, over->key[i], over->item[i]);
}

void tree_lay(struct tree *tree, const struct node *over, bool dotted)
{
    for (uint32_t i = 0; i < over->n; i++) {
        struct node *key = over->key[i], *map = tree->root;

        if (dotted && strchr(key->text, '.') != NULL) {
            struct source_location location = key->location;

            location.column += key->quoted;
            map = walk(tree, key->text, &location, &key);
        }
        if (map != NULL)
            put(tree, map, key, over->item[i]);
    }
}

/* Whether `value`, bare, leaves nothing of an option that it could have kept: another plugin has
 * options of its own, another kind some of them. */
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

/* --set `value` takes the place of `have`. What another --set said before must not get lost by
 * that, nor what a file says where this value did not mean to. */
static void check_replaced(struct tree *tree, const struct source_location *location, bool at_root,
                           const struct node *key, const struct node *have,
                           const struct node *value)
{
    const struct section *section = at_root ? section_find(key->text) : NULL;
    bool bare = section != NULL && section->main != NULL && value->kind == NODE_SCALAR;

    for (uint32_t i = 0; have->kind == NODE_MAP && i < have->n; i++) {
        const struct node *lost = have->key[i];
        bool set = strcmp(lost->location.file, "--set") == 0;
        char hint[128] = "give it first, and what changes a part of it after it";

        if ((bare && strcmp(lost->text, section->main) == 0) ||
            (value->kind == NODE_MAP && node_find(value, lost->text) != NULL) ||
            (!set && !(bare && should_keep(section, have, lost->text, value))))
            continue;
        if (bare && section->plugin)
            snprintf(hint, sizeof(hint), "--set %s.%s=%.64s keeps it", key->text, section->main,
                     value->text);
        else if (bare)
            snprintf(hint, sizeof(hint), "--set %s='{%s: %.32s, %.32s: ...}' gives both", key->text,
                     section->main, value->text, lost->text);
        if (set)
            diag_error(tree->diag, location, hint, "--set %.80s would drop --set %.80s",
                       location->source, lost->location.source);
        else
            diag_error(tree->diag, location, hint, "--set %.80s would drop %s.%.64s",
                       location->source, key->text, lost->text);
        diag_note(tree->diag, &lost->location, "it is set here");
    }
}

void tree_set(struct tree *tree, const char *argument)
{
    const char *set = arena_strndup(tree->arena, argument, strlen(argument));
    const char *equals = strchr(set, '=');
    struct source_location location = {"--set", set, 1, 1, (uint32_t)strcspn(set, "=")};
    struct node *map, *key, *value, *have;
    char *path;

    if (equals == NULL || equals == set) {
        diag_error(tree->diag, &location, "such as bench.iterations=100", "--set needs key=value");
        return;
    }
    if (equals[1 + strspn(equals + 1, " ")] == 0) {
        diag_error(tree->diag, &location, "for an empty string write \"\"", "no value behind '='");
        return;
    }
    yaml_parse_value(tree->arena, "--set", set, (size_t)(equals + 1 - set), tree->diag, &value);
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
        map = descend(tree, tree->root,
                      tree_word(tree->arena, arena_strndup(tree->arena, path, head), &location));
    } else {
        map = walk(tree, path, &location, &key);
    }
    if (map == NULL)
        return;
    have = node_find(map, key->text);
    if (have != NULL)
        check_replaced(tree, &location, map == tree->root, key, have, value);
    node_set(tree->arena, map, key, value);
}

/* ---- include: each file is laid over the one that it includes, the last one first. A file that is
 * being read already must not be included again; files are known by device and inode, so that no
 * link hides that. ---- */

enum { DEPTH = 16 };

/* A file that is being read, and who includes it. */
struct file {
    const struct file *by;
    const char *file;
    dev_t device;
    ino_t inode;
    uint32_t depth;
};

/* Relative to the folder of the file that names it. */
static const char *beside(struct arena *arena, const char *file, const char *path)
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

/* Asked here, so that it is said at the include and not of a file that nobody named. */
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

static enum epa_status read_below(struct arena *arena, const struct file *reading,
                                  struct diag *diag, struct node **out)
{
    enum epa_status status = yaml_read(arena, reading->file, diag, out), below;
    struct node *value = node_find(*out, "include");
    struct tree tree = {.arena = arena, .diag = diag};
    struct file next = {.by = reading, .depth = reading->depth + 1};

    if (value == NULL)
        return status;
    if (!is_file_name(diag, value))
        return EPA_ERR_CONFIG;
    next.file = beside(arena, reading->file, value->text);
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
