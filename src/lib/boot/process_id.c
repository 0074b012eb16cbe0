/* The rank of this process in a job, from variables of the environment.
 *
 * Each launcher has a set of variables that names the rank and the size of the world. A process may
 * have several sets: launchers nest, and a shell or a notebook leaves variables behind. A set of one
 * rank counts only if no set has more. Of sets with several ranks the first in the table counts:
 * mpirun and torchrun run within Slurm steps, and a pod numbers its nodes by RANK and WORLD_SIZE.
 *
 * RANK and WORLD_SIZE alone may count nodes, and Slurm's variables stay behind in shells of a job:
 * a set has variables that must be set beside rank and size. Ranks find out which of them share a
 * host when they connect, so no set needs LOCAL_RANK. */
#include "boot/process_id.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct set {
    const char *name;
    const char *rank, *size;
    const char *also[2]; /* further required variables; or NULL */
    const char *local_size;
    const char *hosts; /* number of hosts; with 1 all ranks are local */
    const char *id[2]; /* variables that together name the job */
    bool mpi;
    bool of_srun;         /* srun --mpi=pmi2 sets the variables, too; Slurm's own tell more */
    bool names_processes; /* RANK and WORLD_SIZE count processes, not nodes */
    bool (*counts)(void); /* NULL: always */
};

/* Returns false for the pseudo steps of Slurm (batch script, interactive shell), whose numbers are at
 * the end of 32 bits. */
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
     .mpi = true,
     .of_srun = true},
    {.name = "torchrun",
     .rank = "RANK",
     .size = "WORLD_SIZE",
     .also = {"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
     .local_size = "LOCAL_WORLD_SIZE",
     .id = {"TORCHELASTIC_RUN_ID", NULL},
     .names_processes = true},
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

static bool is_complete(const struct set *set)
{
    if (!is_set(set->rank) || !is_set(set->size))
        return false;
    for (uint32_t i = 0; i < 2; i++)
        if (set->also[i] != NULL && !is_set(set->also[i]))
            return false;
    return set->counts == NULL || set->counts();
}

static enum epa_status read_number(const struct set *set, const char *name, uint32_t *out,
                                   struct epa_error *err)
{
    const char *value = getenv(name);
    char *end;
    unsigned long n;

    errno = 0;
    n = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end != 0 || errno != 0 || n > INT32_MAX)
        return epa_fail_key(err, EPA_ERR_CONFIG, "launcher.name",
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
    enum epa_status status = read_number(set, set->rank, &place->rank, err);
    size_t used = 0;

    if (status == EPA_OK)
        status = read_number(set, set->size, &place->size, err);
    if (status == EPA_OK && is_set(set->local_size))
        status = read_number(set, set->local_size, &job->local_size, err);
    if (status != EPA_OK)
        return status;
    if (set->hosts != NULL && is_set(set->hosts) && strcmp(getenv(set->hosts), "1") == 0)
        job->local_size = place->size;
    if (place->rank >= place->size)
        return epa_fail_key(err, EPA_ERR_CONFIG, "launcher.name",
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

static bool is_same_rank(const struct epa_process_id *a, const struct epa_process_id *b)
{
    return a->rank == b->rank && a->size == b->size;
}

/* Chooses between the set of *best, which precedes `set` in the table, and `set`. */
static enum epa_status choose_set(const struct set **best, struct process_job *best_job,
                                  const struct set *set, const struct process_job *job,
                                  struct epa_error *err)
{
    const struct epa_process_id *old = &best_job->process_id, *new = &job->process_id;
    bool srun = *best != NULL && (*best)->of_srun && !is_set((*best)->local_size) &&
                set->hosts != NULL && is_same_rank(old, new);

    if (*best == NULL || (old->size == 1 && new->size > 1) || srun) {
        *best = set;
        *best_job = *job;
    } else if (new->size > 1 && best_job->mpi && set->names_processes && !is_same_rank(old, new)) {
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "launcher.name",
            "two launchers name this process: %s, and %s; unset the variables of the "
            "one that did not start it",
            old->source, new->source);
    }
    return EPA_OK;
}

enum epa_status process_id_find(struct process_job *out, struct epa_error *err)
{
    const struct set *best = NULL;
    struct process_job found = {0};

    for (const struct set *set = sets; set < sets + sizeof(sets) / sizeof(sets[0]); set++) {
        struct epa_error why = {EPA_OK, ""};
        struct process_job job = {0};
        enum epa_status status;

        if (!is_complete(set))
            continue;
        status = read_set(set, &job, &why);
        if (status != EPA_OK && best != NULL) /* leftovers of another job after a valid set */
            continue;
        status = status != EPA_OK ? epa_fail_key(err, status, why.key, "%s", why.text)
                                  : choose_set(&best, &found, set, &job, err);
        if (status != EPA_OK)
            return status;
    }
    *out = found;
    return EPA_OK;
}
