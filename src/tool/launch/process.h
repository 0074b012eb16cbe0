/* The process of one rank, in the process that started it. */
#ifndef PROCESS_H
#define PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <epa2a/status.h>
#include "launch/relay.h"

struct process {
    pid_t pid; /* 0: not started, or finished */
    int pidfd; /* -1: the kernel has no pidfd, so the caller polls process_ended() often */
    bool killed;
    struct relay relay; /* of standard error and output */
};

/* Initialises a process that has not started. */
void process_init(struct process *out);

/* Forks a child that exits with the result of run(arg); run() closes inherited descriptors. The child
 * dies with the calling process, has no input, and ignores the signals of the terminal. */
enum epa_status process_start(struct process *, uint32_t rank, bool prefix, int (*run)(void *arg),
                              void *arg, struct epa_error *);

void process_close_inherited(const struct process *); /* in a child: closes the parent's ends */

void process_kill(struct process *);

/* Returns true if the process has ended, with `code` as of waitpid(). If another thread or the kernel
 * has reaped it, `code` follows from its status `word`. pid and relay stay until process_finish(). */
bool process_ended(struct process *, enum epa_status word, int *code);

/* Waits up to `ms` for the end of the process, and then kills it. Returns true if it ended by itself. */
bool process_wait(struct process *, uint32_t ms);

/* Forwards the last lines and resets the struct to process_init(). */
void process_finish(struct process *);

/* Returns the exit code for a status. Shells show it; the launcher uses the status of the rank. */
int process_code(enum epa_status);

#endif
