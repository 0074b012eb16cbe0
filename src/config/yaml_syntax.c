/* libyaml's scanner and parser say where they stopped by a mark, its reader by an offset in
 * bytes: it fails on a byte before the scanner has come there, so its mark says nothing. */
#include "config/yaml_syntax.h"

#include <stdbool.h>
#include <string.h>

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

/* Where line `n` begins; NULL: there are not so many. */
static const char *line_start(const char *text, uint32_t n)
{
    for (; n > 1 && text != NULL; n--) {
        text = strchr(text, '\n');
        text = text == NULL ? NULL : text + 1;
    }
    return text;
}

static size_t characters(const char *text, size_t bytes)
{
    size_t n = 0;

    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

struct source_location yaml_location_in(const struct source_location *scalar, const char *value,
                                        size_t at)
{
    const char *line = scalar->source == NULL || scalar->line == 0
                           ? NULL
                           : line_start(scalar->source, scalar->line);
    struct source_location location = *scalar;
    size_t before = 0;

    while (line != NULL && line[before] != 0 && line[before] != '\n' &&
           characters(line, before + 1) < scalar->column)
        before++;
    if (line == NULL || line[before] == 0)
        return location;
    before += line[before] == '"' || line[before] == '\'';
    if (strncmp(line + before, value, at + 1) == 0)
        location.column = (uint32_t)characters(line, before + at) + 1;
    return location;
}

/* What libyaml says, in words of our own where they are better; else NULL. */
static const char *better_words(const char *problem, const struct source_location *location,
                                const char **hint)
{
    const char *line = line_start(location->source, location->line);
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
    line = line_start(text->source, location.line);
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
