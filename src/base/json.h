/* JSON documents: values that are null where there is nothing. All return new references. Where
 * memory ends, so does the program: main() gives jansson memory_alloc(). */
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
json_t *json_number(double); /* with JSON_DIGITS, as it is read again; null: not finite */
json_t *json_whole(double);                   /* rounded; null: not finite */

/* Keys (const char *) and values (json_t *, which are taken), ended by NULL. */
json_t *json_object_of(const char *key, ...) __attribute__((sentinel));

/* Adds a value, with jansson's flags; JSON_DIGITS: as many of a number as a measurement has. */
enum { JSON_DIGITS = JSON_REAL_PRECISION(9) };
void json_write(struct text *out, const json_t *value, size_t flags);

/* What is at a path such as "build.type" or "ranks.0.pid"; NULL: nothing. Then its string, "" for
 * anything else, and its number, NaN for anything else. */
json_t *json_at(const json_t *, const char *path);
const char *json_text_at(const json_t *, const char *path);
double json_number_at(const json_t *, const char *path);
/* Puts a value, which is taken, at such a path of objects, which are made where there are none. */
void json_set_at(json_t *, const char *path, json_t *value);
/* The first of a list whose string at a path is that; NULL: none. */
json_t *json_find(const json_t *list, const char *path, const char *text);

/* The items of a list, or the values of an object with their keys; anything else has none:
 *     for (struct json_walk row = {rows}; json_next(&row);) */
struct json_walk {
    const json_t *of;
    json_t *value;
    const char *key;
    size_t n; /* values so far, this one included */
    void *place;
};
bool json_next(struct json_walk *);

#endif
