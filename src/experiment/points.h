/* What `matrix:` and `zip:` say of runs: a list of points, maps of keys to values. */
#ifndef POINTS_H
#define POINTS_H

#include "config/tree.h"

/* Points of `matrix` or `zip` at the top of the tree; one that says nothing where there is none. More
 * than `most` are one more. What is wrong goes to the tree's diag. */
struct node *points_read(struct tree *, const char *of, uint32_t most);

/* Refuses keys of the file as a whole in what is laid over it. */
void points_check_overrides(struct tree *, const struct node *map, const char *of);

/* Whether two points differ in that key. */
bool points_vary(const struct node *points, const char *key);

#endif
