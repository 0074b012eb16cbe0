/* Colour and filters of the standard streams. */
#include "base/terminal.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/text.h"

/* The mode is global, like a log level: otherwise each function that can print an error would need
 * a parameter. Only the standard streams are coloured. */

static enum colour_mode mode = COLOUR_AUTO; /* written once, before threads exist */

/* Standard output of this program, and the stream of the C library, to which libraries may keep a
 * pointer. Written before threads exist. */
static int stdout_fd = STDOUT_FILENO;
static FILE *lent;

static bool is_coloured(FILE *file)
{
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    int fd = file == stdout ? stdout_fd : file == stderr ? STDERR_FILENO : -1;

    if (fd < 0 || mode == COLOUR_NEVER)
        return false;
    if (mode == COLOUR_ALWAYS)
        return true;
    return (no == NULL || no[0] == '\0') && term != NULL && term[0] != '\0' &&
           strcmp(term, "dumb") != 0 && isatty(fd);
}

enum { LINE_ROOM = 8192, MARKS = 8 };
enum { MARK = 0x0e, NONCE = 16, MARK_BYTES = 1 + NONCE + 1, SEQUENCE = 16 };

/* Random part of the marks. Written once, before threads exist. */
static char nonce[NONCE + 1];
static char marks[MARKS][MARK_BYTES + 1], sequences[MARKS][SEQUENCE];

/* Returns the sequence, or a mark for it on a guarded stream. A guarded stream has no descriptor
 * and passes none of our own sequences, only marks: random in each process, so that no file can
 * contain them. */
static const char *sequence_for(FILE *file, int number, const char *sequence)
{
    if (fileno(file) >= 0 || nonce[0] == 0)
        return sequence;
    if (marks[number][0] == 0) {
        snprintf(sequences[number], sizeof(sequences[number]), "%s", sequence);
        snprintf(marks[number], sizeof(marks[number]), "%c%s%c", MARK, nonce, 'a' + number);
    }
    return marks[number];
}

void colour_choose(enum colour_mode chosen)
{
    mode = chosen;
}

const char *colour_on(FILE *file, enum colour colour)
{
    static const char *const code[] = {
        [COLOUR_ERROR] = "\033[1;31m", [COLOUR_WARNING] = "\033[1;33m", [COLOUR_BAD] = "\033[31m",
        [COLOUR_GOOD] = "\033[32m",    [COLOUR_LOCATION] = "\033[36m",
    };

    return is_coloured(file) ? sequence_for(file, (int)colour, code[colour]) : "";
}

const char *colour_off(FILE *file)
{
    return is_coloured(file) ? sequence_for(file, MARKS - 1, "\033[0m") : "";
}

void text_warn(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fprintf(stderr, "epa2a: %swarning:%s ", colour_on(stderr, COLOUR_WARNING), colour_off(stderr));
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
}

/* ---- terminals: a guarded stream is a cookie of the C library that filters whole lines ---- */

/* Writes text up to the next mark of ours, then the sequence of the mark. */
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
            for (int i = 0; i < MARKS; i++)
                if (marks[i][0] != 0 && left >= MARK_BYTES && memcmp(at, marks[i], MARK_BYTES) == 0)
                    which = i;
            if (which >= 0 && !write_whole(fd, sequences[which], strlen(sequences[which])))
                return 0;
            if (which < 0 && !write_whole(fd, "?", 1))
                return 0;
            at += which >= 0 ? MARK_BYTES : 1;
            continue;
        }
        if (mark != NULL)
            n = (size_t)(mark - at);
        else if (n < left) /* keep characters whole */
            while (n > 1 && ((unsigned char)at[n] & 0xc0) == 0x80)
                n--;
        memcpy(text, at, n);
        if (!write_whole(fd, text, terminal_clean(text, n, true)))
            return 0;
        at += n;
    }
    return (ssize_t)bytes;
}

int stdout_descriptor(void)
{
    return stdout_fd;
}

FILE *stdout_lend(void)
{
    FILE *own = stdout;

    if (lent == NULL || own == lent)
        return own;
    fflush(own); /* a rank would print it again */
    stdout = lent;
    return own;
}

void stdout_take_back(FILE *own)
{
    if (stdout == own)
        return;
    fflush(stdout);
    stdout = own;
}

void stdout_leave(void)
{
    (void)stdout_lend();
    if (stdout_fd != STDOUT_FILENO)
        close(stdout_fd);
    stdout_fd = STDOUT_FILENO;
}

/* Points descriptor 1, to which libraries print, to standard error. */
static void separate_stdout(void)
{
    int fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    FILE *own = fd < 0 ? NULL : fdopen(fd, "w");

    if (own == NULL || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
        if (own != NULL)
            fclose(own);
        else if (fd >= 0)
            close(fd);
        return;
    }
    stdout_fd = fd;
    lent = stdout;
    stdout = own;
}

static FILE *guard_stream(FILE *file, int fd)
{
    static char room[2][LINE_ROOM];
    /* Standard error may go to a file that a terminal shows later. */
    FILE *out = isatty(fd) || fd == STDERR_FILENO
                    ? fopencookie((void *)(intptr_t)fd, "w",
                                  (cookie_io_functions_t){.write = write_guarded})
                    : NULL;

    /* A line is one write: several processes may share the output, as under mpirun. */
    if (out == NULL && fd != STDERR_FILENO)
        return file;
    out = out == NULL ? file : out;
    setvbuf(out, room[fd == STDERR_FILENO], _IOLBF, LINE_ROOM);
    return out;
}

void terminal_guard(void)
{
    unsigned char bytes[NONCE / 2];

    separate_stdout();
    if (getrandom(bytes, sizeof(bytes), GRND_NONBLOCK) != (ssize_t)sizeof(bytes))
        return; /* no colours and no guard: the machine has just started */
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(nonce + 2 * i, 3, "%02x", bytes[i]);
    stdout = guard_stream(stdout, stdout_fd);
    stderr = guard_stream(stderr, STDERR_FILENO);
}

uint32_t terminal_columns(void)
{
    struct winsize size;

    if (ioctl(stdout_fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return TERMINAL_COLUMNS;
    return size.ws_col;
}
