/* The state of a command and of its ranks, read from its status page. */
#ifndef STATUS_H
#define STATUS_H

#include <sys/types.h>

#include "session/session.h"
#include "session/status_page.h"

enum status_state {
    STATUS_ABSENT, /* no state on this page: not started yet, or a rank of another process */
    STATUS_SET_UP,
    STATUS_RUNNING,
    STATUS_WAITING, /* `said.waiting` describes the wait */
    STATUS_STOPPED, /* by a signal or a debugger */
    STATUS_GONE,    /* the process has died without ending rank_main() */
    STATUS_DONE,
    STATUS_FAILED,
};

struct status_rank {
    enum status_state state;
    bool waits; /* said.waiting is a present wait */
    struct session_rank said;
};

struct status {
    struct status_page_head head; /* head.run.began_ns 0: no run is under way */
    struct session_notes notes;
    struct status_rank *rank; /* [n] */
    uint32_t n;
    uint64_t now_ns;
};

/* Reads the status page of another process or of this one. EPA_ERR_UNSUPPORTED: this program cannot
 * read the page; err completes a sentence that begins with "process PID". */
enum epa_status status_read(int file, struct status *out, struct epa_error *err);
void status_finish(struct status *);

/* Reads the page of the command that process `pid` belongs to. EPA_ERR_CONFIG: the process does not
 * exist or has no page. EPA_ERR_SYSTEM: permission denied. */
enum epa_status status_read_pid(pid_t, struct status *out, struct epa_error *);
/* Calls visit() for each command of this user that runs experiments; the status is valid during the
 * call. */
enum epa_status status_each(void (*visit)(void *arg, const struct status *), void *arg,
                            struct epa_error *);

#endif
