/* See terminal.h. A guarded stream is a cookie of the C library: lines are looked at as a whole. */
#include "base/terminal.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { LINE_ROOM = 8192, MARK = 0x0e, NONCE = 16, MARK_BYTES = 1 + NONCE + 1, SEQUENCE = 16 };

/* Written once, before there are threads, but for the marks, which are always the same. */
static char nonce[NONCE + 1];
static char marks[TERMINAL_MARKS][MARK_BYTES + 1], sequences[TERMINAL_MARKS][SEQUENCE];

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
    return decode(s, 4, out); /* the 0 at its end is no part of a character */
}

/* Bytes of the character at `at`; 0: it is none, or one that is not to be shown. */
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

/* What is not shown is skipped as a whole, so that it is one '?'. */
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

static bool write_all(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);

        if (n < 0)
            return false;
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Text up to the next mark of ours, then the sequence that it stands for. */
static ssize_t write_guarded(void *cookie, const char *data, size_t bytes)
{
    int fd = (int)(intptr_t)cookie;
    const char *end = data + bytes;
    char text[LINE_ROOM];

    for (const char *at = data; at < end;) {
        size_t left = (size_t)(end - at), n = left < sizeof(text) ? left : sizeof(text);
        const char *mark = memchr(at, MARK, n);
        int which = -1;

        if (mark == at) {
            for (int i = 0; i < TERMINAL_MARKS; i++)
                if (marks[i][0] != 0 && left >= MARK_BYTES && memcmp(at, marks[i], MARK_BYTES) == 0)
                    which = i;
            if (which >= 0 && !write_all(fd, sequences[which], strlen(sequences[which])))
                return 0;
            if (which < 0 && !write_all(fd, "?", 1))
                return 0;
            at += which >= 0 ? MARK_BYTES : 1;
            continue;
        }
        if (mark != NULL)
            n = (size_t)(mark - at);
        else if (n < left) /* not in the middle of a character */
            while (n > 1 && ((unsigned char)at[n] & 0xc0) == 0x80)
                n--;
        memcpy(text, at, n);
        if (!write_all(fd, text, terminal_clean(text, n, true)))
            return 0;
        at += n;
    }
    return (ssize_t)bytes;
}

static FILE *guard(FILE *file, int fd)
{
    static char room[2][LINE_ROOM];
    FILE *out = isatty(fd) ? fopencookie((void *)(intptr_t)fd, "w",
                                         (cookie_io_functions_t){.write = write_guarded})
                           : NULL;

    /* A line is one write: several processes may share what it goes to, as under mpirun. */
    if (out == NULL && fd != STDERR_FILENO)
        return file;
    out = out == NULL ? file : out;
    setvbuf(out, room[fd == STDERR_FILENO], _IOLBF, LINE_ROOM);
    return out;
}

void terminal_guard(void)
{
    unsigned char bytes[NONCE / 2];

    if (getrandom(bytes, sizeof(bytes), GRND_NONBLOCK) != (ssize_t)sizeof(bytes))
        return; /* no colours then, and no guard: the machine has just begun to start */
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(nonce + 2 * i, 3, "%02x", bytes[i]);
    stdout = guard(stdout, STDOUT_FILENO);
    stderr = guard(stderr, STDERR_FILENO);
}

const char *terminal_mark(int number, const char *sequence)
{
    if (nonce[0] == 0)
        return sequence;
    if (marks[number][0] == 0) {
        snprintf(sequences[number], sizeof(sequences[number]), "%s", sequence);
        snprintf(marks[number], sizeof(marks[number]), "%c%s%c", MARK, nonce, 'a' + number);
    }
    return marks[number];
}
