/* Errors are turned into text when they are told, with their source line, so that the text
 * that they are about may be gone when they are printed. What the user wrote is shown, but
 * never sent to a terminal as it is: control characters and broken UTF-8 become '?'. */
#include "config/diag.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/colour.h"
#include "base/text.h"

enum { ERRORS_SHOWN = 20, NOTES_SHOWN = 4, LINE_SHOWN = 84, TEXT_SHOWN = 600 };

struct remark {
    char *file, *text, *line_text, *underline; /* line_text NULL: no place in a text */
    uint32_t line, column;
};

struct failure {
    struct remark error, note[NOTES_SHOWN];
    uint32_t n_notes;
    struct remark run;   /* which run it was told of; file NULL: of no run */
    uint32_t other_runs; /* that it was told of too */
};

struct diag {
    struct arena *arena;
    struct failure failure[ERRORS_SHOWN];
    uint32_t n; /* failures kept; errors may be more */
    uint32_t errors;
};

struct diag *diag_create(void)
{
    struct arena *arena = arena_create();
    struct diag *diag = arena_alloc(arena, sizeof(*diag));

    diag->arena = arena;
    return diag;
}

void diag_destroy(struct diag *diag)
{
    if (diag != NULL)
        arena_destroy(diag->arena);
}

uint32_t diag_errors(const struct diag *diag)
{
    return diag->errors;
}

/* Bytes of the character at `s`; 0 if it is not UTF-8 or must not reach a terminal. */
static size_t printable(const char *s, size_t left)
{
    unsigned char c = (unsigned char)s[0];
    size_t n = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;

    if (c < 0x20 || c == 0x7f || (c >= 0x80 && c < 0xc2) || c > 0xf4 || n > left)
        return 0;
    if (c == 0xc2 && (unsigned char)s[1] < 0xa0) /* control characters above 0x7f */
        return 0;
    for (size_t i = 1; i < n; i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

static char *cleaned(struct arena *arena, const char *s, size_t bytes)
{
    char *out = arena_alloc(arena, bytes + 1);
    size_t to = 0;

    for (size_t i = 0; i < bytes;) {
        size_t n = printable(s + i, bytes - i);

        if (n == 0)
            out[to++] = s[i] == '\t' || s[i] == '\n' ? ' ' : '?';
        else
            memcpy(out + to, s + i, n);
        to += n;
        i += n == 0 ? 1 : n;
    }
    return out;
}

/* Moves over `n` characters, or to the end of the line. */
static const char *advance(const char *s, const char *end, uint32_t n)
{
    for (; n > 0 && s < end; n--) {
        s++;
        while (s < end && ((unsigned char)*s & 0xc0) == 0x80)
            s++;
    }
    return s;
}

static uint32_t characters(const char *s, const char *end)
{
    uint32_t n = 0;

    for (; s < end; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

/* What comes after the next line break, in YAML's sense of it; NULL: nothing. */
static const char *next_line(const char *s)
{
    for (; *s != 0; s++) {
        if (*s == '\n' || (*s == '\r' && s[1] != '\n'))
            return s + 1;
        if (strncmp(s, "\xc2\x85", 2) == 0)
            return s + 2;
        if (strncmp(s, "\xe2\x80\xa8", 3) == 0 || strncmp(s, "\xe2\x80\xa9", 3) == 0)
            return s + 3;
    }
    return NULL;
}

/* The line with its caret; of a long line the part around the caret. */
static void show_line(struct arena *arena, const struct source_location *location,
                      struct remark *out)
{
    const char *start = location->source, *end, *from, *to;
    uint32_t column = location->column == 0 ? 0 : location->column - 1, skip = 0, width, room;

    for (uint32_t line = 1; line < location->line; line++) {
        start = next_line(start);
        if (start == NULL)
            return;
    }
    end = start + strcspn(start, "\r\n");
    if (column > characters(start, end))
        column = characters(start, end);
    if (characters(start, end) > LINE_SHOWN && column > LINE_SHOWN / 2)
        skip = column - LINE_SHOWN / 2;
    from = advance(start, end, skip);
    to = advance(from, end, LINE_SHOWN);
    room = characters(from, to) - (column - skip);
    width = location->width == 0 || room == 0 ? 1 : location->width > room ? room : location->width;
    out->line_text = cleaned(arena, from, (size_t)(to - from));
    out->underline = arena_alloc(arena, column - skip + width + 1);
    memset(out->underline, ' ', column - skip);
    memset(out->underline + (column - skip), '~', width);
    out->underline[column - skip] = '^';
}

static struct remark remark(struct arena *arena, const struct source_location *location,
                            const char *hint, const char *fmt, va_list args)
{
    struct remark out = {.file = "epa2a"};
    char text[TEXT_SHOWN];
    const char *cleaned_hint = NULL;

    vsnprintf(text, sizeof(text), fmt, args);
    out.text = cleaned(arena, text, strlen(text));
    if (hint != NULL)
        cleaned_hint = cleaned(arena, hint, strlen(hint));
    if (location != NULL) {
        out.file = cleaned(arena, location->file, strlen(location->file));
        out.line = location->line;
        out.column = location->column;
        if (location->source != NULL && location->line != 0)
            show_line(arena, location, &out);
    }
    if (cleaned_hint != NULL && out.line_text != NULL)
        out.underline = arena_printf(arena, "%s %s", out.underline, cleaned_hint);
    else if (cleaned_hint != NULL)
        out.text = arena_printf(arena, "%s (%s)", out.text, cleaned_hint);
    return out;
}

void diag_error(struct diag *diag, const struct source_location *location, const char *hint,
                const char *fmt, ...)
{
    va_list args;

    diag->errors++;
    if (diag->errors > ERRORS_SHOWN)
        return;
    va_start(args, fmt);
    diag->failure[diag->n++].error = remark(diag->arena, location, hint, fmt, args);
    va_end(args);
}

void diag_note(struct diag *diag, const struct source_location *location, const char *fmt, ...)
{
    struct failure *last = diag->n == 0 ? NULL : &diag->failure[diag->n - 1];
    va_list args;

    if (diag->errors > ERRORS_SHOWN || last == NULL || last->n_notes == NOTES_SHOWN)
        return;
    va_start(args, fmt);
    last->note[last->n_notes++] = remark(diag->arena, location, NULL, fmt, args);
    va_end(args);
}

static bool same(const struct remark *a, const struct remark *b)
{
    return a->line == b->line && a->column == b->column && strcmp(a->file, b->file) == 0 &&
           strcmp(a->text, b->text) == 0;
}

static char *copied(struct arena *arena, const char *text)
{
    return text == NULL ? NULL : arena_strndup(arena, text, strlen(text));
}

static struct remark copy_of(struct arena *arena, const struct remark *from)
{
    return (struct remark){.file = copied(arena, from->file),
                           .text = copied(arena, from->text),
                           .line_text = copied(arena, from->line_text),
                           .underline = copied(arena, from->underline),
                           .line = from->line,
                           .column = from->column};
}

static void take(struct diag *diag, const struct failure *from, const char *file, const char *run)
{
    struct failure *to = diag->failure;

    for (; to < diag->failure + diag->n; to++) {
        if (to->run.file == NULL || !same(&to->error, &from->error))
            continue;
        to->other_runs++;
        return;
    }
    diag->errors++;
    if (diag->n == ERRORS_SHOWN)
        return;
    to->error = copy_of(diag->arena, &from->error);
    for (uint32_t i = 0; i < from->n_notes; i++)
        to->note[i] = copy_of(diag->arena, &from->note[i]);
    to->n_notes = from->n_notes;
    to->run.file = cleaned(diag->arena, file, strlen(file));
    to->run.text = cleaned(diag->arena, run, strlen(run));
    diag->n++;
}

void diag_take(struct diag *diag, const struct diag *from, const char *file, const char *run)
{
    uint32_t before = diag->errors;

    for (uint32_t i = 0; i < from->n; i++)
        take(diag, &from->failure[i], file, run);
    if (diag->errors != before)
        diag->errors += from->errors - from->n;
}

static void print_text(FILE *file, const struct remark *remark, const char *what)
{
    bool error = strcmp(what, "error") == 0;
    const char *on = colour_on(file, error ? COLOUR_ERROR : COLOUR_LOCATION);

    fputs(remark->file, file);
    if (remark->line != 0)
        fprintf(file, ":%u:%u", remark->line, remark->column);
    fprintf(file, ": %s%s%s: %s\n", on, what, colour_off(file), remark->text);
}

static void print_run(FILE *file, const struct failure *failure)
{
    if (failure->run.file == NULL)
        return;
    fprintf(file, "%s: note: in run '%s'", failure->run.file, failure->run.text);
    if (failure->other_runs > 0)
        fprintf(file, " and %u more", failure->other_runs);
    fputc('\n', file);
}

static void print_remark(FILE *file, const struct remark *remark, const char *what)
{
    print_text(file, remark, what);
    if (remark->line_text != NULL)
        fprintf(file, "%5u | %s\n      | %s%s%s\n", remark->line, remark->line_text,
                colour_on(file, COLOUR_LOCATION), remark->underline, colour_off(file));
}

void diag_print_first(const struct diag *diag, FILE *file)
{
    if (diag->n > 0)
        print_text(file, &diag->failure[0].error, "error");
}

/* In the order of the text where both are of one file, else in the order told. */
static bool goes_before(const struct failure *a, const struct failure *b)
{
    const struct remark *l = &a->error, *r = &b->error;

    if (strcmp(l->file, r->file) != 0 || strcmp(l->file, "--set") == 0)
        return false;
    return l->line < r->line || (l->line == r->line && l->column < r->column);
}

void diag_print(const struct diag *diag, FILE *file)
{
    uint32_t order[ERRORS_SHOWN];

    for (uint32_t i = 0; i < diag->n; i++) {
        uint32_t at = i;

        for (; at > 0; at--) {
            if (!goes_before(&diag->failure[i], &diag->failure[order[at - 1]]))
                break;
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    for (uint32_t i = 0; i < diag->n; i++) {
        const struct failure *failure = &diag->failure[order[i]];

        print_remark(file, &failure->error, "error");
        for (uint32_t j = 0; j < failure->n_notes; j++)
            print_remark(file, &failure->note[j], "note");
        print_run(file, failure);
    }
    if (diag->errors > ERRORS_SHOWN)
        fprintf(file, "and %u more errors\n", diag->errors - ERRORS_SHOWN);
}
