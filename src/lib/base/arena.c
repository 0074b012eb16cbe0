/* A chain of blocks; an allocation is the next piece of the newest block. A large allocation
 * receives a separate block. */
#include "base/arena.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

struct arena *arena_try_create(void)
{
    return calloc(1, sizeof(struct arena));
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

void *arena_try_alloc(struct arena *arena, size_t bytes)
{
    const size_t unit = sizeof(max_align_t);
    struct block *block = arena->newest;
    void *out;

    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + unit - 1) / unit * unit;
    if (block == NULL || block->room - block->used < bytes) {
        size_t room = block == NULL ? BLOCK_LEAST : 2 * block->room;

        room = room < BLOCK_MOST ? room : BLOCK_MOST;
        room = bytes > room ? bytes : room;

        block = calloc(1, sizeof(*block) + room);
        if (block == NULL)
            return NULL;
        block->room = room;
        block->before = arena->newest;
        arena->newest = block;
    }
    out = (char *)block->data + block->used;
    block->used += bytes;
    return out;
}

char *arena_try_strndup(struct arena *arena, const char *text, size_t bytes)
{
    char *out = arena_try_alloc(arena, bytes + 1);

    if (out != NULL && bytes != 0)
        memcpy(out, text, bytes);
    return out;
}

char *arena_try_printf_args(struct arena *arena, const char *fmt, va_list args)
{
    va_list again;
    char *out;
    int n;

    va_copy(again, args);
    n = vsnprintf(NULL, 0, fmt, args);
    out = n < 0 ? NULL : arena_try_alloc(arena, (size_t)n + 1);
    if (out != NULL)
        vsnprintf(out, (size_t)n + 1, fmt, again);
    va_end(again);
    return out;
}

char *arena_try_printf(struct arena *arena, const char *fmt, ...)
{
    va_list args;
    char *out;

    va_start(args, fmt);
    out = arena_try_printf_args(arena, fmt, args);
    va_end(args);
    return out;
}
