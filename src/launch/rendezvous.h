/* Where the launchers of a job connect: in that of rank 0, within its poll loop. */
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

/* A connection that did not arrive at the listener: rank 0's own. Takes the descriptor. */
void rendezvous_adopt(struct rendezvous *, int fd);

/* In a process that was forked: closes its copies of the connections. */
void rendezvous_close_inherited(const struct rendezvous *);

/* As many as rendezvous_polls() fills at most, and as it has filled; poll() in between. */
uint32_t rendezvous_poll_room(uint32_t ranks);
uint32_t rendezvous_polls(const struct rendezvous *, struct pollfd *out);
void rendezvous_turn(struct rendezvous *, const struct pollfd *, uint32_t n);

/* After a failure nobody else is about to connect, and is waited for. */
void rendezvous_expect_nobody(struct rendezvous *);

/* The verdict has reached every launcher that can be reached. */
bool rendezvous_over(const struct rendezvous *);

#endif
