/* JSON by jansson. */
#include "base/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

json_t *json_text(const char *bytes)
{
    json_t *value = json_string(bytes);
    char *clean;

    if (value != NULL || (clean = strdup(bytes)) == NULL)
        return value;
    for (char *c = clean; *c != 0; c++)
        *c = (unsigned char)*c >= 0x80 ? '?' : *c;
    value = json_string(clean);
    free(clean);
    return value;
}

json_t *json_text_or_null(const char *bytes)
{
    return bytes != NULL && bytes[0] != 0 ? json_text(bytes) : json_null();
}

json_t *json_count(uint64_t n)
{
    return n > INT64_MAX ? json_null() : json_integer((json_int_t)n);
}

json_t *json_count_or_null(uint64_t n)
{
    return n != 0 ? json_count(n) : json_null();
}

json_t *json_number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

json_t *json_whole(double x)
{
    return isfinite(x) ? json_integer((json_int_t)llround(x)) : json_null();
}

void json_put(json_t **object, const char *key, json_t *value)
{
    if (json_object_set_new(*object, key, value) == 0)
        return;
    json_decref(*object);
    *object = NULL;
}

void json_add(json_t **list, json_t *value)
{
    if (json_array_append_new(*list, value) == 0)
        return;
    json_decref(*list);
    *list = NULL;
}

json_t *json_object_of(const char *key, ...)
{
    json_t *object = json_object();
    va_list args;

    va_start(args, key);
    for (; key != NULL; key = va_arg(args, const char *))
        json_put(&object, key, va_arg(args, json_t *));
    va_end(args);
    return object;
}

bool json_write(struct text *out, json_t *value, size_t flags)
{
    char *dump = value != NULL ? json_dumps(value, flags | JSON_REAL_PRECISION(9)) : NULL;

    json_decref(value);
    if (dump != NULL)
        text_add_bytes(out, dump, strlen(dump));
    free(dump);
    return dump != NULL;
}

const char *json_text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL ? text : "";
}
