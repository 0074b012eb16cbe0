/* Relay of a rank's output. */
#ifndef RELAY_H
#define RELAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/world.h>

/* Relay of a rank's output: writes each line with the rank's number, and drops lines if the reader of
 * standard error is stuck. */
enum { RELAY_LINE = 4096 };

struct relay {
    int from;    /* read end of a pipe, non-blocking, owned; -1: none */
    bool prefix; /* "[rank 3] " before each line; false: the relay writes bytes without lines */
    size_t head; /* bytes of the prefix at the start of `line` */
    size_t held; /* bytes of an incomplete line, behind the prefix */
    bool unread; /* the last line was dropped, since standard error had no room */
    char line[RELAY_LINE];
    const struct epa_launch
        *asked; /* the relay calls its poll_launch() before it writes; or NULL */
};

void relay_init(struct relay *out, int from, uint32_t rank, bool prefix);

/* Forwards the available bytes without waiting. Closes `from` at its end. */
void relay_turn(struct relay *);

/* Forwards the rest of the pipe and an incomplete line after the end of the writer. */
void relay_finish(struct relay *);

#endif
