/* Growing text, and the nearest of several names. */
#ifndef TEXT_H
#define TEXT_H

#include <epa2a/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct text {
    char *data; /* ends in 0 once text was added; NULL before */
    size_t bytes, room;
};
/* A text that is freed at the end of its block. */
#define text_auto __attribute__((cleanup(text_free))) struct text

__attribute__((format(printf, 2, 3))) void text_add(struct text *, const char *fmt, ...);
void text_add_bytes(struct text *, const char *, size_t);
void text_free(struct text *);
/* Writes all bytes, in as many calls as needed; returns false with errno. */
bool write_whole(int fd, const char *data, size_t bytes);

/* Returns the first byte that does not belong to one line of UTF-8 text; NULL: none. `point` is 0,
 * or the value of a control character. */
const char *text_not_a_line(const char *text, uint32_t *point);

/* Returns the bytes of the UTF-8 byte order mark (U+FEFF) at the begin of the text: 3, or 0 without
 * one. */
size_t text_mark_bytes(const char *text, size_t bytes);

/* Replaces characters that move the cursor, which files may contain, by ?. Returns text. */
char *text_clean(char *text);
/* The same for a document of several lines. */
void text_clean_lines(struct text *);

/* Finds the nearest name by edits and swaps (Damerau-Levenshtein), at most max(1, min(2,
 * strlen(want) / 3)), among names passed one after the other, or in tables of structs that begin
 * with their name, ended by NULL: {.want = "hiden"}; `name` is the nearest or NULL. */
struct nearest {
    const char *want, *name;
    uint32_t distance;
};
void nearest_try(struct nearest *, const char *name);
void nearest_try_table(struct nearest *, const void *table, size_t stride);
/* Writes "did you mean 'hidden'?", or `otherwise`. Returns buf. */
enum { NEAREST_ROOM = 192 };
const char *nearest_hint(const struct nearest *, char buf[NEAREST_ROOM], const char *otherwise);

/* For qsort(): returns -1, 0 or 1. */
static inline int compare_whole(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/* FNV-1a of all bytes added since HASH_BEGIN. */
#define HASH_BEGIN UINT64_C(14695981039346656037)
void hash_add(uint64_t *hash, const void *bytes, size_t n);

/* Writes "15.2 MiB", "1.50 GiB", "640 B". Returns buf. */
char *text_size(char *buf, size_t room, uint64_t bytes);

/* Writes "12,345". Returns buf. */
char *text_count(char *buf, size_t room, uint64_t n);

/* ---- memory: if an allocation of tables or text fails, the program ends with a message and exit
 * code 3; free() frees memory outside an arena ---- */

/* Names a limit that may have exhausted the memory, or "". */
const char *memory_limit(void);

/* Returns a remedy for the error of fork() or pthread_create(): "; raise RLIMIT_NPROC (ulimit -u), pids.max of the cgroup
 * or kernel.threads-max" for EAGAIN, else "". */
const char *process_limit(int error);
void *memory_alloc(size_t n, size_t size); /* [n], zeroed */
void *memory_grow(void *, size_t bytes);
__attribute__((format(printf, 1, 2))) char *memory_printf(const char *fmt, ...);

/* Memory that is freed in one call. */
struct arena;

struct arena *arena_create(void);
void arena_destroy(struct arena *);
void *arena_alloc(struct arena *, size_t bytes); /* zeroed, aligned for any type */
char *arena_strndup(struct arena *, const char *, size_t bytes);
__attribute__((format(printf, 2, 3))) char *arena_printf(struct arena *, const char *fmt, ...);

/* Larger memory, in parts that are freed together. If an allocation fails, or if `counting` is set,
 * parts are NULL; `bytes` is the total size. */
struct pool {
    struct pool_part *last;
    uint64_t bytes;
    bool counting, failed;
};
/* Allocates [n] of `size` bytes, not cleared, at the start of a cache line. */
void *pool_alloc(struct pool *, size_t n, size_t size);
void pool_free(struct pool *);

/* ---- colour on terminals ---- */

enum colour_mode { COLOUR_AUTO, COLOUR_ALWAYS, COLOUR_NEVER };

enum colour { COLOUR_ERROR, COLOUR_WARNING, COLOUR_BAD, COLOUR_GOOD, COLOUR_LOCATION };

/* Sets --color, once before any output. Auto: standard output and standard error have colour if
 * they are terminals, TERM is not dumb and NO_COLOR is not set. */
void colour_choose(enum colour_mode);

/* Return the sequences before and after coloured text; "" without colour. */
const char *colour_on(FILE *, enum colour);
const char *colour_off(FILE *);

/* Appends the limit of this process that may have caused the failure, unless the message names it:
 * "no memory for 4 workers (RLIMIT_AS: ulimit -v)". Called in the process that failed. */
void error_add_remedy(struct epa_error *);

/* Prints "epa2a: warning: ..." on standard error. */
__attribute__((format(printf, 1, 2))) void text_warn(const char *fmt, ...);

/* Terminals get only text and our own colours. Names, paths, and messages of libraries and other
 * hosts may hold escape sequences that move the cursor, set the title, inject input, or reverse
 * the order of text. */

/* Returns bytes and code point of the character at `s`; 0: invalid UTF-8. */
size_t text_decode(const char *s, uint32_t *out);

/* Replaces, in place, by '?' each control character (C0 and C1, as a byte or as UTF-8), each mark
 * that changes the direction of writing, and each invalid byte of UTF-8; new lines and tabs stay if
 * `lines`. Returns the remaining number of bytes. */
size_t terminal_clean(char *text, size_t bytes, bool lines);

/* Filters all later output to stdout and stderr through terminal_clean() if it is a terminal.
 * Called once, before any output. */
void terminal_guard(void);

/* Returns the columns of the terminal at standard output, or TERMINAL_COLUMNS without a
 * terminal. */
enum { TERMINAL_COLUMNS = 80 };
uint32_t terminal_columns(void);

/* Plugins and their libraries may print, like UCX with UCX_LOG_LEVEL=info, but a document on
 * standard output must stay intact. So after terminal_guard() descriptor 1 is standard error, and
 * `stdout` is a stream of this program on another descriptor. Around calls of plugins and dlopen()
 * `stdout` is the stream of the C library again:
 *
 *     FILE *own = stdout_lend();
 *     ... plugin->open(...) ...
 *     stdout_take_back(own);
 *
 * Called by the main thread; calls may nest. */
FILE *stdout_lend(void);
void stdout_take_back(FILE *own);
/* Called in the process of a rank: leaves standard output to the program. */
void stdout_leave(void);
/* Returns the descriptor of standard output. */
int stdout_descriptor(void);

/* Returns the name of a status for reports: "ok", "mismatch", "timeout", "died", "interrupted",
 * ... */
const char *status_name(enum epa_status);

#endif
