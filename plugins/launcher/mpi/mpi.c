/* Ranks that mpirun has started.
 *
 * MPI is there to make ranks find each other, and for algorithms that use it; the launch
 * itself is that of launch/team.h, which also knows how a rank ended that MPI lost. MPI can
 * be started once for each process of mpirun, and in one of its children only, so there is
 * one team for all launches of this process, and it keeps the process of its rank. */
#include <string.h>

#include "launch/place.h"
#include "launch/team.h"

#include "world.h"

struct config {
    struct team_settings team;
    const char *interface;
};

/* The one of this process; see above. Launches come one after the other, from one thread. */
static struct team *team;
static struct place_job job;

static enum epa_status find_place(struct place_job *out, struct epa_error *err)
{
    struct place_job found;
    enum epa_status status = place_find(&found, err);

    if (status == EPA_OK && found.place.size == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "launcher mpi: not started by mpirun; start it so: "
                        "mpirun -n 8 epa2a bench X.yaml");
    if (status == EPA_OK)
        *out = found;
    return status;
}

static enum epa_status place(const void *config, struct epa_place *out,
                             struct epa_error *err)
{
    struct place_job found;
    enum epa_status status = find_place(&found, err);

    (void)config;
    if (status == EPA_OK)
        *out = found.place;
    return status;
}

/* In the process of the rank. */
static enum epa_status meet(void *arg, struct team_contact *contact, struct epa_error *err)
{
    const struct place_job *mine = arg;
    enum epa_status status = mpi_world_join(&mine->place, err);

    return status == EPA_OK ? mpi_world_tell(contact, sizeof(*contact), err) : status;
}

static void leave(void *arg)
{
    (void)arg;
    mpi_world_leave();
}

/* Ranks of one host need no network to reach the hub, and nobody else is to reach it. */
static const char *choose_interface(const struct config *config)
{
    if (config->interface != NULL)
        return config->interface;
    return job.local_size == job.place.size ? "lo" : NULL;
}

static enum epa_status make_team(const struct config *config, struct epa_error *err)
{
    enum epa_status status = find_place(&job, err);

    if (status != EPA_OK)
        return status;
    return team_create(&(struct team_params){.place = job.place,
                                             .interface = choose_interface(config),
                                             .meet = meet,
                                             .leave = leave,
                                             .arg = &job},
                       &team, err);
}

static enum epa_status launch(const void *config, const struct epa_launch *asked,
                              struct epa_error *err)
{
    const struct config *mine = config;
    enum epa_status status = team == NULL ? make_team(mine, err) : EPA_OK;

    if (status != EPA_OK)
        return status;
    if (asked->ranks != job.place.size)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "launcher mpi: the experiment has %u ranks, and this is %s",
                        asked->ranks, job.place.how);
    return team_launch(team, &mine->team, asked, err);
}

/* When the program ends or unloads this: a rank that leaves MPI without a word makes mpirun
 * kill all others. */
__attribute__((destructor)) static void end_team(void)
{
    team_destroy(team);
    team = NULL;
}

static const struct config defaults = {
    .team = {.pin = PIN_CORE,
             .prefix = true,
             .start_ns = 60000000000,
             .heartbeat_ns = 5000000000},
};
static const struct epa_option options[] = {
    {.name = "interface",
     EPA_STRING(struct config, interface),
     .help =
         "network interface on which rank 0 listens, as the first file says; else all, or "
         "loopback for ranks of one host"},
    {.name = "start",
     EPA_DURATION(struct config, team.start_ns),
     .min = 100000000,
     .max = 3600000000000,
     .help = "how long ranks wait until all have come"},
    {.name = "heartbeat",
     EPA_DURATION(struct config, team.heartbeat_ns),
     .min = 1000000000,
     .max = 600000000000,
     .help = "a host that is silent for so long is taken for gone"},
    {.name = "pin",
     EPA_CHOICE(struct config, team.pin),
     .choices = pin_choices,
     .help = "where ranks run, within the cores that mpirun has left to them"},
    {.name = "prefix",
     EPA_BOOL(struct config, team.prefix),
     .help = "put the rank's number before each line of its standard error"},
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_launcher_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin),
               .name = "mpi", .summary = "ranks are processes that mpirun has started",
               .options = {options, sizeof(struct config), &defaults}},
    .place = place,
    .launch = launch,
};
