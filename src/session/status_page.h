/* The memory of a command that can be looked at from outside, by whoever may read what this
 * process has open: a file without a name (memfd), which stays open and is found by what
 * /proc calls it. What ranks share lies in it, so that showing it costs nobody anything, and
 * a process that is stopped or hangs is read as well as any. */
#ifndef STATUS_PAGE_H
#define STATUS_PAGE_H

#include <stdbool.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <epa2a/status.h>

#define STATUS_PAGE_NAME "epa2a-status" /* in /proc/PID/fd: "/memfd:epa2a-status (deleted)" */
#define STATUS_PAGE_MAGIC \
    "epa2a\0b\1" /* eight bytes; the last counts layouts of struct board_head */

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
enum epa_status status_page_create(size_t rank_bytes, size_t notes_bytes, struct status_page **out,
                                   struct epa_error *);
void status_page_destroy(struct status_page *);

/* Shared memory that holds zeros, at *out_at of the board. NULL: it cannot grow by so much. */
void *status_page_map(struct status_page *, size_t bytes, uint64_t *out_at);
void status_page_unmap(struct status_page *, void *, size_t bytes);

/* The board's file, for board_read() and its like. */
int status_page_file(const struct status_page *);

/* What runs from now on; NULL: nothing does. */
void status_page_show(struct status_page *, const struct status_page_run *);

/* Of another process, or of this one. EPA_ERR_UNSUPPORTED: what is there cannot be read by
 * this program; err completes "PID ...". */
enum epa_status status_page_read(int file, size_t rank_bytes, size_t notes_bytes,
                                 struct status_page_head *out, struct epa_error *);

/* Opens the board of a process. EPA_ERR_CONFIG: there is no such process, or it has none;
 * EPA_ERR_SYSTEM: it is not ours to read. */
enum epa_status status_page_open(pid_t, int *out, struct epa_error *);

#endif
