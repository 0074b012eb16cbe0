/* Contact data of rank 0: the addresses at which it listens, and the secret of the job. */
#ifndef CONTACT_H
#define CONTACT_H

#include <stdint.h>

#include "boot/conn.h"
#include "boot/process_id.h"

enum { CONTACT_TOKEN = 64, CONTACT_ADDRESSES = 8, CONTACT_ADDRESS = 256 };

/* No pointers: the launcher mpi sends the bytes to other hosts. */
struct contact {
    char token[CONTACT_TOKEN + 1]; /* the secret of the job */
    char local[64]; /* abstract UNIX socket for ranks of this host and user; "": use addresses */
    char address[CONTACT_ADDRESSES]
                [CONTACT_ADDRESS]; /* numbers or names, tried in order; "": end */
    uint32_t port;
    char job[CONN_JOB]; /* name of the job from variables of the scheduler; "": unknown */
};

/* Values that take precedence over the variables of the environment. */
struct contact_options {
    const char *caller;              /* messages begin with this name */
    const char *address, *interface; /* NULL: the environment */
    uint32_t port;                   /* 0: the environment */
};

/* Finds the rank of this process, as process_id_find(). Fails if no variables give a rank. Messages begin
 * with `caller`. */
enum epa_status contact_find_job(const char *caller, struct process_job *out, struct epa_error *);

/* Finds address, port and secret of rank 0 in the variables MASTER_ADDR, MASTER_PORT, EPA2A_JOB_TOKEN
 * and in variables of schedulers. Only the name of the job is set if the job has one rank. */
enum epa_status contact_find(const struct contact_options *, const struct process_job *,
                             struct contact *out, struct epa_error *);

/* Sets the contact to an abstract UNIX socket for ranks of one host. Port and `job`, a hash of the job's
 * id, determine its name. The kernel authenticates the user of the other process. */
void contact_meet_here(struct contact *, uint32_t job);

#endif
