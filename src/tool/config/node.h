/* Nodes of a YAML text: scalars, maps and lists with their source locations. */
#ifndef CONFIG_NODE_H
#define CONFIG_NODE_H

#include <stdbool.h>
#include <stdint.h>

struct arena;

/* A source location: file:line:column, 1-based, and the number of columns that the caret
 * underlines. `file` is "--set" for a value from the command line; `source` is its whole text, for
 * the snippet. */
struct source_location {
    const char *file, *source;
    uint32_t line, column, width;
};

enum node_kind { NODE_SCALAR, NODE_MAP, NODE_LIST };

struct node {
    enum node_kind kind;
    struct source_location location;
    const char *text;      /* scalar: its value; never NULL there */
    bool quoted;           /* scalar: in quotes, so always a string */
    const char *variables; /* scalar: environment variables in its text; or NULL */
    bool refused;          /* an error about the node was reported: no second report is needed */
    bool from_model;       /* the node comes from a model (config/model.h), not from the user */
    uint32_t n;            /* map: pairs; list: items */
    struct node **key;     /* map: [n] scalars */
    struct node **item;    /* map: [n] values; list: [n] items */
};

/* Returns the value of `key`; NULL if the key is missing, or `map` is NULL or not a map. */
struct node *node_find(const struct node *map, const char *key);
struct node *node_make(struct arena *, enum node_kind, const struct source_location *);
/* Appends a pair or item; key is NULL in a list. Does not search for an equal key. */
void node_append(struct arena *, struct node *, struct node *key, struct node *item);
/* Adds the pair, or replaces key and value of the existing pair. */
void node_set(struct arena *, struct node *map, struct node *key, struct node *value);
/* Removes the pair of `key`, if it exists. */
void node_drop(struct node *map, const char *key);

struct node *tree_word(struct arena *, const char *text, const struct source_location *);
/* Returns a deep copy that one run can change; texts are shared. */
struct node *tree_copy(struct arena *, const struct node *);
bool tree_equal(const struct node *, const struct node *);

#endif
