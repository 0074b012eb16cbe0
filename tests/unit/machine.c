/* What doctor reads of a folder that stands in for /proc, /sys and /dev. */
#include "test.h"

#include "fake_root.h"

#include "doctor/doctor.h"

#define RDMA "/sys/class/infiniband/"

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

TEST_IN(root_set_up, root_tear_down, cores_and_a_hypervisor_are_seen)
{
    struct machine m;

    root_put(*state, "/sys/devices/system/cpu/online", "0-5,8\n");
    root_put(*state, "/proc/cpuinfo", "flags\t\t: fpu vme hypervisor lahf_lm\n");
    root_put(*state, "/proc/sys/kernel/numa_balancing", "1\n");
    machine_collect(*state, &m);
    assert_int_equal(m.cores_online, 7);
    assert_true(m.virtual_machine);
    assert_true(m.numa_balancing);
    assert_non_null(strstr(m.isas, "scalar"));
    machine_finish(&m);
}

TEST_IN(root_set_up, root_tear_down, the_least_quota_of_the_groups_above_counts)
{
    struct machine m;

    root_put(*state, "/proc/self/cgroup", "0::/a/b\n");
    root_put(*state, "/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    root_put(*state, "/sys/fs/cgroup/a/cpu.max", "150000 100000\n");
    root_put(*state, "/sys/fs/cgroup/cpu.max", "800000 100000\n");
    machine_collect(*state, &m);
    assert_true(m.cores_quota > 1.49 && m.cores_quota < 1.51);
    machine_finish(&m);
}

TEST_IN(root_set_up, root_tear_down, a_quota_of_cgroup_version_1_is_in_two_files)
{
    struct machine m;

    root_put(*state, "/proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/job\n");
    root_put(*state, "/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n");
    root_put(*state, "/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    root_put(*state, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    root_put(*state, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    machine_collect(*state, &m);
    assert_true(m.cores_quota > 0.49 && m.cores_quota < 0.51);
    machine_finish(&m);
}

TEST_IN(root_set_up, root_tear_down, reserved_huge_pages_are_counted)
{
    struct machine m;

    root_put(*state, "/proc/meminfo",
             "MemTotal:       16384 kB\nMemAvailable:   8192 kB\nHugePages_Total:      12\n"
             "HugePages_Free:        5\nHugepagesize:       2048 kB\n");
    machine_collect(*state, &m);
    assert_int_equal(m.available_bytes, 8 << 20);
    assert_int_equal(m.huge_bytes, 2 << 20);
    assert_int_equal(m.huge_pages, 12);
    assert_int_equal(m.huge_free, 5);
    machine_finish(&m);
}

TEST_IN(root_set_up, root_tear_down, only_what_ucx_and_mpi_leave_is_a_leftover)
{
    struct machine m;

    root_put(*state, "/dev/shm/ucx_shm_posix_1a", "left");
    root_put(*state, "/dev/shm/vader_segment.host.1", "left");
    root_put(*state, "/dev/shm/pulse-shm-1", "somebody's");
    machine_collect(*state, &m);
    assert_int_equal(m.left_files, 2);
    assert_true(m.left_bytes > 0);
    assert_true(m.shm_bytes > 0);
    machine_finish(&m);
}

TEST_IN(root_set_up, root_tear_down, ports_of_rdma_devices_are_listed_in_order)
{
    struct machine m;

    root_put(*state, RDMA "mlx5_1/ports/1/state", "1: DOWN\n");
    root_put(*state, RDMA "mlx5_0/ports/1/state", "4: ACTIVE\n");
    root_put(*state, RDMA "mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    root_put(*state, RDMA "mlx5_0/ports/1/link_layer", "InfiniBand\n");
    machine_collect(*state, &m);
    assert_int_equal(m.ports, 2);
    assert_string_equal(m.port[0].device, "mlx5_0");
    assert_int_equal(m.port[0].port, 1);
    assert_string_equal(m.port[0].state, "ACTIVE");
    assert_string_equal(m.port[0].rate, "400 Gb/sec (4X NDR)");
    assert_string_equal(m.port[0].link, "InfiniBand");
    assert_string_equal(m.port[1].state, "DOWN");
    assert_string_equal(m.port[1].rate, "");
    machine_finish(&m);
}

TEST_IN(root_set_up, root_tear_down, gpus_are_what_nvidia_shows_on_pci)
{
    struct machine m;

    root_put(*state, "/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    root_put(*state, "/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
    root_put(*state, "/sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n"); /* a switch */
    root_put(*state, "/sys/bus/pci/devices/0000:02:00.0/class", "0x068000\n");
    root_put(*state, "/sys/bus/pci/devices/0000:03:00.0/vendor", "0x1002\n");
    root_put(*state, "/sys/bus/pci/devices/0000:03:00.0/class", "0x030000\n");
    root_put(*state, "/proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95  Tue\n");
    machine_collect(*state, &m);
    assert_int_equal(m.gpus, 1);
    assert_non_null(strstr(m.gpu_driver, "580.95"));
    machine_finish(&m);
}

TEST_IN(root_set_up, root_tear_down, networks_are_those_that_are_up)
{
    struct machine m;

    root_put(*state, "/sys/class/net/eth0/operstate", "up\n");
    root_put(*state, "/sys/class/net/eth0/speed", "25000\n");
    root_put(*state, "/sys/class/net/eth1/operstate", "down\n");
    root_put(*state, "/sys/class/net/eth2/operstate", "up\n");
    root_put(*state, "/sys/class/net/eth2/speed", "-1\n");
    root_put(*state, "/sys/class/net/lo/operstate", "up\n");
    machine_collect(*state, &m);
    assert_int_equal(m.networks, 2);
    assert_string_equal(m.network[0].name, "eth0");
    assert_int_equal(m.network[0].megabits, 25000);
    assert_string_equal(m.network[1].name, "eth2");
    assert_int_equal(m.network[1].megabits, 0);
    machine_finish(&m);
}

static void put_program(const char *root, const char *text)
{
    char path[600];

    root_put(root, "/bin/mpirun", text);
    snprintf(path, sizeof(path), "%s/bin/mpirun", root);
    chmod(path, 0755);
    snprintf(path, sizeof(path), "bin:%s/nowhere:%s/bin", root, root);
    setenv("PATH", path, 1);
}

TEST_IN(root_set_up, root_tear_down, a_program_is_found_on_path_and_tells_its_version)
{
    const struct machine_program *mpirun;
    struct machine m;

    put_program(*state, "#!/bin/sh\necho 'mpirun (Open MPI) 9.9'\necho more\n");
    machine_collect(*state, &m);
    mpirun = machine_program(&m, "mpirun");
    assert_non_null(mpirun);
    assert_non_null(strstr(mpirun->path, "/bin/mpirun"));
    assert_string_equal(mpirun->version, "mpirun (Open MPI) 9.9");
    assert_string_equal(machine_program(&m, "srun")->path, "");
    assert_null(machine_program(&m, "no such"));
    machine_finish(&m);
}
