/* Growing text, the nearest of several names, and readable sizes. */
#ifndef TEXT_H
#define TEXT_H

#include <epa2a/status.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text {
    char *data; /* ends in 0 once text was added; NULL before */
    size_t bytes, room;
};
/* A text that is freed at the end of its block. */
#define text_auto __attribute__((cleanup(text_free))) struct text

/* Return false without memory; the text is then unchanged. The program has text_add() in
 * base/memory.h. */
EPA_CHECKED EPA_PRINTF(2, 3) bool text_try_add(struct text *, const char *fmt, ...);
EPA_CHECKED EPA_PRINTF(2, 0) bool text_try_add_args(struct text *, const char *fmt, va_list args);
EPA_CHECKED bool text_try_add_bytes(struct text *, const char *, size_t);
void text_free(struct text *);
/* Writes all bytes, in as many calls as needed; returns false with errno. */
bool write_whole(int fd, const char *data, size_t bytes);

/* Returns the first byte that does not belong to one line of UTF-8 text; NULL: none. `point` is 0,
 * or the value of a control character. */
const char *text_not_a_line(const char *text, uint32_t *point);

/* Returns the bytes of the UTF-8 byte order mark (U+FEFF) at the begin of the text: 3, or 0 without
 * one. */
size_t text_mark_bytes(const char *text, size_t bytes);

/* Returns bytes and code point of the character at `s`; 0: invalid UTF-8. */
size_t text_decode(const char *s, uint32_t *out);

/* Terminals get only text and our own colours. Names, paths, and messages of libraries and other
 * hosts may hold escape sequences that move the cursor, set the title, inject input, or reverse
 * the order of text.
 *
 * Replaces, in place, by '?' each control character (C0 and C1, as a byte or as UTF-8), each mark
 * that changes the direction of writing, and each invalid byte of UTF-8; new lines and tabs stay if
 * `lines`. Returns the remaining number of bytes. */
size_t terminal_clean(char *text, size_t bytes, bool lines);
/* The same for a string of one line. Returns text. */
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

/* Names a limit that may have exhausted the memory, or "". */
const char *memory_limit(void);

/* Returns a remedy for the error of fork() or pthread_create(): "; raise RLIMIT_NPROC (ulimit -u),
 * pids.max of the cgroup or kernel.threads-max" for EAGAIN, else "". */
const char *process_limit(int error);

/* Appends the remedy for the limit in the key of the error: "no memory for 4 workers (RLIMIT_AS: ulimit
 * -v)", and sets the key to EPA_LIMIT_NAMED. Called in the process that failed. */
void error_add_remedy(struct epa_error *);

/* Returns the name of a status for reports: "ok", "mismatch", "timeout", "died", "interrupted",
 * ... */
const char *status_name(enum epa_status);

#endif
