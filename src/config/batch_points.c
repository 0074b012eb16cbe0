/* Lists of values to points. A section in a matrix is only another way to write its keys:
 * `moe: {topk: [1, 2]}` is `moe.topk: [1, 2]`. The last list changes fastest. */
#include "config/batch.h"

#include <string.h>

#include "base/arena.h"

enum { LISTS = 64, STEPS_MOST = 1 << 17 };

struct lists {
    const char *of; /* matrix, zip */
    uint32_t n;
    struct node *key[LISTS], *list[LISTS];
};

static void add_point(struct tree *tree, struct points *points, struct node *point)
{
    if (points->n == points->room) {
        uint32_t room = points->room == 0 ? 16 : 2 * points->room;
        struct node **item = arena_alloc(tree->arena, room * sizeof(*item));

        if (points->n != 0)
            memcpy(item, points->item, points->n * sizeof(*item));
        points->item = item;
        points->room = room;
    }
    points->item[points->n++] = point;
}

static void say_nothing(struct tree *tree, struct points *out)
{
    add_point(tree, out, node_make(tree->arena, NODE_MAP, &tree->root->location));
}

/* "matrix" where the list stands, so that words about it can name it. */
static bool is_map(struct tree *tree, const struct node *node, const char *what,
                   const char *example)
{
    if (node->kind == NODE_MAP)
        return true;
    diag_error(tree->diag, &node->location, example, "'%s' must be a map of keys", what);
    return false;
}

static struct node *join(struct tree *tree, const struct node *before, struct node *key)
{
    if (before == NULL)
        return key;
    return tree_word(tree->arena, arena_printf(tree->arena, "%s.%s", before->text, key->text),
                     &key->location);
}

static void add_list(struct tree *tree, struct lists *lists, struct node *key, struct node *list)
{
    if (list->kind != NODE_LIST || list->n == 0) {
        diag_error(tree->diag, &list->location, "such as [1, 8, 128]", "%s: %.64s: %s", lists->of,
                   key->text,
                   list->kind == NODE_LIST ? "the list is empty" : "a list of values is expected");
        return;
    }
    for (uint32_t i = 0; i < lists->n; i++) {
        if (strcmp(lists->key[i]->text, key->text) != 0)
            continue;
        diag_error(tree->diag, &key->location, "keep one of them", "%s has %.64s twice", lists->of,
                   key->text);
        diag_note(tree->diag, &lists->key[i]->location, "it was first set here");
        return;
    }
    if (lists->n == LISTS) {
        diag_error(tree->diag, &key->location, NULL, "%s has more than %d lists", lists->of, LISTS);
        return;
    }
    lists->key[lists->n] = key;
    lists->list[lists->n++] = list;
}

/* The lists of a map, sections written out. */
static void collect(struct tree *tree, const struct node *map, const struct node *before,
                    struct lists *out)
{
    for (uint32_t i = 0; i < map->n; i++) {
        struct node *key = join(tree, before, map->key[i]);

        if (before == NULL && strcmp(out->of, "matrix") == 0 &&
            (strcmp(key->text, "exclude") == 0 || strcmp(key->text, "include") == 0))
            continue;
        if (before == NULL && batch_is_key(key->text))
            diag_error(tree->diag, &key->location, "it is a key of the top of the file",
                       "'%s' cannot be part of %s", key->text, out->of);
        else if (map->item[i]->kind == NODE_MAP)
            collect(tree, map->item[i], key, out);
        else
            add_list(tree, out, key, map->item[i]);
    }
}

/* ---- exclude ---- */

/* A map of `exclude` as keys of the matrix; one that is not is told. */
static void flatten(struct tree *tree, const struct lists *lists, const struct node *map,
                    const struct node *before, struct node *out)
{
    for (uint32_t i = 0; i < map->n; i++) {
        struct node *key = join(tree, before, map->key[i]);
        uint32_t l = 0;

        while (l < lists->n && strcmp(lists->key[l]->text, key->text) != 0)
            l++;
        if (l < lists->n)
            node_set(tree->arena, out, key, map->item[i]);
        else if (map->item[i]->kind == NODE_MAP)
            flatten(tree, lists, map->item[i], key, out);
        else
            diag_error(tree->diag, &key->location, NULL,
                       "exclude: %.64s is not a key of the matrix", key->text);
    }
}

static bool matches(const struct node *rule, const struct node *point)
{
    for (uint32_t i = 0; i < rule->n; i++) {
        if (!tree_equal(rule->item[i], node_find(point, rule->key[i]->text)))
            return false;
    }
    return true;
}

struct rules {
    uint32_t n;
    struct node **rule; /* flat */
    bool *used;
};

static void read_rules(struct tree *tree, const struct lists *lists, const struct node *exclude,
                       struct rules *out)
{
    *out = (struct rules){0};
    if (exclude == NULL)
        return;
    if (exclude->kind != NODE_LIST) {
        diag_error(tree->diag, &exclude->location, "such as [{moe.max_tokens: 128}]",
                   "exclude: a list of maps is expected");
        return;
    }
    out->rule = arena_alloc(tree->arena, (exclude->n + 1) * sizeof(*out->rule));
    out->used = arena_alloc(tree->arena, (exclude->n + 1) * sizeof(*out->used));
    for (uint32_t i = 0; i < exclude->n; i++) {
        const struct node *item = exclude->item[i];
        struct node *rule = node_make(tree->arena, NODE_MAP, &item->location);

        if (!is_map(tree, item, "exclude", "such as {moe.max_tokens: 128}"))
            continue;
        flatten(tree, lists, item, NULL, rule);
        if (item->n == 0)
            diag_error(tree->diag, &item->location, NULL, "exclude: this leaves no run");
        out->rule[out->n++] = rule;
    }
}

static bool excluded(const struct rules *rules, const struct node *point)
{
    bool any = false;

    for (uint32_t i = 0; i < rules->n; i++) {
        if (!matches(rules->rule[i], point))
            continue;
        rules->used[i] = any = true;
    }
    return any;
}

/* ---- matrix ---- */

static void cross(struct tree *tree, const struct lists *lists, const struct rules *rules,
                  uint32_t most, struct points *out)
{
    uint32_t at[LISTS] = {0}, i;

    do {
        struct node *point = node_make(tree->arena, NODE_MAP, &tree->root->location);

        for (i = 0; i < lists->n; i++)
            node_append(tree->arena, point, lists->key[i], lists->list[i]->item[at[i]]);
        if (!excluded(rules, point))
            add_point(tree, out, point);
        for (i = lists->n; i > 0 && ++at[i - 1] == lists->list[i - 1]->n; i--)
            at[i - 1] = 0;
    } while (i > 0 && out->n <= most);
}

static bool is_too_large(struct tree *tree, const struct lists *lists, const struct node *node)
{
    uint64_t steps = 1;

    for (uint32_t i = 0; i < lists->n && steps <= STEPS_MOST; i++)
        steps *= lists->list[i]->n;
    if (steps <= STEPS_MOST)
        return false;
    diag_error(tree->diag, &node->location, NULL, "the matrix has more than %d points", STEPS_MOST);
    return true;
}

static void add_included(struct tree *tree, const struct node *include, struct points *out)
{
    if (include == NULL)
        return;
    if (include->kind != NODE_LIST) {
        diag_error(tree->diag, &include->location, "such as [{moe.max_tokens: 512}]",
                   "include: in a matrix, a list of maps is expected");
        return;
    }
    for (uint32_t i = 0; i < include->n; i++) {
        if (!is_map(tree, include->item[i], "include", "such as {moe.max_tokens: 512}"))
            continue;
        batch_check_overrides(tree, include->item[i], "include");
        add_point(tree, out, include->item[i]);
    }
}

void points_of_matrix(struct tree *tree, const struct node *node, uint32_t most, struct points *out)
{
    struct lists lists = {.of = "matrix"};
    uint32_t before = diag_errors(tree->diag);
    struct rules rules;

    *out = (struct points){0};
    if (node == NULL) {
        say_nothing(tree, out);
        return;
    }
    if (!is_map(tree, node, "matrix", "such as {moe.max_tokens: [1, 8, 128]}"))
        return;
    collect(tree, node, NULL, &lists);
    read_rules(tree, &lists, node_find(node, "exclude"), &rules);
    if (diag_errors(tree->diag) != before || is_too_large(tree, &lists, node))
        return;
    if (lists.n > 0)
        cross(tree, &lists, &rules, most, out);
    for (uint32_t i = 0; i < rules.n && out->n <= most; i++) {
        if (!rules.used[i])
            diag_error(tree->diag, &rules.rule[i]->location, "a value must be as in its list",
                       "exclude: no point of the matrix has these values");
    }
    add_included(tree, node_find(node, "include"), out);
    if (out->n == 0 && diag_errors(tree->diag) == before)
        diag_error(tree->diag, &node->location, NULL, "the matrix has no points");
}

void points_of_zip(struct tree *tree, const struct node *node, uint32_t most, struct points *out)
{
    struct lists lists = {.of = "zip"};
    uint32_t before = diag_errors(tree->diag);

    *out = (struct points){0};
    if (node == NULL) {
        say_nothing(tree, out);
        return;
    }
    if (!is_map(tree, node, "zip", "such as {ranks: [2, 4], moe.experts: [8, 16]}"))
        return;
    collect(tree, node, NULL, &lists);
    for (uint32_t i = 1; i < lists.n; i++) {
        if (lists.list[i]->n == lists.list[0]->n)
            continue;
        diag_error(tree->diag, &lists.list[i]->location, "lists of zip are of one length",
                   "zip: %.64s has %u values, and %.64s has %u", lists.key[i]->text,
                   lists.list[i]->n, lists.key[0]->text, lists.list[0]->n);
        diag_note(tree->diag, &lists.list[0]->location, "that is here");
    }
    if (diag_errors(tree->diag) != before)
        return;
    if (lists.n == 0) {
        diag_error(tree->diag, &node->location, NULL, "zip has no lists");
        return;
    }
    for (uint32_t v = 0; v < lists.list[0]->n && v <= most; v++) {
        struct node *point = node_make(tree->arena, NODE_MAP, &node->location);

        for (uint32_t i = 0; i < lists.n; i++)
            node_append(tree->arena, point, lists.key[i], lists.list[i]->item[v]);
        add_point(tree, out, point);
    }
}
