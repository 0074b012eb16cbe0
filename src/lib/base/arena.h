/* Memory that is freed in one call. Allocations return NULL without memory; the program has
 * variants without this failure in base/memory.h. */
#ifndef ARENA_H
#define ARENA_H

#include <epa2a/status.h>

#include <stdarg.h>
#include <stddef.h>

struct arena;

struct arena *arena_try_create(void);
void arena_destroy(struct arena *);                  /* NULL: nothing */
void *arena_try_alloc(struct arena *, size_t bytes); /* zeroed, aligned for any type */
char *arena_try_strndup(struct arena *, const char *, size_t bytes);
EPA_PRINTF(2, 3) char *arena_try_printf(struct arena *, const char *fmt, ...);
EPA_PRINTF(2, 0) char *arena_try_printf_args(struct arena *, const char *fmt, va_list args);

#endif
