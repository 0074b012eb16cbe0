/* The slow channel between the ranks of one host: a page range that all of them map; and, where
 * there are more hosts, between a rank and the launcher that stands in for the others. */
#ifndef BOOTSTRAP_H
#define BOOTSTRAP_H

#include <epa2a/world.h>

/* What the ranks share. Made by the launcher before the first of them exists; processes
 * that are forked and threads that are started from then on see the same words. */
struct control;

enum epa_status control_create(uint32_t ranks, struct control **out, struct epa_error *);
void control_destroy(struct control *);

/* Makes all ranks leave whatever they wait in. */
void control_abort(struct control *);
bool control_aborted(const struct control *);

/* A rank's last word; a rank that ends without one has died. */
void control_return(struct control *, uint32_t rank, enum epa_status);

/* Whether `rank` has given its last word, and what it was. */
bool control_returned(const struct control *, uint32_t rank, enum epa_status *out);

/* As it was made, for other ranks to use it; none does at the moment. */
void control_reset(struct control *);

/* Where ranks are on several hosts, each has a control of its own, in which its launcher stands in
 * for all others: whether the rank has come to that step (a barrier or a part of an allgather,
 * the first is 1) and what it brings; and that another has. Without data it is to have come, and
 * its data must follow before the last rank does. */
bool control_step(const struct control *, uint32_t rank, uint64_t step, const void **data,
                  size_t *bytes);
void control_arrive(struct control *, uint32_t rank, uint64_t step, const void *data, size_t bytes);

/* How long a rank is waited for that does nothing: one that is stopped, or sleeps in vain. One that
 * uses a core, as in memory that it touches for the first time, is given a minute more, so that a
 * short limit holds on a machine with other work, too. Begins with limit_ns alone. */
struct wait_limit {
    uint64_t limit_ns; /* 0: for ever */
    uint64_t start_ns, window_ns, cpu_ns;
    uint32_t rank;
};

/* To be called now and then; whether the rank has been waited for in vain. */
bool wait_limit_expired(struct wait_limit *, const struct control *, uint32_t rank, uint64_t now);

/* That each of so many ranks can bring to one step. */
size_t bootstrap_slot_bytes(uint32_t ranks);

/* One rank's end. Only the rank that it was made for uses it, one thread at a time. */
struct bootstrap {
    struct epa_bootstrap base; /* first: a pointer to it is one to all of this */
    struct control *control;
    uint64_t step; /* barriers and parts of allgathers so far */
    uint32_t late; /* the rank that the last timeout waited for */
    int wake_fd;   /* an eventfd, written when this rank reaches a step or aborts; -1: none */
};

void bootstrap_init(struct bootstrap *out, struct control *, const struct epa_world *,
                    uint64_t timeout_ns);

#endif
