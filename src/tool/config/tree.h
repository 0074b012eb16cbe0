/* Changes to an experiment's tree before it is read: --set, the keys of a run, and files that
 * override the files that they include. */
#ifndef TREE_H
#define TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <epa2a/status.h>

#include "config/node.h"

struct arena;
struct diag;

/* The tree of one file, and its error collector. */
struct tree {
    struct arena *arena;
    struct diag *diag;
    struct node *root; /* a map */
};

struct section;

/* Returns `transport: shm` as `transport: {name: shm}`, and a list of `tokens` as a map; returns
 * other values unchanged. The section may be NULL. */
struct node *tree_whole(struct arena *, const struct section *, struct node *value);

/* Merges a copy of `over` into the tree, key by key. A map that names the plugin or the kind
 * replaces the whole section, like a bare value, except for keys of a model. With `dotted`,
 * "bench.warmup" is a key of the section `bench`. `model: NAME` first merges that model into the
 * tree. */
void tree_lay(struct tree *, const struct node *over, bool dotted);

/* Replaces `model: NAME` at the top by the keys of that model, below all other keys. */
void tree_expand_model(struct tree *);

/* Returns a path relative to the folder of the file that names it. */
const char *tree_beside(struct arena *, const char *file, const char *path);

/* Reads a file, the files that it includes, and models. The tree has no `include`. */
enum epa_status tree_read_file(struct arena *, const char *file, struct diag *, struct node **out);

/* Applies --set "key=value". In matrix and zip, keys contain dots: the text after the first dot is
 * one key. */
void tree_set(struct tree *, const char *argument);

#endif
