/* The text of a YAML file: places in it, libyaml's complaints in words, and variables of the
 * environment in its values. libyaml's scanner and parser say where they stopped by a mark, its
 * reader by an offset in bytes: it fails on a byte before the scanner has come there, so its mark
 * says nothing. */
#include "config/yaml_text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

struct source_location yaml_location(const struct yaml_text *text, const yaml_mark_t *start,
                                     const yaml_mark_t *end)
{
    struct source_location location = {
        .file = text->file,
        .source = text->source,
        .line = (uint32_t)start->line + 1,
        .column = (uint32_t)start->column + 1 + (start->line == 0 ? text->shift : 0),
        .width = 1,
    };

    if (end != NULL && end->line == start->line && end->column > start->column)
        location.width = (uint32_t)(end->column - start->column);
    return location;
}

/* `at` counts from the start of source. */
static struct source_location location_at_byte(const struct yaml_text *text, size_t at)
{
    struct source_location location = {text->file, text->source, 1, 1, 1};

    for (size_t i = 0; i < at && text->source[i] != 0; i++) {
        if (text->source[i] == '\n') {
            location.line++;
            location.column = 1;
        } else if (((unsigned char)text->source[i] & 0xc0) != 0x80) {
            location.column++;
        }
    }
    return location;
}

/* What libyaml says, in words of our own where they are better; else NULL. */
static const char *better_words(const char *problem, const struct source_location *location,
                                const char **hint)
{
    const char *line = diag_line(location->source, location->line);
    size_t at = location->column - 1;

    if (strstr(problem, "mapping values are not allowed") != NULL) {
        *hint = "put the value in quotes";
        return "a second ': ' in one line";
    }
    if (strstr(problem, "cannot start any token") == NULL || line == NULL ||
        strnlen(line, at + 1) <= at)
        return NULL;
    if (line[at] == '\t') {
        *hint = "indent with spaces";
        return "a tab is not allowed here";
    }
    *hint = "put the value in quotes";
    return line[at] == '@' || line[at] == '`' ? "no value begins with this character" : NULL;
}

static void tell_byte(const struct yaml_text *text, const yaml_parser_t *parser, struct diag *diag)
{
    size_t at = text->shift + parser->problem_offset;
    struct source_location location = location_at_byte(text, at);
    unsigned byte = (unsigned char)text->source[at];

    if (strstr(parser->problem, "control") != NULL)
        diag_error(diag, &location, "delete it", "control character 0x%02x is not allowed", byte);
    else
        diag_error(diag, &location, "save the file as UTF-8", "byte 0x%02x is not UTF-8 text",
                   byte);
}

void yaml_tell_syntax(const struct yaml_text *text, const yaml_parser_t *parser, struct diag *diag)
{
    const char *words, *line, *hint = NULL;
    struct source_location location;

    if (parser->problem == NULL) {
        diag_error(diag, NULL, NULL, "no memory to read YAML");
        return;
    }
    if (parser->error == YAML_READER_ERROR) {
        tell_byte(text, parser, diag);
        return;
    }
    location = yaml_location(text, &parser->problem_mark, NULL);
    line = diag_line(text->source, location.line);
    if (line == NULL || *line == 0) { /* the end of the file; show its last line */
        size_t n = strlen(text->source);

        while (n > text->shift && strchr(" \r\n", text->source[n - 1]) != NULL)
            n--;
        location = location_at_byte(text, n);
    }
    words = better_words(parser->problem, &location, &hint);
    if (words != NULL)
        diag_error(diag, &location, hint, "%s", words);
    else
        diag_error(diag, &location, NULL, "YAML: %s%s%s", parser->problem,
                   parser->context == NULL ? "" : ", ",
                   parser->context == NULL ? "" : parser->context);
    if (parser->context != NULL && parser->context_mark.line != parser->problem_mark.line) {
        location = yaml_location(text, &parser->context_mark, NULL);
        diag_note(diag, &location, "it begins here");
    }
}

/* ---- ${NAME} and ${NAME:-default} ---- */

/* Where byte `at` of a scalar's value stands, if all before it stands there as it is; else the
 * scalar's place. */
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

enum { MAX_VALUE_BYTES = 64 << 10 };

struct expansion {
    struct arena *arena;
    struct diag *diag;
    struct node *node;
    const char *at; /* the "${" in its text, of so many bytes up to its brace */
    size_t bytes;
    const char *name; /* of the variable */
    struct text text, variables;
};

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

static bool refuse_unset(struct expansion *e)
{
    struct nearest nearest = {.want = e->name};
    char hint[2 * NEAREST_ROOM], near[NEAREST_ROOM];

    for (char **at = environ; at != NULL && *at != NULL; at++)
        if (strcspn(*at, "=") > 2) /* not such as _, for anything short */
            nearest_try(&nearest, arena_strndup(e->arena, *at, strcspn(*at, "=")));
    snprintf(hint, sizeof(hint), "%s%s %.64s, or write ${%.64s:-default}",
             nearest_hint(&nearest, near, ""), nearest.name != NULL ? " Else set" : "set", e->name,
             e->name);
    return refuse(e, hint, "the environment has no variable '%.64s'", e->name);
}

/* Adds what a file could hold, too. */
static bool add_value(struct expansion *e, const char *value)
{
    uint32_t point = 0;

    for (size_t i = 0, n; value[i] != 0; i += n) {
        n = text_decode(value + i, &point);
        if (n == 0)
            return refuse(e, "set it to UTF-8 text",
                          "the value of '%.64s' has byte 0x%02x, which is not UTF-8 text", e->name,
                          (unsigned char)value[i]);
        if (point < 0x20 || point == 0x7f)
            return refuse(e, "set it to one line of text",
                          "the value of '%.64s' has control character 0x%02x", e->name,
                          (unsigned)point);
    }
    text_add(&e->text, "%s", value);
    text_add(&e->variables, "%s${%s}", e->variables.bytes == 0 ? "" : ", ", e->name);
    return e->text.bytes <= MAX_VALUE_BYTES ||
           refuse(e, NULL, "with '%.64s' this value is longer than 64 KiB", e->name);
}

/* e->at stands at one. */
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
        return value == NULL ? refuse_unset(e) : add_value(e, value);
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
