/* Text that grows by doubling, edit distance for "did you mean", and sizes and times as
 * people read them. */
#include "base/text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/terminal.h"

enum { NAME_MAX_BYTES = 64 }; /* longer names are near to nothing */

static void reserve(struct text *text, size_t more)
{
    size_t room = text->room == 0 ? 256 : text->room;
    char *data;

    while (room - text->bytes < more + 1)
        room *= 2;
    if (room == text->room)
        return;
    data = realloc(text->data, room);
    if (data == NULL) {
        fprintf(stderr, "epa2a: no memory for %zu bytes of text\n", room);
        abort();
    }
    text->data = data;
    text->room = room;
}

void text_add_bytes(struct text *text, const char *bytes, size_t n)
{
    reserve(text, n);
    if (n != 0)
        memcpy(text->data + text->bytes, bytes, n);
    text->bytes += n;
    text->data[text->bytes] = 0;
}

void text_add(struct text *text, const char *fmt, ...)
{
    size_t left;
    va_list args;
    int n;

    reserve(text, 64);
    left = text->room - text->bytes;
    va_start(args, fmt);
    n = vsnprintf(text->data + text->bytes, left, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n >= left) {
        reserve(text, (size_t)n);
        va_start(args, fmt);
        vsnprintf(text->data + text->bytes, (size_t)n + 1, fmt, args);
        va_end(args);
    }
    text->bytes += n < 0 ? 0 : (size_t)n;
}

char *text_clean(char *text)
{
    text[terminal_clean(text, strlen(text), false)] = 0;
    return text;
}

void text_print_clean(FILE *file, const char *text)
{
    char *copy = strdup(text);

    if (copy != NULL)
        fputs(text_clean(copy), file);
    free(copy);
}

void text_free(struct text *text)
{
    free(text->data);
    *text = (struct text){0};
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Optimal string alignment: insert, delete, replace, swap two neighbours, each costs 1. */
static uint32_t distance(const char *a, const char *b, int (*fold)(int))
{
    size_t n = strnlen(a, NAME_MAX_BYTES + 1), m = strnlen(b, NAME_MAX_BYTES + 1);
    uint32_t row[3][NAME_MAX_BYTES + 1];
    uint32_t *before = row[0], *above = row[1], *here = row[2];

    if (n > NAME_MAX_BYTES || m > NAME_MAX_BYTES)
        return strcmp(a, b) == 0 ? 0 : NAME_MAX_BYTES;
    for (size_t j = 0; j <= m; j++)
        above[j] = (uint32_t)j;
    for (size_t i = 1; i <= n; i++) {
        int ca = fold((unsigned char)a[i - 1]), last_a = i > 1 ? fold((unsigned char)a[i - 2]) : 0;
        uint32_t *oldest = before;

        here[0] = (uint32_t)i;
        for (size_t j = 1; j <= m; j++) {
            int cb = fold((unsigned char)b[j - 1]);

            here[j] = least(least(above[j], here[j - 1]) + 1, above[j - 1] + (ca != cb));
            if (i > 1 && j > 1 && ca == fold((unsigned char)b[j - 2]) && last_a == cb)
                here[j] = least(here[j], before[j - 2] + 1);
        }
        before = above;
        above = here;
        here = oldest;
    }
    return above[m];
}

static int same(int c)
{
    return c;
}

uint32_t text_distance(const char *a, const char *b)
{
    return distance(a, b, same);
}

static uint32_t tolerance(const char *want)
{
    uint32_t third = (uint32_t)(strnlen(want, NAME_MAX_BYTES) / 3);

    return third < 1 ? 1 : least(third, 2);
}

bool text_near(const char *want, const char *have)
{
    return distance(want, have, tolower) <= tolerance(want);
}

void nearest_try(struct nearest *nearest, const char *name)
{
    uint32_t d = distance(nearest->want, name, tolower);

    if (d >= (nearest->name != NULL ? nearest->distance : tolerance(nearest->want) + 1))
        return;
    nearest->name = name;
    nearest->distance = d;
}

void nearest_try_table(struct nearest *nearest, const void *table, size_t stride)
{
    for (const char *at = table; at != NULL; at += stride) {
        const char *name = *(const char *const *)(const void *)at;

        if (name == NULL)
            return;
        nearest_try(nearest, name);
    }
}

const char *nearest_hint(const struct nearest *nearest, char buf[NEAREST_ROOM],
                         const char *otherwise)
{
    if (nearest->name != NULL)
        snprintf(buf, NEAREST_ROOM, "did you mean '%s'?", nearest->name);
    else
        snprintf(buf, NEAREST_ROOM, "%s", otherwise);
    return buf;
}

const char *text_nearest(const char *want, const char *const *names, uint32_t n)
{
    struct nearest nearest = {.want = want};

    for (uint32_t i = 0; i < n; i++)
        nearest_try(&nearest, names[i]);
    return nearest.name;
}

char *text_size(char *buf, size_t room, uint64_t bytes)
{
    static const char *const unit[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes / 1024.0;
    uint32_t i = 0;

    if (bytes < 1024) {
        snprintf(buf, room, "%u B", (unsigned)bytes);
        return buf;
    }
    /* 1023.95 would print as 1024.0 of the smaller unit. */
    while (value >= 1023.95 && i + 1 < sizeof(unit) / sizeof(unit[0])) {
        value /= 1024.0;
        i++;
    }
    snprintf(buf, room, "%.*f %s", value < 10.0 ? 2 : 1, value, unit[i]);
    return buf;
}

size_t text_decode(const char *s, uint32_t *out)
{
    unsigned char c = (unsigned char)*s;
    size_t n = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    uint32_t point = n == 1 ? c : c & (0x7fu >> n);

    if ((c >= 0x80 && c < 0xc2) || c > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | ((unsigned char)s[i] & 0x3fu);
    }
    *out = point;
    return n;
}

char *text_count(char *buf, size_t room, uint64_t n)
{
    char digits[24];
    size_t len = (size_t)snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n), to = 0;

    for (size_t i = 0; i < len && to + 2 < room; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            buf[to++] = ',';
        buf[to++] = digits[i];
    }
    buf[to] = 0;
    return buf;
}
