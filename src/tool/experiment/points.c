/* Points of a matrix or a zip. A section is another notation for its keys: `moe: {topk: [1, 2]}`
 * equals `moe.topk: [1, 2]`. The last list changes fastest. */
#include "experiment/points.h"

#include <string.h>
#include <math.h>

#include "base/memory.h"
#include "experiment/operation.h"
#include "config/diag.h"
#include "config/check.h"
#include "config/node.h"
#include "experiment/batch_keys.h"
#include "experiment/check_operation.h"

enum { LISTS = 64, STEPS_MOST = 1 << 17 };

/* Reports a key of the top of the file, such as `matrix`, and a path into its value, such as
 * `matrix.seed`. Runs are copies without these keys, so the value would have no effect. */
static bool reject_batch_key(struct tree *tree, const struct node *key, const char *of)
{
    int bytes = (int)strcspn(key->text, ".");

    if (!batch_is_key_of(key->text, (size_t)bytes))
        return false;
    diag_error(tree->diag, &key->location, "it is a key of the top of the file",
               "'%.*s' cannot be part of %s", bytes, key->text, of);
    return true;
}

void points_check_overrides(struct tree *tree, const struct node *map, const char *of)
{
    for (uint32_t i = 0; i < map->n; i++)
        reject_batch_key(tree, map->key[i], of);
}

static bool is_map(struct tree *tree, const struct node *node, const char *what,
                   const char *example)
{
    if (node->kind == NODE_MAP)
        return true;
    diag_error(tree->diag, &node->location, example, "'%s' must be a map of keys", what);
    return false;
}

static struct node *make_here(struct tree *tree, enum node_kind kind)
{
    return node_make(tree->arena, kind, &tree->root->location);
}

/* Returns the maps of the list `of` in a matrix; reports and leaves out other items. */
static const struct node *maps_of(struct tree *tree, const struct node *list, const char *of)
{
    struct node *maps = make_here(tree, NODE_LIST);

    if (list != NULL && list->kind != NODE_LIST)
        diag_error(tree->diag, &list->location, "such as [{moe.max_tokens: 128}]",
                   "%s: in a matrix, a list of maps is expected", of);
    for (uint32_t i = 0; list != NULL && list->kind == NODE_LIST && i < list->n; i++)
        if (is_map(tree, list->item[i], of, "such as {moe.max_tokens: 128}"))
            node_append(tree->arena, maps, NULL, list->item[i]);
    return maps;
}

static void add_list(struct tree *tree, const char *of, struct node *key, struct node *list,
                     struct node *out)
{
    const char *wrong = list->kind != NODE_LIST ? "a list of values is expected"
                        : list->n == 0          ? "the list is empty"
                                                : NULL;

    if (wrong != NULL) {
        diag_error(tree->diag, &list->location, "such as [1, 8, 128]", "%s: %.64s: %s", of,
                   key->text, wrong);
        return;
    }
    for (uint32_t i = 0; i < out->n; i++) {
        if (strcmp(out->key[i]->text, key->text) != 0)
            continue;
        diag_error(tree->diag, &key->location, "keep one of them", "%s has %.64s twice", of,
                   key->text);
        diag_note(tree->diag, &out->key[i]->location, "it was first set here");
        return;
    }
    if (out->n == LISTS)
        diag_error(tree->diag, &key->location, NULL, "%s has more than %d lists", of, LISTS);
    else
        node_append(tree->arena, out, key, list);
}

/* Makes runs of one model neighbours, and lets other keys of a point override its model. */
static void move_model_first(struct node *lists)
{
    for (uint32_t i = 1; i < lists->n; i++) {
        struct node *key = lists->key[i], *item = lists->item[i];

        if (strcmp(key->text, "model") != 0)
            continue;
        memmove(&lists->key[1], &lists->key[0], i * sizeof(struct node *));
        memmove(&lists->item[1], &lists->item[0], i * sizeof(struct node *));
        lists->key[0] = key;
        lists->item[0] = item;
    }
}

/* Returns the pairs of a map with expanded sections: the lists of matrix or zip or, if `lists`
 * exist already, values of them. */
static void flatten_map(struct tree *tree, const char *of, const struct node *map,
                        const struct node *before, const struct node *lists, struct node *out)
{
    bool top = before == NULL && lists == NULL;

    for (uint32_t i = 0; i < map->n; i++) {
        struct node *key = map->key[i], *item = map->item[i];

        if (top && strcmp(of, "matrix") == 0 &&
            (strcmp(key->text, "exclude") == 0 || strcmp(key->text, "include") == 0))
            continue;
        if (before != NULL)
            key =
                tree_word(tree->arena, arena_printf(tree->arena, "%s.%s", before->text, key->text),
                          &key->location);
        if (top && reject_batch_key(tree, key, of))
            continue;
        if (lists != NULL && node_find(lists, key->text) != NULL)
            node_set(tree->arena, out, key, item);
        else if (item->kind == NODE_MAP)
            flatten_map(tree, of, item, key, lists, out);
        else if (lists != NULL)
            diag_error(tree->diag, &key->location, NULL,
                       "exclude: %.64s is not a key of the matrix", key->text);
        else
            add_list(tree, of, key, item, out);
    }
}

/* Reads the values to leave out, as lists of flat maps. */
static struct node *read_rules(struct tree *tree, const struct node *lists,
                               const struct node *exclude)
{
    const struct node *maps = maps_of(tree, exclude, "exclude");
    struct node *rules = make_here(tree, NODE_LIST);

    for (uint32_t i = 0; i < maps->n; i++) {
        struct node *item = maps->item[i];
        struct node *rule = node_make(tree->arena, NODE_MAP, &item->location);

        flatten_map(tree, "exclude", item, NULL, lists, rule);
        if (item->n == 0)
            diag_error(tree->diag, &item->location, NULL, "exclude: this leaves no run");
        node_append(tree->arena, rules, NULL, rule);
    }
    return rules;
}

static bool matches(const struct node *rule, const struct node *point)
{
    for (uint32_t i = 0; i < rule->n; i++)
        if (!tree_equal(rule->item[i], node_find(point, rule->key[i]->text)))
            return false;
    return true;
}

/* Builds all combinations that no rule excludes; used[i]: rule i excluded one. */
static void cross_lists(struct tree *tree, const struct node *lists, const struct node *rules,
                        bool *used, uint32_t most, struct node *out)
{
    uint32_t at[LISTS] = {0}, i;

    do {
        struct node *point = make_here(tree, NODE_MAP);
        bool excluded = false;

        for (i = 0; i < lists->n; i++)
            node_append(tree->arena, point, lists->key[i], lists->item[i]->item[at[i]]);
        for (i = 0; i < rules->n; i++)
            if (matches(rules->item[i], point))
                used[i] = excluded = true;
        if (!excluded)
            node_append(tree->arena, out, NULL, point);
        for (i = lists->n; i > 0 && ++at[i - 1] == lists->item[i - 1]->n; i--)
            at[i - 1] = 0;
    } while (i > 0 && out->n <= most);
}

static void add_included(struct tree *tree, const struct node *include, struct node *out)
{
    const struct node *maps = maps_of(tree, include, "include");

    for (uint32_t i = 0; i < maps->n; i++) {
        points_check_overrides(tree, maps->item[i], "include");
        node_append(tree->arena, out, NULL, maps->item[i]);
    }
}

static void read_matrix(struct tree *tree, const struct node *node, uint32_t most, struct node *out)
{
    uint32_t before = diag_errors(tree->diag);
    struct node *lists = make_here(tree, NODE_MAP), *rules;
    uint64_t steps = 1;
    bool *used;

    flatten_map(tree, "matrix", node, NULL, NULL, lists);
    move_model_first(lists);
    rules = read_rules(tree, lists, node_find(node, "exclude"));
    for (uint32_t i = 0; i < lists->n && steps <= STEPS_MOST; i++)
        steps *= lists->item[i]->n;
    if (diag_errors(tree->diag) == before && steps > STEPS_MOST)
        diag_error(tree->diag, &node->location, NULL, "the matrix has more than %d points",
                   STEPS_MOST);
    if (diag_errors(tree->diag) != before)
        return;
    used = arena_alloc(tree->arena, rules->n + 1);
    if (lists->n > 0)
        cross_lists(tree, lists, rules, used, most, out);
    for (uint32_t i = 0; i < rules->n && out->n <= most; i++)
        if (!used[i])
            diag_error(tree->diag, &rules->item[i]->location, "a value must be as in its list",
                       "exclude: no point of the matrix has these values");
    add_included(tree, node_find(node, "include"), out);
    if (out->n == 0 && diag_errors(tree->diag) == before)
        diag_error(tree->diag, &node->location, NULL, "the matrix has no points");
}

static void read_zip(struct tree *tree, const struct node *node, uint32_t most, struct node *out)
{
    uint32_t before = diag_errors(tree->diag);
    struct node *lists = make_here(tree, NODE_MAP);

    flatten_map(tree, "zip", node, NULL, NULL, lists);
    for (uint32_t i = 1; i < lists->n; i++) {
        if (lists->item[i]->n == lists->item[0]->n)
            continue;
        diag_error(tree->diag, &lists->item[i]->location, "lists of zip are of one length",
                   "zip: %.64s has %u values, and %.64s has %u", lists->key[i]->text,
                   lists->item[i]->n, lists->key[0]->text, lists->item[0]->n);
        diag_note(tree->diag, &lists->item[0]->location, "that is here");
    }
    if (diag_errors(tree->diag) == before && lists->n == 0)
        diag_error(tree->diag, &node->location, NULL, "zip has no lists");
    if (diag_errors(tree->diag) != before)
        return;
    for (uint32_t v = 0; v < lists->item[0]->n && v <= most; v++) {
        struct node *point = make_here(tree, NODE_MAP);

        for (uint32_t i = 0; i < lists->n; i++)
            node_append(tree->arena, point, lists->key[i], lists->item[i]->item[v]);
        node_append(tree->arena, out, NULL, point);
    }
}

struct node *points_read(struct tree *tree, const char *of, uint32_t most)
{
    const struct node *node = node_find(tree->root, of);
    struct node *out = make_here(tree, NODE_LIST);
    bool matrix = strcmp(of, "matrix") == 0;

    if (node == NULL)
        node_append(tree->arena, out, NULL, make_here(tree, NODE_MAP));
    else if (is_map(tree, node, of,
                    matrix ? "such as {moe.max_tokens: [1, 8, 128]}"
                           : "such as {ranks: [2, 4], moe.experts: [8, 16]}"))
        (matrix ? read_matrix : read_zip)(tree, node, most, out);
    return out;
}

static bool differ_in(const struct node *a, const struct node *b, const char *key)
{
    const struct node *x = node_find(a, key), *y = node_find(b, key);

    return x == NULL || y == NULL ? x != y : x != y && !tree_equal(x, y);
}

struct node *points_varying(struct arena *arena, const struct node *points)
{
    const struct node *first = points->n > 0 ? points->item[0] : NULL;
    struct node *out = node_make(arena, NODE_MAP, &points->location);

    for (uint32_t i = 1; i < points->n; i++) {
        const struct node *sides[] = {first, points->item[i]};

        for (uint32_t s = 0; s < 2; s++)
            for (uint32_t k = 0; k < sides[s]->n; k++)
                if (node_find(out, sides[s]->key[k]->text) == NULL &&
                    differ_in(first, points->item[i], sides[s]->key[k]->text))
                    node_append(arena, out, sides[s]->key[k], sides[s]->item[k]);
    }
    return out;
}

enum epa_status experiment_plan(struct experiment *x, uint32_t flags, struct epa_error *err)
{
    uint32_t local = x->problem.ranks_per_node == 0 ? x->problem.ranks : x->problem.ranks_per_node;
    const struct epa_world world = {
        .size = x->problem.ranks, .local_size = local, .local_cores = 1};
    struct epa_problem problem = operation_problem(x, 0);

    return ep_plan(&x->algorithm, &problem, &world, flags, &x->footprint, err);
}

/* Plans for an experiment with another number of ranks, by arithmetic only. */

/* Plans for fewer ranks, half as many each time, until the algorithm accepts the number, and for
 * half of this number. Extrapolates the resources of a rank linearly. Returns false if the
 * algorithm accepts no number. */
static bool plan_beyond(struct experiment *x, uint32_t flags, uint32_t *planned)
{
    struct experiment most = *x, half;
    struct epa_footprint *f = &x->footprint;
    struct epa_error ignored = {EPA_OK, ""};
    double steps;

    for (most.problem.ranks = x->problem.ranks / 2; most.problem.ranks >= 4;
         most.problem.ranks /= 2) {
        if (most.problem.ranks_per_node > most.problem.ranks)
            most.problem.ranks_per_node = 0;
        half = most;
        half.problem.ranks /= 2;
        if (half.problem.ranks_per_node > half.problem.ranks)
            half.problem.ranks_per_node = 0;
        if (experiment_plan(&most, flags, &ignored) == EPA_OK &&
            experiment_plan(&half, flags, &ignored) == EPA_OK)
            break;
    }
    if (most.problem.ranks < 4)
        return false;
    steps =
        (double)(x->problem.ranks - most.problem.ranks) / (most.problem.ranks - half.problem.ranks);
    *f = most.footprint;
    f->heap_bytes +=
        (uint64_t)(steps * fmax(0, (double)f->heap_bytes - (double)half.footprint.heap_bytes));
    f->private_bytes += (uint64_t)(steps * fmax(0, (double)f->private_bytes -
                                                       (double)half.footprint.private_bytes));
    f->device_bytes +=
        (uint64_t)(steps * fmax(0, (double)f->device_bytes - (double)half.footprint.device_bytes));
    *planned = most.problem.ranks;
    return true;
}

enum epa_status experiment_resize(const struct experiment *from, uint32_t ranks,
                                  uint32_t ranks_per_node, struct diag *diag,
                                  struct experiment *out, uint32_t *planned)
{
    struct experiment x = *from;
    const struct operation *op = operation_of_experiment(&x);
    const struct operation_checks *checks = operation_checks_of(op->op);
    const struct config_check c = {&x, diag, checks->check_options, NULL};
    const struct source_location nowhere = {.file = x.file};
    uint32_t flags = experiment_transport_flags(&x), before = diag_errors(diag);
    struct epa_error err = {EPA_OK, ""};

    *planned = x.problem.ranks = ranks;
    x.problem.ranks_per_node = ranks_per_node < ranks ? ranks_per_node : 0;
    if (x.problem.ranks_per_node != 0 && (flags & EPA_TRANSPORT_NODES) == 0)
        flags = (flags & ~(uint32_t)EPA_TRANSPORT_LOAD_STORE) | EPA_TRANSPORT_NODES;
    if (x.problem.ranks_per_node != 0 && ranks % ranks_per_node != 0)
        diag_error(diag, &nowhere, NULL, "ranks_per_node (%u) does not divide ranks (%u)",
                   ranks_per_node, ranks);
    if (x.problem.tokens.kind == TOKENS_LIST && x.problem.tokens.per_rank.n != ranks)
        diag_error(diag, &nowhere, NULL, "tokens is a list for %u ranks",
                   x.problem.tokens.per_rank.n);
    checks->check_options(&c);
    if (diag_errors(diag) == before && experiment_plan(&x, flags, &err) != EPA_OK &&
        !plan_beyond(&x, flags, planned))
        diag_error(diag, &nowhere, NULL, "%s", err.text);
    if (diag_errors(diag) != before)
        return EPA_ERR_CONFIG;
    *out = x;
    return EPA_OK;
}
