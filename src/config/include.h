/* A file and, below it, the one that its `include:` names. */
#ifndef INCLUDE_H
#define INCLUDE_H

#include "config/node.h"

/* As yaml_read(); what is included is in the tree, and `include` no longer. */
enum epa_status include_read(struct arena *, const char *file, struct diag *, struct node **out);

#endif
