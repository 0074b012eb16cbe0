/* Memory that is freed all at once. Allocation does not fail: it aborts the program with a
 * sentence, for the few kilobytes of text and configuration that live here. */
#ifndef ARENA_H
#define ARENA_H

#include <stddef.h>

struct arena;

struct arena *arena_create(void);
void arena_destroy(struct arena *);
void *arena_alloc(struct arena *, size_t bytes); /* zeroed, aligned for anything */
char *arena_strndup(struct arena *, const char *, size_t bytes);
__attribute__((format(printf, 2, 3))) char *arena_printf(struct arena *, const char *fmt, ...);

#endif
