/* What doctor finds wrong or missing in a machine that is made up. */
#include "test.h"

#include "doctor/doctor.h"

#define SET(field, text) snprintf(field, sizeof(field), "%s", text)

static void add_plugin(struct doctor *d, enum epa_plugin_kind kind, const char *name)
{
    struct doctor_plugin *p = &d->plugin[d->plugins++];

    p->kind = kind;
    p->usable = p->loaded = true;
    SET(p->name, name);
}

/* Nothing is wrong with it. */
static struct doctor *good_machine(void)
{
    static struct doctor doctor;
    struct doctor *d = &doctor;
    struct machine *m = &d->machine;

    memset(d, 0, sizeof(*d));
    m->facts.cores = m->cores_online = 8;
    m->facts.numa_nodes = 2;
    SET(m->facts.governor, "performance");
    SET(m->facts.clocksource, "tsc");
    SET(m->facts.arch, "x86_64");
    SET(m->facts.huge_pages, "madvise");
    SET(m->facts.shmem_huge_pages, "advise");
    m->available_bytes = 8ull << 30;
    m->address_space = m->locked_bytes = UINT64_MAX;
    m->files = 4096;
    m->shm_bytes = m->shm_free = 4ull << 30;
    m->ports = m->gpus = m->programs = 1;
    SET(m->port[0].device, "mlx5_0");
    SET(m->port[0].state, "ACTIVE");
    SET(m->gpu_driver, "580");
    SET(m->program[0].name, "mpirun");
    SET(m->program[0].path, "/usr/bin/mpirun");
    add_plugin(d, EPA_PLUGIN_BACKEND, "cuda");
    add_plugin(d, EPA_PLUGIN_LAUNCHER, "mpi");
    add_plugin(d, EPA_PLUGIN_TRANSPORT, "nvlink");
    add_plugin(d, EPA_PLUGIN_TRANSPORT, "shm");
    add_plugin(d, EPA_PLUGIN_TRANSPORT, "ucx");
    add_plugin(d, EPA_PLUGIN_TRANSPORT, "verbs");
    add_plugin(d, EPA_PLUGIN_ALGORITHM, "alltoallv");
    return d;
}

/* The only finding there is; `missing` is 'm' for what is missing, 'w' for what is wrong. */
static void finds(struct doctor *d, char missing, const char *what, const char *fix)
{
    doctor_judge(d);
    if (d->findings != 1) {
        for (uint32_t i = 0; i < d->findings; i++)
            print_error("%s | %s\n", d->finding[i].what, d->finding[i].fix);
        fail_msg("not just '%s' | '%s'", what, fix);
    }
    assert_words(d->finding[0].what, what);
    assert_words(d->finding[0].fix, fix);
    assert_true(d->finding[0].missing == (missing == 'm'));
}

static void finds_nothing(struct doctor *d)
{
    doctor_judge(d);
    assert_int_equal(d->findings, 0);
}

TEST(a_good_machine_has_no_findings)
{
    finds_nothing(good_machine());
}

TEST(cores_and_clock_that_disturb_are_reported_with_what_to_do)
{
    struct doctor *d = good_machine();

    SET(d->machine.facts.governor, "powersave");
    finds(d, 'w', "governor .. powersave", "cpupower frequency-set -g performance");
    d->machine.facts.governor[0] = '\0';
    finds_nothing(d);
    d->machine.facts.load_average = 4.5;
    finds(d, 'w', "4.5 .. 8 cores", "top");
    d = good_machine();
    d->machine.cores_quota = 2.5;
    finds(d, 'w', "2.50 .. 8 cores", "cpu.max");
    d->machine.cores_quota = 8;
    finds_nothing(d);
    d->machine.facts.cores = 4;
    finds(d, 'w', "4 of 8 cores", "taskset");
    d = good_machine();
    SET(d->machine.facts.clocksource, "hpet"); /* where there could be a tsc */
    finds(d, 'w', "hpet", "echo tsc");
    SET(d->machine.facts.arch, "aarch64");
    finds_nothing(d);
}

TEST(memory_that_is_held_back_is_reported_with_what_to_do)
{
    struct doctor *d = good_machine();

    SET(d->machine.facts.shmem_huge_pages, "never");
    finds(d, 'w', "huge pages .. never", "shmem_enabled");
    d = good_machine();
    d->machine.shm_bytes = d->machine.shm_free = 64 << 20;
    finds(d, 'w', "/dev/shm .. 64.0 MiB", "--shm-size");
    d = good_machine();
    d->machine.left_files = 2;
    d->machine.left_bytes = 3 << 20;
    SET(d->machine.left_first, "ucx_shm_posix_1");
    finds(d, 'w', "2 files .. /dev/shm .. 3.00 MiB", "rm /dev/shm/ucx_shm_posix_1");
    d = good_machine();
    d->machine.locked_bytes = 8 << 20; /* which matters only with RDMA */
    finds(d, 'w', "8.00 MiB", "ulimit -l unlimited");
    d->machine.ports = 0;
    finds(d, 'm', "RDMA", "rdma_rxe");
}

TEST(devices_and_programs_that_are_missing_name_what_brings_them)
{
    struct doctor *d = good_machine();

    SET(d->machine.port[0].state, "DOWN");
    finds(d, 'w', "ACTIVE .. mlx5_0", "rdma link show");
    d = good_machine();
    d->machine.gpu_driver[0] = '\0';
    finds(d, 'm', "1 GPUs .. driver", "nvidia-driver");
    d = good_machine();
    d->machine.program[0].path[0] = '\0';
    finds(d, 'm', "mpirun .. PATH", "apt install openmpi-bin");
    d = good_machine();
    SET(d->plugin[4].name, "other");
    finds(d, 'm', "transport ucx .. built", "UCX (Debian: libucx-dev) .. build");
    d = good_machine();
    d->plugin[4].usable = d->plugin[4].loaded = false;
    SET(d->plugin[4].text, "its library libucp.so.0 is missing");
    finds(d, 'm', "transport ucx .. libucp.so.0", "apt install libucx0");
}
