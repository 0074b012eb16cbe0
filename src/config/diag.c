/* Collects errors. Each error is formatted when it is reported, with its source line, because the
 * source may no longer exist when it is printed. Source lines are cleaned for the terminal: control
 * characters and invalid UTF-8 become '?'. This file also finds the values of an experiment that a
 * message is about, and their source locations. */
#include "config/tree.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "config/experiment.h"
#include "config/options.h"

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

/* ---- origins of values ---- */

const struct node *origin_find(const struct experiment *x, const char *key)
{
    const char *dot = strchr(key, '.');
    char section[64];

    if (x->origin == NULL || dot == NULL) /* built in code, not read from a file */
        return node_find(x->origin, key);
    snprintf(section, sizeof(section), "%.*s", (int)(dot - key), key);
    return node_find(node_find(x->origin, section), dot + 1);
}

/* Ways in which a message may name a key, most reliable first. */
enum spelling {
    WITH_SECTION,    /* moe.hidden */
    OF_ALGORITHM,    /* "mode: shared", "tail_workers (2)": of the algorithm's section */
    AT_TOP,          /* "ranks_per_node: 2" */
    NAMED,           /* "transport 'shm'" */
    OF_ALGORITHM_IN, /* anywhere: "profile is for" */
    AT_TOP_IN,       /* "ranks" */
    SPELLINGS,
};

/* Returns the key that `word` names, with the text that follows it, if it names one. */
static const struct node *find_spelt(const struct experiment *x, const char *word, size_t n,
                                     enum spelling how)
{
    static const char *const before[SPELLINGS] = {
        [OF_ALGORITHM] = "algorithm.", [OF_ALGORITHM_IN] = "algorithm."};
    const char *end = word + n;
    bool dotted = memchr(word, '.', n) != NULL;
    char key[128];

    if (dotted != (how == WITH_SECTION) ||
        ((how == OF_ALGORITHM || how == AT_TOP) && *end != ':' && strncmp(end, " (", 2) != 0) ||
        (how == NAMED && strncmp(end, " '", 2) != 0))
        return NULL;
    snprintf(key, sizeof(key), "%s%.*s%s", before[how] != NULL ? before[how] : "", (int)n, word,
             how == NAMED ? ".name" : "");
    if ((how == AT_TOP || how == AT_TOP_IN) && option_find(&experiment_options, key) == NULL)
        return NULL;
    return origin_find(x, key);
}

static const struct node *find_in(const struct experiment *x, const char *sentence,
                                  enum spelling how, bool files)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_.";

    for (const char *at = sentence + strcspn(sentence, letters); *at != '\0';
         at += strcspn(at, letters)) {
        size_t n = strspn(at, letters), stop = at[n - 1] == '.';
        const struct node *node = n > stop ? find_spelt(x, at, n - stop, how) : NULL;

        if (node != NULL && !(files && strcmp(node->location.file, "--set") == 0))
            return node;
        at += n;
    }
    return NULL;
}

const struct node *origin_of(const struct experiment *x, const char *sentence)
{
    return find_in(x, sentence, WITH_SECTION, true);
}

/* A message about the contents of a file begins with its path. */
static const struct node *find_file(const struct experiment *x, const char *sentence)
{
    const struct routing_options *r = &x->routing;

    if (r->path != NULL && strncmp(sentence, r->path, strlen(r->path)) == 0)
        return origin_find(x, "routing.path");
    if (r->hidden_states != NULL &&
        strncmp(sentence, r->hidden_states, strlen(r->hidden_states)) == 0)
        return origin_find(x, "routing.hidden_states");
    return NULL;
}

struct source_location origin_of_refusal(const struct experiment *x, const char *sentence)
{
    const struct node *node = find_file(x, sentence);

    for (enum spelling how = WITH_SECTION; node == NULL && how < SPELLINGS; how++)
        node = find_in(x, sentence, how, false);
    if (node == NULL)
        node = origin_find(x, "algorithm.name");
    return node != NULL ? node->location : (struct source_location){.file = x->file};
}

/* ---- values that messages suggest ---- */

struct config_trial {
    const char *key, *why; /* why NULL: no conflict of that key so far */
};

const char *check_value(const struct config_check *c, const char *key, uint64_t value)
{
    bool tried = c->trial != NULL && strcmp(c->trial->key, key) == 0;

    return arena_printf(c->x->arena, "%s (%llu%s)", key, (unsigned long long)value,
                        !tried && origin_find(c->x, key) == NULL ? ", the default" : "");
}

/* Returns the option of a key, and its value in `x`; NULL: there is no such number. */
static const struct epa_option *find_number(const char *key, const struct experiment *x,
                                            const void **at)
{
    const char *dot = strchr(key, '.');
    char name[64];
    const struct section *section = NULL;
    const struct epa_option *option;

    snprintf(name, sizeof(name), "%.*s", dot != NULL ? (int)(dot - key) : 0, key);
    if (dot != NULL)
        section = section_find(name);
    if (dot != NULL && (section == NULL || section->plugin))
        return NULL;
    option = option_find(dot != NULL ? &section->options : &experiment_options,
                         dot != NULL ? dot + 1 : key);
    if (option == NULL || (option->type != EPA_OPTION_U32 && option->type != EPA_OPTION_U64 &&
                           option->type != EPA_OPTION_BYTES))
        return NULL;
    *at = (const char *)x + (dot != NULL ? section->offset : 0) + option->offset;
    return option;
}

bool check_takes(const struct config_check *c, const char *key, uint64_t value, const char **why)
{
    struct experiment x = *c->x;
    struct config_trial trial = {.key = key};
    const struct config_check tried = {&x, c->diag, c->check, &trial};
    const void *at = NULL;
    const struct epa_option *option = find_number(key, &x, &at);
    void *field = (void *)(uintptr_t)at;
    text_auto range = {0};

    if (option == NULL || value < option->min || value > option_greatest(option)) {
        if (option != NULL)
            option_range(option, "", &range);
        if (why != NULL)
            *why = arena_printf(x.arena, "%s has to be %s", key,
                                range.bytes == 0 ? "a smaller number" : range.data);
        return false;
    }
    if (option->type == EPA_OPTION_U32)
        *(uint32_t *)field = (uint32_t)value;
    else
        *(uint64_t *)field = value;
    if (c->check != NULL)
        c->check(&tried);
    if (why != NULL)
        *why = trial.why;
    return trial.why == NULL;
}

enum { MULTIPLES_TRIED = 64 };

const char *check_multiples(const struct config_check *c, const char *key, uint32_t of)
{
    const void *at = NULL;
    const struct epa_option *option = find_number(key, c->x, &at);
    uint64_t value, found[2] = {0, 0};
    const char *name = "";

    if (option == NULL || c->trial != NULL)
        return NULL;
    value = option->type == EPA_OPTION_U32 ? *(const uint32_t *)at : *(const uint64_t *)at;
    for (uint64_t k = 0, below = value / of * of;
         k < MULTIPLES_TRIED && (found[0] == 0 || found[1] == 0); k++) {
        uint64_t less = below >= k * of ? below - k * of : 0, more = below + (k + 1) * of;

        if (found[0] == 0 && less > 0 && check_takes(c, key, less, NULL))
            found[0] = less;
        if (found[1] == 0 && check_takes(c, key, more, NULL))
            found[1] = more;
    }
    if (found[0] == 0 && found[1] == 0)
        return NULL;
    if (origin_find(c->x, key) == NULL) /* the error is at another key */
        name = arena_printf(c->x->arena, "%s: ", key);
    if (found[0] == 0 || found[1] == 0)
        return arena_printf(c->x->arena, "write %s%llu", name,
                            (unsigned long long)(found[0] + found[1]));
    return arena_printf(c->x->arena, "write %s%llu or %llu", name, (unsigned long long)found[0],
                        (unsigned long long)found[1]);
}

void check_conflict(const struct config_check *c, const char *wrong, const char *other,
                    const char *hint, const char *fmt, ...)
{
    const struct node *w = origin_find(c->x, wrong);
    const struct node *o = other == NULL ? NULL : origin_find(c->x, other);
    const struct source_location nowhere = {.file = c->x->file};
    char text[512];
    va_list args;

    if (c->trial == NULL && ((w != NULL && w->refused) || (o != NULL && o->refused)))
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (c->trial != NULL) {
        if (c->trial->why == NULL && (strcmp(wrong, c->trial->key) == 0 ||
                                      (other != NULL && strcmp(other, c->trial->key) == 0)))
            c->trial->why = arena_strndup(c->x->arena, text, strlen(text));
        return;
    }
    diag_error(c->diag,
               w != NULL   ? &w->location
               : o != NULL ? &o->location
                           : &nowhere,
               hint, "%s", text);
    if (w != NULL && o != NULL)
        diag_note(c->diag, &o->location, "'%s' was set here", other);
}

void check_rules(const struct config_check *c, const struct section *section)
{
    const char *last = "";

    for (const struct option_rule *r = option_rules; r->section != NULL; r++) {
        const char *key = arena_printf(c->x->arena, "%s.%s", r->section, r->option);

        if (strcmp(r->section, section->name) != 0 || strcmp(r->option, last) == 0 ||
            origin_find(c->x, key) == NULL || origin_find(c->x, key)->from_model ||
            option_rule_holds(r, c->x))
            continue;
        check_conflict(c, key, arena_printf(c->x->arena, "%s.%s", r->section, r->other),
                       "remove it, or set that", "%s needs %s", key, r->needs);
        last = r->option;
    }
}
