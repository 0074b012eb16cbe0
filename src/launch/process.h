/* The process of one rank and its output, seen from the one that started it. */
#ifndef PROCESS_H
#define PROCESS_H

#include <sys/types.h>

#include "launch/bootstrap.h"
#include "launch/pin.h"
#include <epa2a/world.h>

/* What a rank prints, passed on line by line with its number. */
enum { RELAY_LINE = 4096 };

struct relay {
    int from;    /* read end of a pipe, non-blocking, owned; -1: none */
    bool prefix; /* "[rank 3] " before each line; without, bytes go as they come */
    size_t head; /* bytes of the prefix at the start of `line` */
    size_t held; /* bytes of a line that has no end yet, behind the prefix */
    char line[RELAY_LINE];
    /* Called before anything is written; NULL: nobody minds. */
    void (*before)(void *arg);
    void *arg;
};

void relay_init(struct relay *out, int from, uint32_t rank, bool prefix);

/* Passes on what is there, without waiting. Closes `from` at its end. */
void relay_turn(struct relay *);

/* The writer is gone: all that it left in the pipe, and the line that it did not end. */
void relay_finish(struct relay *);

struct process {
    pid_t pid; /* 0: not started, or gone */
    int pidfd; /* -1: the kernel gave none, so process_ended() must be asked often */
    bool killed;
    struct relay relay; /* of its standard error and output */
};

/* For one that is not started yet. */
void process_init(struct process *out);

/* Forks; the child runs run(arg), which closes what is not its own, and leaves with what
 * that returns. It dies with the calling process, has no input, and ignores the signals of
 * the terminal. */
enum epa_status process_start(struct process *, uint32_t rank, bool prefix, int (*run)(void *arg),
                              void *arg, struct epa_error *);

void process_close_inherited(const struct process *); /* in a child: our ends of it */

void process_kill(struct process *);

/* Whether it is gone: `code` as of waitpid(), or what `word` stands for where somebody else
 * has reaped it. Its pid and last lines stay until process_finish(). */
bool process_ended(struct process *, enum epa_status word, int *code);

/* Passes on its last lines; it is as if it had never been started. */
void process_finish(struct process *);

/* What its exit code is to be: a shell shows it; the launcher goes by the last word. */
int process_code(enum epa_status);

/* Which rank of a job this process is, by the variables that mpirun, srun and torchrun set. */

struct process_job {
    struct epa_process_id process_id; /* size 0: this process is not one of several */
    bool mpi;                         /* the variables are those of an MPI's own mpirun */
    uint32_t local_size;              /* ranks on this host; 0: the variables do not say */
    bool hosts_unknown;               /* nor whether there are others */
    char id[128];                     /* of the job, alike on all its ranks; "": unknown */
};

/* Of `id`. */
uint32_t process_job_hash(const struct process_job *);

/* Never guesses: a set of variables counts when all of it is there. EPA_ERR_CONFIG: it is
 * there and makes no sense. */
enum epa_status process_id_find(struct process_job *out, struct epa_error *);

#endif
