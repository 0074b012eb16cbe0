/* Which rank of what: every set of variables alone, together, in pieces and gone wrong. */
#include "test.h"

#include "launch/process.h"

static const char *const all[] = {
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_JOBID",
    "MPI_LOCALNRANKS",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_NODES",
    "SLURM_JOB_ID",
    "SLURM_NTASKS",
};

/* "A=1 B=2", and nothing else of the above. */
static enum epa_status with(const char *variables, struct process_job *job, struct epa_error *err)
{
    char text[400], *rest = text;

    for (size_t i = 0; i < LENGTH(all); i++)
        unsetenv(all[i]);
    snprintf(text, sizeof(text), "%s", variables);
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        char *equals = strchr(word, '=');

        *equals = 0;
        setenv(word, equals + 1, 1);
    }
    memset(job, 0xff, sizeof(*job));
    *err = (struct epa_error){EPA_OK, ""};
    return process_id_find(job, err);
}

static void assert_place(const char *variables, uint32_t rank, uint32_t size, bool mpi,
                         uint32_t local_size, const char *id, const char *how)
{
    struct process_job job;
    struct epa_error err;

    assert_int_equal(with(variables, &job, &err), EPA_OK);
    assert_int_equal(job.process_id.rank, rank);
    assert_int_equal(job.process_id.size, size);
    assert_int_equal(job.mpi, mpi);
    assert_int_equal(job.local_size, local_size);
    assert_int_equal(job.process_id.local_size, local_size);
    assert_string_equal(job.id, id);
    assert_string_equal(job.process_id.source, how);
}

TEST(nothing_set_is_no_job)
{
    assert_place("", 0, 0, false, 0, "", "");
}

TEST(each_launcher_is_known_by_its_variables)
{
    assert_place("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=16 "
                 "OMPI_COMM_WORLD_LOCAL_SIZE=8 PMIX_NAMESPACE=77",
                 3, 16, true, 8, "77",
                 "Open MPI: OMPI_COMM_WORLD_RANK=3 of OMPI_COMM_WORLD_SIZE=16");
    assert_place("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=1", 0, 2, true, 1, "",
                 "MPICH: PMI_RANK=0 of PMI_SIZE=2");
    assert_place("RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 "
                 "TORCHELASTIC_RUN_ID=none",
                 1, 4, false, 2, "none", "torchrun: RANK=1 of WORLD_SIZE=4");
    assert_place("RANK=1 WORLD_SIZE=4 MASTER_ADDR=b1 MASTER_PORT=9", 1, 4, false, 0, "",
                 "environment: RANK=1 of WORLD_SIZE=4");
    assert_place("SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=6 SLURM_STEP_ID=0 SLURM_JOB_ID=99", 5, 6,
                 false, 0, "99.0", "Slurm: SLURM_PROCID=5 of SLURM_STEP_NUM_TASKS=6");
    assert_place("SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=3 "
                 "SLURM_STEP_NUM_NODES=1",
                 1, 2, false, 2, "3", "Slurm: SLURM_PROCID=1 of SLURM_STEP_NUM_TASKS=2");
}

TEST(mpirun_within_a_slurm_step_counts)
{
    assert_place("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0 "
                 "OMPI_COMM_WORLD_RANK=7 OMPI_COMM_WORLD_SIZE=8",
                 7, 8, true, 0, "", "Open MPI: OMPI_COMM_WORLD_RANK=7 of OMPI_COMM_WORLD_SIZE=8");
}

TEST(rank_and_world_size_alone_may_count_nodes)
{
    assert_place("RANK=1 WORLD_SIZE=4", 0, 0, false, 0, "", "");
    assert_place("RANK=1 WORLD_SIZE=4 LOCAL_RANK=1", 0, 0, false, 0, "", "");
    assert_place("RANK=1 WORLD_SIZE=4 MASTER_PORT=9", 0, 0, false, 0, "", "");
}

TEST(a_shell_within_a_slurm_job_is_no_rank)
{
    assert_place("SLURM_JOB_ID=9 SLURM_NTASKS=64 SLURM_PROCID=0", 0, 0, false, 0, "", "");
    assert_place("SLURM_JOB_ID=9 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=64 "
                 "SLURM_STEP_ID=4294967290",
                 0, 0, false, 0, "", "");
}

TEST(sets_that_make_no_sense_are_refused_with_their_names)
{
    struct process_job job;
    struct epa_error err;

    assert_int_equal(with("OMPI_COMM_WORLD_RANK=4 OMPI_COMM_WORLD_SIZE=4", &job, &err),
                     EPA_ERR_CONFIG);
    assert_words(err.text,
                 "MPI .. OMPI_COMM_WORLD_RANK=4 .. OMPI_COMM_WORLD_SIZE=4 .. launcher: fork");
    assert_int_equal(with("PMI_RANK=x PMI_SIZE=4", &job, &err), EPA_ERR_CONFIG);
    assert_words(err.text, "MPICH .. PMI_RANK .. 'x' .. launcher: fork");
    assert_int_equal(with("PMI_RANK=-1 PMI_SIZE=4", &job, &err), EPA_ERR_CONFIG);
    assert_int_equal(with("PMI_RANK=0 PMI_SIZE=99999999999", &job, &err), EPA_ERR_CONFIG);
    assert_int_equal(with("PMI_RANK=0 PMI_SIZE=4x", &job, &err), EPA_ERR_CONFIG);
}
