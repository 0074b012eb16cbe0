/* What the built-in launchers share: a rank's world, and the judgement of how a launch ends. */
#ifndef LAUNCH_H
#define LAUNCH_H

#include "launch/bootstrap.h"
#include "launch/pin.h"

/* The nodes that ranks_per_node makes, as in epa_world; to be freed; NULL: there is one. */
enum epa_status launch_nodes(const struct epa_launch *, uint32_t **out, struct epa_error *);

/* The world of `rank`, of a plan made for launch->ranks. */
struct epa_world launch_world(const struct epa_launch *, const uint32_t *nodes,
                              const struct pin_plan *, uint32_t rank);

/* Binds the calling thread as the world says; world->cores is 0 where that fails. */
void launch_pin(struct epa_world *);

/* Watches over ranks from one thread. The first failure that is not ABORTED decides; any
 * failure, and the wish to stop, tells all ranks to leave and starts their grace. */
struct watch {
    const struct epa_launch *launch;
    struct control *control;
    struct epa_error *err;
    enum epa_status first;
    int stop_fd;        /* to poll for reading; -1: no more */
    bool stopping;      /* because it could be read */
    uint64_t grace_end; /* when who has not returned is given up; 0: nobody failed yet */
    uint64_t last_end;  /* when the last rank must have returned; 0: none has, or no limit */
};

void watch_init(struct watch *out, const struct epa_launch *, struct control *, struct epa_error *);

/* A rank came back from rank_main with `status`. */
void watch_returned(struct watch *, enum epa_status status);

/* Something else went wrong, in words. */
EPA_PRINTF(3, 4) void watch_failed(struct watch *, enum epa_status, const char *fmt, ...);

/* A rank was given up; counts if nobody else has failed. `who` is "rank 2 (pid 1234)". */
void watch_gave_up(struct watch *, const char *who);

/* What poll() said of stop_fd. */
void watch_stop(struct watch *, short revents);

/* To be called at least as often as watch_pause_ms() says. True once the grace is over. */
bool watch_turn(struct watch *);
int watch_pause_ms(const struct watch *);

#endif
