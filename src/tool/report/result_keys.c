/* Lists of keys, and the notation of JSON for their values. */
#include "report/result_keys.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "config/experiment.h"
#include "config/experiment_show.h"
#include "session/session.h"

/* ---- notation ---- */

static bool is_utf8(const char *text)
{
    uint32_t point;

    for (size_t n; *text != '\0'; text += n) {
        n = text_decode(text, &point);
        if (n == 0)
            return false;
    }
    return true;
}

const char *key_text(struct arena *arena, const char *text)
{
    char *copy = arena_printf(arena, "%s", text);

    if (is_utf8(copy))
        return copy;
    for (char *c = copy; *c != '\0'; c++)
        *c = (unsigned char)*c >= 0x80 ? '?' : *c;
    return copy;
}

void key_add_quoted(struct text *out, const char *text)
{
    static const char escaped[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    bool valid = is_utf8(text);

    text_add(out, "\"");
    for (const char *c = text; *c != '\0'; c++) {
        const char *at = strchr(escaped, *c);

        if (at != NULL)
            text_add(out, "\\%c", letter[at - escaped]);
        else if ((unsigned char)*c < 0x20)
            text_add(out, "\\u%04X", (unsigned)*c);
        else
            text_add(out, "%c", (unsigned char)*c >= 0x80 && !valid ? '?' : *c);
    }
    text_add(out, "\"");
}

/* 1.0, 2.5e-7 */
void key_add_real(struct text *out, double x)
{
    char digits[32];
    const char *e;

    snprintf(digits, sizeof(digits), "%.9g", x);
    e = strchr(digits, 'e');
    if (e != NULL)
        text_add(out, "%.*se%ld", (int)(e - digits), digits, strtol(e + 1, NULL, 10));
    else
        text_add(out, "%s%s", digits, strchr(digits, '.') == NULL ? ".0" : "");
}

/* ---- lists ---- */

void key_list_add(struct key_list *list, const char *path, const char *value, const char *shown)
{
    struct results_key *grown;

    if (list->n == list->room) {
        list->room = 2 * list->room + 64;
        grown = arena_alloc(list->arena, list->room * sizeof(*grown));
        for (uint32_t i = 0; i < list->n; i++)
            grown[i] = list->key[i];
        list->key = grown;
    }
    list->key[list->n++] = (struct results_key){.path = arena_printf(list->arena, "%s", path),
                                                .value = arena_printf(list->arena, "%s", value),
                                                .shown = arena_printf(list->arena, "%s", shown),
                                                .is_means = key_role_of(path) == KEY_MEANS};
}

void key_list_add_null(struct key_list *list, const char *path)
{
    key_list_add(list, path, "null", "null");
}

void key_list_add_text(struct key_list *list, const char *path, const char *value)
{
    text_auto shown = {0};

    key_add_quoted(&shown, value);
    key_list_add(list, path, key_text(list->arena, value), shown.data);
}

void key_list_add_count(struct key_list *list, const char *path, uint64_t value)
{
    char digits[24];

    snprintf(digits, sizeof(digits), "%" PRIu64, value);
    key_list_add(list, path, digits, digits);
}

void key_list_add_real(struct key_list *list, const char *path, double value)
{
    text_auto digits = {0};

    if (isfinite(value))
        key_add_real(&digits, value);
    else
        text_add(&digits, "null");
    key_list_add(list, path, digits.data, digits.data);
}

/* Adds a value of an experiment. Only numbers, lists of whole numbers, true and false are unquoted. */
static void add_experiment_value(void *arg, const struct experiment_value *v)
{
    struct key_list *list = arg;
    text_auto plain = {0};

    if (v->quoted) {
        key_list_add_text(list, v->path, v->value);
        return;
    }
    if (v->value[0] != '[' && strpbrk(v->value, ".0123456789") == v->value &&
        strpbrk(v->value, ".e") != NULL)
        key_add_real(&plain, strtod(v->value, NULL));
    else
        for (const char *c = v->value; *c != '\0'; c++)
            text_add_bytes(&plain, c, *c != ' ');
    key_list_add(list, v->path, plain.data, plain.data);
}

uint32_t experiment_keys(const struct experiment *x, struct arena *arena, struct results_key **out)
{
    struct key_list list = {.arena = arena};

    experiment_visit(x, add_experiment_value, &list);
    *out = list.key;
    return list.n;
}

void device_keys_add(struct key_list *list, const struct session_facts *device)
{
    for (uint32_t i = 0; i < device->n; i++) {
        text_auto path = {0};

        text_add(&path, "device.%s", device->fact[i].key);
        key_list_add_text(list, path.data, device->fact[i].value);
    }
    if (device->n == 0)
        key_list_add_null(list, "device");
}

const struct results_key *key_find(const struct results_key *key, uint32_t n, const char *path)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(key[i].path, path) == 0)
            return &key[i];
    return NULL;
}

/* Returns the number of bytes at the begin of a path up to the last dot that both paths have. */
static size_t common_bytes(const char *path, const char *before)
{
    size_t common = 0;

    for (size_t i = 0; path[i] != '\0' && path[i] == before[i]; i++)
        common = path[i] == '.' ? i + 1 : common;
    return common;
}

static uint32_t count_dots(const char *path, size_t bytes)
{
    uint32_t n = 0;

    for (size_t i = 0; i < bytes; i++)
        n += path[i] == '.';
    return n;
}

static void begin_line(struct text *out, const char *end, uint32_t blanks)
{
    text_add(out, "%s\n%*s", end, (int)blanks, "");
}

static void end_object(struct text *out, uint32_t blanks)
{
    begin_line(out, "", blanks);
    text_add(out, "}");
}

void keys_add_nested(struct text *out, const struct results_key *key, uint32_t n, uint32_t indent)
{
    const char *before = "", *comma = "";
    uint32_t depth = 1;

    text_add(out, "{");
    for (uint32_t i = 0; i < n; i++) {
        size_t from = common_bytes(key[i].path, before);

        for (uint32_t common = 1 + count_dots(key[i].path, from); depth > common; depth--)
            end_object(out, indent + depth - 1);
        for (const char *at = key[i].path + from;; comma = "") {
            size_t bytes = strcspn(at, ".");
            text_auto name = {0}, quoted = {0};

            text_add_bytes(&name, at, bytes);
            key_add_quoted(&quoted, name.data != NULL ? name.data : "");
            begin_line(out, comma, indent + depth);
            text_add(out, "%s: ", quoted.data);
            if (at[bytes] == '\0')
                break;
            text_add(out, "{");
            depth++;
            at += bytes + 1;
        }
        text_add(out, "%s", key[i].shown);
        comma = ",";
        before = key[i].path;
    }
    for (; depth > 0; depth--)
        end_object(out, indent + depth - 1);
}
