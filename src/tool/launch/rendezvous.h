/* The rendezvous: connection point of the launchers of a job, in the poll loop of rank 0's launcher. */
#ifndef RENDEZVOUS_H
#define RENDEZVOUS_H

#include <poll.h>

#include "launch/launcher_params.h"

struct conn_word;
struct rendezvous;

/* `asked` is rank 0's launch; the rendezvous writes the blocks of other ranks to its block. The listener
 * is not owned; -1: no listener. All pointers must outlive the rendezvous. */
enum epa_status rendezvous_create(const struct epa_launch *asked, const struct launcher_settings *,
                                  const struct contact *, int listener, struct rendezvous **out,
                                  struct epa_error *);
void rendezvous_destroy(struct rendezvous *);

/* Adds rank 0's own connection, which does not use the listener. Takes ownership of the descriptor. */
void rendezvous_adopt(struct rendezvous *, int fd);

/* The caller polls the rendezvous_poll_room() entries that rendezvous_polls() fills, and passes them to
 * rendezvous_turn(). */
uint32_t rendezvous_poll_room(uint32_t ranks);
void rendezvous_polls(const struct rendezvous *, struct pollfd *out);
/* alone: no other rank can connect, so the rendezvous does not wait for them. */
void rendezvous_turn(struct rendezvous *, const struct pollfd *, bool alone);

/* Returns the failure so far; status 0: none. A later failure may replace it. */
const struct conn_word *rendezvous_verdict(const struct rendezvous *);

/* Returns true if every reachable launcher has received the verdict. */
bool rendezvous_over(const struct rendezvous *);

#endif
