/* The progress line on standard error. */
#include "cli/progress_line.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"

enum { COLUMNS_DEFAULT = 80, COLUMNS_LEAST = 2, COLUMNS_MOST = 1000 };

/* Adds `from` to `out` up to `room` columns; returns the number of columns left. */
static uint32_t add_columns(struct text *out, uint32_t room, const char *from)
{
    while (*from != '\0') {
        uint32_t c = 0, width;
        size_t n = text_decode(from, &c); /* not 0: the caller cleaned the text */

        width = c >= 0x1100 ? 2 : 1;
        if (width > room)
            return 0;
        text_add_bytes(out, from, n);
        from += n;
        room -= width;
    }
    return room;
}

static void format_duration(char *out, size_t room, double s)
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

static void format_median(char *out, size_t room, double ns)
{
    if (ns < 1e6)
        snprintf(out, room, ", median %.*f us", ns < 1e5 ? 2 : 1, ns / 1e3);
    else
        snprintf(out, room, ", median %.2f ms", ns / 1e6);
}

void progress_line(const struct progress_facts *f, uint32_t columns, struct text *out)
{
    char head[48], where[80], times[96] = "", left[48], label[COLUMNS_MOST];
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
        format_median(times, sizeof(times), f->median_ns);
    if (!isnan(f->left_s)) {
        format_duration(left, sizeof(left), f->left_s);
        snprintf(times + strlen(times), sizeof(times) - strlen(times), ", %s%s left",
                 f->at_most ? "at most " : "", left);
    }
    snprintf(label, sizeof(label), "%s", f->label);
    label[terminal_clean(label, strlen(label), false)] = '\0';
    /* The numbers have priority; the label gets the remaining columns. */
    tail = (uint32_t)(strlen(where) + strlen(times));
    if (tail + strlen(head) <= columns) {
        room = add_columns(out, columns, head);
        (void)add_columns(out, room - tail, label);
        (void)add_columns(out, tail, where);
        (void)add_columns(out, tail, times);
        return;
    }
    room = add_columns(out, columns, where + 2);
    (void)add_columns(out, room, times);
}

uint32_t progress_columns(void)
{
    struct winsize size = {0};

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return COLUMNS_DEFAULT;
    return size.ws_col < COLUMNS_LEAST  ? COLUMNS_LEAST
           : size.ws_col > COLUMNS_MOST ? COLUMNS_MOST
                                        : size.ws_col;
}

bool progress_is_on(const struct cli *cli)
{
    const char *term = getenv("TERM");
    bool dumb = term == NULL || term[0] == '\0' || strcmp(term, "dumb") == 0;

    if (cli->progress == PROGRESS_AUTO)
        return !cli->quiet && isatty(STDERR_FILENO) && !dumb;
    return cli->progress == PROGRESS_ALWAYS;
}

/* Drops the line if the terminal blocks. Does not write in the background, since a terminal with
 * tostop would stop the process. */
bool progress_show(const char *fmt, ...)
{
    pid_t group = isatty(STDERR_FILENO) ? tcgetpgrp(STDERR_FILENO) : -1;
    text_auto text = {0};
    char line[4 * COLUMNS_MOST];
    va_list args;

    if (group >= 0 && group != getpgrp())
        return false;
    va_start(args, fmt);
    vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    line[terminal_clean(line, strlen(line), false)] = '\0';
    text_add(&text, "\r%s\033[K", line);
    (void)write_whole(STDERR_FILENO, text.data, text.bytes);
    return true;
}

void progress_clear(void)
{
    (void)write_whole(STDERR_FILENO, "\r\033[K", 4);
}
