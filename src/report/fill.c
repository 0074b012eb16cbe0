/* Sentences with values of a JSON object: templates of reports, warnings, JUnit XML, OpenMetrics
 * and pages.
 *
 *     "skew: {skew.median_ns/1e3%.1f} us[; {skew.straggler} is slowest]"
 *
 * {PATH} inserts the value at a path, {PATH%.1f} or %.3g a number in that format, {PATH%size} "1.5
 * KiB", {PATH%count} "12,345", {PATH?s} an s unless the number is 1. {PATH/1e3} divides, also by
 * another path, and repeatedly. {PATH=WORD}, {PATH!WORD} (the value exists and differs), {PATH>0}
 * and {PATH<0} are conditions and print nothing. A part in [ ] is left out if a value is unknown or
 * a condition is false; of [A|B] the first complete alternative is printed. Parts nest. {{ is one
 * brace.
 *
 * The file also reads lines of other programs by forms, and formats text for terminals, comments
 * and Markdown. */
#include "report/fill.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_ENDS "/%?=!<>}"

struct filling {
    const json_t *of;
    void (*escape)(struct text *, const char *); /* NULL: values are added unchanged */
};

static void add_escaped(const struct filling *f, struct text *out, const char *text)
{
    if (f->escape != NULL)
        f->escape(out, text);
    else
        text_add(out, "%s", text);
}

/* Adds a value in plain notation: text, true, 12, 0.5, a list with commas; returns false if it is
 * unknown. */
static bool add_plain(const json_t *value, struct text *out)
{
    if (value == NULL || json_is_null(value))
        return false;
    for (struct json_walk item = {json_is_array(value) ? value : NULL}; json_next(&item);) {
        text_add(out, "%s", item.n > 1 ? ", " : "");
        (void)add_plain(item.value, out);
    }
    if (json_is_string(value))
        text_add(out, "%s", json_string_value(value));
    else if (!json_is_array(value))
        json_write(out, value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_DIGITS);
    return true;
}

/* Adds a number by "%.1f", "%+.1f", "%.3g", "%size" or "%count". */
static void add_number(double x, const char *form, struct text *out)
{
    char buf[400];
    bool sign = form[1] == '+';
    const char *digits = form + 2 + sign;
    int n = (int)strtol(digits, NULL, 10);

    if (strncmp(form, "%size", 5) == 0)
        text_size(buf, sizeof(buf), x > 0 ? (uint64_t)llround(x) : 0);
    else if (strncmp(form, "%count", 6) == 0)
        text_count(buf, sizeof(buf), x > 0 ? (uint64_t)x : 0);
    else if (digits[strspn(digits, "0123456789")] == 'g')
        snprintf(buf, sizeof(buf), "%.*g", n, x);
    else
        snprintf(buf, sizeof(buf), sign ? "%+.*f" : "%.*f", n, x);
    text_add(out, "%s", buf);
}

/* Returns the number at a path, divided by the divisors after each /; moves *at past the
 * expression. */
static double number_of(const json_t *of, const char **at)
{
    double x = NAN;

    for (bool first = true; first || **at == '/'; first = false) {
        char path[96];
        size_t bytes;
        bool number;

        *at += !first;
        bytes = strcspn(*at, PATH_ENDS);
        snprintf(path, sizeof(path), "%.*s", (int)bytes, *at);
        number = !first && strspn(path, "0123456789.e-") == bytes;
        x = first ? json_number_at(of, path)
                  : x / (number ? strtod(path, NULL) : json_number_at(of, path));
        *at += bytes;
    }
    return x;
}

/* Adds the value of the { at *at; returns false if the value is unknown, or the condition is
 * false. */
static bool add_value(const struct filling *f, struct text *out, const char **at)
{
    const char *begin = *at + 1, *end = strchr(begin, '}'), *form = begin;
    double x = number_of(f->of, &form);
    char path[96], word[64];
    text_auto plain = {0};
    bool known;

    snprintf(path, sizeof(path), "%.*s", (int)strcspn(begin, PATH_ENDS), begin);
    snprintf(word, sizeof(word), "%.*s", (int)(end - form - (form < end)), form + (form < end));
    *at = end + 1;
    if (*form == '%') {
        if (isfinite(x))
            add_number(x, form, out);
        return isfinite(x);
    }
    if (*form == '?') {
        text_add(out, "%s", fabs(x - 1) < 1e-9 ? "" : word);
        return isfinite(x);
    }
    if (*form == '>' || *form == '<')
        return *form == '>' ? x > strtod(word, NULL) : x < strtod(word, NULL);
    known = add_plain(json_at(f->of, path), &plain) && plain.bytes > 0;
    if (*form == '=')
        return known && strcmp(plain.data, word) == 0;
    if (*form == '!')
        return known && strcmp(plain.data, word) != 0;
    if (known)
        add_escaped(f, out, plain.data);
    return known;
}

/* Adds a part up to the |, the ] or the end; returns false if it contains an unknown value. */
static bool add_part(const struct filling *f, struct text *out, const char **at)
{
    bool known = true;

    while (**at != '\0' && **at != '|' && **at != ']') {
        if (**at == '[') {
            bool said = false;

            do { /* the first known alternative */
                size_t before = out->bytes;
                bool all;

                ++*at;
                all = add_part(f, out, at);
                if (!all || said)
                    out->bytes = before;
                said = said || all;
            } while (**at == '|');
            ++*at;
        } else if (strncmp(*at, "{{", 2) == 0) {
            text_add(out, "{");
            *at += 2;
        } else if (**at == '{') {
            known = add_value(f, out, at) && known;
        } else {
            size_t bytes = strcspn(*at, "[]{|");

            text_add_bytes(out, *at, bytes);
            *at += bytes;
        }
    }
    return known;
}

bool fill_add(struct text *out, const char *form, const json_t *of,
              void (*escape)(struct text *, const char *))
{
    const struct filling f = {of, escape};
    size_t before = out->bytes;
    bool known;

    text_add(out, "%s", "");
    known = add_part(&f, out, &form);
    out->bytes = known ? out->bytes : before;
    out->data[out->bytes] = '\0';
    return known && out->bytes > before;
}

void fill_comment(FILE *file, const char *form, const json_t *of)
{
    text_auto line = {0};

    if (fill_add(&line, form, of, NULL))
        text_comment(file, "%s", line.data);
}

/* ---- parsing lines by forms ---- */

static const char *read_word(const char *at, char delimiter, const char *name, json_t *out)
{
    size_t bytes = 0;
    char word[64]; /* longer than any known word */

    while (at[bytes] != '\0' && at[bytes] != delimiter && strchr(FORM_BLANKS, at[bytes]) == NULL)
        bytes++;
    snprintf(word, sizeof(word), "%.*s", (int)(bytes < sizeof(word) ? bytes : 0), at);
    if (*name != '\0')
        json_object_setn_new(out, name, strcspn(name, "%"), json_text(word));
    return bytes > 0 ? at + bytes : NULL;
}

static const char *read_number(const char *at, char *name, json_t *out)
{
    size_t bytes = strspn(at, "0123456789."), last = strlen(name) - 1;
    char *end;
    double number = strtod(at, &end);
    bool sum = name[last] == '+';
    const json_t *before;

    /* 21,40, 1.2.3 and 21e9 are read to their end, and are not numbers of a line. */
    if (bytes == 0 || *at == '.' || bytes > 20 || end != at + bytes ||
        (*end == ',' && isdigit((unsigned char)end[1])))
        return NULL;
    name[last + !sum] = '\0';
    before = json_object_get(out, name);
    if (before != NULL)
        number = sum ? json_number_value(before) + number : json_number_value(before) * number;
    json_object_set_new(out, name, json_real(number));
    return at + bytes;
}

const char *form_match(const char *form, const char *line, json_t *out, const char **wanted)
{
    bool begins = false;

    *wanted = NULL;
    for (line += strspn(line, FORM_BLANKS); *form != '\0'; form++) {
        begins = begins || *form == '{' || strcmp(form, "*") == 0;
        *wanted = begins ? form : NULL;
        if (strcmp(form, "*") == 0)
            return NULL;
        if (*form == ' ') {
            line += strspn(line, FORM_BLANKS);
        } else if (*form == '{') {
            size_t bytes = strcspn(form, "}");
            const char *end;
            char name[96];

            snprintf(name, sizeof(name), "%.*s", (int)bytes - 1, form + 1);
            form += bytes;
            line += strspn(line, FORM_BLANKS);
            end = *name == '\0' || strchr(name, '%') != NULL ? read_word(line, form[1], name, out)
                                                             : read_number(line, name, out);
            if (end == NULL)
                return line;
            line = end;
        } else if (*form == *line) {
            line++;
        } else {
            return line;
        }
    }
    *wanted = "the end of the line";
    line += strspn(line, FORM_BLANKS);
    return *line == '\0' ? NULL : line;
}

/* ---- lines for terminals and Markdown ---- */

enum { COLUMNS = 100 }; /* of a folded line */

void text_print_clean(FILE *file, const char *text)
{
    char *copy = memory_printf("%s", text);

    fputs(text_clean(copy), file);
    free(copy);
}

void text_fold(FILE *file, const char *lead, const char *next, const char *text)
{
    for (; *text != 0; lead = next) {
        size_t room = COLUMNS - strlen(lead), cut = strlen(text);

        if (cut > room) {
            for (cut = room; cut > 0 && text[cut] != ' '; cut--)
                ;
            cut = cut > 0 ? cut : strcspn(text, " ");
        }
        fprintf(file, "%s%.*s\n", lead, (int)cut, text);
        text += cut;
        text += strspn(text, " ");
    }
}

void text_comment(FILE *file, const char *fmt, ...)
{
    va_list args;
    char *text = NULL;

    va_start(args, fmt);
    if (vasprintf(&text, fmt, args) < 0)
        text = NULL;
    va_end(args);
    if (text != NULL)
        text_fold(file, "# ", "#   ", text_clean(text));
    free(text);
}

void text_add_markdown(struct text *text, const char *bytes)
{
    for (; *bytes != 0; bytes++) {
        if ((unsigned char)*bytes < ' ' || *bytes == 0x7f)
            text_add(text, " ");
        else if (strchr("|\\`*_<>[]#", *bytes) != NULL)
            text_add(text, "\\%c", *bytes);
        else
            text_add_bytes(text, bytes, 1);
    }
}
