/* Changes to an experiment's tree before it is read: --set, the keys of a run, and a file
 * laid over the one that it includes. */
#ifndef TREE_H
#define TREE_H

#include "config/node.h"

/* The tree of one file, and where what is wrong goes. */
struct tree {
    struct arena *arena;
    struct diag *diag;
    struct node *root; /* a map */
};

struct section;

struct node *tree_word(struct arena *, const char *text, const struct source_location *);
/* All of it anew, so that one run can change it and another not; texts are shared. */
struct node *tree_copy(struct arena *, const struct node *);
bool tree_equal(const struct node *, const struct node *);

/* `transport: shm` as `transport: {name: shm}`, a list of `tokens` as a map; anything else
 * as it is. The section may be NULL. */
struct node *tree_whole(struct arena *, const struct section *, struct node *value);

/* Lays `over` on the tree. Maps are merged key by key; one that names the plugin or the kind
 * stands for the whole section, as a bare value does. With `dotted`, "bench.warmup" is a key
 * of the section `bench`. `over` is copied. */
void tree_lay(struct tree *, const struct node *over, bool dotted);

/* As yaml_read(), with what the file includes, and `include` no longer. */
enum epa_status tree_read_file(struct arena *, const char *file, struct diag *, struct node **out);

/* --set "key=value". In matrix and zip, keys have points in them: what is behind the first
 * point is one key. */
void tree_set(struct tree *, const char *argument);

#endif
