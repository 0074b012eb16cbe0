/* JSON by jansson. */
#include "base/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

json_t *json_text(const char *bytes)
{
    json_t *value = json_string(bytes);
    char *clean;

    if (value != NULL)
        return value;
    clean = memory_printf("%s", bytes);
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
    char text[32];

    if (!isfinite(x))
        return json_null();
    if (fabs(x) >= 1e9 || x != floor(x)) {
        snprintf(text, sizeof(text), "%.9g", x); /* JSON_DIGITS */
        x = strtod(text, NULL);
    }
    return json_real(x);
}

json_t *json_whole(double x)
{
    return isfinite(x) ? json_integer((json_int_t)llround(x)) : json_null();
}

json_t *json_object_of(const char *key, ...)
{
    json_t *object = json_object();
    va_list args;

    va_start(args, key);
    for (; key != NULL; key = va_arg(args, const char *))
        json_object_set_new(object, key, va_arg(args, json_t *));
    va_end(args);
    return object;
}

static int add_piece(const char *piece, size_t bytes, void *out)
{
    text_add_bytes(out, piece, bytes);
    return 0;
}

void json_write(struct text *out, const json_t *value, size_t flags)
{
    json_dump_callback(value, add_piece, out, flags);
}

json_t *json_at(const json_t *at, const char *path)
{
    for (size_t n; at != NULL && *path != '\0'; path += n + (path[n] == '.')) {
        n = strcspn(path, ".");
        at = json_is_array(at) ? json_array_get(at, strtoul(path, NULL, 10))
                               : json_object_getn(at, path, n);
    }
    return (json_t *)at;
}

const char *json_text_at(const json_t *at, const char *path)
{
    const char *text = json_string_value(json_at(at, path));

    return text != NULL ? text : "";
}

double json_number_at(const json_t *at, const char *path)
{
    const json_t *value = json_at(at, path);

    return json_is_number(value) ? json_number_value(value) : NAN;
}

void json_set_at(json_t *object, const char *path, json_t *value)
{
    for (const char *dot; (dot = strchr(path, '.')) != NULL; path = dot + 1) {
        json_t *next = json_object_getn(object, path, (size_t)(dot - path));

        if (next == NULL) {
            next = json_object();
            json_object_setn_new(object, path, (size_t)(dot - path), next);
        }
        object = next;
    }
    json_object_set_new(object, path, value);
}

json_t *json_find(const json_t *list, const char *path, const char *text)
{
    for (struct json_walk one = {list}; json_next(&one);)
        if (strcmp(json_text_at(one.value, path), text) == 0)
            return one.value;
    return NULL;
}

bool json_next(struct json_walk *w)
{
    json_t *of = (json_t *)(uintptr_t)w->of;

    if (json_is_object(of)) {
        w->place = w->n == 0 ? json_object_iter(of) : json_object_iter_next(of, w->place);
        w->key = json_object_iter_key(w->place);
        w->value = json_object_iter_value(w->place);
    } else {
        w->value = json_array_get(of, w->n);
    }
    w->n++;
    return w->value != NULL;
}
