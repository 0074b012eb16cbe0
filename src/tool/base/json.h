/* JSON documents: missing values are null. All functions return new references. After a failed
 * allocation the program ends: main() sets memory_alloc() in jansson. */
#ifndef JSON_H
#define JSON_H

#include <jansson.h>
#include <stdint.h>

#include "base/text.h"

/* Returns a string. Host names, paths, labels and the environment may contain any bytes: in invalid
 * UTF-8 each byte beyond ASCII becomes ?. */
json_t *json_text(const char *bytes);
json_t *json_text_or_null(const char *bytes); /* null: NULL or empty */
json_t *json_count(uint64_t);                 /* null: above INT64_MAX */
json_t *json_count_or_null(uint64_t);         /* null: 0 */
json_t *json_number(double); /* with JSON_DIGITS, equal to the value read back; null: not finite */
json_t *json_whole(double);  /* rounded; null: not finite */

/* Returns an object from keys (const char *) and values (json_t *, references are taken), ended by
 * NULL. */
json_t *json_object_of(const char *key, ...) __attribute__((sentinel));

/* Adds a value, with jansson's flags; JSON_DIGITS: significant digits of a measurement. */
enum { JSON_DIGITS = JSON_REAL_PRECISION(9) };
void json_write(struct text *out, const json_t *value, size_t flags);

/* Returns the value at a path such as "build.type" or "ranks.0.pid"; NULL: none. The next functions
 * return its string, or "" for another type, and its number, or NaN for another type. */
json_t *json_at(const json_t *, const char *path);
const char *json_text_at(const json_t *, const char *path);
double json_number_at(const json_t *, const char *path);
/* Sets a value, whose reference is taken, at such a path of objects, and creates missing
 * objects. */
void json_set_at(json_t *, const char *path, json_t *value);
/* Returns the first item of a list with this string at a path; NULL: none. */
json_t *json_find(const json_t *list, const char *path, const char *text);

/* Iterates over the items of a list, or the values of an object with their keys; other types have
 * no items:
 *     for (struct json_walk row = {rows}; json_next(&row);) */
struct json_walk {
    const json_t *of;
    json_t *value;
    const char *key;
    size_t n; /* number of values so far, including this one */
    void *place;
};
bool json_next(struct json_walk *);

#endif
