/* What doctor reads of a folder that stands in for /proc, /sys and /dev. */
#include "test.h"

#include "fake_root.h"

#include "doctor/doctor.h"

struct file {
    const char *path, *text;
};

static void put_all(const char *root, const struct file *file)
{
    for (; file->path != NULL; file++)
        root_put(root, file->path, file->text);
}

TEST_IN(root_set_up, root_tear_down, a_machine_that_tells_nothing_leaves_all_empty)
{
    struct machine m;

    machine_collect(*state, &m);
    assert_int_equal(m.cores_online, 0);
    assert_true(m.cores_quota <= 0);
    assert_false(m.virtual_machine);
    assert_false(m.numa_balancing);
    assert_true(m.available_bytes == UINT64_MAX);
    assert_int_equal(m.shm_bytes, 0);
    assert_int_equal(m.left_files, 0);
    assert_int_equal(m.ports + m.gpus + m.networks, 0);
    assert_string_equal(m.gpu_driver, "");
    machine_finish(&m);
}

TEST_IN(root_set_up, root_tear_down, cores_and_memory_are_as_the_kernel_says)
{
    static const struct file files[] = {
        {"/sys/devices/system/cpu/online", "0-5,8\n"},
        {"/proc/cpuinfo", "flags\t\t: fpu vme hypervisor lahf_lm\n"},
        {"/proc/sys/kernel/numa_balancing", "1\n"},
        {"/proc/meminfo", "MemTotal:       16384 kB\nMemAvailable:   8192 kB\n"
                          "HugePages_Total:      12\nHugePages_Free:        5\n"
                          "Hugepagesize:       2048 kB\n"},
        {"/dev/shm/ucx_shm_posix_1a", "left"},
        {"/dev/shm/vader_segment.host.1", "left"},
        {"/dev/shm/pulse-shm-1", "somebody's"}, /* none of UCX or MPI */
        {0},
    };
    struct machine m;

    put_all(*state, files);
    machine_collect(*state, &m);
    assert_int_equal(m.cores_online, 7);
    assert_true(m.virtual_machine);
    assert_true(m.numa_balancing);
    assert_non_null(strstr(m.isas, "scalar"));
    assert_int_equal(m.available_bytes, 8 << 20);
    assert_int_equal(m.huge_bytes, 2 << 20);
    assert_int_equal(m.huge_pages, 12);
    assert_int_equal(m.huge_free, 5);
    assert_int_equal(m.left_files, 2);
    assert_true(m.left_bytes > 0);
    assert_true(m.shm_bytes > 0);
    machine_finish(&m);
}

static void has_quota(const char *root, double quota)
{
    struct machine m;

    machine_collect(root, &m);
    assert_true(m.cores_quota > quota - 0.01 && m.cores_quota < quota + 0.01);
    machine_finish(&m);
}

TEST_IN(root_set_up, root_tear_down, the_least_quota_of_the_groups_above_counts)
{
    static const struct file files[] = {
        {"/proc/self/cgroup", "0::/a/b\n"},
        {"/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"},
        {"/sys/fs/cgroup/a/cpu.max", "150000 100000\n"},
        {"/sys/fs/cgroup/cpu.max", "800000 100000\n"},
        {0},
    };

    put_all(*state, files);
    has_quota(*state, 1.5);
}

TEST_IN(root_set_up, root_tear_down, a_quota_of_cgroup_version_1_is_in_two_files)
{
    static const struct file files[] = {
        {"/proc/self/cgroup", "5:memory:/x\n6:cpuset:/x\n4:cpuacct,cpu:/job\n"},
        {"/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "10000\n"}, /* where cpuset is */
        {"/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"},
        {"/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n"},
        {"/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n"},
        {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
        {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
        {0},
    };

    put_all(*state, files);
    has_quota(*state, 0.5);
}

TEST_IN(root_set_up, root_tear_down, devices_are_listed_in_order)
{
    static const struct file files[] = {
        {"/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n"},
        {"/sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n"},
        {"/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n"},
        {"/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n"},
        {"/sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n"}, /* a switch */
        {"/sys/bus/pci/devices/0000:02:00.0/class", "0x068000\n"},
        {"/sys/bus/pci/devices/0000:03:00.0/vendor", "0x1002\n"},
        {"/sys/bus/pci/devices/0000:03:00.0/class", "0x030000\n"},
        {"/proc/driver/nvidia/version", "NVRM version: NVIDIA Kernel Module  580.95  Tue\n"},
        {"/sys/class/net/eth0/operstate", "up\n"},
        {"/sys/class/net/eth0/speed", "25000\n"},
        {"/sys/class/net/eth1/operstate", "down\n"},
        {"/sys/class/net/eth2/operstate", "up\n"},
        {"/sys/class/net/eth2/speed", "-1\n"},
        {"/sys/class/net/lo/operstate", "up\n"},
        {0},
    };
    static const struct machine_port active = {"mlx5_0", "ACTIVE", "InfiniBand",
                                               "400 Gb/sec (4X NDR)", 1};
    struct machine m;

    put_all(*state, files);
    machine_collect(*state, &m);
    assert_int_equal(m.ports, 2);
    assert_string_equal(m.port[0].device, active.device);
    assert_string_equal(m.port[0].state, active.state);
    assert_string_equal(m.port[0].link, active.link);
    assert_string_equal(m.port[0].rate, active.rate);
    assert_int_equal(m.port[0].port, active.port);
    assert_string_equal(m.port[1].state, "DOWN");
    assert_string_equal(m.port[1].rate, "");
    assert_int_equal(m.gpus, 1);
    assert_non_null(strstr(m.gpu_driver, "580.95"));
    assert_int_equal(m.networks, 2);
    assert_string_equal(m.network[0].name, "eth0");
    assert_int_equal(m.network[0].megabits, 25000);
    assert_string_equal(m.network[1].name, "eth2");
    assert_int_equal(m.network[1].megabits, 0);
    machine_finish(&m);
}

TEST_IN(root_set_up, root_tear_down, a_program_is_found_on_path_and_tells_its_version)
{
    const char *root = *state;
    const struct machine_program *mpirun;
    struct machine m;
    char path[600];

    root_put(root, "/bin/mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 9.9'\necho more\n");
    snprintf(path, sizeof(path), "%s/bin/mpirun", root);
    chmod(path, 0755);
    snprintf(path, sizeof(path), "bin:%s/nowhere:%s/bin:/usr/bin:/bin", root, root);
    setenv("PATH", path, 1);
    machine_collect(root, &m);
    mpirun = machine_program(&m, "mpirun");
    assert_non_null(mpirun);
    assert_non_null(strstr(mpirun->path, "/bin/mpirun"));
    assert_string_equal(mpirun->version, "mpirun (Open MPI) 9.9");
    assert_null(machine_program(&m, "no such"));
    machine_finish(&m);
}
