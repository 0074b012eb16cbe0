/* Memory of the program: if an allocation of tables or text fails, the program ends with a message
 * and exit code 3. free() frees memory outside an arena. */
#ifndef MEMORY_H
#define MEMORY_H

#include <stddef.h>

#include "base/arena.h"
#include "base/text.h"

void *memory_alloc(size_t n, size_t size); /* [n], zeroed */
/* The same for a type with a larger alignment, which divides its size. */
void *memory_alloc_aligned(size_t align, size_t n, size_t size);
void *memory_grow(void *, size_t bytes);
EPA_PRINTF(1, 2) char *memory_printf(const char *fmt, ...);

EPA_PRINTF(2, 3) void text_add(struct text *, const char *fmt, ...);
void text_add_bytes(struct text *, const char *, size_t);

struct arena *arena_create(void);
void *arena_alloc(struct arena *, size_t bytes); /* zeroed, aligned for any type */
char *arena_strndup(struct arena *, const char *, size_t bytes);
EPA_PRINTF(2, 3) char *arena_printf(struct arena *, const char *fmt, ...);

#endif
