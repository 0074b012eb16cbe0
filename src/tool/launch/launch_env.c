/* The launcher env: torchrun, srun or a script has started one process per rank. Variables of the
 * environment contain the rank and the address of rank 0. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "registry/registry.h"
#include "launch/launcher.h"
#include "launch/net.h"
#include "launch/process_id.h"

enum { TOKEN_LEAST = 16 };

struct config {
    struct launcher_settings launcher;
    const char *address, *interface;
    uint32_t port;
};

static enum epa_status find_job(struct process_job *out, struct epa_error *err)
{
    enum epa_status status = process_id_find(out, err);

    if (status == EPA_OK && out->process_id.size == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "launcher env: no variable gives the rank of this process; start it by "
                        "torchrun, srun or mpirun, or set all of RANK, WORLD_SIZE, MASTER_ADDR and "
                        "MASTER_PORT");
    return status;
}

static enum epa_status find_process_id(const void *config, struct epa_process_id *out,
                                       struct epa_error *err)
{
    struct process_job job;
    enum epa_status status = find_job(&job, err);

    (void)config;
    if (status == EPA_OK)
        *out = job.process_id;
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

static enum epa_status find_address(const struct config *config, const struct process_job *job,
                                    char *out, size_t room, struct epa_error *err)
{
    const char *master = value_of("MASTER_ADDR"), *list = value_of("SLURM_STEP_NODELIST");
    bool all_here = job->local_size == job->process_id.size;

    if (config->address != NULL)
        master = config->address;
    if (master != NULL)
        snprintf(out, room, "%s", master);
    else if (all_here)
        snprintf(out, room, "127.0.0.1");
    else if (list != NULL)
        first_host(list, out, room);
    else
        return epa_fail(err, EPA_ERR_CONFIG,
                        "launcher env: the address of rank 0 is unknown (%s); set MASTER_ADDR or "
                        "launcher.address",
                        job->process_id.source);
    if (job->process_id.rank == 0 && !all_here && !job->hosts_unknown &&
        config->interface == NULL && net_is_loopback(out))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "launcher env: '%.200s' is the loopback address of this host, and ranks on "
                        "other hosts cannot reach it; set launcher.address to another address, or "
                        "set launcher.interface",
                        out);
    return EPA_OK;
}

/* Derives a port from the job's id, below the ephemeral ports of systems. */
static uint32_t port_of_job(const struct process_job *job)
{
    return 15000 + (process_job_hash(job) ^ (uint32_t)getuid()) % 15000;
}

static enum epa_status find_port(const struct config *config, const struct process_job *job,
                                 uint32_t *out, struct epa_error *err)
{
    const char *master = value_of("MASTER_PORT");
    const char *store = value_of("TORCHELASTIC_USE_AGENT_STORE");
    unsigned long port;
    char *end;

    if (config->port != 0) {
        *out = config->port;
        return EPA_OK;
    }
    if (master == NULL && job->id[0] == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "launcher env: the port of rank 0 is unknown (%s); set MASTER_PORT or "
                        "launcher.port",
                        job->process_id.source);
    if (master == NULL) {
        *out = port_of_job(job);
        return EPA_OK;
    }
    port = strtoul(master, &end, 10);
    if (*master < '0' || *master > '9' || *end != 0 || port == 0 || port > 65534)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "launcher env: MASTER_PORT='%.32s' is not a port from 1 to 65534", master);
    /* The agent of torchrun listens at MASTER_PORT itself, so rank 0 takes the next port. */
    *out = (uint32_t)port + (store != NULL && strcmp(store, "True") == 0);
    return EPA_OK;
}

/* Finds the job secret. Ranks of one host need none: the kernel authenticates peers of a UNIX socket.
 * Over a network a secret is required, since any peer that knows it can abort or join the job. */
static enum epa_status find_token(const struct config *config, const struct process_job *job,
                                  struct launcher_contact *contact, struct epa_error *err)
{
    const char *token = value_of("EPA2A_JOB_TOKEN");
    bool all_here = job->local_size == job->process_id.size ||
                    (job->hosts_unknown && net_is_loopback(contact->address[0]));

    if (token != NULL && strlen(token) >= sizeof(contact->token))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "launcher env: EPA2A_JOB_TOKEN has %zu characters; the maximum is %zu",
                        strlen(token), sizeof(contact->token) - 1);
    if (token != NULL && strlen(token) < TOKEN_LEAST)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "launcher env: EPA2A_JOB_TOKEN has %zu characters; the minimum is %d, since "
            "a short secret can be guessed: export EPA2A_JOB_TOKEN=$(openssl rand "
            "-hex 16)",
            strlen(token), TOKEN_LEAST);
    if (token == NULL && (!all_here || config->interface != NULL || config->address != NULL))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "launcher env: ranks that connect over a network need a secret; before the "
                        "start of the ranks: export EPA2A_JOB_TOKEN=$(openssl rand -hex 16)");
    if (token == NULL)
        launcher_meet_here(contact, process_job_hash(job));
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

static enum epa_status launch_env(const void *arg, const struct epa_launch *asked,
                                  struct epa_error *err)
{
    const struct config *config = arg;
    struct launcher_contact contact = {.port = 0};
    struct launcher_params params = {.interface = config->interface, .contact = &contact};
    struct process_job job;
    struct launcher *launcher = NULL;
    enum epa_status status = find_job(&job, err);

    if (status == EPA_OK && job.process_id.size > 1)
        status = find_address(config, &job, contact.address[0], LAUNCHER_ADDRESS, err);
    if (status == EPA_OK && job.process_id.size > 1)
        status = find_port(config, &job, &contact.port, err);
    if (status == EPA_OK && job.process_id.size > 1)
        status = find_token(config, &job, &contact, err);
    if (status != EPA_OK)
        return status;
    name_job(&job, contact.job);
    params.process_id = job.process_id;
    status = launcher_create(&params, &launcher, err);
    if (status == EPA_OK)
        status = launcher_launch(launcher, &config->launcher, asked, err);
    launcher_destroy(launcher);
    return status;
}

static const struct config defaults = {.launcher = LAUNCHER_DEFAULTS};
static const struct epa_option options[] = {
    {.name = "address",
     EPA_STRING(struct config, address),
     .help = "host name or address of rank 0; the default is MASTER_ADDR, or the first host "
             "of a Slurm step"},
    {.name = "port",
     EPA_U32(struct config, port),
     .max = 65535,
     .help = "port of rank 0; 0: MASTER_PORT, or a port derived from the job's number"},
    {.name = "interface",
     EPA_STRING(struct config, interface),
     .help = "network interface of rank 0; the default is the one of its address"},
    LAUNCHER_OPTIONS,
    {0},
};

const struct epa_launcher_plugin launch_env_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin), .name = "env",
               .summary = "ranks are started by torchrun, srun or a script, on any hosts",
               .options = {options, sizeof(struct config), &defaults}},
    .process_id = find_process_id,
    .launch = launch_env,
};
