/* Where the agents of a launch meet: in the agent of rank 0, within its poll loop. */
#ifndef HUB_H
#define HUB_H

#include <poll.h>

#include <epa2a/world.h>

struct hub;

struct hub_params {
    const struct epa_launch *asked; /* rank 0's; its block is filled with those of others */
    const char *token;
    const int *listener; /* sockets, not owned */
    uint32_t listeners;
    uint64_t start_ns, heartbeat_ns; /* as in team_settings */
};

/* What params point to must outlive it. */
enum epa_status hub_create(const struct hub_params *, struct hub **out, struct epa_error *);
void hub_destroy(struct hub *);

/* A connection that did not come by a listener: rank 0's own. Taken. */
void hub_adopt(struct hub *, int fd);

/* As many as hub_polls() fills at most, and as it has filled; poll() in between. */
uint32_t hub_poll_room(const struct hub *);
uint32_t hub_polls(const struct hub *, struct pollfd *out);
void hub_turn(struct hub *, const struct pollfd *, uint32_t n);

/* When it wants its next turn at the latest. */
uint64_t hub_due_ns(const struct hub *);

/* All have been told how the launch ended, as far as they can be reached. */
bool hub_over(const struct hub *);

#endif
