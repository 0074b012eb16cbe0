/* What a rank says on its standard error, passed on line by line with its number. */
#ifndef RELAY_H
#define RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RELAY_LINE = 4096 };

struct relay {
    int from;    /* read end of a pipe, non-blocking, owned; -1: none */
    bool prefix; /* "[rank 3] " before each line; without, bytes go as they come */
    size_t head; /* bytes of the prefix at the start of `line` */
    size_t held; /* bytes of a line that has no end yet, behind the prefix */
    char line[RELAY_LINE];
    /* Called before anything is written; NULL: nobody minds. */
    void (*before)(void *arg);
    void *arg;
};

void relay_init(struct relay *out, int from, uint32_t rank, bool prefix);

/* Passes on what is there, without waiting. Closes `from` at its end. */
void relay_turn(struct relay *);

/* The writer is gone: all that it left in the pipe, and the line that it did not end. */
void relay_finish(struct relay *);

#endif
