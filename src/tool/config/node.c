/* Nodes of a YAML text. */
#include "config/node.h"

#include <string.h>

#include "base/memory.h"

struct node *node_make(struct arena *arena, enum node_kind kind,
                       const struct source_location *location)
{
    struct node *node = arena_alloc(arena, sizeof(*node));

    node->kind = kind;
    node->location = *location;
    node->text = "";
    return node;
}

/* Doubles the capacity whenever n is a power of two. */
void node_append(struct arena *arena, struct node *node, struct node *key, struct node *item)
{
    if ((node->n & (node->n - 1)) == 0) {
        size_t bytes = (node->n == 0 ? 1 : 2 * (size_t)node->n) * sizeof(struct node *);
        struct node **keys = arena_alloc(arena, bytes), **items = arena_alloc(arena, bytes);

        if (node->n != 0) {
            memcpy(keys, node->key, node->n * sizeof(*keys));
            memcpy(items, node->item, node->n * sizeof(*items));
        }
        node->key = keys;
        node->item = items;
    }
    node->key[node->n] = key;
    node->item[node->n++] = item;
}

static int32_t find_key(const struct node *map, const char *key)
{
    if (map != NULL && map->kind == NODE_MAP)
        for (uint32_t i = 0; i < map->n; i++)
            if (strcmp(map->key[i]->text, key) == 0)
                return (int32_t)i;
    return -1;
}

struct node *node_find(const struct node *map, const char *key)
{
    int32_t i = find_key(map, key);

    return i < 0 ? NULL : map->item[i];
}

void node_set(struct arena *arena, struct node *map, struct node *key, struct node *value)
{
    int32_t i = find_key(map, key->text);

    if (i < 0) {
        node_append(arena, map, key, value);
        return;
    }
    map->key[i] = key;
    map->item[i] = value;
}

/* Moves the following pairs up, since node_append() derives the capacity from n. */
void node_drop(struct node *map, const char *key)
{
    int32_t i = find_key(map, key);

    if (i < 0)
        return;
    for (uint32_t j = (uint32_t)i; j + 1 < map->n; j++) {
        map->key[j] = map->key[j + 1];
        map->item[j] = map->item[j + 1];
    }
    map->n--;
}

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
