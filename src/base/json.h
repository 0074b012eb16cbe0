/* JSON documents: values that are null where there is nothing, and objects that are NULL, rather
 * than with holes, once memory ran out anywhere in them. All return new references. */
#ifndef JSON_H
#define JSON_H

#include <jansson.h>
#include <stdint.h>

#include "base/text.h"

/* Host names, paths, labels and the environment may hold any bytes: what is not UTF-8 has a ? for
 * each byte beyond ASCII. */
json_t *json_text(const char *bytes);
json_t *json_text_or_null(const char *bytes); /* null: NULL or empty */
json_t *json_count(uint64_t);                 /* null: above INT64_MAX */
json_t *json_count_or_null(uint64_t);         /* null: 0 */
json_t *json_number(double);                  /* null: not finite */
json_t *json_whole(double);                   /* rounded; null: not finite */

/* Keys (const char *) and values (json_t *, which are taken), ended by NULL. */
json_t *json_object_of(const char *key, ...) __attribute__((sentinel));
/* Adds to an object or a list, which is NULL from then on if that fails. */
void json_put(json_t **object, const char *key, json_t *value);
void json_add(json_t **list, json_t *value);

/* Writes a value, which is taken, with jansson's flags and 9 digits; false: no memory. */
bool json_write(struct text *out, json_t *value, size_t flags);

/* The string of a key; "": it has none. */
const char *json_text_at(const json_t *object, const char *key);

#endif
