/* The text of a YAML file: places in it, libyaml's complaints in words, and variables of the
 * environment in its values. libyaml's scanner and parser say where they stopped by a mark, its
 * reader by an offset in bytes: it fails on a byte before the scanner has come there, so its mark
 * says nothing. */
#include "config/yaml_text.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
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

/* "${NAME:-else}": the parts of one, in the value. */
struct use {
    const char *at, *name, *otherwise; /* otherwise NULL: there is none */
    size_t bytes, name_bytes, otherwise_bytes;
};

struct expansion {
    struct arena *arena;
    struct diag *diag;
    struct node *node;
    struct text text, variables;
};

__attribute__((format(printf, 4, 5))) static bool refuse(struct expansion *e, const struct use *use,
                                                         const char *hint, const char *fmt, ...)
{
    struct source_location location =
        location_in_value(&e->node->location, e->node->text, (size_t)(use->at - e->node->text));
    char what[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    if (location.column != e->node->location.column || use->bytes < location.width)
        location.width = (uint32_t)use->bytes;
    diag_error(e->diag, &location, hint, "%s", what);
    e->node->refused = true;
    return false;
}

static size_t name_length(const char *s)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
    size_t n = strspn(s, letters);

    while (n > 0 && s[n] != 0 && (strchr(letters, s[n]) || (s[n] >= '0' && s[n] <= '9')))
        n++;
    return n;
}

/* use->at stands at "${". */
static bool parse(struct expansion *e, struct use *use)
{
    const char *rest = use->at + 2, *end = strchr(rest, '}');

    use->bytes = end == NULL ? strlen(use->at) : (size_t)(end + 1 - use->at);
    if (end == NULL)
        return refuse(e, use, "$${ is a literal ${", "'${' without its '}'");
    use->name = rest;
    use->name_bytes = name_length(rest);
    rest += use->name_bytes;
    if (use->name_bytes == 0 || (rest != end && strncmp(rest, ":-", 2) != 0))
        return refuse(e, use, "write ${NAME} or ${NAME:-default}; $${ is a literal ${",
                      "'%.*s' is not a variable of the environment",
                      use->bytes > 80 ? 80 : (int)use->bytes, use->at);
    if (rest == end)
        return true;
    use->otherwise = rest + 2;
    use->otherwise_bytes = (size_t)(end - use->otherwise);
    if (memmem(use->otherwise, use->otherwise_bytes, "${", 2) != NULL)
        return refuse(e, use, "a default is plain text", "'${' inside of '${...}'");
    return true;
}

static bool refuse_unset(struct expansion *e, const struct use *use, const char *name)
{
    struct nearest nearest = {.want = name};
    const char *hint;

    for (char **at = environ; at != NULL && *at != NULL; at++)
        if (strcspn(*at, "=") > 2) /* not such as _, for anything short */
            nearest_try(&nearest, arena_strndup(e->arena, *at, strcspn(*at, "=")));
    hint = arena_printf(e->arena, "%s%.64s%s %.64s, or write ${%.64s:-default}",
                        nearest.name != NULL ? "did you mean '" : "",
                        nearest.name != NULL ? nearest.name : "",
                        nearest.name != NULL ? "'? Else set" : "set", name, name);
    return refuse(e, use, hint, "the environment has no variable '%.64s'", name);
}

/* What a file could not hold either. */
static bool is_text(struct expansion *e, const struct use *use, const char *name, const char *value)
{
    uint32_t point = 0;

    for (size_t n; *value != 0; value += n) {
        n = text_decode(value, &point);
        if (n == 0)
            return refuse(e, use, "set it to UTF-8 text",
                          "the value of '%.64s' has byte 0x%02x, which is not UTF-8 text", name,
                          (unsigned char)*value);
        if (point < 0x20 || point == 0x7f)
            return refuse(e, use, "set it to one line of text",
                          "the value of '%.64s' has control character 0x%02x", name,
                          (unsigned)point);
    }
    return true;
}

static bool add_value(struct expansion *e, const struct use *use)
{
    const char *name = arena_strndup(e->arena, use->name, use->name_bytes);
    const char *value = getenv(name), *separator = e->variables.bytes == 0 ? "" : ", ";

    if (use->otherwise != NULL && (value == NULL || *value == 0)) {
        text_add_bytes(&e->text, use->otherwise, use->otherwise_bytes);
        text_add(&e->variables, "%sdefault of ${%s}", separator, name);
        return true;
    }
    if (value == NULL)
        return refuse_unset(e, use, name);
    if (!is_text(e, use, name, value))
        return false;
    text_add(&e->text, "%s", value);
    text_add(&e->variables, "%s${%s}", separator, name);
    return e->text.bytes <= MAX_VALUE_BYTES ||
           refuse(e, use, NULL, "with '%.64s' this value is longer than 64 KiB", name);
}

static bool expand(struct expansion *e)
{
    const char *from = e->node->text;
    struct use use = {0};

    for (const char *at = from; (at = strstr(at, "${")) != NULL; from = at) {
        bool escaped = at > from && at[-1] == '$';

        text_add_bytes(&e->text, from, (size_t)(at - from) - escaped);
        use = (struct use){.at = at};
        if (escaped) {
            text_add(&e->text, "${");
            at += 2;
            continue;
        }
        if (!parse(e, &use) || !add_value(e, &use))
            return false;
        at += use.bytes;
    }
    text_add(&e->text, "%s", from);
    return true;
}

bool expand_scalar(struct arena *arena, struct diag *diag, struct node *node)
{
    struct expansion e = {.arena = arena, .diag = diag, .node = node};
    bool good;

    if (strstr(node->text, "${") == NULL)
        return true;
    good = expand(&e);
    if (good)
        node->text = arena_strndup(arena, e.text.data, e.text.bytes);
    if (good && e.variables.bytes > 0)
        node->variables = arena_strndup(arena, e.variables.data, e.variables.bytes);
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
