/* Launcher for ranks that mpirun has started.
 *
 * Ranks find each other through MPI, and algorithms may use MPI; launch/launch.h performs the launch
 * itself and detects the death of a rank. A process can initialise MPI only once, so one launcher
 * serves all launches of the process. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <mpi.h>

#include "launch/launcher.h"
#include "boot/net.h"
#include "boot/process_id.h"

/* ---- calls of MPI (MPI-3, any implementation), in the thread of a rank ---- */

/* Makes the symbols of the MPI library global. The loader opens plugins and their libraries with
 * RTLD_LOCAL, but Open MPI loads components that look up its symbols in the global scope. */
static enum epa_status make_global(struct epa_error *err)
{
    Dl_info info;

    if (dladdr((void *)(uintptr_t)MPI_Init_thread, &info) == 0 ||
        dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) == NULL)
        return epa_fail(err, EPA_ERR_SYSTEM, "mpi: dlopen of the MPI library: %s", dlerror());
    return EPA_OK;
}

static enum epa_status check(int code, const char *what, struct epa_error *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    if (code == MPI_SUCCESS)
        return EPA_OK;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof(text), "MPI error %d", code);
    return epa_fail(err, EPA_ERR_SYSTEM, "mpi: %s: %s", what, text);
}

static enum epa_status check_place(const struct epa_process_id *place, struct epa_error *err)
{
    int rank = -1, size = -1;
    enum epa_status status = check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank", err);

    if (status == EPA_OK)
        status = check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size", err);
    if (status == EPA_OK && ((uint32_t)rank != place->rank || (uint32_t)size != place->size))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "mpi: MPI says rank %d of %d, and the environment %s: its variables "
                        "are of another job, or epa2a was built with another MPI than the "
                        "one whose mpirun started it",
                        rank, size, place->source);
    return status;
}

/* Returns after all ranks of the job have called it. MPI has no time limit here, so the main thread
 * ends the process if a rank is missing. */
static enum epa_status mpi_world_join(const struct epa_process_id *place, struct epa_error *err)
{
    int given = MPI_THREAD_SINGLE;
    enum epa_status status = make_global(err);

    /* Serialized: an algorithm may call MPI from any thread, one at a time. */
    if (status == EPA_OK)
        status = check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given),
                       "MPI_Init_thread", err);
    if (status == EPA_OK)
        status = check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
                       "MPI_Comm_set_errhandler", err);
    if (status == EPA_OK && given < MPI_THREAD_FUNNELED)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "mpi: this MPI library was built without support for threads, and "
                        "ranks run several");
    return status == EPA_OK ? check_place(place, err) : status;
}

/* Broadcasts `bytes` of rank 0. */
static enum epa_status mpi_world_report(void *bytes, size_t n, struct epa_error *err)
{
    return check(MPI_Bcast(bytes, (int)n, MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast", err);
}

/* Also waits for all ranks. */
static void mpi_world_leave(void)
{
    int on = 0, off = 0;

    if (MPI_Initialized(&on) == MPI_SUCCESS && on && MPI_Finalized(&off) == MPI_SUCCESS && !off)
        MPI_Finalize();
}

/* ---- the launcher ---- */

struct config {
    struct launcher_settings launcher;
    const char *interface;
};

/* The launcher of this process; see the top of the file. One thread starts all launches. */
static struct launcher *launcher;
static struct process_job job;

static enum epa_status find_place(struct process_job *out, struct epa_error *err)
{
    struct process_job found;
    enum epa_status status = process_id_find(&found, err);

    if (status == EPA_OK && found.process_id.size == 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "launcher.name",
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

/* Runs in the thread of the rank. */
static enum epa_status meet(void *arg, struct contact *contact, struct epa_error *err)
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

/* Finalises MPI when the program ends: mpirun kills all ranks if one exits without MPI_Finalize(). If
 * MPI_Finalize() does not return, or the rank has crashed, the exit handlers of the MPI library could
 * wait without limit. */
static void end_launcher(int code, void *arg)
{
    bool ended = launcher_destroy(launcher);

    (void)arg;
    launcher = NULL;
    if (!ended)
        _exit(code);
}

/* Keeps this plugin loaded and calls end_launcher() at exit. A destructor is too late: the loader holds
 * its lock meanwhile, and the thread of the rank needs the lock to unload components of MPI. */
static enum epa_status end_at_exit(struct epa_error *err)
{
    Dl_info info;

    if (dladdr((void *)&launcher, &info) == 0 ||
        dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) == NULL)
        return epa_fail(err, EPA_ERR_SYSTEM, "mpi: dlopen of the launcher: %s", dlerror());
    if (on_exit(end_launcher, NULL) != 0)
        return epa_fail(err, EPA_ERR_NOMEM, "mpi: no memory for on_exit()");
    return EPA_OK;
}

/* Ranks of one host use a rendezvous without MPI, so that all detect a rank that dies while MPI
 * starts, and without a network, so that no other host can connect. */
static enum epa_status make_launcher(const struct config *config, struct epa_error *err)
{
    static struct contact contact;
    enum epa_status status = find_place(&job, err);
    bool here = config->interface == NULL && job.local_size == job.process_id.size;

    if (status == EPA_OK)
        status = end_at_exit(err);
    if (status != EPA_OK)
        return status;
    if (here)
        contact_meet_here(&contact, process_job_hash(&job));
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
        return epa_fail_key(err, EPA_ERR_CONFIG, "ranks",
                            "launcher mpi: the experiment has %u ranks, and this is %s",
                            asked->ranks, job.process_id.source);
    return launcher_launch(launcher, &mine->launcher, asked, err);
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
