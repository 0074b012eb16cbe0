/* YAML text to a tree of nodes that know their place, made by yaml.c on libyaml's event API
 * with limits: 1 MiB of text, 64 KiB for one value, depth 64, 100,000 nodes, 10,000 nodes
 * expanded from aliases. Duplicate keys, `<<` and tags are refused. (libyaml owns the name
 * yaml.h.) */
#ifndef NODE_H
#define NODE_H

#include <epa2a/status.h>
#include <stdbool.h>
#include <stdint.h>

#include "config/diag.h"

struct arena;
struct text;

enum node_kind { NODE_SCALAR, NODE_MAP, NODE_LIST };

struct node {
    enum node_kind kind;
    struct source_location location;
    const char *text;      /* scalar: its value; never NULL there */
    bool quoted;           /* scalar: in quotes, so a string whatever it looks like */
    const char *variables; /* scalar: of the environment, that are in it; or NULL */
    bool refused;          /* an error was told about it: no second one need be */
    uint32_t n;            /* map: pairs; list: items */
    struct node **key;     /* map: [n] scalars */
    struct node **item;    /* map: [n] values; list: [n] items */
};

/* A file's values may have ${NAME} in them, other text not. All errors go to diag. *out is NULL if
 * there is no tree to go on with. `name` is what messages call the text; text and name are copied
 * into the arena. */
enum epa_status yaml_parse(struct arena *, const char *name, const char *text, size_t bytes,
                           struct diag *, struct node **out);
enum epa_status yaml_read(struct arena *, const char *path, struct diag *, struct node **out);

/* As yaml_parse() of what stands in the line `text` from byte `from` on (all before it is
 * one byte a column); places count from the start of the line. For --set key=value. */
enum epa_status yaml_parse_value(struct arena *, const char *name, const char *text, size_t from,
                                 struct diag *, struct node **out);

/* The value of `key`; NULL if there is none, or `map` is NULL or no map. */
struct node *node_find(const struct node *map, const char *key);
struct node *node_make(struct arena *, enum node_kind, const struct source_location *);
/* At the end; key is NULL in a list. Does not look for the same key. */
void node_append(struct arena *, struct node *, struct node *key, struct node *item);
/* Adds the pair, or puts key and value in place of the pair of that key. */
void node_set(struct arena *, struct node *map, struct node *key, struct node *value);
/* Takes the pair of `key` out, if there is one. */
void node_drop(struct node *map, const char *key);

#endif
