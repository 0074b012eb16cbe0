/* The status page of a command, and where every rank of it is, read off that page: by this process
 * or by another, for which the command need not do anything.
 *
 * The page is memory that whoever may read what this process has open can look at: a file without a
 * name (memfd), which stays open and is found by what /proc calls it. What ranks share lies in it,
 * so that showing it costs nobody anything, and a process that is stopped or hangs is read as well
 * as any. */
#ifndef STATUS_H
#define STATUS_H

#include <sys/types.h>

#include "base/text.h"
#include "session/session.h"

#define STATUS_PAGE_NAME "epa2a-status" /* in /proc/PID/fd: "/memfd:epa2a-status (deleted)" */
#define STATUS_PAGE_MAGIC \
    "epa2a\0b\1" /* eight bytes; the last counts layouts of struct status_page_head */

/* Which run of the command is under way. */
struct status_page_run {
    uint64_t began_ns; /* CLOCK_MONOTONIC; 0: none is */
    uint32_t verb;     /* enum verb */
    uint32_t number, of;
    uint32_t ranks;
    uint32_t place_rank, place_size; /* as in epa_process_id: whose ranks these are */
    uint32_t warmup, iterations;     /* asked for */
    uint64_t block_at, block_bytes;  /* [ranks] struct session_rank begin these */
    uint64_t notes_at;               /* struct session_notes */
    char file[256], label[128];
};

struct status_page_head {
    char magic[8];
    char version[32];                 /* of the program */
    uint32_t rank_bytes, notes_bytes; /* sizeof what is read beside this */
    int32_t pid;                      /* that the command has */
    uint32_t turn;                    /* odd while `run` is written */
    uint64_t began_ns;
    struct status_page_run run;
};

struct status_page;

/* EPA_ERR_UNSUPPORTED or EPA_ERR_SYSTEM: there can be none, which nobody need mind. */
enum epa_status status_page_create(struct status_page **out, struct epa_error *);
void status_page_destroy(struct status_page *);

/* Shared memory that holds zeros, at *out_at of the page. NULL: it cannot grow by so much. */
void *status_page_map(struct status_page *, size_t bytes, uint64_t *out_at);
void status_page_unmap(struct status_page *, void *, size_t bytes);

/* The page's file, for status_read(). */
int status_page_file(const struct status_page *);

/* What runs from now on; NULL: nothing does. */
void status_page_show(struct status_page *, const struct status_page_run *);

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

/* Reads a status page, of another process or of this one. EPA_ERR_UNSUPPORTED: this program cannot
 * read it; err completes "PID ...". */
enum epa_status status_read(int file, struct status *out, struct epa_error *err);
void status_finish(struct status *);

/* Of the command that has this process. EPA_ERR_CONFIG: there is no such process, or it has no
 * page; EPA_ERR_SYSTEM: it is not ours to read. */
enum epa_status status_read_pid(pid_t, struct status *out, struct epa_error *);
/* Each command of this user that runs experiments; what visit() gets ends with the call. */
enum epa_status status_each(void (*visit)(void *arg, const struct status *), void *arg,
                            struct epa_error *);

const char *status_state_name(enum status_state);
const char *status_verb(const struct status *); /* "bench"; "?": none that is known */
/* "dispatch", "set-up", "between stages" */
const char *status_stage(const struct status *, uint32_t rank);
/* "rows of rank 1 for 2.31 s: signal 12 is 6, wants 7"; "-": for nothing. */
void status_waits_for(const struct status *, uint32_t rank, char *out, size_t room);

/* A line of what runs, and a line for each rank; lines begin with `before`. */
void status_print(const struct status *, const char *before, struct text *out);
/* The first of them alone, without a line's end. */
void status_print_head(const struct status *, struct text *out);

#endif
