/* Sentences with values of a JSON object. */
#ifndef FILL_JSON_H
#define FILL_JSON_H

#include "base/json.h"
#include "base/text.h"

/* fill_add() adds `form` with the values of `of`, each escaped by `escape` (NULL: unchanged);
 * returns false, and adds nothing, if a value is unknown. The other function prints the text like
 * text_comment() of lines.h. */
bool fill_add(struct text *out, const char *form, const json_t *of,
              void (*escape)(struct text *, const char *));
void fill_comment(FILE *, const char *form, const json_t *of);

#endif
