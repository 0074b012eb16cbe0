/* Tests of rank numbers in the environment: each launcher's variables alone, together, incomplete
 * and invalid. */
#include "test.h"

#include "boot/process_id.h"

/* Evaluates the variables "A=1 B=2" in an empty environment. */
static enum epa_status with(const char *variables, struct process_job *job)
{
    clearenv();
    set_variables(variables);
    memset(job, 0xff, sizeof(*job));
    return process_id_find(job, test_error());
}

/* mpirun inside a Slurm step counts as mpirun. RANK and WORLD_SIZE alone may number nodes, and a
 * shell inside a Slurm job is not a rank. */
TEST(each_launcher_is_recognised_by_its_variables)
{
    static const struct {
        const char *variables;
        uint32_t rank, size, local_size;
        bool mpi;
        const char *id, *how;
    } c[] = {
        {"", 0, 0, 0, false, "", ""},
        {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_LOCAL_SIZE=8 "
         "PMIX_NAMESPACE=77",
         3, 16, 8, true, "77", "Open MPI: OMPI_COMM_WORLD_RANK=3 of OMPI_COMM_WORLD_SIZE=16"},
        {"PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=1", 0, 2, 1, true, "",
         "MPICH: PMI_RANK=0 of PMI_SIZE=2"},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none", 1, 4, 2,
         false, "none", "torchrun: RANK=1 of WORLD_SIZE=4"},
        {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=b1 MASTER_PORT=9", 1, 4, 0, false, "",
         "environment: RANK=1 of WORLD_SIZE=4"},
        {"SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=6 SLURM_STEP_ID=0 SLURM_JOB_ID=99", 5, 6, 0, false,
         "99.0", "Slurm: SLURM_PROCID=5 of SLURM_STEP_NUM_TASKS=6"},
        {"SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=3 SLURM_STEP_NUM_NODES=1", 1, 2, 2,
         false, "3", "Slurm: SLURM_PROCID=1 of SLURM_STEP_NUM_TASKS=2"},
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0 OMPI_COMM_WORLD_RANK=7 "
         "OMPI_COMM_WORLD_SIZE=8",
         7, 8, 0, true, "", "Open MPI: OMPI_COMM_WORLD_RANK=7 of OMPI_COMM_WORLD_SIZE=8"},
        /* A notebook, an interactive step or an outer mpirun -n 1 leaves variables behind. */
        {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 SLURM_PROCID=1 "
         "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0",
         1, 2, 0, false, "0", "Slurm: SLURM_PROCID=1 of SLURM_STEP_NUM_TASKS=2"},
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 "
         "LOCAL_WORLD_SIZE=2",
         1, 2, 2, false, "", "torchrun: RANK=1 of WORLD_SIZE=2"},
        {"PMI_RANK=0 PMI_SIZE=1 RANK=1 WORLD_SIZE=2 MASTER_ADDR=b1 MASTER_PORT=9", 1, 2, 0, false,
         "", "environment: RANK=1 of WORLD_SIZE=2"},
        {"PMI_RANK=0 PMI_SIZE=1 RANK=0 WORLD_SIZE=x MASTER_ADDR=b1 MASTER_PORT=9", 0, 1, 0, true,
         "", "MPICH: PMI_RANK=0 of PMI_SIZE=1"},
        /* srun --mpi=pmi2, and Hydra within a step. */
        {"PMI_RANK=1 PMI_SIZE=2 PMI_JOBID=7.0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 "
         "SLURM_STEP_ID=0 SLURM_JOB_ID=7",
         1, 2, 0, false, "7.0", "Slurm: SLURM_PROCID=1 of SLURM_STEP_NUM_TASKS=2"},
        {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=1 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 "
         "SLURM_STEP_ID=0",
         1, 2, 1, true, "", "MPICH: PMI_RANK=1 of PMI_SIZE=2"},
        {"PMI_RANK=3 PMI_SIZE=8 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0", 3, 8, 0,
         true, "", "MPICH: PMI_RANK=3 of PMI_SIZE=8"},
        /* A wrapper of mpirun repeats its numbers, and a pod numbers its nodes. */
        {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 "
         "LOCAL_WORLD_SIZE=2",
         3, 4, 0, true, "", "Open MPI: OMPI_COMM_WORLD_RANK=3 of OMPI_COMM_WORLD_SIZE=4"},
        {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 RANK=1 WORLD_SIZE=2 MASTER_ADDR=b1 "
         "MASTER_PORT=9",
         3, 4, 0, true, "", "Open MPI: OMPI_COMM_WORLD_RANK=3 of OMPI_COMM_WORLD_SIZE=4"},
        {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1", 0, 0, 0, false, "", ""},
        {"RANK=1 WORLD_SIZE=4 MASTER_PORT=9", 0, 0, 0, false, "", ""},
        {"SLURM_JOB_ID=9 SLURM_NTASKS=64 SLURM_PROCID=0", 0, 0, 0, false, "", ""},
        {"SLURM_JOB_ID=9 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=64 SLURM_STEP_ID=4294967290", 0, 0, 0,
         false, "", ""},
    };

    for (size_t i = 0; i < LENGTH(c); i++) {
        struct process_job job;

        assert_status(with(c[i].variables, &job), EPA_OK, "");
        assert_int_equal(job.process_id.rank, c[i].rank);
        assert_int_equal(job.process_id.size, c[i].size);
        assert_int_equal(job.mpi, c[i].mpi);
        assert_int_equal(job.local_size, c[i].local_size);
        assert_int_equal(job.process_id.local_size, c[i].local_size);
        assert_string_equal(job.id, c[i].id);
        assert_string_equal(job.process_id.source, c[i].how);
    }
}

TEST(inconsistent_variables_are_refused_with_their_names)
{
    static const char *const c[][2] = {
        {"OMPI_COMM_WORLD_RANK=4 OMPI_COMM_WORLD_SIZE=4",
         "MPI .. OMPI_COMM_WORLD_RANK=4 .. OMPI_COMM_WORLD_SIZE=4 .. launcher: fork"},
        {"PMI_RANK=x PMI_SIZE=4", "MPICH .. PMI_RANK .. 'x' .. launcher: fork"},
        {"PMI_RANK=-1 PMI_SIZE=4", "PMI_RANK"},
        {"PMI_RANK=0 PMI_SIZE=99999999999", "PMI_SIZE"},
        {"PMI_RANK=0 PMI_SIZE=4x", "PMI_SIZE"},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 RANK=1 WORLD_SIZE=8 LOCAL_RANK=1 "
         "LOCAL_WORLD_SIZE=4",
         "OMPI_COMM_WORLD_RANK=1 of OMPI_COMM_WORLD_SIZE=2 .. RANK=1 of WORLD_SIZE=8 .. unset"},
    };

    for (size_t i = 0; i < LENGTH(c); i++) {
        struct process_job job;

        assert_status(with(c[i][0], &job), EPA_ERR_CONFIG, c[i][1]);
    }
}
