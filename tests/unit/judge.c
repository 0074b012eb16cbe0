/* What doctor finds wrong or missing in a machine that is made up. */
#include "test.h"

#include "doctor/doctor.h"

static const char good[] =
    "{'machine': {'cores': 8, 'cores_online': 8, 'cores_quota': null, 'numa_nodes': 2,"
    " 'governor': 'performance', 'clocksource': 'tsc', 'arch': 'x86_64', 'load_average': 0,"
    " 'huge_pages': 'madvise', 'shmem_huge_pages': 'advise'},"
    " 'memory': {'available_bytes': 8589934592, 'address_space_bytes': null,"
    " 'locked_bytes': null, 'open_files': 4096,"
    " 'dev_shm': {'bytes': 4294967296, 'free_bytes': 4294967296, 'left_files': 0}},"
    " 'devices': {'rdma': [{'device': 'mlx5_0', 'port': 1, 'state': 'ACTIVE'}],"
    " 'gpus': ['0000:01:00.0'], 'gpu_driver': '580', 'programs': [{'name': 'mpirun'}]},"
    " 'plugins': [{'name': 'cuda'}, {'name': 'mpi'}, {'name': 'nvlink'}, {'name': 'shm'},"
    " {'name': 'ucx', 'loaded': true}, {'name': 'verbs'}, {'name': 'alltoallv'}]}";

/* JSON with ' for ". */
static json_t *json_of(const char *text)
{
    char *quoted = strdup(text);
    json_t *out;

    for (char *c = quoted; *c != '\0'; c++)
        *c = *c == '\'' ? '"' : *c;
    out = json_loads(quoted, JSON_DECODE_ANY, NULL);
    free(quoted);
    assert_non_null(out);
    return out;
}

/* Nothing is wrong with it. */
static json_t *good_machine(void)
{
    static json_t *d;

    json_decref(d);
    d = json_of(good);
    return d;
}

/* Another value at the path "SECTION.KEY". */
static void set(json_t *d, const char *path, const char *value)
{
    char parent[64];
    const char *dot = strrchr(path, '.');

    snprintf(parent, sizeof(parent), "%.*s", (int)(dot - path), path);
    assert_int_equal(json_object_set_new(json_at(d, parent), dot + 1, json_of(value)), 0);
}

/* The only finding there is, of this list. */
static void finds(json_t *d, const char *list, const char *what, const char *fix)
{
    machine_judge(d, NULL);
    if (json_array_size(json_at(d, "warnings")) + json_array_size(json_at(d, "missing")) != 1) {
        json_dumpf(json_at(d, "warnings"), stderr, 0);
        json_dumpf(json_at(d, "missing"), stderr, 0);
        fail_msg("not just '%s' | '%s'", what, fix);
    }
    d = json_at(json_at(d, list), "0");
    assert_words(json_text_at(d, "what"), what);
    assert_words(json_text_at(d, "fix"), fix);
}

static void finds_nothing(json_t *d)
{
    machine_judge(d, NULL);
    assert_int_equal(json_array_size(json_at(d, "warnings")), 0);
    assert_int_equal(json_array_size(json_at(d, "missing")), 0);
}

TEST(a_good_machine_has_no_findings)
{
    finds_nothing(good_machine());
}

TEST(cores_and_clock_that_disturb_are_reported_with_what_to_do)
{
    json_t *d = good_machine();

    set(d, "machine.governor", "'powersave'");
    finds(d, "warnings", "governor .. powersave", "cpupower frequency-set -g performance");
    set(d, "machine.governor", "null");
    finds_nothing(d);
    set(d, "machine.load_average", "4.5");
    finds(d, "warnings", "4.5 .. 8 cores", "top");
    d = good_machine();
    set(d, "machine.cores_quota", "2.5");
    finds(d, "warnings", "2.50 .. 8 cores", "cpu.max");
    set(d, "machine.cores_quota", "8");
    finds_nothing(d);
    set(d, "machine.cores", "4");
    finds(d, "warnings", "4 of 8 cores", "taskset");
    d = good_machine();
    set(d, "machine.clocksource", "'hpet'"); /* where there could be a tsc */
    finds(d, "warnings", "hpet", "echo tsc");
    set(d, "machine.arch", "'aarch64'");
    finds_nothing(d);
}

TEST(memory_that_is_held_back_is_reported_with_what_to_do)
{
    json_t *d = good_machine();

    set(d, "machine.shmem_huge_pages", "'never'");
    finds(d, "warnings", "huge pages .. never", "shmem_enabled");
    d = good_machine();
    set(d, "memory.dev_shm.free_bytes", "67108864");
    finds(d, "warnings", "/dev/shm .. 64.0 MiB", "--shm-size");
    d = good_machine();
    set(d, "memory.dev_shm.left_files", "2");
    set(d, "memory.dev_shm.left_bytes", "3145728");
    set(d, "memory.dev_shm.left_first", "'ucx_shm_posix_1'");
    finds(d, "warnings", "2 files .. /dev/shm .. 3.00 MiB", "rm /dev/shm/ucx_shm_posix_1");
    d = good_machine();
    set(d, "memory.locked_bytes", "8388608"); /* which matters only with RDMA */
    finds(d, "warnings", "8.00 MiB", "ulimit -l unlimited");
    set(d, "devices.rdma", "[]");
    finds(d, "missing", "RDMA", "rdma_rxe");
}

TEST(devices_and_programs_that_are_missing_name_what_brings_them)
{
    json_t *d = good_machine();

    set(d, "devices.rdma.0.state", "'DOWN'");
    finds(d, "warnings", "ACTIVE .. mlx5_0", "rdma link show");
    d = good_machine();
    set(d, "devices.gpu_driver", "null");
    finds(d, "missing", "1 GPUs .. driver", "nvidia-driver");
    d = good_machine();
    set(d, "devices.programs", "[]");
    finds(d, "missing", "mpirun .. PATH", "apt install openmpi-bin");
    d = good_machine();
    set(d, "plugins.4.name", "'other'");
    finds(d, "missing", "transport ucx .. built", "UCX (Debian: libucx-dev) .. build");
    d = good_machine();
    set(d, "plugins.4.loaded", "false");
    set(d, "plugins.4.text", "'its library libucp.so.0 is missing'");
    finds(d, "missing", "transport ucx .. libucp.so.0", "apt install libucx0");
}
