/* Cause of death of a process that this process has not started. */
#ifndef DEATH_H
#define DEATH_H

#include <stdbool.h>
#include <stdint.h>

/* Returns a pidfd of the process, which must exist, or -1. */
int death_watch(int32_t pid);

enum { DEATH_WAIT_MS = 500 }; /* from the closed connections of a dying process to its end */

/* Waits up to wait_ms for the end of the process. Returns true if the process has ended and the kernel
 * tells the cause: `code` as of waitpid(). */
bool death_find_code(int pidfd, int32_t pid, int wait_ms, int *code);

/* Writes "was killed by signal 9 (Killed)" or "exited without a status (exit code 3)"; `code` as of
 * waitpid(). */
enum { DEATH_TEXT = 80 };
void death_describe(int code, char out[DEATH_TEXT]);

/* Continues a stopped process. No effect for pidfd -1. */
void death_resume(int pidfd);

/* Kills the process. No effect for pidfd -1. */
void death_kill(int pidfd);

#endif
