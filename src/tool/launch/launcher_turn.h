/* A launcher's connection to the rendezvous. */
#ifndef LAUNCHER_TURN_H
#define LAUNCHER_TURN_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

struct launcher;

/* Starts dialling the rendezvous. `fd`: an existing connection to it, or -1. */
void launcher_start_dialling(struct launcher *, int fd);

uint32_t launcher_polls(const struct launcher *, struct pollfd *out);
/* Returns true if this launcher and all connected launchers have the verdict. */
bool launcher_turn(struct launcher *, const struct pollfd *);

/* Copies the blocks of the ranks of CONN_BLOCKS, as far as the ranks have written them. */
void launcher_read_members(struct launcher *);
void launcher_close_members(struct launcher *);

#endif
