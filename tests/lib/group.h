/* Ranks of a test of the library, as processes or as threads, with an allgather callback over shared
 * memory. */
#ifndef GROUP_H
#define GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum group_kind { GROUP_PROCESSES, GROUP_THREADS };

struct group_result {
    int code;       /* set by the rank; GROUP_HANGS: the rank did not return */
    char text[640]; /* set by the rank: a message */
    double seconds; /* set by the rank: a duration */
    int pid;        /* process of the rank */
    int left_out;   /* set by a rank that does not return; the test kills it at the end */
};

enum { GROUP_RANKS_MAX = 16, GROUP_HANGS = -1000, GROUP_CALLBACK_FAILS = 5 };

struct group;

struct group_rank {
    uint32_t rank, ranks;
    struct group *group;
    const void *arg;             /* of group_run() */
    struct group_result *result; /* of this rank; results of all ranks: group_result() */
    uint32_t calls;              /* of the allgather by this rank */
    /* The call with this number fails on this rank; UINT32_MAX: none. `before`: the rank does not take
     * part in the call; otherwise the call fails after the exchange. */
    uint32_t fail_at;
    bool fail_before;
    /* Changes the result of the allgather; NULL: none. */
    void (*damage)(struct group_rank *, void *all, size_t bytes);
};

/* Runs rank_main(rank) for each rank and waits for all. */
struct group *group_run(uint32_t ranks, enum group_kind, void (*rank_main)(struct group_rank *),
                        const void *arg);
struct group_result *group_result(struct group *, uint32_t rank);
void group_free(struct group *);

/* Returns true if a duration of a rank has reached most_s. On a machine without a free core a rank may be
 * late: a test repeats the run, GROUP_TURNS times at most. */
enum { GROUP_TURNS = 5 };
bool group_is_late(struct group *, double most_s);

/* The callback of epa2a_comm_params; `arg` is a struct group_rank. Fails if a rank does not take part
 * for 20 s. */
int group_allgather(void *arg, const void *mine, size_t bytes, void *all);

/* Waits until all ranks have made the same call. Returns false after 20 s. */
bool group_meet(struct group_rank *);

/* Shared words of the ranks of a group, initially 0, for signals between ranks. */
uint32_t *group_word(struct group_rank *, uint32_t number);

/* Waits until a word has a value other than 0. Returns false after 20 s. */
bool group_wait(const uint32_t *word);

/* Moves the process to another host: processes with other names of the host share no memory. Returns
 * false if the system denies it. */
bool group_leave_host(void);

/* Monotonic time in seconds. */
double group_now(void);

#endif
