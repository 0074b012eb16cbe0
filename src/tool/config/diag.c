/* Collects errors. Each error is formatted when it is reported, with its source line, because the
 * source may no longer exist when it is printed. Source lines are cleaned for the terminal: control
 * characters and invalid UTF-8 become '?'. */
#include "config/diag.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"

enum { ERRORS_SHOWN = 20, NOTES_SHOWN = 4, LINE_SHOWN = 84, TEXT_SHOWN = 600 };

struct remark {
    char *file, *text, *line_text, *underline; /* line_text NULL: no place in a text */
    uint32_t line, column;
};

struct failure {
    struct remark error, note[NOTES_SHOWN];
    uint32_t n_notes;
    struct remark run;   /* run of the error; file NULL: no run */
    uint32_t other_runs; /* number of other runs with the same error */
    bool skipped;        /* the run is skipped for it */
};

struct diag {
    struct arena *arena;
    /* Errors of the current run follow the earlier errors. */
    struct failure failure[2 * ERRORS_SHOWN];
    uint32_t n; /* failures kept; errors may be more */
    uint32_t errors;
    bool kept;                        /* the last error was kept */
    uint32_t run_from, errors_before; /* values at the begin of the current run */
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

/* Returns text on one line, safe for a terminal. */
static char *clean_line(struct arena *arena, const char *s, size_t bytes)
{
    char *out = arena_strndup(arena, s, bytes);

    for (char *c = out; (c = strpbrk(c, "\t\n")) != NULL;)
        *c = ' ';
    return text_clean(out);
}

/* Advances by `n` characters, or to the end of the line. */
static const char *skip_characters(const char *s, const char *end, uint32_t n)
{
    for (; n > 0 && s < end; n--) {
        s++;
        while (s < end && ((unsigned char)*s & 0xc0) == 0x80)
            s++;
    }
    return s;
}

uint32_t diag_characters(const char *s, const char *end)
{
    uint32_t n = 0;

    for (; s < end; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

const char *diag_line(const char *s, uint32_t line)
{
    for (size_t n; line > 1 && *s != 0; s += n) {
        n = strncmp(s, "\xc2\x85", 2) == 0                                             ? 2
            : strncmp(s, "\xe2\x80\xa8", 3) == 0 || strncmp(s, "\xe2\x80\xa9", 3) == 0 ? 3
                                                                                       : 1;
        line -= n > 1 || *s == '\n' || (*s == '\r' && s[1] != '\n');
    }
    return line > 1 ? NULL : s;
}

/* Formats the line with its caret; of a long line the part around the caret. */
static void show_line(struct arena *arena, const struct source_location *location,
                      struct remark *out)
{
    const char *start = diag_line(location->source, location->line), *end, *from, *to;
    uint32_t column = location->column == 0 ? 0 : location->column - 1, skip = 0, width, room;

    if (start == NULL)
        return;
    end = start + strcspn(start, "\r\n");
    if (column > diag_characters(start, end))
        column = diag_characters(start, end);
    if (diag_characters(start, end) > LINE_SHOWN && column > LINE_SHOWN / 2)
        skip = column - LINE_SHOWN / 2;
    from = skip_characters(start, end, skip);
    to = skip_characters(from, end, LINE_SHOWN);
    room = diag_characters(from, to) - (column - skip);
    width = location->width == 0 || room == 0 ? 1 : location->width > room ? room : location->width;
    out->line_text = clean_line(arena, from, (size_t)(to - from));
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
    out.text = clean_line(arena, text, strlen(text));
    if (hint != NULL)
        cleaned_hint = clean_line(arena, hint, strlen(hint));
    if (location != NULL) {
        out.file = clean_line(arena, location->file, strlen(location->file));
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
    diag->kept = diag->n < diag->run_from + ERRORS_SHOWN;
    if (!diag->kept)
        return;
    va_start(args, fmt);
    diag->failure[diag->n++] =
        (struct failure){.error = remark(diag->arena, location, hint, fmt, args)};
    va_end(args);
}

void diag_note(struct diag *diag, const struct source_location *location, const char *fmt, ...)
{
    struct failure *last = diag->n == 0 ? NULL : &diag->failure[diag->n - 1];
    va_list args;

    if (!diag->kept || last->n_notes == NOTES_SHOWN)
        return;
    va_start(args, fmt);
    last->note[last->n_notes++] = remark(diag->arena, location, NULL, fmt, args);
    va_end(args);
}

static bool is_same_remark(const struct remark *a, const struct remark *b)
{
    return a->line == b->line && a->column == b->column && strcmp(a->file, b->file) == 0 &&
           strcmp(a->text, b->text) == 0;
}

void diag_run_begin(struct diag *diag)
{
    diag->run_from = diag->n;
    diag->errors_before = diag->errors;
}

/* Returns true if another run has reported the same error. The error is then counted, but not
 * reported again. */
static bool is_known(struct diag *diag, const struct failure *failure)
{
    for (struct failure *f = diag->failure; f < diag->failure + diag->n; f++) {
        if (f->run.file == NULL || !is_same_remark(&f->error, &failure->error))
            continue;
        f->other_runs++;
        return true;
    }
    return false;
}

void diag_run_end(struct diag *diag, const char *file, const char *run, bool skipped)
{
    uint32_t from = diag->run_from, to = diag->n, fresh = 0;
    uint32_t dropped = diag->errors - diag->errors_before - (to - from);

    diag->n = from;
    for (uint32_t i = from; i < to && run != NULL; i++) {
        struct failure failure = diag->failure[i];

        if (is_known(diag, &failure))
            continue;
        fresh++;
        failure.skipped = skipped;
        failure.run.file = clean_line(diag->arena, file, strlen(file));
        failure.run.text = clean_line(diag->arena, run, strlen(run));
        if (diag->n < ERRORS_SHOWN)
            diag->failure[diag->n++] = failure;
    }
    diag->errors = diag->errors_before + fresh + (fresh > 0 ? dropped : 0);
    diag->run_from = 0;
    diag->kept = false;
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
    if (failure->run.file == NULL || strcmp(failure->run.file, failure->run.text) == 0)
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

const char *diag_first_text(const struct diag *diag)
{
    return diag->n > 0 ? diag->failure[0].error.text : NULL;
}

/* Orders errors by their place in the text if both are in the same file, otherwise by time of
 * report. */
static bool precedes(const struct failure *a, const struct failure *b)
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
            if (!precedes(&diag->failure[i], &diag->failure[order[at - 1]]))
                break;
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    for (uint32_t i = 0; i < diag->n; i++) {
        const struct failure *failure = &diag->failure[order[i]];

        print_remark(file, &failure->error, failure->skipped ? "skipped" : "error");
        for (uint32_t j = 0; j < failure->n_notes; j++)
            print_remark(file, &failure->note[j], "note");
        print_run(file, failure);
    }
    if (diag->errors > ERRORS_SHOWN)
        fprintf(file, "and %u more errors\n", diag->errors - ERRORS_SHOWN);
}
