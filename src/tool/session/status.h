/* The status page of a command, and the state of each rank, which this process or another process
 * reads from the page without help of the command.
 *
 * The page is an unnamed file (memfd) that stays open. A reader finds the file by its name in
 * /proc/PID/fd and needs the permission to read the process's descriptors. The memory that ranks share
 * is part of the file, so publishing costs the ranks nothing, and a stopped or hung process is
 * readable. */
#ifndef STATUS_H
#define STATUS_H

#include <sys/types.h>

#include "base/text.h"
#include "session/session.h"

#define STATUS_PAGE_NAME "epa2a-status" /* in /proc/PID/fd: "/memfd:epa2a-status (deleted)" */
#define STATUS_PAGE_MAGIC \
    "epa2a\0b\1" /* eight bytes; the last one numbers the layout of struct status_page_head */

/* The present run of the command. */
struct status_page_run {
    uint64_t began_ns; /* CLOCK_MONOTONIC; 0: no run */
    uint32_t verb;     /* enum verb */
    uint32_t number, of;
    uint32_t ranks;
    uint32_t place_rank, place_size; /* rank and size of epa_process_id */
    uint32_t warmup, iterations;     /* requested numbers */
    uint64_t block_at, block_bytes;  /* [ranks]: blocks that begin with struct session_rank */
    uint64_t notes_at;               /* offset of struct session_notes */
    char file[256], label[128];
};

struct status_page_head {
    char magic[8];
    char version[32];                 /* of the program */
    uint32_t rank_bytes, notes_bytes; /* sizes of struct session_rank and struct session_notes */
    int32_t pid;                      /* of the command */
    uint32_t turn;                    /* sequence number: odd while the command writes `run` */
    uint64_t began_ns;
    struct status_page_run run;
};

struct status_page;

/* Fails with EPA_ERR_SYSTEM if the kernel provides no memfd; a command can run without a page. */
enum epa_status status_page_create(struct status_page **out, struct epa_error *);
void status_page_destroy(struct status_page *);

/* Maps zeroed shared memory at offset *out_at of the page. Returns NULL if the page cannot grow. */
void *status_page_map(struct status_page *, size_t bytes, uint64_t *out_at);
void status_page_unmap(struct status_page *, void *, size_t bytes);

/* The page's file, for status_read(). */
int status_page_file(const struct status_page *);

/* Publishes the present run; NULL: no run. */
void status_page_show(struct status_page *, const struct status_page_run *);

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

const char *status_state_name(enum status_state);
const char *status_verb(const struct status *); /* "bench"; "?": unknown verb */
/* "dispatch", "set-up", "between stages" */
const char *status_stage(const struct status *, uint32_t rank);
/* "rows of rank 1 for 2.31 s: signal 12 is 6, wants 7"; "-": no wait. */
void status_waits_for(const struct status *, uint32_t rank, char *out, size_t room);

/* Prints a line for the run and a line for each rank; each line begins with `before`. */
void status_print(const struct status *, const char *before, struct text *out);
/* Prints the line for the run without a newline. */
void status_print_head(const struct status *, struct text *out);

#endif
