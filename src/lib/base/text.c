/* Growing text, edit distance for "did you mean", sizes and times in readable units, memory, and
 * output to terminals. */
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/exit_code.h"

enum { NAME_MAX_BYTES = 64 }; /* longer names have no near name */

static void reserve(struct text *text, size_t more)
{
    size_t room = text->room == 0 ? 256 : text->room;

    while (room - text->bytes < more + 1)
        room *= 2;
    if (room == text->room)
        return;
    text->data = memory_grow(text->data, room);
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

/* ---- memory ---- */

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

static void *or_die(void *memory, size_t bytes)
{
    if (memory == NULL) {
        fprintf(stderr, "epa2a: no memory for %zu bytes%s\n", bytes, memory_limit());
        _exit(EXIT_RESOURCE);
    }
    return memory;
}

void *memory_alloc(size_t n, size_t size)
{
    return or_die(calloc(n > 0 ? n : 1, size), n * size);
}

void *memory_grow(void *memory, size_t bytes)
{
    return or_die(realloc(memory, bytes), bytes);
}

char *memory_printf(const char *fmt, ...)
{
    va_list args;
    char *out = NULL;

    va_start(args, fmt);
    if (vasprintf(&out, fmt, args) < 0)
        out = or_die(NULL, strlen(fmt));
    va_end(args);
    return out;
}

/* A chain of blocks; an allocation is the next piece of the newest block. A large allocation
 * receives a separate block. */

/* Blocks double in size, so that an arena has at most twice the bytes of its contents. */
enum { BLOCK_LEAST = 1024, BLOCK_MOST = 65536 };

struct block {
    struct block *before;
    size_t used, room;
    max_align_t data[];
};

struct arena {
    struct block *newest;
};

struct arena *arena_create(void)
{
    return memory_alloc(1, sizeof(struct arena));
}

void arena_destroy(struct arena *arena)
{
    if (arena == NULL)
        return;
    for (struct block *block = arena->newest; block != NULL;) {
        struct block *before = block->before;

        free(block);
        block = before;
    }
    free(arena);
}

void *arena_alloc(struct arena *arena, size_t bytes)
{
    const size_t unit = sizeof(max_align_t);
    struct block *block = arena->newest;
    void *out;

    if (bytes > SIZE_MAX / 2)
        or_die(NULL, bytes);
    bytes = (bytes + unit - 1) / unit * unit;
    if (block == NULL || block->room - block->used < bytes) {
        size_t room = block == NULL ? BLOCK_LEAST : 2 * block->room;

        room = room < BLOCK_MOST ? room : BLOCK_MOST;
        room = bytes > room ? bytes : room;

        block = memory_alloc(1, sizeof(*block) + room);
        block->room = room;
        block->before = arena->newest;
        arena->newest = block;
    }
    out = (char *)block->data + block->used;
    block->used += bytes;
    return out;
}

char *arena_strndup(struct arena *arena, const char *text, size_t bytes)
{
    char *out = arena_alloc(arena, bytes + 1);

    if (bytes != 0)
        memcpy(out, text, bytes);
    return out;
}

char *arena_printf(struct arena *arena, const char *fmt, ...)
{
    va_list args, again;
    char *out;
    int n;

    va_start(args, fmt);
    va_copy(again, args);
    n = vsnprintf(NULL, 0, fmt, args);
    out = arena_alloc(arena, (size_t)n + 1);
    vsnprintf(out, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(args);
    return out;
}

enum { LINE = 64 };

struct pool_part {
    struct pool_part *before;
};

void *pool_alloc(struct pool *pool, size_t n, size_t size)
{
    size_t bytes = (n * size + LINE - 1) / LINE * LINE;
    struct pool_part *part;

    pool->bytes += bytes;
    if (pool->counting)
        return NULL;
    part = aligned_alloc(LINE, LINE + bytes);
    if (part == NULL) {
        pool->failed = true;
        return NULL;
    }
    part->before = pool->last;
    pool->last = part;
    return (char *)part + LINE;
}

void pool_free(struct pool *pool)
{
    for (struct pool_part *part = pool->last; part != NULL;) {
        struct pool_part *before = part->before;

        free(part);
        part = before;
    }
    *pool = (struct pool){0};
}

/* ---- colour on terminals ---- */

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

void error_add_remedy(struct epa_error *err)
{
    size_t used = strlen(err->text);
    const char *memory = "", *rest = "";

    if (err->status == EPA_OK || strstr(err->text, "ulimit ") != NULL)
        return; /* no failure, or its message names the limit */
    if (strstr(err->text, strerror(EMFILE)) != NULL)
        rest = "; raise the limit of open files: ulimit -n";
    /* pthread_create() fails with EAGAIN, too, if it cannot map the stack. */
    if (strstr(err->text, strerror(EAGAIN)) != NULL) {
        memory = memory_limit();
        rest = process_limit(EAGAIN);
    }
    /* RLIMIT_AS does not limit the memory of a GPU. */
    if (strstr(err->text, strerror(ENOMEM)) != NULL ||
        (err->status == EPA_ERR_NOMEM && strstr(err->text, "no memory") != NULL &&
         strstr(err->text, "cuda:") == NULL))
        memory = memory_limit();
    if (used + strlen(memory) + strlen(rest) < sizeof(err->text))
        snprintf(err->text + used, sizeof(err->text) - used, "%s%s", memory, rest);
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
