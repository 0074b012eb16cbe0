/* ${NAME} and ${NAME:-default} in a value of a file: what the environment has. */
#ifndef EXPAND_H
#define EXPAND_H

#include "config/node.h"

/* Replaces them in the text of a scalar that was just read; $${ is a literal ${. What is
 * put in is not looked at again and stays text: it makes no lists or maps. False: told why
 * not, and the scalar is marked as refused. */
bool expand_scalar(struct arena *, struct diag *, struct node *);

/* As a value of a file has to be written to come out as `text`. */
void expand_escape(const char *text, struct text *out);

#endif
