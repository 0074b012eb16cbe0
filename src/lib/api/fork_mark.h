/* Detection of fork(): an object that a child process inherited. */
#ifndef API_FORK_MARK_H
#define API_FORK_MARK_H

#include <epa2a/status.h>

#include <stdbool.h>
#include <stdint.h>

struct fork_mark {
    uint32_t *parent; /* 1 in the process of fork_mark_init(); a mapping that the kernel clears */
    int32_t pid;      /* used if the kernel cannot clear the mapping in a child */
};

enum epa_status fork_mark_init(struct fork_mark *out, struct epa_error *);
void fork_mark_finish(struct fork_mark *); /* accepts a zeroed struct */

/* Returns true in a child process. Any thread may call the function. */
bool fork_mark_is_child(const struct fork_mark *);

#endif
