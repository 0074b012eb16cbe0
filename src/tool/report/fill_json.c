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
 * brace. */
#include "report/fill_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "report/lines.h"

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
