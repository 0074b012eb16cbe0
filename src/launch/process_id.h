/* Which rank of a job this process is, by the variables that mpirun, srun and torchrun set. */
#ifndef PROCESS_ID_H
#define PROCESS_ID_H

#include <epa2a/world.h>

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
