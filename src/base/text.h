/* Text that grows, and the nearest of several names. */
#ifndef TEXT_H
#define TEXT_H

#include <epa2a/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct text {
    char *data; /* always ends in 0 once something was added; NULL before */
    size_t bytes, room;
};
/* One that is freed where its block ends. */
#define text_auto __attribute__((cleanup(text_free))) struct text

__attribute__((format(printf, 2, 3))) void text_add(struct text *, const char *fmt, ...);
void text_add_bytes(struct text *, const char *, size_t);
void text_free(struct text *);
/* All of it, in as many calls as that takes; false: errno says why. */
bool write_whole(int fd, const char *data, size_t bytes);

/* The first byte that is not of one line of UTF-8 text; NULL: there is none. `point` is 0, or the
 * control character that it is. */
const char *text_not_a_line(const char *text, uint32_t *point);

/* Bytes of the byte order mark of UTF-8 (U+FEFF) that the text begins with: 3, or 0 without one. */
size_t text_mark_bytes(const char *text, size_t bytes);

/* Without what moves the cursor, as text from files may have it: shown as ?. Returns text. */
char *text_clean(char *text);
/* The same for a document of several lines. */
void text_clean_lines(struct text *);

/* The nearest name by edits and swaps (Damerau-Levenshtein), of which there may be max(1, min(2,
 * strlen(want) / 3)), of those that are given one after the other, or in tables of structs that
 * begin with their name, a NULL at the end: {.want = "hiden"}, and `name` is the nearest or
 * NULL. */
struct nearest {
    const char *want, *name;
    uint32_t distance;
};
void nearest_try(struct nearest *, const char *name);
void nearest_try_table(struct nearest *, const void *table, size_t stride);
/* "did you mean 'hidden'?", or `otherwise`. Returns buf. */
enum { NEAREST_ROOM = 192 };
const char *nearest_hint(const struct nearest *, char buf[NEAREST_ROOM], const char *otherwise);

/* For qsort(): -1, 0 or 1. */
static inline int compare_whole(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/* FNV-1a, of all bytes that were added since HASH_BEGIN. */
#define HASH_BEGIN UINT64_C(14695981039346656037)
void hash_add(uint64_t *hash, const void *bytes, size_t n);

/* "15.2 MiB", "1.50 GiB", "640 B". Returns buf. */
char *text_size(char *buf, size_t room, uint64_t bytes);

/* "12,345". Returns buf. */
char *text_count(char *buf, size_t room, uint64_t n);

/* ---- memory: where there is none for tables and text, the program ends with a sentence and exit
 * code 3; free() frees what is not of an arena ---- */

/* Names a limit that may be the reason why memory is exhausted, or "". */
const char *memory_limit(void);
void *memory_alloc(size_t n, size_t size); /* [n], zeroed */
void *memory_grow(void *, size_t bytes);
__attribute__((format(printf, 1, 2))) char *memory_printf(const char *fmt, ...);

/* Memory that is freed all at once. */
struct arena;

struct arena *arena_create(void);
void arena_destroy(struct arena *);
void *arena_alloc(struct arena *, size_t bytes); /* zeroed, aligned for anything */
char *arena_strndup(struct arena *, const char *, size_t bytes);
__attribute__((format(printf, 2, 3))) char *arena_printf(struct arena *, const char *fmt, ...);

/* Larger memory, in parts that are freed together. Where there is none, and while `counting`, parts
 * are NULL; `bytes` is what all of them take. */
struct pool {
    struct pool_part *last;
    uint64_t bytes;
    bool counting, failed;
};
/* [n] of `size` bytes, not cleared, at the start of a cache line. */
void *pool_alloc(struct pool *, size_t n, size_t size);
void pool_free(struct pool *);

/* ---- colour on terminals ---- */

enum colour_mode { COLOUR_AUTO, COLOUR_ALWAYS, COLOUR_NEVER };

enum colour { COLOUR_ERROR, COLOUR_WARNING, COLOUR_BAD, COLOUR_GOOD, COLOUR_LOCATION };

/* --color, set once before anything is printed. Auto: standard output and standard error have
 * colour where they are terminals, TERM is not dumb and NO_COLOR is not set. */
void colour_choose(enum colour_mode);

/* What is written before and behind; "" where there is to be no colour. */
const char *colour_on(FILE *, enum colour);
const char *colour_off(FILE *);

/* A remedy to add to a message of the system: "; raise the limit of open files: ulimit -n", or "". */
const char *text_remedy(const char *message);

/* "epa2a: warning: ..." on standard error. */
__attribute__((format(printf, 1, 2))) void text_warn(const char *fmt, ...);

/* Terminals get only text and our own colours. Names, paths, and messages of libraries and other
 * hosts may hold escape sequences that move the cursor, set the title, inject input, or reverse
 * the order of text. */

/* Bytes and code point of the character at `s`; 0: it is not UTF-8. */
size_t text_decode(const char *s, uint32_t *out);

/* In place, makes a '?' of each control character (C0 and C1, whole or as UTF-8), of each mark that
 * changes the direction of writing, and of each byte that is not UTF-8; new lines and tabs stay if
 * `lines`. Returns the bytes that are left. */
size_t terminal_clean(char *text, size_t bytes, bool lines);

/* From here on what goes to stdout and stderr passes terminal_clean() where that is a terminal.
 * Once, before anything is printed. */
void terminal_guard(void);

/* Columns of the terminal at standard output, or TERMINAL_COLUMNS without a terminal. */
enum { TERMINAL_COLUMNS = 80 };
uint32_t terminal_columns(void);

/* Plugins and the libraries that they load may print, as UCX does with UCX_LOG_LEVEL=info, and a
 * document on standard output must stay whole. So after terminal_guard() descriptor 1 is standard
 * error, and `stdout` is a stream of this program on another descriptor. Around calls of plugins
 * and dlopen() `stdout` is the stream of the C library again:
 *
 *     FILE *own = stdout_lend();
 *     ... plugin->open(...) ...
 *     stdout_take_back(own);
 *
 * By the main thread; such calls may be nested. */
FILE *stdout_lend(void);
void stdout_take_back(FILE *own);
/* In the process of a rank: leaves standard output to the program. */
void stdout_leave(void);
/* The descriptor of standard output. */
int stdout_descriptor(void);

/* Exit codes of the program. */

enum epa_exit {
    EXIT_OK = 0,
    EXIT_WRONG = 1,    /* wrong data; expectations that were missed */
    EXIT_USAGE = 2,    /* usage or configuration */
    EXIT_RESOURCE = 3, /* a resource is missing */
    EXIT_TIMEOUT = 4,
    EXIT_DIED = 5, /* a rank died */
    EXIT_INTERNAL = 6,
    EXIT_SLOWER = 10,  /* compare: something is slower */
    EXIT_SKIPPED = 77, /* every run of a batch */
    EXIT_SIGINT = 130,
    EXIT_SIGPIPE = 141, /* as by SIGPIPE: the reader of standard output closed it */
    EXIT_SIGTERM = 143,
};

/* "ok", "mismatch", "timeout", "died", "interrupted", ...: the status by name, for reports. */
const char *status_name(enum epa_status);

#endif
