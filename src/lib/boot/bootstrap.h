/* The bootstrap channel between the ranks of one host: pages that all ranks map. With several hosts it
 * connects a rank with its launcher, which acts for the ranks of other hosts. */
#ifndef BOOTSTRAP_H
#define BOOTSTRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/world.h>

/* Shared memory of the ranks. The launcher creates it before the first rank; forked processes and new
 * threads share it. */
struct control;

enum epa_status control_create(uint32_t ranks, struct control **out, struct epa_error *);
void control_destroy(struct control *);

/* For processes that did not start each other: one rank of a host creates the pages, and the other
 * ranks of the host open them through /proc by its card. `users`: number of ranks of the creating
 * process; each of them detaches. The caller closes card->fd once all ranks have attached. */
struct control_card {
    int32_t pid, fd;
    uint64_t dev, ino, address; /* address: of the mapping in the process */
};
enum epa_status control_share(uint32_t ranks, uint32_t users, struct control **out,
                              struct control_card *card, struct epa_error *);
enum epa_status control_attach(uint32_t ranks, const struct control_card *, struct control **out,
                               struct epa_error *);
void control_detach(struct control *, const struct control_card *); /* accepts NULL as control */

/* Ends all waits of ranks. control_fail() first records the reason, unless a reason exists. Any thread
 * may call these functions. control_failure() returns true if a reason exists. */
void control_fail(struct control *, enum epa_status, const char *text);
bool control_failure(const struct control *, struct epa_error *out);
void control_abort(struct control *);
bool control_aborted(const struct control *);

/* Records the return of a rank; a rank that ends without this record has died. */
void control_return(struct control *, uint32_t rank, enum epa_status);

/* Returns true if `rank` has returned, and its status. */
bool control_returned(const struct control *, uint32_t rank, enum epa_status *out);

/* Resets the memory for the ranks of another launch. No rank may use it during the call. */
void control_reset(struct control *);

/* For ranks on several hosts: each rank has its own control, in which its launcher acts for all others.
 * A step is a barrier or a part of an allgather; the first is 1. control_step() returns true if the rank
 * has reached a step, and the rank's data. control_arrive() records that another rank has reached a step,
 * with its data. */
bool control_step(const struct control *, uint32_t rank, uint64_t step, const void **data,
                  size_t *bytes);
void control_arrive(struct control *, uint32_t rank, uint64_t step, const void *data, size_t bytes);

/* Time limit of a wait for an idle rank: a stopped or sleeping one. A rank that uses CPU time, for
 * example while it touches new memory, has one minute more, so that a short limit is valid on a busy
 * machine, too. Initialise limit_ns and strict only. */
struct wait_limit {
    uint64_t limit_ns; /* 0: no limit */
    bool strict;       /* a busy rank has no additional time */
    uint64_t polled_ns, start_ns, window_ns, cpu_ns;
    uint32_t rank;
    uint64_t waited_ns; /* time until the limit expired, without pauses */
};

/* Returns true if the limit has expired. A wait loop calls it periodically. */
bool wait_limit_expired(struct wait_limit *, const struct control *, uint32_t rank, uint64_t now);

/* Maximum bytes of a rank in one step. */
size_t bootstrap_slot_bytes(uint32_t ranks);

/* The bootstrap of one rank. Only this rank uses it, one thread at a time. */
struct bootstrap {
    struct epa_bootstrap base; /* first member, so that both pointers convert */
    struct control *control;
    uint64_t step;    /* number of barriers and parts of allgathers so far */
    uint32_t late;    /* missing rank of the last time-out */
    uint64_t late_ns; /* duration of this wait */
    bool strict;      /* as in wait_limit */
    int wake_fd;      /* an eventfd that this rank writes at a step or an abort; -1: none */
};

/* Collective: gathers data of different lengths, up to a slot, in one step. Data of rank r: at `all` +
 * r * stride, up to `stride` bytes. */
enum epa_status bootstrap_gather(struct bootstrap *, const void *mine, size_t bytes, void *all,
                                 size_t stride);

void bootstrap_init(struct bootstrap *out, struct control *, const struct epa_world *,
                    uint64_t timeout_ns);

#endif
