/* Sets of variables that say "you are rank R of N", the surest first. RANK and WORLD_SIZE
 * alone may count nodes, and Slurm's stay behind in shells of a job: so a set has variables
 * that must be there beside rank and size. Which ranks share a host is worked out when they
 * meet; LOCAL_RANK is not needed for that. */
#include "launch/process_id.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct set {
    const char *name;
    const char *rank, *size;
    const char *also[2]; /* must be set as well; NULL: nothing */
    const char *local_size;
    const char *hosts; /* how many; with 1 all ranks are local */
    const char *id[2]; /* together they name the job */
    bool mpi;
    bool (*counts)(void); /* NULL: always */
};

/* Steps that are none: of the batch script, of an interactive shell and the like. They have
 * numbers from the end of 32 bits. */
static bool is_step(void)
{
    const char *id = getenv("SLURM_STEP_ID");

    return id != NULL && strtoull(id, NULL, 10) < 0xfffffff0u;
}

static const struct set sets[] = {
    {.name = "Open MPI",
     .rank = "OMPI_COMM_WORLD_RANK",
     .size = "OMPI_COMM_WORLD_SIZE",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .id = {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"},
     .mpi = true},
    {.name = "MPICH",
     .rank = "PMI_RANK",
     .size = "PMI_SIZE",
     .local_size = "MPI_LOCALNRANKS",
     .id = {"PMI_JOBID", NULL},
     .mpi = true},
    {.name = "torchrun",
     .rank = "RANK",
     .size = "WORLD_SIZE",
     .also = {"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
     .local_size = "LOCAL_WORLD_SIZE",
     .id = {"TORCHELASTIC_RUN_ID", NULL}},
    {.name = "environment",
     .rank = "RANK",
     .size = "WORLD_SIZE",
     .also = {"MASTER_ADDR", "MASTER_PORT"},
     .local_size = "LOCAL_WORLD_SIZE"},
    {.name = "Slurm",
     .rank = "SLURM_PROCID",
     .size = "SLURM_STEP_NUM_TASKS",
     .also = {"SLURM_STEP_ID", NULL},
     .hosts = "SLURM_STEP_NUM_NODES",
     .id = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     .counts = is_step},
};

static bool is_set(const char *name)
{
    const char *value = name == NULL ? NULL : getenv(name);

    return value != NULL && *value != 0;
}

static bool is_there(const struct set *set)
{
    if (!is_set(set->rank) || !is_set(set->size))
        return false;
    for (uint32_t i = 0; i < 2; i++)
        if (set->also[i] != NULL && !is_set(set->also[i]))
            return false;
    return set->counts == NULL || set->counts();
}

static enum epa_status number(const struct set *set, const char *name, uint32_t *out,
                              struct epa_error *err)
{
    const char *value = getenv(name);
    char *end;
    unsigned long n;

    errno = 0;
    n = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end != 0 || errno != 0 || n > INT32_MAX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: %s='%.32s' is not a number; if it is left over from another "
                        "job, unset it or set launcher: fork",
                        set->name, name, value);
    *out = (uint32_t)n;
    return EPA_OK;
}

static enum epa_status read_set(const struct set *set, struct process_job *job,
                                struct epa_error *err)
{
    struct epa_process_id *place = &job->process_id;
    enum epa_status status = number(set, set->rank, &place->rank, err);
    size_t used = 0;

    if (status == EPA_OK)
        status = number(set, set->size, &place->size, err);
    if (status == EPA_OK && is_set(set->local_size))
        status = number(set, set->local_size, &job->local_size, err);
    if (status != EPA_OK)
        return status;
    if (set->hosts != NULL && is_set(set->hosts) && strcmp(getenv(set->hosts), "1") == 0)
        job->local_size = place->size;
    if (place->rank >= place->size)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: %s=%u is not below %s=%u; if they are left over from another "
                        "job, unset them or set launcher: fork",
                        set->name, set->rank, place->rank, set->size, place->size);
    job->mpi = set->mpi;
    job->hosts_unknown = set->hosts == NULL && job->local_size == 0;
    place->local_size = job->local_size;
    snprintf(place->source, sizeof(place->source), "%s: %s=%u of %s=%u", set->name, set->rank,
             place->rank, set->size, place->size);
    for (uint32_t i = 0; i < 2; i++)
        if (is_set(set->id[i]) && used < sizeof(job->id))
            used += (size_t)snprintf(job->id + used, sizeof(job->id) - used, "%s%s",
                                     used > 0 ? "." : "", getenv(set->id[i]));
    return EPA_OK;
}

uint32_t process_job_hash(const struct process_job *job)
{
    uint32_t h = 2166136261u; /* FNV-1a */

    for (const char *at = job->id; *at != 0; at++)
        h = (h ^ (unsigned char)*at) * 16777619u;
    return h;
}

enum epa_status process_id_find(struct process_job *out, struct epa_error *err)
{
    struct process_job job = {0};
    enum epa_status status = EPA_OK;

    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        if (!is_there(&sets[i]))
            continue;
        status = read_set(&sets[i], &job, err);
        break;
    }
    if (status == EPA_OK)
        *out = job;
    return status;
}
