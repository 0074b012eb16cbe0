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
    json_t *m;

    m = machine_collect(*state);
    assert_true(json_is_null(json_at(m, "machine.cores_online")));
    assert_true(json_is_null(json_at(m, "machine.cores_quota")));
    assert_true(json_is_false(json_at(m, "machine.virtual")));
    assert_true(json_is_false(json_at(m, "machine.numa_balancing")));
    assert_true(json_is_null(json_at(m, "memory.available_bytes")));
    assert_true(json_is_null(json_at(m, "memory.dev_shm.bytes")));
    assert_true(json_number_at(m, "memory.dev_shm.left_files") == 0);
    assert_int_equal(json_array_size(json_at(m, "devices.rdma")), 0);
    assert_int_equal(json_array_size(json_at(m, "devices.gpus")), 0);
    assert_int_equal(json_array_size(json_at(m, "devices.networks")), 0);
    assert_true(json_is_null(json_at(m, "devices.gpu_driver")));
    json_decref(m);
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
    json_t *m;

    put_all(*state, files);
    m = machine_collect(*state);
    assert_true(json_number_at(m, "machine.cores_online") == 7);
    assert_true(json_is_true(json_at(m, "machine.virtual")));
    assert_true(json_is_true(json_at(m, "machine.numa_balancing")));
    assert_string_equal(json_text_at(m, "machine.isas.0"), "scalar");
    assert_true(json_number_at(m, "memory.available_bytes") == 8 << 20);
    assert_true(json_number_at(m, "memory.reserved_huge_pages.bytes") == 2 << 20);
    assert_true(json_number_at(m, "memory.reserved_huge_pages.pages") == 12);
    assert_true(json_number_at(m, "memory.reserved_huge_pages.free") == 5);
    assert_true(json_number_at(m, "memory.dev_shm.left_files") == 2);
    assert_true(json_number_at(m, "memory.dev_shm.left_bytes") > 0);
    assert_true(json_number_at(m, "memory.dev_shm.bytes") > 0);
    json_decref(m);
}

static void has_quota(const char *root, double quota)
{
    json_t *m;

    m = machine_collect(root);
    assert_true(json_number_at(m, "machine.cores_quota") == quota);
    json_decref(m);
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
    json_t *all, *m;

    put_all(*state, files);
    m = all = machine_collect(*state);
    m = json_object_get(m, "devices");
    assert_int_equal(json_array_size(json_at(m, "rdma")), 2);
    assert_string_equal(json_text_at(m, "rdma.0.device"), "mlx5_0");
    assert_string_equal(json_text_at(m, "rdma.0.state"), "ACTIVE");
    assert_string_equal(json_text_at(m, "rdma.0.link"), "InfiniBand");
    assert_string_equal(json_text_at(m, "rdma.0.rate"), "400 Gb/sec (4X NDR)");
    assert_true(json_number_at(m, "rdma.0.port") == 1);
    assert_string_equal(json_text_at(m, "rdma.1.state"), "DOWN");
    assert_true(json_is_null(json_at(m, "rdma.1.rate")));
    assert_int_equal(json_array_size(json_at(m, "gpus")), 1);
    assert_non_null(strstr(json_text_at(m, "gpu_driver"), "580.95"));
    assert_int_equal(json_array_size(json_at(m, "networks")), 2);
    assert_string_equal(json_text_at(m, "networks.0.name"), "eth0");
    assert_true(json_number_at(m, "networks.0.megabits") == 25000);
    assert_string_equal(json_text_at(m, "networks.1.name"), "eth2");
    assert_true(json_is_null(json_at(m, "networks.1.megabits")));
    json_decref(all);
}

TEST_IN(root_set_up, root_tear_down, a_program_is_found_on_path_and_tells_its_version)
{
    const char *root = *state;
    json_t *all, *m;
    char path[600];

    root_put(root, "/bin/mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 9.9'\necho more\n");
    snprintf(path, sizeof(path), "%s/bin/mpirun", root);
    chmod(path, 0755);
    snprintf(path, sizeof(path), "bin:%s/nowhere:%s/bin:/usr/bin:/bin", root, root);
    setenv("PATH", path, 1);
    all = machine_collect(root);
    m = json_at(all, "devices.programs");
    assert_string_equal(json_text_at(m, "0.name"), "mpirun");
    assert_non_null(strstr(json_text_at(m, "0.path"), "/bin/mpirun"));
    assert_string_equal(json_text_at(m, "0.version"), "mpirun (Open MPI) 9.9");
    json_decref(all);
}
