/* What the parts of a result's JSON share: values that are null where there is nothing. */
#ifndef REPORT_JSON_PARTS_H
#define REPORT_JSON_PARTS_H

#include <jansson.h>
#include <math.h>

#include "base/json_text.h"
#include "report/result.h"

/* Set once memory ran out anywhere: no document then, rather than one with holes. */
struct build {
    bool lost;
};

static inline void set(struct build *b, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0)
        b->lost = true;
}

static inline void append(struct build *b, json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0)
        b->lost = true;
}

static inline json_t *text_or_null(const char *bytes)
{
    return bytes != NULL && bytes[0] != 0 ? json_text(bytes) : json_null();
}

static inline json_t *count(uint64_t n)
{
    return json_integer((json_int_t)n);
}

/* 0 stands for "could not be read" in facts. */
static inline json_t *count_or_null(uint64_t n)
{
    return n != 0 ? count(n) : json_null();
}

static inline json_t *real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static inline json_t *whole(double x)
{
    return isfinite(x) ? json_integer((json_int_t)llround(x)) : json_null();
}

/* ---- report_json_where.c: what ran, and where ---- */

json_t *report_json_experiment(struct build *, const struct experiment *);
json_t *report_json_context(struct build *, const struct facts *);
json_t *report_json_machine(struct build *, const struct result *);
json_t *report_json_world(struct build *, const struct session *);

#endif
