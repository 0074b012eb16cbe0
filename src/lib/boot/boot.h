/* Bootstrap of the library: one object per rank, without further processes.
 *
 * The ranks of a host share a page with the word `aborted`, the reason of the first failure and, if all
 * ranks are on this host, the data of barriers and allgathers. With several hosts all ranks connect to
 * rank 0, and the connections carry barriers, allgathers and failures. The ranks receive the address of
 * rank 0 by the callback of the application, or without a callback by RANK, WORLD_SIZE, MASTER_ADDR and
 * MASTER_PORT, as under torchrun. If a rank cannot connect to rank 0, the group continues with the
 * callback.
 *
 * A waiting rank checks the processes of the other ranks of its host, so the death of a process ends
 * all waits. With several hosts each rank has a thread that sleeps until a connection is closed or
 * brings a failure. Without connections, ranks of other hosts end their waits by time-outs. A stopped
 * process causes a time-out.
 *
 * One thread at a time calls the functions for an object, except boot_fail() and boot_check(). */
#ifndef BOOT_H
#define BOOT_H

#include <epa2a/world.h>

enum { BOOT_RANKS_MAX = 4096 };

struct boot_params {
    uint32_t rank,
        ranks;        /* without callback: 0, or as in the environment; ranks 1: no other rank */
    uint32_t version; /* of the public interface; equal on all ranks */
    /* Callback of the application, as in epa2a_comm_params. The library waits in the callback without
     * a time-out of its own. If a call fails on a rank, the library makes one more call there, which
     * reports the failure to the other ranks. */
    int (*allgather)(void *arg, const void *mine, size_t bytes, void *all);
    void *arg;
    uint64_t timeout_ns;     /* longest wait for another rank; UINT64_MAX: no limit */
    const char *fingerprint; /* lines "key: value", equal on all ranks */
    /* Failure of this rank before the call; NULL: none. The call then reports the failure to the other
     * ranks and fails on all ranks. */
    const struct epa_error *failure;
    /* Receives reports of long waits, in any thread of the rank. May be NULL. */
    void (*log)(void *arg, int level, const char *text);
    void *log_arg;
};

/* Collective: connects the ranks. Fails on all ranks if one rank fails. */
enum epa_status boot_create(const struct boot_params *, struct epa_bootstrap **out,
                            struct epa_error *);

/* Divides the ranks of each host into nodes of `per_node` ranks, in ascending rank; the last node of a
 * host may have fewer. The world changes only. Precedes the opening of backend and transports. Equal
 * on all ranks. */
enum epa_status boot_divide_nodes(struct epa_bootstrap *, uint32_t per_node, struct epa_error *);

/* Collective, unless the group has failed: waits until all ranks have finished their work. Accepts
 * NULL. */
void boot_destroy(struct epa_bootstrap *);

/* Collective: fails on all ranks if `status` is not EPA_OK on one rank. *err of each rank then contains
 * the message of the first failed rank. After an allgather or barrier of the bootstrap that has failed
 * on all ranks, the call returns this failure. */
enum epa_status boot_agree(struct epa_bootstrap *, enum epa_status status, struct epa_error *err);

/* Forgets the failure of an earlier call. Precedes each operation that ends with boot_agree(). */
void boot_begin(struct epa_bootstrap *);

/* Fails the group: records the reason, unless one exists, and ends the waits of all ranks of this host.
 * If the failure of a library call follows the death of a process, the reason is this death. Any thread
 * may call the function. */
void boot_fail(struct epa_bootstrap *, enum epa_status status, const char *text);

/* Returns the failure of the group, or EPA_OK. Does not wait. Any thread may call the function. */
enum epa_status boot_check(struct epa_bootstrap *, struct epa_error *err);

#endif
