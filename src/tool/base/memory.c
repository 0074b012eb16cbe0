/* Allocations that end the program if they fail. */
#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/exit_code.h"

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

void *memory_alloc_aligned(size_t align, size_t n, size_t size)
{
    size_t bytes = (n > 0 ? n : 1) * size;

    return memset(or_die(aligned_alloc(align, bytes), bytes), 0, bytes);
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

void text_add_bytes(struct text *text, const char *bytes, size_t n)
{
    if (!text_try_add_bytes(text, bytes, n))
        (void)or_die(NULL, text->room + n);
}

void text_add(struct text *text, const char *fmt, ...)
{
    va_list args;
    bool added;

    va_start(args, fmt);
    added = text_try_add_args(text, fmt, args);
    va_end(args);
    if (!added)
        (void)or_die(NULL, 2 * text->room);
}

struct arena *arena_create(void)
{
    return or_die(arena_try_create(), sizeof(void *));
}

void *arena_alloc(struct arena *arena, size_t bytes)
{
    return or_die(arena_try_alloc(arena, bytes), bytes);
}

char *arena_strndup(struct arena *arena, const char *text, size_t bytes)
{
    return or_die(arena_try_strndup(arena, text, bytes), bytes + 1);
}

char *arena_printf(struct arena *arena, const char *fmt, ...)
{
    va_list args;
    char *out;

    va_start(args, fmt);
    out = arena_try_printf_args(arena, fmt, args);
    va_end(args);
    return or_die(out, strlen(fmt));
}
