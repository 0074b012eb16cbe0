/* Processes of the other ranks of this host. */
#ifndef PEERS_H
#define PEERS_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include <epa2a/status.h>

struct peers {
    uint32_t n; /* number of processes */
    struct peer_process {
        uint32_t rank; /* lowest rank of the process */
        int32_t pid;
    } * process;         /* [n] */
    struct pollfd *poll; /* [n] pidfds; fd -1: the kernel gives no pidfd */
};

/* `pid`: [ranks] process of each rank; 0: on another host. EPA_ERR_DIED: a process has ended. */
enum epa_status peers_open(struct peers *out, uint32_t rank, uint32_t ranks, const int32_t *pid,
                           struct epa_error *);
void peers_close(struct peers *); /* accepts a zeroed struct */

/* Returns the first process that has ended and for which has_left(arg, process) is false. Waits up to
 * wait_ms for one. NULL: none. One thread at a time. */
const struct peer_process *peers_find_dead(struct peers *, int wait_ms,
                                           bool (*has_left)(void *arg, const struct peer_process *),
                                           void *arg);

#endif
