/* Text that grows, and the nearest of several names. */
#ifndef TEXT_H
#define TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct text {
    char *data; /* always ends in 0 once something was added; NULL before */
    size_t bytes, room;
};

__attribute__((format(printf, 2, 3))) void text_add(struct text *, const char *fmt, ...);
void text_add_bytes(struct text *, const char *, size_t);
/* Text that Markdown shows as it is, on one line. */
void text_add_markdown(struct text *, const char *);
void text_free(struct text *);

/* Without what moves the cursor, as text from files may have it: shown as ?. Returns text. */
char *text_clean(char *text);
void text_print_clean(FILE *, const char *text);

/* A comment of 100 columns: "# " and, where it is folded at blanks, "#   " before what goes on; cleaned
 * as text_clean() does. */
__attribute__((format(printf, 2, 3))) void text_comment(FILE *, const char *fmt, ...);

/* Damerau-Levenshtein distance, and whether `have` is near enough to be what `want` meant:
 * distance <= max(1, min(2, strlen(want) / 3)). */
uint32_t text_distance(const char *a, const char *b);
bool text_near(const char *want, const char *have);

/* The nearest of `n` names that is near enough, or NULL. */
const char *text_nearest(const char *want, const char *const *names, uint32_t n);

/* The same of names that are given one after the other, or in tables of structs that begin with
 * their name, a NULL at the end: {.want = "hiden"}, and `name` is then the nearest or NULL. */
struct nearest {
    const char *want, *name;
    uint32_t distance;
};
void nearest_try(struct nearest *, const char *name);
void nearest_try_table(struct nearest *, const void *table, size_t stride);
/* "did you mean 'hidden'?", or `otherwise`. Returns buf. */
enum { NEAREST_ROOM = 192 };
const char *nearest_hint(const struct nearest *, char buf[NEAREST_ROOM], const char *otherwise);

/* Bytes and code point of the character at `s`; 0: it is not UTF-8. */
size_t text_decode(const char *s, uint32_t *out);

/* "15.2 MiB", "1.50 GiB", "640 B". Returns buf. */
char *text_size(char *buf, size_t room, uint64_t bytes);

/* "12,345". Returns buf. */
char *text_count(char *buf, size_t room, uint64_t n);

/* ---- memory that is freed all at once ---- */

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

/* --color, told once before anything is printed. Auto: standard output and standard error have
 * colour where they are terminals, TERM is not dumb and NO_COLOR is not set. */
void colour_choose(enum colour_mode);

/* What is written before and behind; "" where there is to be no colour. */
const char *colour_on(FILE *, enum colour);
const char *colour_off(FILE *);

#endif
