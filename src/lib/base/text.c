/* Growing text, edit distance for "did you mean", sizes in readable units, and characters that may
 * be shown. */
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NAME_MAX_BYTES = 64 }; /* longer names have no near name */

/* Makes room for `more` bytes and the 0 behind them. */
static bool reserve(struct text *text, size_t more)
{
    size_t room = text->room == 0 ? 256 : text->room;
    char *data;

    if (more >= SIZE_MAX / 4 - text->bytes)
        return false;
    while (room - text->bytes < more + 1)
        room *= 2;
    if (room == text->room)
        return true;
    data = realloc(text->data, room);
    if (data == NULL)
        return false;
    text->data = data;
    text->room = room;
    return true;
}

bool text_try_add_bytes(struct text *text, const char *bytes, size_t n)
{
    if (!reserve(text, n))
        return false;
    if (n != 0)
        memcpy(text->data + text->bytes, bytes, n);
    text->bytes += n;
    text->data[text->bytes] = 0;
    return true;
}

bool text_try_add_args(struct text *text, const char *fmt, va_list args)
{
    va_list again;
    size_t left;
    int n;

    if (!reserve(text, 64))
        return false;
    left = text->room - text->bytes;
    va_copy(again, args);
    n = vsnprintf(text->data + text->bytes, left, fmt, args);
    if (n >= 0 && (size_t)n >= left) {
        if (reserve(text, (size_t)n))
            vsnprintf(text->data + text->bytes, (size_t)n + 1, fmt, again);
        else
            n = -1;
    }
    va_end(again);
    if (n < 0)
        text->data[text->bytes] = 0;
    text->bytes += n < 0 ? 0 : (size_t)n;
    return n >= 0;
}

bool text_try_add(struct text *text, const char *fmt, ...)
{
    va_list args;
    bool added;

    va_start(args, fmt);
    added = text_try_add_args(text, fmt, args);
    va_end(args);
    return added;
}

const char *text_not_a_line(const char *text, uint32_t *point)
{
    for (size_t n; *text != 0; text += n) {
        n = text_decode(text, point);
        if (n == 0)
            *point = 0;
        if (n == 0 || *point < 0x20 || *point == 0x7f)
            return text;
    }
    return NULL;
}

size_t text_mark_bytes(const char *text, size_t bytes)
{
    static const char mark[] = {'\xef', '\xbb', '\xbf'};

    return bytes >= sizeof(mark) && memcmp(text, mark, sizeof(mark)) == 0 ? sizeof(mark) : 0;
}

char *text_clean(char *text)
{
    text[terminal_clean(text, strlen(text), false)] = 0;
    return text;
}

void text_clean_lines(struct text *text)
{
    if (text->bytes == 0)
        return;
    text->bytes = terminal_clean(text->data, text->bytes, true);
    text->data[text->bytes] = '\0';
}

bool write_whole(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);

        if (n < 0 && errno != EINTR)
            return false;
        data += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return true;
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

/* Returns the optimal string alignment distance in lower case: insert, delete, replace, and swap of
 * two neighbours cost 1 each. */
static uint32_t edit_distance(const char *a, const char *b)
{
    size_t n = strnlen(a, NAME_MAX_BYTES + 1), m = strnlen(b, NAME_MAX_BYTES + 1);
    uint32_t row[3][NAME_MAX_BYTES + 1];
    uint32_t *before = row[0], *above = row[1], *here = row[2];

    if (n > NAME_MAX_BYTES || m > NAME_MAX_BYTES)
        return strcmp(a, b) == 0 ? 0 : NAME_MAX_BYTES;
    for (size_t j = 0; j <= m; j++)
        above[j] = (uint32_t)j;
    for (size_t i = 1; i <= n; i++) {
        int ca = tolower((unsigned char)a[i - 1]),
            last_a = i > 1 ? tolower((unsigned char)a[i - 2]) : 0;
        uint32_t *oldest = before;

        here[0] = (uint32_t)i;
        for (size_t j = 1; j <= m; j++) {
            int cb = tolower((unsigned char)b[j - 1]);

            here[j] = least(least(above[j], here[j - 1]) + 1, above[j - 1] + (ca != cb));
            if (i > 1 && j > 1 && ca == tolower((unsigned char)b[j - 2]) && last_a == cb)
                here[j] = least(here[j], before[j - 2] + 1);
        }
        before = above;
        above = here;
        here = oldest;
    }
    return above[m];
}

static uint32_t tolerance(const char *want)
{
    uint32_t third = (uint32_t)(strnlen(want, NAME_MAX_BYTES) / 3);

    return third < 1 ? 1 : least(third, 2);
}

void nearest_try(struct nearest *nearest, const char *name)
{
    uint32_t d = edit_distance(nearest->want, name);

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

void hash_add(uint64_t *hash, const void *bytes, size_t n)
{
    for (const unsigned char *at = bytes; n > 0; n--)
        *hash = (*hash ^ *at++) * UINT64_C(1099511628211);
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

/* ---- remedies ---- */

const char *memory_limit(void)
{
    struct rlimit addresses;

    return getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur != RLIM_INFINITY
               ? " (RLIMIT_AS: ulimit -v)"
               : "";
}

const char *process_limit(int error)
{
    return error == EAGAIN ? "; raise RLIMIT_NPROC (ulimit -u), pids.max of the cgroup or "
                             "kernel.threads-max"
                           : "";
}

void error_add_remedy(struct epa_error *err)
{
    size_t used = strlen(err->text);
    const char *memory = "", *rest = "";

    if (strcmp(err->key, EPA_LIMIT_FILES) == 0)
        rest = "; raise the limit of open files: ulimit -n";
    else if (strcmp(err->key, EPA_LIMIT_PROCESSES) == 0)
        rest = process_limit(EAGAIN);
    else if (strcmp(err->key, EPA_LIMIT_MEMORY) != 0 &&
             (err->status != EPA_ERR_NOMEM || err->key[0] != '\0'))
        return;
    /* pthread_create() fails with EAGAIN, too, if it cannot map the stack. */
    if (strcmp(err->key, EPA_LIMIT_FILES) != 0)
        memory = memory_limit();
    if (used + strlen(memory) + strlen(rest) < sizeof(err->text))
        snprintf(err->text + used, sizeof(err->text) - used, "%s%s", memory, rest);
    snprintf(err->key, sizeof(err->key), "%s", EPA_LIMIT_NAMED);
}

/* ---- characters ---- */

static size_t decode(const char *s, size_t left, uint32_t *out)
{
    unsigned char c = (unsigned char)*s;
    size_t n = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    uint32_t point = n == 1 ? c : c & (0x7fu >> n);

    if ((c >= 0x80 && c < 0xc2) || c > 0xf4 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | ((unsigned char)s[i] & 0x3fu);
    }
    if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000) ||
        point < (n == 4   ? 0x10000u
                 : n == 3 ? 0x800u
                          : 0))
        return 0;
    *out = point;
    return n;
}

size_t text_decode(const char *s, uint32_t *out)
{
    return decode(s, 4, out); /* the 0 at its end is not part of a character */
}

/* Returns the bytes of the character at `at`; 0: the bytes are not a character, or it must not be
 * shown. */
static size_t shown_bytes(const char *at, size_t left, bool lines)
{
    uint32_t code = 0;
    size_t n = decode(at, left, &code);

    if (code == '\n' || code == '\t')
        return lines ? n : 0;
    /* Marks, embeddings, overrides and isolates of direction; separators of lines. */
    if (code < ' ' || (code >= 0x7f && code < 0xa0) || code == 0x061c || code == 0x200e ||
        code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
        (code >= 0x2066 && code <= 0x2069) || code == 0xfeff)
        return 0;
    return n;
}

/* Skips a hidden character as a whole, so that it becomes one '?'. */
static size_t skipped_bytes(const char *at, size_t left)
{
    size_t n = 1;

    while ((unsigned char)at[0] >= 0xc0 && n < left && n < 4 &&
           ((unsigned char)at[n] & 0xc0) == 0x80)
        n++;
    return n;
}

size_t terminal_clean(char *text, size_t bytes, bool lines)
{
    size_t out = 0;

    for (size_t i = 0; i < bytes;) {
        size_t n = shown_bytes(text + i, bytes - i, lines);

        if (n > 0) {
            memmove(text + out, text + i, n);
            out += n;
            i += n;
        } else {
            i += skipped_bytes(text + i, bytes - i);
            text[out++] = '?';
        }
    }
    return out;
}

const char *status_name(enum epa_status status)
{
    static const char *const name[] = {
        [-EPA_OK] = "ok",
        [-EPA_ERR_CONFIG] = "config",
        [-EPA_ERR_UNSUPPORTED] = "unsupported",
        [-EPA_ERR_NOMEM] = "nomem",
        [-EPA_ERR_SYSTEM] = "system",
        [-EPA_ERR_TIMEOUT] = "timeout",
        [-EPA_ERR_MISMATCH] = "mismatch",
        [-EPA_ERR_DIED] = "died",
        [-EPA_ERR_INTERRUPTED] = "interrupted",
        [-EPA_ERR_ABORTED] = "aborted",
    };
    size_t at = 0u - (unsigned)status; /* of a peer: any value, also INT32_MIN */

    return at < sizeof(name) / sizeof(name[0]) && name[at] != NULL ? name[at] : "internal";
}
