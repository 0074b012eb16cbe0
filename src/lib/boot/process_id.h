/* The rank of this process in a job, from the variables that mpirun, srun and torchrun set. */
#ifndef PROCESS_ID_H
#define PROCESS_ID_H

#include <stdbool.h>
#include <stdint.h>

#include <epa2a/plugin.h>
#include <epa2a/world.h>

struct process_job {
    struct epa_process_id process_id; /* size 0: no variables name a rank */
    bool mpi;                         /* mpirun has set the variables */
    uint32_t local_size;              /* number of ranks on this host; 0: unknown */
    bool hosts_unknown;               /* the variables do not tell if there are other hosts */
    char id[128];                     /* id of the job, identical on all ranks; "": unknown */
};

/* Returns a hash of `id`. */
uint32_t process_job_hash(const struct process_job *);

/* Reads the variables. A set of variables counts only if it is complete. EPA_ERR_CONFIG: a complete set
 * has invalid values. */
enum epa_status process_id_find(struct process_job *out, struct epa_error *);

#endif
