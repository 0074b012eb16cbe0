/* The status page of a command, from which this process or another process reads the state of each
 * rank without help of the command.
 *
 * The page is an unnamed file (memfd) that stays open. A reader finds the file by its name in
 * /proc/PID/fd and needs the permission to read the process's descriptors. The memory that ranks share
 * is part of the file, so publishing costs the ranks nothing, and a stopped or hung process is
 * readable. */
#ifndef STATUS_PAGE_H
#define STATUS_PAGE_H

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

#endif
