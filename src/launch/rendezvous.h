/* Where the agents of a launch meet: in the agent of rank 0, within its poll loop. */
#ifndef RENDEZVOUS_H
#define RENDEZVOUS_H

#include <poll.h>

#include <epa2a/world.h>

struct rendezvous;

struct rendezvous_params {
    const struct epa_launch *asked; /* rank 0's; its block is filled with those of others */
    const char *token;
    int listener;                    /* not owned; -1: none */
    uint64_t start_ns, heartbeat_ns; /* as in launcher_settings */
};

/* What params point to must outlive it. */
enum epa_status rendezvous_create(const struct rendezvous_params *, struct rendezvous **out,
                                  struct epa_error *);
void rendezvous_destroy(struct rendezvous *);

/* A connection that did not come by a listener: rank 0's own. Taken. */
void rendezvous_adopt(struct rendezvous *, int fd);

/* As many as rendezvous_polls() fills at most, and as it has filled; poll() in between. */
uint32_t rendezvous_poll_room(uint32_t ranks);
uint32_t rendezvous_polls(const struct rendezvous *, struct pollfd *out);
void rendezvous_turn(struct rendezvous *, const struct pollfd *, uint32_t n);

/* After a failure nobody else is about to come, and is waited for. */
void rendezvous_expect_nobody(struct rendezvous *);

/* All have been told how the launch ended, as far as they can be reached. */
bool rendezvous_over(const struct rendezvous *);

#endif
