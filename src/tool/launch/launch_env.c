/* The launcher env: torchrun, srun or a script has started one process per rank. Variables of the
 * environment contain the rank and the address of rank 0. */
#include <stdlib.h>
#include <unistd.h>

#include "boot/contact.h"
#include "boot/pmix_broadcast.h"
#include "launch/launcher.h"
#include "launch/program_registry.h"

static const char caller[] = "launcher env";

struct config {
    struct launcher_settings launcher;
    const char *address, *interface;
    uint32_t port;
};

static enum epa_status find_process_id(const void *config, struct epa_process_id *out,
                                       struct epa_error *err)
{
    struct process_job job;
    enum epa_status status = contact_find_job(caller, &job, err);

    (void)config;
    if (status == EPA_OK)
        *out = job.process_id;
    return status;
}

/* Returns true if nothing but PMIx tells the ranks of other hosts the address of rank 0. */
static bool needs_pmix(const struct config *config, const struct process_job *job)
{
    return job->process_id.size > 1 && job->local_size != job->process_id.size &&
           config->address == NULL && getenv("MASTER_ADDR") == NULL && pmix_is_usable();
}

static enum epa_status meet(void *arg, struct contact *contact, struct epa_error *err)
{
    const struct process_job *job = arg;

    return pmix_broadcast(job->process_id.rank, contact, sizeof(*contact), err);
}

/* A rank that has crashed or hangs may hold locks that exit handlers of libraries need. */
static void end_at_once(int code, void *arg)
{
    (void)arg;
    _exit(code);
}

static enum epa_status launch_env(const void *arg, const struct epa_launch *asked,
                                  struct epa_error *err)
{
    const struct config *config = arg;
    struct contact contact = {.port = 0};
    struct launcher_params params = {.interface = config->interface, .contact = &contact};
    struct process_job job;
    struct launcher *launcher = NULL;
    enum epa_status status = contact_find_job(caller, &job, err);

    if (status == EPA_OK && needs_pmix(config, &job)) {
        params.contact = NULL;
        params.meet = meet;
        params.arg = &job;
    } else if (status == EPA_OK) {
        status = contact_find(&(struct contact_options){.caller = caller,
                                                        .address = config->address,
                                                        .interface = config->interface,
                                                        .port = config->port},
                              &job, &contact, err);
    }
    if (status != EPA_OK)
        return status;
    params.process_id = job.process_id;
    status = launcher_create(&params, &launcher, err);
    if (status == EPA_OK)
        status = launcher_launch(launcher, &config->launcher, asked, err);
    if (!launcher_destroy(launcher))
        (void)on_exit(end_at_once, NULL);
    return status;
}

static const struct config defaults = {.launcher = LAUNCHER_DEFAULTS};
static const struct epa_option options[] = {
    {.name = "address",
     EPA_STRING(struct config, address),
     .help = "host name or address of rank 0; the default is MASTER_ADDR, the address that PMIx "
             "exchanges, or the first host of a Slurm step"},
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
