/* Blocks in a chain; an allocation is the next piece of the newest block. What is larger
 * than a block gets one of its own. */
#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 16384 };

struct block {
    struct block *before;
    size_t used, room;
    max_align_t data[];
};

struct arena {
    struct block *newest;
};

static void *or_die(void *memory, size_t bytes)
{
    if (memory == NULL) {
        fprintf(stderr, "epa2a: no memory for %zu bytes of configuration\n", bytes);
        abort();
    }
    return memory;
}

struct arena *arena_create(void)
{
    return or_die(calloc(1, sizeof(struct arena)), sizeof(struct arena));
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

void *arena_alloc(struct arena *arena, size_t bytes)
{
    const size_t unit = sizeof(max_align_t);
    struct block *block = arena->newest;
    void *out;

    if (bytes > SIZE_MAX / 2)
        or_die(NULL, bytes);
    bytes = (bytes + unit - 1) / unit * unit;
    if (block == NULL || block->room - block->used < bytes) {
        size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;

        block = or_die(calloc(1, sizeof(*block) + room), room);
        block->room = room;
        block->before = arena->newest;
        arena->newest = block;
    }
    out = (char *)block->data + block->used;
    block->used += bytes;
    return out;
}

char *arena_strndup(struct arena *arena, const char *text, size_t bytes)
{
    char *out = arena_alloc(arena, bytes + 1);

    if (bytes != 0)
        memcpy(out, text, bytes);
    return out;
}

char *arena_printf(struct arena *arena, const char *fmt, ...)
{
    va_list args, again;
    char *out;
    int n;

    va_start(args, fmt);
    va_copy(again, args);
    n = vsnprintf(NULL, 0, fmt, args);
    out = arena_alloc(arena, n < 0 ? 1 : (size_t)n + 1);
    if (n > 0)
        vsnprintf(out, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(args);
    return out;
}
