/* What doctor finds wrong or missing in a machine that is made up. */
#include "test.h"

#include "doctor/doctor.h"

static void add_plugin(struct doctor *d, enum epa_plugin_kind kind, const char *name)
{
    struct doctor_plugin *p = &d->plugin[d->plugins++];

    p->kind = kind;
    p->usable = p->loaded = true;
    snprintf(p->name, sizeof(p->name), "%s", name);
}

/* Nothing is wrong with it. */
static int set_up(void **state)
{
    struct doctor *d = calloc(1, sizeof(*d));
    struct machine *m = &d->machine;

    m->facts.cores = m->cores_online = 8;
    m->facts.numa_nodes = 2;
    snprintf(m->facts.governor, sizeof(m->facts.governor), "performance");
    snprintf(m->facts.clocksource, sizeof(m->facts.clocksource), "tsc");
    snprintf(m->facts.arch, sizeof(m->facts.arch), "x86_64");
    snprintf(m->facts.huge_pages, sizeof(m->facts.huge_pages), "madvise");
    snprintf(m->facts.shmem_huge_pages, sizeof(m->facts.shmem_huge_pages), "advise");
    m->available_bytes = 8ull << 30;
    m->address_space = m->locked_bytes = UINT64_MAX;
    m->files = 4096;
    m->shm_bytes = m->shm_free = 4ull << 30;
    m->ports = m->gpus = m->programs = 1;
    snprintf(m->port[0].device, sizeof(m->port[0].device), "mlx5_0");
    snprintf(m->port[0].state, sizeof(m->port[0].state), "ACTIVE");
    snprintf(m->gpu_driver, sizeof(m->gpu_driver), "580");
    snprintf(m->program[0].name, sizeof(m->program[0].name), "mpirun");
    snprintf(m->program[0].path, sizeof(m->program[0].path), "/usr/bin/mpirun");
    add_plugin(d, EPA_PLUGIN_BACKEND, "cuda");
    add_plugin(d, EPA_PLUGIN_LAUNCHER, "mpi");
    add_plugin(d, EPA_PLUGIN_TRANSPORT, "nvlink");
    add_plugin(d, EPA_PLUGIN_TRANSPORT, "shm");
    add_plugin(d, EPA_PLUGIN_TRANSPORT, "ucx");
    add_plugin(d, EPA_PLUGIN_TRANSPORT, "verbs");
    add_plugin(d, EPA_PLUGIN_ALGORITHM, "alltoallv");
    *state = d;
    return 0;
}

static int tear_down(void **state)
{
    free(*state);
    return 0;
}

/* The only finding there is. */
static void finds(struct doctor *d, bool missing, const char *what, const char *fix)
{
    doctor_judge(d);
    if (d->findings != 1 || strstr(d->finding[0].what, what) == NULL ||
        strstr(d->finding[0].fix, fix) == NULL) {
        for (uint32_t i = 0; i < d->findings; i++)
            print_error("%s | %s\n", d->finding[i].what, d->finding[i].fix);
        fail_msg("not just '%s' | '%s'", what, fix);
    }
    assert_true(d->finding[0].missing == missing);
}

TEST_IN(set_up, tear_down, a_good_machine_has_no_findings)
{
    struct doctor *d = *state;

    doctor_judge(d);
    assert_int_equal(d->findings, 0);
    doctor_judge(d);
    assert_int_equal(d->findings, 0);
}

TEST_IN(set_up, tear_down, a_slow_governor_is_reported_with_its_command)
{
    struct doctor *d = *state;

    snprintf(d->machine.facts.governor, sizeof(d->machine.facts.governor), "powersave");
    finds(d, false, "governor is powersave", "cpupower frequency-set -g performance");
}

TEST_IN(set_up, tear_down, no_governor_is_no_slow_governor)
{
    struct doctor *d = *state;

    d->machine.facts.governor[0] = '\0';
    doctor_judge(d);
    assert_int_equal(d->findings, 0);
}

TEST_IN(set_up, tear_down, a_crowded_machine_is_reported)
{
    struct doctor *d = *state;

    d->machine.facts.load_average = 4.5;
    finds(d, false, "a load of 4.5 on 8 cores", "top");
}

TEST_IN(set_up, tear_down, a_quota_below_the_cores_is_reported)
{
    struct doctor *d = *state;

    d->machine.cores_quota = 2.5;
    finds(d, false, "2.50 cores' worth of time on 8 cores", "cpu.max");
    d->machine.cores_quota = 8;
    doctor_judge(d);
    assert_int_equal(d->findings, 0);
}

TEST_IN(set_up, tear_down, cores_that_may_not_be_used_are_reported)
{
    struct doctor *d = *state;

    d->machine.facts.cores = 4;
    finds(d, false, "only 4 of 8 cores", "taskset");
}

TEST_IN(set_up, tear_down, another_clock_matters_where_there_could_be_tsc)
{
    struct doctor *d = *state;

    snprintf(d->machine.facts.clocksource, sizeof(d->machine.facts.clocksource), "hpet");
    finds(d, false, "the clock is hpet", "echo tsc");
    snprintf(d->machine.facts.arch, sizeof(d->machine.facts.arch), "aarch64");
    doctor_judge(d);
    assert_int_equal(d->findings, 0);
}

TEST_IN(set_up, tear_down, huge_pages_that_are_forbidden_are_reported)
{
    struct doctor *d = *state;

    snprintf(d->machine.facts.shmem_huge_pages, 6, "never");
    finds(d, false, "huge pages of shared memory: never", "shmem_enabled");
}

TEST_IN(set_up, tear_down, a_small_dev_shm_is_reported)
{
    struct doctor *d = *state;

    d->machine.shm_bytes = d->machine.shm_free = 64 << 20;
    finds(d, false, "/dev/shm has 64.0 MiB free", "--shm-size");
}

TEST_IN(set_up, tear_down, leftovers_are_reported_with_the_first_of_them)
{
    struct doctor *d = *state;

    d->machine.left_files = 2;
    d->machine.left_bytes = 3 << 20;
    snprintf(d->machine.left_first, sizeof(d->machine.left_first), "ucx_shm_posix_1");
    finds(d, false, "2 files of UCX or MPI in /dev/shm hold 3.00 MiB",
          "rm /dev/shm/ucx_shm_posix_1 and the like");
}

TEST_IN(set_up, tear_down, locked_memory_matters_only_with_rdma)
{
    struct doctor *d = *state;

    d->machine.locked_bytes = 8 << 20;
    finds(d, false, "may lock 8.00 MiB", "ulimit -l unlimited");
    d->machine.ports = 0;
    finds(d, true, "no RDMA device", "rdma_rxe");
}

TEST_IN(set_up, tear_down, a_port_that_is_down_is_named)
{
    struct doctor *d = *state;

    snprintf(d->machine.port[0].state, sizeof(d->machine.port[0].state), "DOWN");
    finds(d, false, "no port is ACTIVE (mlx5_0", "rdma link show");
}

TEST_IN(set_up, tear_down, gpus_without_a_driver_want_one)
{
    struct doctor *d = *state;

    d->machine.gpu_driver[0] = '\0';
    finds(d, true, "1 GPUs of NVIDIA and no driver", "nvidia-driver");
}

TEST_IN(set_up, tear_down, no_mpirun_names_its_package)
{
    struct doctor *d = *state;

    d->machine.program[0].path[0] = '\0';
    finds(d, true, "no mpirun on PATH", "apt install openmpi-bin");
}

TEST_IN(set_up, tear_down, a_plugin_that_is_not_built_names_what_it_is_built_with)
{
    struct doctor *d = *state;

    snprintf(d->plugin[4].name, sizeof(d->plugin[4].name), "other");
    finds(d, true, "transport ucx is not built", "apt install libucx-dev; build again");
}

TEST_IN(set_up, tear_down, a_library_that_is_missing_names_its_package)
{
    struct doctor *d = *state;

    d->plugin[4].usable = d->plugin[4].loaded = false;
    snprintf(d->plugin[4].text, sizeof(d->plugin[4].text),
             "its library libucp.so.0 is missing");
    finds(d, true, "transport ucx cannot be loaded: its library libucp.so.0 is missing",
          "apt install libucx0");
}
