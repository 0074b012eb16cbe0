/* Environment variables in the values of a file: ${NAME} and ${NAME:-default}. */
#ifndef CONFIG_EXPAND_H
#define CONFIG_EXPAND_H

#include <stdbool.h>

#include "config/node.h"

struct arena;
struct diag;
struct text;

/* Replaces ${NAME} and ${NAME:-default} in the text of a scalar that was just read; $${ is a
 * literal ${. The inserted text is not expanded again and stays text: it creates no lists or maps.
 * Returns false after an error was reported; the scalar is then marked as refused. */
bool expand_scalar(struct arena *, struct diag *, struct node *);

/* Adds `text` in the notation of a file that reads back as this text. */
void expand_escape(const char *text, struct text *out);

#endif
