/* Where every rank of a command is, read off its board: of this process or of another, which
 * need not do anything for it. */
#ifndef STATUS_H
#define STATUS_H

#include "base/text.h"
#include "session/session.h"

enum status_state {
    STATUS_ABSENT, /* it has said nothing here: not started yet, or another process' */
    STATUS_SET_UP,
    STATUS_RUNNING,
    STATUS_WAITING, /* for what `said.waiting` names */
    STATUS_STOPPED, /* by a signal or a debugger */
    STATUS_GONE,    /* there is no such process any more, and it did not return */
    STATUS_DONE,
    STATUS_FAILED,
};

struct status_rank {
    enum status_state state;
    bool waits; /* said.waiting is of now */
    struct session_rank said;
};

struct status {
    struct status_page_head head; /* head.run.began_ns 0: no run is under way */
    struct session_notes notes;
    struct status_rank *rank; /* [n] */
    uint32_t n;
    uint64_t now_ns;
};

/* Reads a board; err completes "PID ...". */
enum epa_status status_read(int file, struct status *out, struct epa_error *err);
void status_finish(struct status *);

const char *status_state_name(enum status_state);
/* "dispatch", "set-up", "between stages" */
const char *status_stage(const struct status *, uint32_t rank);
/* "rows of rank 1 for 2.31 s: signal 12 is 6, wants 7"; "-": for nothing. */
void status_waits_for(const struct status *, uint32_t rank, char *out, size_t room);

/* A line of what runs, and a line for each rank; lines begin with `before`. */
void status_print(const struct status *, const char *before, struct text *out);
/* The first of them alone, without a line's end. */
void status_print_head(const struct status *, struct text *out);

#endif
