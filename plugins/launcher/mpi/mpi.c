/* Ranks that mpirun has started.
 *
 * MPI is there to make ranks find each other, and for algorithms that use it; the launch
 * itself is that of launch/launcher.h, which also knows how a rank ended that MPI lost. MPI can
 * be started once for each process of mpirun, and in one of its children only, so there is
 * one launcher for all launches of this process, and it keeps the process of its rank. */
#include <string.h>

#include "launch/process.h"
#include "launch/launcher.h"

#include "world.h"

struct config {
    struct launcher_settings launcher;
    const char *interface;
};

/* The one of this process; see above. Launches come one after the other, from one thread. */
static struct launcher *launcher;
static struct process_job job;

static enum epa_status find_place(struct process_job *out, struct epa_error *err)
{
    struct process_job found;
    enum epa_status status = process_id_find(&found, err);

    if (status == EPA_OK && found.process_id.size == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "launcher mpi: not started by mpirun; start it so: "
                        "mpirun -n 8 epa2a bench X.yaml");
    if (status == EPA_OK)
        *out = found;
    return status;
}

static enum epa_status place(const void *config, struct epa_process_id *out, struct epa_error *err)
{
    struct process_job found;
    enum epa_status status = find_place(&found, err);

    (void)config;
    if (status == EPA_OK)
        *out = found.process_id;
    return status;
}

/* In the process of the rank. */
static enum epa_status meet(void *arg, struct launcher_contact *contact, struct epa_error *err)
{
    const struct process_job *mine = arg;
    enum epa_status status = mpi_world_join(&mine->process_id, err);

    return status == EPA_OK ? mpi_world_report(contact, sizeof(*contact), err) : status;
}

static void leave(void *arg)
{
    (void)arg;
    mpi_world_leave();
}

/* Ranks of one host meet without MPI, so that one which dies while MPI starts is known to all, and
 * need no network: nobody else is to reach them. */
static enum epa_status make_launcher(const struct config *config, struct epa_error *err)
{
    static struct launcher_contact contact;
    enum epa_status status = find_place(&job, err);
    bool here = config->interface == NULL && job.local_size == job.process_id.size;

    if (status != EPA_OK)
        return status;
    if (here)
        launcher_meet_here(&contact, process_job_hash(&job));
    return launcher_create(&(struct launcher_params){.process_id = job.process_id,
                                                     .interface = config->interface,
                                                     .contact = here ? &contact : NULL,
                                                     .meet = meet,
                                                     .leave = leave,
                                                     .arg = &job},
                           &launcher, err);
}

static enum epa_status launch(const void *config, const struct epa_launch *asked,
                              struct epa_error *err)
{
    const struct config *mine = config;
    enum epa_status status = launcher == NULL ? make_launcher(mine, err) : EPA_OK;

    if (status != EPA_OK)
        return status;
    if (asked->ranks != job.process_id.size)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "launcher mpi: the experiment has %u ranks, and this is %s", asked->ranks,
                        job.process_id.source);
    return launcher_launch(launcher, &mine->launcher, asked, err);
}

/* When the program ends or unloads this: a rank that leaves MPI without a word makes mpirun
 * kill all others. */
__attribute__((destructor)) static void end_launcher(void)
{
    launcher_destroy(launcher);
    launcher = NULL;
}

static const struct config defaults = {.launcher = LAUNCHER_DEFAULTS};
static const struct epa_option options[] = {
    {.name = "interface",
     EPA_STRING(struct config, interface),
     .help = "network interface of rank 0, from the first file of a command; the default is "
             "all, or none for ranks of one host"},
    LAUNCHER_OPTIONS,
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_launcher_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin), .name = "mpi",
               .summary = "ranks are processes that mpirun has started",
               .options = {options, sizeof(struct config), &defaults}},
    .process_id = place,
    .launch = launch,
};
