/* Builds a tree from libyaml's events with a stack of open maps and lists, at most MAX_DEPTH deep.
 * The document API of libyaml is not used: it has no limits and takes quadratic time on a million
 * brackets. After an error that leaves the structure clear (a duplicate key, a tag) reading
 * continues; other errors end it. */
#include "config/yaml.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "config/diag.h"
#include "config/expand.h"
#include "config/node.h"

/* ---- source locations and errors ---- */

/* The parsed text: `source` from byte `shift` on. libyaml's marks do not count the skipped bytes,
 * which are columns of the first line. */
struct yaml_text {
    const char *file, *source;
    uint32_t shift;
};

static struct source_location yaml_location(const struct yaml_text *text, const yaml_mark_t *start,
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

/* Returns the location of byte `at` of the source. */
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

/* Returns a clearer message for an error of libyaml; NULL: none. */
static const char *clearer_message(const char *problem, const struct source_location *location,
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

/* Returns the first byte from offset `from` on that does not begin a UTF-8 character; `otherwise`
 * if the text ends in a zero byte before. */
static size_t find_bad_byte(const struct yaml_text *text, size_t from, size_t otherwise)
{
    uint32_t point = 0;
    size_t n;

    for (; text->source[from] != 0; from += n) {
        n = text_decode(text->source + from, &point);
        if (n == 0)
            return from;
    }
    return otherwise;
}

/* Reports an invalid byte. libyaml's reader fails before the scanner reaches the byte, so only
 * problem_offset is valid, not the mark. In an invalid UTF-8 sequence problem_offset is the first
 * byte that does not continue the sequence, and the message names the byte that begins it. */
static void report_bad_byte(const struct yaml_text *text, const yaml_parser_t *parser,
                            struct diag *diag)
{
    size_t at = text->shift + parser->problem_offset;
    bool control = strstr(parser->problem, "control") != NULL;
    struct source_location location;
    uint32_t point = 0;

    if (!control)
        at = find_bad_byte(text, text->shift, at);
    location = location_at_byte(text, at);
    if (control && text_decode(text->source + at, &point) > 0)
        diag_error(diag, &location, "delete it", "control character 0x%02x is not allowed",
                   (unsigned)point);
    else
        diag_error(diag, &location, "save the file as UTF-8", "byte 0x%02x is not UTF-8 text",
                   (unsigned char)text->source[at]);
}

static void yaml_tell_syntax(const struct yaml_text *text, const yaml_parser_t *parser,
                             struct diag *diag)
{
    const char *words, *line, *hint = NULL;
    struct source_location location;

    if (parser->problem == NULL) {
        diag_error(diag, NULL, NULL, "no memory to read YAML%s", memory_limit());
        return;
    }
    if (parser->error == YAML_READER_ERROR) {
        report_bad_byte(text, parser, diag);
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
    words = clearer_message(parser->problem, &location, &hint);
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

/* ---- nodes: maps and lists are arrays in the arena that double ---- */

/* ---- reading ---- */

enum {
    MAX_BYTES = 1 << 20,
    MAX_SCALAR_BYTES = 64 << 10,
    MAX_DEPTH = 64,
    MAX_NODES = 100000,
    MAX_EXPANDED = 10000,
};

struct anchor {
    struct anchor *before;
    const char *name;
    const struct node *node; /* NULL until the node is complete */
};

/* An open map or list. */
struct frame {
    struct node *node;
    struct node *key; /* a key without its value yet */
    struct anchor *anchor;
};

struct reader {
    yaml_parser_t parser;
    struct arena *arena;
    struct diag *diag;
    struct yaml_text text;
    uint32_t nodes, expanded, depth;
    struct frame frame[MAX_DEPTH];
    struct anchor *anchors;
    struct node *root;
    bool expands; /* ${NAME} in values */
    bool failed;  /* an error was reported, although there may be a tree */
};

static bool count_node(struct reader *reader, const struct source_location *location)
{
    if (++reader->nodes <= MAX_NODES)
        return true;
    diag_error(reader->diag, location, NULL, "more than %d values in one file", MAX_NODES);
    return false;
}

/* Returns true if a copy is allowed at this depth. */
static bool may_expand(struct reader *reader, const struct node *from, uint32_t depth,
                       const struct source_location *location)
{
    bool may = true;

    if (++reader->expanded > MAX_EXPANDED || depth > MAX_DEPTH) {
        diag_error(reader->diag, location, NULL,
                   depth > MAX_DEPTH ? "aliases nest deeper than %d levels"
                                     : "aliases expand to more than %d values",
                   depth > MAX_DEPTH ? MAX_DEPTH : MAX_EXPANDED);
        return false;
    }
    may = count_node(reader, location);
    for (uint32_t i = 0; i < from->n && may; i++)
        may = may_expand(reader, from->item[i], depth + 1, location);
    return may;
}

static struct node *read_alias(struct reader *reader, const yaml_event_t *event,
                               const struct source_location *location)
{
    const char *name = (const char *)event->data.alias.anchor;
    struct node *node;

    for (const struct anchor *a = reader->anchors; a != NULL; a = a->before) {
        if (strcmp(a->name, name) != 0)
            continue;
        if (a->node != NULL) /* a copy, so that --set can change one use without the others */
            return may_expand(reader, a->node, reader->depth + 1, location)
                       ? tree_copy(reader->arena, a->node)
                       : NULL;
        diag_error(reader->diag, location, NULL, "alias '*%s' is inside its own anchor", name);
        return NULL;
    }
    reader->failed = true;
    diag_error(reader->diag, location, "define it before its first use", "no anchor '&%s'", name);
    node = node_make(reader->arena, NODE_SCALAR, location);
    node->refused = true;
    return node;
}

static struct anchor *add_anchor(struct reader *reader, const yaml_char_t *name)
{
    struct anchor *anchor;

    if (name == NULL)
        return NULL;
    anchor = arena_alloc(reader->arena, sizeof(*anchor));
    anchor->name = arena_strndup(reader->arena, (const char *)name, strlen((const char *)name));
    anchor->before = reader->anchors;
    reader->anchors = anchor;
    return anchor;
}

static void reject_tag(struct reader *reader, const yaml_char_t *tag,
                       const struct source_location *location)
{
    const char *name = (const char *)tag, *core = "tag:yaml.org,2002:";
    bool short_form;

    if (tag == NULL)
        return;
    short_form = strncmp(name, core, strlen(core)) == 0;
    reader->failed = true;
    diag_error(reader->diag, location, "remove it", "YAML tag '%s%s' is not used here",
               short_form ? "!!" : "", short_form ? name + strlen(core) : name);
}

static bool is_key_next(const struct reader *reader)
{
    const struct frame *top = reader->depth == 0 ? NULL : &reader->frame[reader->depth - 1];

    return top != NULL && top->node->kind == NODE_MAP && top->key == NULL;
}

static struct node *read_scalar(struct reader *reader, const yaml_event_t *event,
                                const struct source_location *location)
{
    size_t bytes = event->data.scalar.length;
    const char *value = (const char *)event->data.scalar.value;
    struct node *node = node_make(reader->arena, NODE_SCALAR, location);

    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    if (bytes > MAX_SCALAR_BYTES || memchr(value, 0, bytes) != NULL) {
        reader->failed = true;
        node->refused = true;
        diag_error(reader->diag, location, NULL,
                   bytes > MAX_SCALAR_BYTES ? "this value is longer than 64 KiB"
                                            : "this value has a zero byte in it");
        return node;
    }
    node->text = arena_strndup(reader->arena, value, bytes);
    if (reader->expands && !is_key_next(reader) &&
        !expand_scalar(reader->arena, reader->diag, node))
        reader->failed = true;
    return node;
}

/* Orders by text, then by position in the text. */
static int compare_keys(const void *a, const void *b)
{
    const struct node *l = *(struct node *const *)a, *r = *(struct node *const *)b;
    int order = strcmp(l->text, r->text);

    if (order == 0)
        order = l->location.line > r->location.line ? 1 : -(l->location.line < r->location.line);
    return order != 0 ? order : l->location.column > r->location.column ? 1 : -1;
}

/* Removes all but the first of equal keys; sorts, since a file may have a hundred thousand keys. */
static void remove_duplicate_keys(struct reader *reader, struct node *map)
{
    struct node **sorted = arena_alloc(reader->arena, (map->n + 1) * sizeof(*sorted));
    uint32_t kept = 0;

    if (map->n > 0)
        memcpy(sorted, map->key, map->n * sizeof(*sorted));
    qsort(sorted, map->n, sizeof(*sorted), compare_keys);
    for (uint32_t i = 1, first = 0; i < map->n; i++) {
        if (strcmp(sorted[i]->text, sorted[first]->text) != 0) {
            first = i;
            continue;
        }
        reader->failed = true;
        sorted[i]->refused = true;
        diag_error(reader->diag, &sorted[i]->location, "keep one of them", "key '%s' is set twice",
                   sorted[i]->text);
        diag_note(reader->diag, &sorted[first]->location, "it was first set here");
    }
    for (uint32_t i = 0; i < map->n; i++) {
        if (map->key[i]->refused)
            continue;
        map->key[kept] = map->key[i];
        map->item[kept++] = map->item[i];
    }
    map->n = kept;
}

static void check_key(struct reader *reader, struct node *key)
{
    if (key->kind == NODE_SCALAR && (key->quoted || strcmp(key->text, "<<") != 0))
        return;
    reader->failed = true;
    key->refused = true;
    if (key->kind != NODE_SCALAR)
        diag_error(reader->diag, &key->location, NULL, "a key must be a word, not a map or a list");
    else
        diag_error(reader->diag, &key->location, "write the keys out",
                   "merge key '<<' is not supported");
    key->text = "";
}

/* Attaches a finished node: as key or value of the innermost open node. */
static void attach_node(struct reader *reader, struct node *node)
{
    struct frame *top = reader->depth == 0 ? NULL : &reader->frame[reader->depth - 1];

    if (top == NULL) {
        reader->root = node;
    } else if (is_key_next(reader)) {
        check_key(reader, node);
        top->key = node;
    } else {
        node_append(reader->arena, top->node, top->key, node);
        top->key = NULL;
    }
}

static bool begin_node(struct reader *reader, const yaml_event_t *event,
                       struct source_location *location)
{
    bool map = event->type == YAML_MAPPING_START_EVENT;
    struct frame *frame = &reader->frame[reader->depth];

    location->width = 1;
    if (reader->depth == MAX_DEPTH) {
        diag_error(reader->diag, location, NULL, "maps and lists nest deeper than %d levels",
                   MAX_DEPTH);
        return false;
    }
    reject_tag(reader, map ? event->data.mapping_start.tag : event->data.sequence_start.tag,
               location);
    frame->node = node_make(reader->arena, map ? NODE_MAP : NODE_LIST, location);
    frame->key = NULL;
    frame->anchor = add_anchor(reader, map ? event->data.mapping_start.anchor
                                           : event->data.sequence_start.anchor);
    reader->depth++;
    return true;
}

static void end_node(struct reader *reader)
{
    struct frame *frame = &reader->frame[--reader->depth];

    if (frame->node->kind == NODE_MAP)
        remove_duplicate_keys(reader, frame->node);
    if (frame->anchor != NULL)
        frame->anchor->node = frame->node;
    attach_node(reader, frame->node);
}

/* Handles an event. Returns false after an error that ends the reading. */
static bool handle_event(struct reader *reader, const yaml_event_t *event)
{
    struct source_location location =
        yaml_location(&reader->text, &event->start_mark, &event->end_mark);
    struct anchor *anchor;
    struct node *node;

    switch (event->type) {
    case YAML_MAPPING_START_EVENT:
    case YAML_SEQUENCE_START_EVENT:
        return count_node(reader, &location) && begin_node(reader, event, &location);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        end_node(reader);
        return true;
    case YAML_SCALAR_EVENT:
        if (!count_node(reader, &location))
            return false;
        reject_tag(reader, event->data.scalar.tag, &location);
        anchor = add_anchor(reader, event->data.scalar.anchor);
        node = read_scalar(reader, event, &location);
        if (anchor != NULL)
            anchor->node = node;
        attach_node(reader, node);
        return true;
    case YAML_ALIAS_EVENT:
        node = read_alias(reader, event, &location);
        if (node != NULL)
            attach_node(reader, node);
        return node != NULL;
    default:
        return true;
    }
}

/* Reads one document, which must not be empty. */
static struct node *read_document(struct reader *reader)
{
    struct source_location start = {.file = reader->text.file};
    struct node *root;
    yaml_event_t event;
    bool going = true, ended = false;

    while (going && !ended) {
        if (!yaml_parser_parse(&reader->parser, &event)) {
            reader->failed = true;
            yaml_tell_syntax(&reader->text, &reader->parser, reader->diag);
            return NULL;
        }
        if (event.type == YAML_DOCUMENT_START_EVENT && reader->root != NULL) {
            struct source_location location =
                yaml_location(&reader->text, &event.start_mark, &event.end_mark);

            reader->failed = ended = true;
            diag_error(reader->diag, &location, "one experiment a file; put it into its own",
                       "a second YAML document begins here");
        }
        ended = ended || event.type == YAML_STREAM_END_EVENT;
        going = handle_event(reader, &event);
        yaml_event_delete(&event);
    }
    root = reader->root;
    reader->failed = reader->failed || !going;
    if (going && (root == NULL || (root->kind == NODE_SCALAR && !root->quoted && !*root->text))) {
        reader->failed = true;
        diag_error(reader->diag, &start, "an experiment begins with version: 1",
                   "the file is empty");
        return NULL;
    }
    return going ? root : NULL;
}

enum epa_status yaml_parse(struct arena *arena, const char *name, const char *text, size_t bytes,
                           size_t from, bool expands, struct diag *diag, struct node **out)
{
    struct reader reader = {
        .arena = arena, .diag = diag, .text = {.shift = (uint32_t)from}, .expands = expands};

    *out = NULL;
    reader.text.file = arena_strndup(arena, name, strlen(name));
    if (bytes > MAX_BYTES) {
        diag_error(diag, &(struct source_location){.file = reader.text.file}, NULL,
                   "longer than 1 MiB: not an experiment");
        return EPA_ERR_CONFIG;
    }
    reader.text.source = arena_strndup(arena, text, bytes);
    if (!yaml_parser_initialize(&reader.parser)) {
        diag_error(diag, NULL, NULL, "no memory to read YAML%s", memory_limit());
        return EPA_ERR_NOMEM;
    }
    yaml_parser_set_encoding(&reader.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)reader.text.source + from,
                                 bytes - from);
    *out = read_document(&reader);
    yaml_parser_delete(&reader.parser);
    return reader.failed ? EPA_ERR_CONFIG : EPA_OK;
}

enum epa_status yaml_read(struct arena *arena, const char *path, struct diag *diag,
                          struct node **out)
{
    struct epa_error err = {EPA_OK, ""};
    text_auto text = {0};

    *out = NULL;
    if (file_read(path, MAX_BYTES, &text, &err) == EPA_OK)
        return yaml_parse(arena, path, text.data, text.bytes, 0, true, diag, out);
    error_add_remedy(&err);
    diag_error(diag, &(struct source_location){.file = path}, NULL, "cannot read the file: %s",
               err.text + strlen(path) + strlen(": "));
    return EPA_ERR_CONFIG;
}
