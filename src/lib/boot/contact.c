/* Contact data of rank 0, from variables that torchrun, srun and scripts set. */
#include "boot/contact.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "boot/net.h"

enum { TOKEN_LEAST = 16 };

enum epa_status contact_find_job(const char *caller, struct process_job *out, struct epa_error *err)
{
    enum epa_status status = process_id_find(out, err);

    if (status == EPA_OK && out->process_id.size == 0)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "launcher.name",
            "%s: no variable gives the rank of this process; start it by "
            "torchrun, srun or mpirun, or set all of RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT",
            caller);
    return status;
}

/* Returns the first host of a list of Slurm: "b3,c[01-04,7]" or "rack[2-3]n[07,9]". */
static void first_host(const char *list, char *out, size_t room)
{
    size_t used = 0;
    bool inside = false, skip = false;

    for (; *list != 0 && (inside || *list != ',') && used + 1 < room; list++) {
        if (*list == '[') {
            inside = true;
            skip = false;
        } else if (*list == ']') {
            inside = false;
        } else if (inside && (*list == '-' || *list == ',')) {
            skip = true;
        } else if (!inside || !skip) {
            out[used++] = *list;
        }
    }
    out[used] = 0;
}

static const char *value_of(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && *value != 0 ? value : NULL;
}

static enum epa_status find_address(const struct contact_options *options,
                                    const struct process_job *job, char *out, size_t room,
                                    struct epa_error *err)
{
    const char *master = value_of("MASTER_ADDR"), *list = value_of("SLURM_STEP_NODELIST");
    bool all_here = job->local_size == job->process_id.size;

    if (options->address != NULL)
        master = options->address;
    if (master != NULL)
        snprintf(out, room, "%s", master);
    else if (all_here)
        snprintf(out, room, "127.0.0.1");
    else if (list != NULL)
        first_host(list, out, room);
    else
        return epa_fail_key(err, EPA_ERR_CONFIG, "launcher.address",
                            "%s: the address of rank 0 is unknown (%s); set MASTER_ADDR or "
                            "launcher.address%s",
                            options->caller, job->process_id.source,
                            value_of("PMIX_NAMESPACE") != NULL ? ", or install libpmix on all hosts"
                                                               : "");
    if (job->process_id.rank == 0 && !all_here && !job->hosts_unknown &&
        options->interface == NULL && net_is_loopback(out))
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "launcher.address",
            "%s: '%.200s' is the loopback address of this host, and ranks on "
            "other hosts cannot reach it; set launcher.address to another address, or "
            "set launcher.interface",
            options->caller, out);
    return EPA_OK;
}

/* Derives a port from the job's id, below the ephemeral ports of systems. */
static uint32_t port_of_job(const struct process_job *job)
{
    return 15000 + (process_job_hash(job) ^ (uint32_t)getuid()) % 15000;
}

static enum epa_status find_port(const struct contact_options *options,
                                 const struct process_job *job, uint32_t *out,
                                 struct epa_error *err)
{
    const char *master = value_of("MASTER_PORT");
    const char *store = value_of("TORCHELASTIC_USE_AGENT_STORE");
    unsigned long port;
    char *end;

    if (options->port != 0) {
        *out = options->port;
        return EPA_OK;
    }
    if (master == NULL && job->id[0] == 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "launcher.port",
                            "%s: the port of rank 0 is unknown (%s); set MASTER_PORT or "
                            "launcher.port",
                            options->caller, job->process_id.source);
    if (master == NULL) {
        *out = port_of_job(job);
        return EPA_OK;
    }
    port = strtoul(master, &end, 10);
    if (*master < '0' || *master > '9' || *end != 0 || port == 0 || port > 65534)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: MASTER_PORT='%.32s' is not a port from 1 to 65534", options->caller,
                        master);
    /* The agent of torchrun listens at MASTER_PORT itself, so rank 0 takes the next port. */
    *out = (uint32_t)port + (store != NULL && strcmp(store, "True") == 0);
    return EPA_OK;
}

void contact_meet_here(struct contact *contact, uint32_t job)
{
    snprintf(contact->token, sizeof(contact->token), "local");
    snprintf(contact->local, sizeof(contact->local), "epa2a.%u.%08x.%u", (unsigned)getuid(), job,
             contact->port);
}

/* Finds the job secret. Ranks of one host need none: the kernel authenticates peers of a UNIX socket.
 * Over a network a secret is required, since any peer that knows it can abort or join the job. */
static enum epa_status find_token(const struct contact_options *options,
                                  const struct process_job *job, struct contact *contact,
                                  struct epa_error *err)
{
    const char *token = value_of("EPA2A_JOB_TOKEN");
    bool all_here = job->local_size == job->process_id.size ||
                    (job->hosts_unknown && net_is_loopback(contact->address[0]));

    if (token != NULL && strlen(token) >= sizeof(contact->token))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: EPA2A_JOB_TOKEN has %zu characters; the maximum is %zu",
                        options->caller, strlen(token), sizeof(contact->token) - 1);
    if (token != NULL && strlen(token) < TOKEN_LEAST)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: EPA2A_JOB_TOKEN has %zu characters; the minimum is %d, since "
                        "a short secret can be guessed: export EPA2A_JOB_TOKEN=$(openssl rand "
                        "-hex 16)",
                        options->caller, strlen(token), TOKEN_LEAST);
    if (token == NULL && (!all_here || options->interface != NULL || options->address != NULL))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: ranks that connect over a network need a secret; before the "
                        "start of the ranks: export EPA2A_JOB_TOKEN=$(openssl rand -hex 16)",
                        options->caller);
    if (token == NULL)
        contact_meet_here(contact, process_job_hash(job));
    else
        snprintf(contact->token, sizeof(contact->token), "%s", token);
    return EPA_OK;
}

/* Names the job by variables of the scheduler, since ranks of another job may dial the same port. */
static void name_job(const struct process_job *job, char out[CONN_JOB])
{
    static const char *const names[] = {"SLURM_HET_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID",
                                        "LSB_JOBID",        "FLUX_JOB_ID",  "OAR_JOB_ID"};

    if (job->id[0] != 0 && strcmp(job->id, "none") != 0) { /* torchrun's default is "none" */
        snprintf(out, CONN_JOB, "%.63s", job->id);
        return;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (value_of(names[i]) == NULL)
            continue;
        snprintf(out, CONN_JOB, "%s=%.40s", names[i], value_of(names[i]));
        return;
    }
}

enum epa_status contact_find(const struct contact_options *options, const struct process_job *job,
                             struct contact *out, struct epa_error *err)
{
    struct contact found = {.port = 0};
    enum epa_status status = EPA_OK;

    name_job(job, found.job);
    if (job->process_id.size > 1)
        status = find_address(options, job, found.address[0], CONTACT_ADDRESS, err);
    if (status == EPA_OK && job->process_id.size > 1)
        status = find_port(options, job, &found.port, err);
    if (status == EPA_OK && job->process_id.size > 1)
        status = find_token(options, job, &found, err);
    if (status == EPA_OK)
        *out = found;
    return status;
}
