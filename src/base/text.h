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

#endif
