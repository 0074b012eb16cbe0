/* The line is cut to what the terminal has room for at that moment, less one column: one that
 * wraps could not be taken away again. Characters count as two columns where they may be
 * that wide. */
#include "cli/progress.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/terminal.h"
static const uint64_t redraw_ns = 250000000;

enum { COLUMNS = 80, COLUMNS_LEAST = 2, COLUMNS_MOST = 1000 };

/* ---- text ---- */

/* Bytes of the UTF-8 character at `text`, and what it stands for; 0: it is none. */
static uint32_t decode(const char *text, uint32_t *out)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *c = (const unsigned char *)text;
    uint32_t n = c[0] < 0x80             ? 1
                 : (c[0] & 0xe0) == 0xc0 ? 2
                 : (c[0] & 0xf0) == 0xe0 ? 3
                 : (c[0] & 0xf8) == 0xf0 ? 4
                                         : 0;

    if (n == 0)
        return 0;
    *out = n == 1 ? c[0] : c[0] & (0x7fu >> n);
    for (uint32_t i = 1; i < n; i++) {
        if ((c[i] & 0xc0) != 0x80)
            return 0;
        *out = *out << 6 | (c[i] & 0x3f);
    }
    return *out < least[n] || *out > 0x10ffff || (*out >= 0xd800 && *out < 0xe000) ? 0 : n;
}

/* 0x80 to 0x9f are control characters, too, and some between 0x200b and 0x2069 turn the
 * direction of what follows. */
static bool is_control(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x200b && c <= 0x200f) ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x2069);
}

/* Adds `from` to `out` while there is room; returns the columns that are left. */
static uint32_t add(struct text *out, uint32_t room, const char *from)
{
    while (*from != '\0') {
        uint32_t c = 0, n = decode(from, &c), width = c >= 0x1100 ? 2 : 1;
        bool bad = n == 0 || is_control(c);

        if (bad)
            width = 1;
        if (width > room)
            return 0;
        if (bad)
            text_add(out, "?");
        else
            text_add_bytes(out, from, n);
        from += n == 0 ? 1 : n;
        room -= width;
    }
    return room;
}

static void duration(char *out, size_t room, double s)
{
    if (s < 60)
        snprintf(out, room, "%.0f s", s);
    else if (s < 3600)
        snprintf(out, room, "%.0f min %02.0f s", floor(s / 60), floor(fmod(s, 60)));
    else if (s < 360000)
        snprintf(out, room, "%.0f h %02.0f min", floor(s / 3600), floor(fmod(s, 3600) / 60));
    else
        snprintf(out, room, "days");
}

static void median(char *out, size_t room, double ns)
{
    if (ns < 1e6)
        snprintf(out, room, ", median %.*f us", ns < 1e5 ? 2 : 1, ns / 1e3);
    else
        snprintf(out, room, ", median %.2f ms", ns / 1e6);
}

void progress_line(const struct progress_facts *f, uint32_t columns, struct text *out)
{
    char head[48], where[80], times[96] = "", left[48];
    uint32_t room, tail;
    uint64_t all = f->warmup + f->iterations;

    snprintf(head, sizeof(head), "%s %u/%u ", f->verb, f->number, f->of);
    if (f->set_up)
        snprintf(where, sizeof(where), ": set-up");
    else if (f->done < f->warmup)
        snprintf(where, sizeof(where), ": warm-up %llu/%llu", (unsigned long long)f->done,
                 (unsigned long long)f->warmup);
    else
        snprintf(where, sizeof(where), ": iteration %llu/%llu",
                 (unsigned long long)((f->done < all ? f->done : all) - f->warmup),
                 (unsigned long long)f->iterations);
    if (!isnan(f->median_ns))
        median(times, sizeof(times), f->median_ns);
    if (!isnan(f->left_s)) {
        duration(left, sizeof(left), f->left_s);
        snprintf(times + strlen(times), sizeof(times) - strlen(times), ", %s%s left",
                 f->at_most ? "at most " : "", left);
    }
    /* Numbers first: the label has what remains, and is the first to go. */
    tail = (uint32_t)(strlen(where) + strlen(times));
    if (tail + strlen(head) <= columns) {
        room = add(out, columns, head);
        (void)add(out, room - tail, f->label);
        (void)add(out, tail, where);
        (void)add(out, tail, times);
        return;
    }
    room = add(out, columns, where + 2);
    (void)add(out, room, times);
}

/* ---- the terminal ---- */

static uint32_t columns_of(int file)
{
    struct winsize size = {0};

    if (ioctl(file, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return COLUMNS;
    return size.ws_col < COLUMNS_LEAST  ? COLUMNS_LEAST
           : size.ws_col > COLUMNS_MOST ? COLUMNS_MOST
                                        : size.ws_col;
}

/* What does not fit into a terminal that is stuck is lost: a line more or less. */
static void put(int file, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(file, data, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        data += n;
        bytes -= (size_t)n;
    }
}

/* A command in the background would be stopped for what it writes on some terminals. */
static bool is_ours(int file)
{
    pid_t group = tcgetpgrp(file);

    return group < 0 || group == getpgrp();
}

void progress_init(struct progress *out, enum progress_mode mode, int file)
{
    const char *term = getenv("TERM");
    bool dumb = term == NULL || term[0] == '\0' || strcmp(term, "dumb") == 0;

    *out = (struct progress){.file = file};
    out->on = mode == PROGRESS_ALWAYS || (mode == PROGRESS_AUTO && isatty(file) && !dumb);
}

bool progress_due(const struct progress *p, uint64_t now_ns)
{
    return p->on && now_ns - p->drawn_ns >= redraw_ns;
}

void progress_draw(struct progress *p, const struct progress_facts *facts, uint64_t now_ns)
{
    struct text text = {0};

    p->drawn_ns = now_ns;
    if (isatty(p->file) && !is_ours(p->file))
        return;
    text_add(&text, "\r");
    progress_line(facts, columns_of(p->file) - 1, &text);
    text.bytes = 1 + terminal_clean(text.data + 1, text.bytes - 1, false);
    text_add(&text, "\033[K");
    put(p->file, text.data, text.bytes);
    text_free(&text);
    p->shown = true;
}

void progress_clear(struct progress *p)
{
    if (!p->shown)
        return;
    put(p->file, "\r\033[K", 4);
    p->shown = false;
}
