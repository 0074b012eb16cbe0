/* Environment variables in the values of a file: ${NAME} and ${NAME:-default}. */
#include "config/expand.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "config/diag.h"

enum { MAX_VALUE_BYTES = 64 << 10 };

struct expansion {
    struct arena *arena;
    struct diag *diag;
    struct node *node;
    const char *at; /* the "${" in its text, and the number of bytes up to its brace */
    size_t bytes;
    const char *name; /* name of the variable */
    struct text text, variables;
};

/* Returns the location of byte `at` of a scalar's value, if the source contains the preceding bytes
 * literally; otherwise the location of the scalar. */
static struct source_location location_in_value(const struct source_location *scalar,
                                                const char *value, size_t at)
{
    const char *line = scalar->source == NULL || scalar->line == 0
                           ? NULL
                           : diag_line(scalar->source, scalar->line);
    const char *start = line;
    struct source_location location = *scalar;

    while (start != NULL && *start != 0 && *start != '\n' &&
           diag_characters(line, start + 1) < scalar->column)
        start++;
    if (start == NULL || *start == 0)
        return location;
    start += *start == '"' || *start == '\'';
    if (strncmp(start, value, at + 1) == 0)
        location.column = diag_characters(line, start + at) + 1;
    return location;
}

__attribute__((format(printf, 3, 4))) static bool refuse(struct expansion *e, const char *hint,
                                                         const char *fmt, ...)
{
    struct source_location location =
        location_in_value(&e->node->location, e->node->text, (size_t)(e->at - e->node->text));
    char what[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    if (location.column != e->node->location.column || e->bytes < location.width)
        location.width = (uint32_t)e->bytes;
    diag_error(e->diag, &location, hint, "%s", what);
    e->node->refused = true;
    return false;
}

static bool report_unset_variable(struct expansion *e)
{
    struct nearest nearest = {.want = e->name};
    char hint[2 * NEAREST_ROOM], near[NEAREST_ROOM];

    for (char **at = environ; at != NULL && *at != NULL; at++)
        if (strcspn(*at, "=") > 2) /* names such as _ would match any short name */
            nearest_try(&nearest, arena_strndup(e->arena, *at, strcspn(*at, "=")));
    snprintf(hint, sizeof(hint), "%s%s %.64s, or write ${%.64s:-default}",
             nearest_hint(&nearest, near, ""), nearest.name != NULL ? " Else set" : "set", e->name,
             e->name);
    return refuse(e, hint, "the environment has no variable '%.64s'", e->name);
}

/* Adds the value of a variable. Rejects values that a file could not contain. */
static bool add_value(struct expansion *e, const char *value)
{
    uint32_t point = 0;
    const char *wrong = text_not_a_line(value, &point);

    if (wrong != NULL && point == 0)
        return refuse(e, "set it to UTF-8 text",
                      "the value of '%.64s' has byte 0x%02x, which is not UTF-8 text", e->name,
                      (unsigned char)*wrong);
    if (wrong != NULL)
        return refuse(e, "set it to one line of text",
                      "the value of '%.64s' has control character 0x%02x", e->name,
                      (unsigned)point);
    text_add(&e->text, "%s", value);
    text_add(&e->variables, "%s${%s}", e->variables.bytes == 0 ? "" : ", ", e->name);
    return e->text.bytes <= MAX_VALUE_BYTES ||
           refuse(e, NULL, "with '%.64s' this value is longer than 64 KiB", e->name);
}

/* Expands the variable at e->at. */
static bool expand_one(struct expansion *e)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
    const char *name = e->at + 2, *end = strchr(name, '}'), *rest = name + strspn(name, letters);
    const char *value;

    e->bytes = end == NULL ? strlen(e->at) : (size_t)(end + 1 - e->at);
    if (end == NULL)
        return refuse(e, "$${ is a literal ${", "'${' without its '}'");
    if (rest == name || isdigit((unsigned char)*name) ||
        (rest != end && strncmp(rest, ":-", 2) != 0))
        return refuse(e, "write ${NAME} or ${NAME:-default}; $${ is a literal ${",
                      "'%.*s' is not a variable of the environment",
                      e->bytes > 80 ? 80 : (int)e->bytes, e->at);
    if (memmem(rest, (size_t)(end - rest), "${", 2) != NULL)
        return refuse(e, "a default is plain text", "'${' inside of '${...}'");
    e->name = arena_strndup(e->arena, name, (size_t)(rest - name));
    value = getenv(e->name);
    if (rest == end || (value != NULL && *value != 0))
        return value == NULL ? report_unset_variable(e) : add_value(e, value);
    text_add_bytes(&e->text, rest + 2, (size_t)(end - rest) - 2);
    text_add(&e->variables, "%sdefault of ${%s}", e->variables.bytes == 0 ? "" : ", ", e->name);
    return true;
}

bool expand_scalar(struct arena *arena, struct diag *diag, struct node *node)
{
    struct expansion e = {.arena = arena, .diag = diag, .node = node};
    const char *from = node->text;
    bool good = true;

    while (good && (e.at = strstr(from, "${")) != NULL) {
        bool escaped = e.at > from && e.at[-1] == '$';

        text_add_bytes(&e.text, from, (size_t)(e.at - from) - escaped);
        if (escaped)
            text_add(&e.text, "${");
        else
            good = expand_one(&e);
        from = e.at + (escaped ? 2 : e.bytes);
    }
    if (good && from != node->text) {
        text_add(&e.text, "%s", from);
        node->text = arena_strndup(arena, e.text.data, e.text.bytes);
        if (e.variables.bytes > 0)
            node->variables = arena_strndup(arena, e.variables.data, e.variables.bytes);
    }
    text_free(&e.text);
    text_free(&e.variables);
    return good;
}

void expand_escape(const char *text, struct text *out)
{
    for (const char *at; (at = strstr(text, "${")) != NULL; text = at + 2) {
        text_add_bytes(out, text, (size_t)(at - text));
        text_add(out, "$${");
    }
    text_add(out, "%s", text);
}
