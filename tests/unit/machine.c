/* Tests of the machine facts in results and of the findings of doctor. The facts are read from a
 * folder in place of /proc, /sys and /dev. tests/cli/doctor.py checks the real machine. */
#include "test.h"
#include <math.h>
#include <sched.h>
#include <sys/resource.h>

#include "fake_root.h"

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "doctor/doctor_json.h"
#include "doctor/machine.h"

#include "result/result.h"

/* Parses JSON that uses ' in place of ". */
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

/* Compares two JSON values. Integers and reals with the same value are equal. */
static bool same(json_t *a, json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b) == 1;
}

enum { MOST = 18 };

/* Input files and the expected facts as JSON. CORE stands for the number of the examined core. */
static const struct {
    const char *label;
    struct {
        const char *path, *value; /* text of a file, JSON */
    } file[MOST], want[MOST];
} machines[] = {
    {"tells nothing",
     {{NULL, NULL}},
     {{"machine.sockets", "null"},
      {"machine.numa_nodes", "null"},
      {"machine.l3_bytes", "null"},
      {"machine.memory_bytes", "null"},
      {"machine.governor", "null"},
      {"machine.cores_online", "null"},
      {"machine.cores_quota", "null"},
      {"machine.virtual", "false"},
      {"machine.numa_balancing", "false"},
      {"memory.available_bytes", "null"},
      {"memory.dev_shm.bytes", "null"},
      {"memory.dev_shm.left_files", "0"},
      {"devices.rdma", "[]"},
      {"devices.gpus", "[]"},
      {"devices.networks", "[]"},
      {"devices.gpu_driver", "null"}}},
    {"processor and memory",
     {{"/proc/cpuinfo", "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Fast CPU @ 3.00GHz\n"
                        "model name\t: another\nflags\t\t: fpu vme hypervisor lahf_lm\n"},
      {"/proc/meminfo", "MemTotal:       16384 kB\nMemAvailable:   8192 kB\n"
                        "HugePages_Total:      12\nHugePages_Free:        5\n"
                        "Hugepagesize:       2048 kB\n"},
      {"/proc/loadavg", "1.25 0.50 0.10 1/100 1234\n"},
      {"/proc/sys/kernel/numa_balancing", "1\n"},
      {"/sys/devices/system/cpu/online", "0-5,8\n"},
      {"/dev/shm/ucx_shm_posix_1a", "left"},
      {"/dev/shm/vader_segment.host.1", "left"},
      {"/dev/shm/pulse-shm-1", "somebody's"}}, /* belongs to neither UCX nor MPI */
     {{"machine.cpu", "'Fast CPU @ 3.00GHz'"},
      {"machine.memory_bytes", "16777216"},
      {"machine.load_average", "1.25"},
      {"machine.cores_online", "7"},
      {"machine.virtual", "true"},
      {"machine.numa_balancing", "true"},
      {"machine.isas.0", "'scalar'"},
      {"memory.available_bytes", "8388608"},
      {"memory.available_by", "'MemAvailable'"},
      {"memory.reserved_huge_pages", "{'bytes': 2097152, 'pages': 12, 'free': 5}"},
      {"memory.dev_shm.left_files", "2"}}},
    {"topology and caches",
     {{"/sys/devices/system/cpu/possible", "0-3\n"},
      {"/sys/devices/system/cpu/cpu0/topology/physical_package_id", "0\n"},
      {"/sys/devices/system/cpu/cpu1/topology/physical_package_id", "0\n"},
      {"/sys/devices/system/cpu/cpu3/topology/physical_package_id", "1\n"},
      {"CORE/topology/thread_siblings_list", "0,64\n"},
      {"CORE/cpufreq/scaling_governor", "powersave\n"},
      {"/sys/devices/system/node/online", "0-1,3\n"},
      {"CORE/cache/index0/type", "Data\n"},
      {"CORE/cache/index0/level", "1\n"},
      {"CORE/cache/index0/size", "48K\n"},
      {"CORE/cache/index1/type", "Instruction\n"},
      {"CORE/cache/index1/level", "1\n"},
      {"CORE/cache/index1/size", "64K\n"},
      {"CORE/cache/index2/type", "Unified\n"},
      {"CORE/cache/index2/level", "3\n"},
      {"CORE/cache/index2/size", "32M\n"}},
     {{"machine.sockets", "2"},
      {"machine.threads_per_core", "2"},
      {"machine.numa_nodes", "3"},
      {"machine.governor", "'powersave'"},
      {"machine.l1d_bytes", "49152"},
      {"machine.l2_bytes", "null"},
      {"machine.l3_bytes", "33554432"}}},
    {"huge pages",
     {{"/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"},
      {"/sys/kernel/mm/transparent_hugepage/shmem_enabled",
       "always within_size [advise] never deny force\n"}},
     {{"machine.huge_pages", "'madvise'"}, {"machine.shmem_huge_pages", "'advise'"}}},
    {"the least quota of the groups above counts",
     {{"/proc/self/cgroup", "0::/a/b\n"},
      {"/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"},
      {"/sys/fs/cgroup/a/cpu.max", "150000 100000\n"},
      {"/sys/fs/cgroup/cpu.max", "800000 100000\n"}},
     {{"machine.cores_quota", "1.5"}}},
    {"a quota of cgroup version 1 is in two files",
     {{"/proc/self/cgroup", "5:memory:/x\n6:cpuset:/x\n4:cpuacct,cpu:/job\n"},
      {"/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "10000\n"}, /* in the hierarchy of cpuset */
      {"/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"},
      {"/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n"},
      {"/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n"},
      {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
      {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}},
     {{"machine.cores_quota", "0.5"}}},
    {"memory is the least of what is available and the groups above leave",
     {{"/proc/meminfo", "MemAvailable: 1048576 kB\n"},
      {"/proc/self/cgroup", "0::/jobs/one\n"},
      {"/sys/fs/cgroup/jobs/one/memory.max", "1000000\n"},
      {"/sys/fs/cgroup/jobs/one/memory.current", "400000\n"}},
     {{"memory.available_bytes", "600000"}, {"memory.available_by", "'room in the cgroup'"}}},
    {"cached files that nobody uses are room",
     {{"/proc/self/cgroup", "0::/\n"},
      {"/sys/fs/cgroup/memory.max", "1000000\n"},
      {"/sys/fs/cgroup/memory.current", "400000\n"},
      {"/sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 300000\nfile 9\n"}},
     {{"memory.available_bytes", "900000"}}},
    {"a group above that has more than it may leaves nothing",
     {{"/proc/self/cgroup", "0::/jobs/one\n"},
      {"/sys/fs/cgroup/jobs/one/memory.max", "max\n"},
      {"/sys/fs/cgroup/jobs/memory.max", "5000\n"},
      {"/sys/fs/cgroup/jobs/memory.current", "6000\n"}},
     {{"memory.available_bytes", "0"}}},
    {"a container that hides its path is found at the top, here of version 1",
     {{"/proc/self/cgroup", "12:cpu:/x\n4:memory:/docker/abcdef\n"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000\n"},
      {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n"},
      {"/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 100000\n"}},
     {{"memory.available_bytes", "1600000"}}},
    {"no limit",
     {{"/proc/self/cgroup", "4:memory:/\n"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"}},
     {{"memory.available_bytes", "null"}, {"memory.available_by", "'MemAvailable'"}}},
    {"devices in order",
     {{"/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n"},
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
      {"/sys/class/net/lo/operstate", "up\n"}},
     {{"devices.rdma", "[{'device': 'mlx5_0', 'port': 1, 'state': 'ACTIVE', 'link': 'InfiniBand',"
                       "'rate': '400 Gb/sec (4X NDR)'}, {'device': 'mlx5_1', 'port': 1, 'state':"
                       "'DOWN', 'link': null, 'rate': null}]"},
      {"devices.gpus", "['0000:01:00.0']"},
      {"devices.networks",
       "[{'name': 'eth0', 'megabits': 25000}, {'name': 'eth2', 'megabits': null}]"}}},
};

static void put(const char *root, const char *path, const char *text)
{
    char full[256];
    cpu_set_t set;
    int core = 0;

    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    while (!CPU_ISSET(core, &set))
        core++;
    snprintf(full, sizeof(full), "/sys/devices/system/cpu/cpu%d%s", core, path + 4);
    root_put(root, strncmp(path, "CORE", 4) == 0 ? full : path, text);
}

TEST(machine_facts_follow_from_the_files)
{
    for (size_t i = 0; i < LENGTH(machines); i++) {
        struct arena *arena = arena_create();
        struct machine machine;
        char root[512];
        json_t *m;

        root_create(root, sizeof(root));
        for (uint32_t f = 0; f < MOST && machines[i].file[f].path != NULL; f++)
            put(root, machines[i].file[f].path, machines[i].file[f].value);
        machine_collect(root, arena, &machine);
        m = hardware_json(&machine);
        for (uint32_t w = 0; w < MOST && machines[i].want[w].path != NULL; w++) {
            json_t *want = json_of(machines[i].want[w].value),
                   *got = json_at(m, machines[i].want[w].path);

            if (!same(got, want)) {
                json_dumpf(got, stderr, JSON_ENCODE_ANY);
                fail_msg("%s: %s", machines[i].label, machines[i].want[w].path);
            }
            json_decref(want);
        }
        assert_true(json_number_at(m, "machine.cores") >= 1);
        json_decref(m);
        arena_destroy(arena);
        root_destroy(root);
    }
}

TEST(the_address_space_left_is_the_limit_less_what_is_mapped)
{
    const uint64_t most = 1ull << 46;
    struct rlimit old, limit;
    char root[512];
    uint64_t room;

    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    if (old.rlim_max != RLIM_INFINITY)
        skip();
    root_create(root, sizeof(root));
    root_put(root, "/proc/self/statm", "1000 200 100 10 0 50 0\n");
    assert_true(memory_address_space(root) == UINT64_MAX);
    limit = (struct rlimit){most, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    room = memory_address_space(root);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    root_destroy(root);
    assert_in_range(room, most - 1000 * 65536, most - 1); /* page size: 64 KiB at most */
}

/* ---- findings of doctor ---- */

/* The cases are cgroup v2 and v1; only groups with a quota count. */
TEST(throttling_by_a_cpu_quota_is_counted)
{
    static const char *const files[2][6][2] = {
        {{"/proc/self/cgroup", "0::/a/b\n"},
         {"/sys/fs/cgroup/a/b/cpu.max", "50000 100000\n"},
         {"/sys/fs/cgroup/a/b/cpu.stat", "usage_usec 9\nnr_throttled 3\nthrottled_usec 2000\n"},
         {"/sys/fs/cgroup/a/cpu.max", "max 100000\n"},
         {"/sys/fs/cgroup/a/cpu.stat", "nr_throttled 70\nthrottled_usec 1\n"}},
        {{"/proc/self/cgroup", "4:cpu,cpuacct:/job\n"},
         {"/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n"},
         {"/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n"},
         {"/sys/fs/cgroup/cpu/job/cpu.stat",
          "nr_periods 5\nnr_throttled 3\nthrottled_time 2000000\n"}}};

    for (size_t i = 0; i < LENGTH(files); i++) {
        struct cpu_quota quota;
        char root[512];

        root_create(root, sizeof(root));
        for (uint32_t f = 0; f < LENGTH(files[i]) && files[i][f][0] != NULL; f++)
            root_put(root, files[i][f][0], files[i][f][1]);
        cpu_quota_read(root, &quota);
        assert_true(quota.cores == 0.5);
        assert_int_equal(quota.stops, 3);
        assert_int_equal(quota.stopped_ns, 2000000);
        root_destroy(root);
    }
}

/* A machine with its plugins, and the registry entry of transport ucx. */
struct judged {
    struct arena *arena;
    struct machine machine;
    struct machine_port port;
    const char *gpu;
    struct machine_program program;
    struct examined plugin[7];
    struct registry_entry ucx;
};

/* Returns a machine without findings. */
static void judged_init(struct judged *j)
{
    static const char *const name[] = {"cuda", "mpi", "nvlink", "shm", "ucx", "verbs", "alltoallv"};
    struct machine *m = &j->machine;
    struct machine_facts *f = &m->facts;

    *j = (struct judged){.arena = arena_create(),
                         .port = {"mlx5_0", "ACTIVE", "", "", 1},
                         .gpu = "0000:01:00.0",
                         .program = {"mpirun", "/usr/bin/mpirun", ""},
                         .ucx = {.kind = EPA_PLUGIN_TRANSPORT, .name = "ucx"}};
    for (size_t i = 0; i < LENGTH(name); i++)
        j->plugin[i] = (struct examined){.name = name[i], .text = "", .loaded = true};
    f->cores = 8;
    f->numa_nodes = 2;
    f->timer_ns = NAN;
    strcpy(f->governor, "performance");
    strcpy(f->clocksource, "tsc");
    strcpy(f->arch, "x86_64");
    strcpy(f->huge_pages, "madvise");
    strcpy(f->shmem_huge_pages, "advise");
    m->cores_online = 8;
    m->cores_quota = NAN;
    m->memory = (struct machine_memory){.available_bytes = UINT64_C(8) << 30,
                                        .address_space_bytes = UINT64_MAX,
                                        .locked_bytes = UINT64_MAX,
                                        .open_files = 4096,
                                        .available_by = "MemAvailable",
                                        .shm_bytes = UINT64_C(4) << 30,
                                        .shm_free_bytes = UINT64_C(4) << 30};
    m->port = &j->port;
    m->gpu = &j->gpu;
    m->program = &j->program;
    m->gpu_driver = "580";
    m->library[0].name = "cuBLASLt";
    m->n_ports = m->n_gpus = m->n_programs = m->n_libraries = 1;
}

static void print_all(const struct finding *finding, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        fprintf(stderr, "%s: %s\n", finding[i].what, finding[i].fix);
}

/* Judges the machine, and checks its single finding, a warning or a missing part; no finding if `what`
 * is NULL. */
static void check_finding(struct judged *j, const char *change, bool warns, const char *what,
                          const char *fix)
{
    struct findings found;
    const struct finding *first = warns ? found.warning : found.missing;

    machine_judge(&j->machine, j->plugin, LENGTH(j->plugin), NULL, &j->ucx, 1, j->arena, &found);
    if (found.n_warnings + found.n_missing != (what != NULL) ||
        (what != NULL && (warns ? found.n_warnings : found.n_missing) != 1)) {
        print_all(found.warning, found.n_warnings);
        print_all(found.missing, found.n_missing);
        fail_msg("%u findings with %s", found.n_warnings + found.n_missing, change);
    }
    if (what != NULL) {
        assert_words(first->what, what);
        assert_words(first->fix, fix);
    }
    arena_destroy(j->arena);
}

#define CHECK(change, warns, what, fix) \
    do { \
        struct judged j; \
        struct machine *m = &j.machine; \
\
        judged_init(&j); \
        change; \
        (void)m; \
        check_finding(&j, #change, warns, what, fix); \
    } while (0)

TEST(each_finding_about_cores_has_a_remedy)
{
    CHECK(, true, NULL, NULL);
    CHECK(strcpy(m->facts.governor, "powersave"), true, "governor .. powersave",
          "cpupower frequency-set -g performance");
    CHECK(m->facts.governor[0] = '\0', true, NULL, NULL);
    CHECK(m->facts.load_average = 4.5, true, "4.5 .. 8 cores", "top");
    CHECK(m->cores_quota = 2.5, true, "2.50 .. 8 cores", "cpu.max");
    CHECK(m->cores_quota = 8, true, NULL, NULL);
    CHECK(m->facts.cores = 4, true, "4 of 8 cores", "taskset");
    CHECK(m->cores_online = -1, true, NULL, NULL);
    CHECK((m->facts.cores = 1, m->cores_online = 1), true, "one core", "");
    CHECK(m->virtual = true, true, "virtual machine", "");
    CHECK(m->numa_balancing = true, true, "NUMA balancing", "sysctl kernel.numa_balancing=0");
    CHECK((m->numa_balancing = true, m->facts.numa_nodes = 1), true, NULL, NULL);
    CHECK(strcpy(m->facts.clocksource, "hpet"), true, "hpet", "echo tsc");
    CHECK((strcpy(m->facts.clocksource, "hpet"), m->facts.timer_ns = 70), true, "steps are 70 ns",
          "echo tsc");
    CHECK((strcpy(m->facts.clocksource, "hpet"), strcpy(m->facts.arch, "aarch64")), true, NULL,
          NULL);
    CHECK((m->facts.build.isa_refused = "amx", m->facts.build.isa = "avx2"), true,
          "EPA2A_ISA=amx .. avx2 is used", "unset EPA2A_ISA");
    CHECK((m->facts.build.debug = true, m->facts.build.type = "debug",
           m->facts.build.sanitizers = "address"),
          true, "debug build (debug, sanitizers address)", "--buildtype=release");
}

TEST(each_finding_about_memory_has_a_remedy)
{
    CHECK(strcpy(m->facts.shmem_huge_pages, "never"), true, "huge pages .. never", "shmem_enabled");
    CHECK(strcpy(m->facts.shmem_huge_pages, "deny"), true, "huge pages .. deny", "shmem_enabled");
    CHECK(strcpy(m->facts.huge_pages, "never"), true, "huge pages: never",
          "transparent_hugepage/enabled");
    CHECK(m->memory.address_space_bytes = 1 << 30, true, "limited to 1.00 GiB", "ulimit -v");
    CHECK(m->memory.open_files = 256, true, "may open 256 files", "ulimit -n");
    CHECK(m->memory.available_bytes = 1 << 20, true, "1.00 MiB of memory .. (MemAvailable)", "");
    CHECK(m->memory.available_bytes = UINT64_MAX, true, NULL, NULL);
    CHECK(m->memory.shm_free_bytes = 67108864, true, "/dev/shm .. 64.0 MiB", "--shm-size");
    CHECK((m->memory.shm_bytes = 0, m->memory.shm_free_bytes = 0), true, NULL, NULL);
    CHECK((m->memory.left_files = 2, m->memory.left_bytes = 3145728,
           strcpy(m->memory.left_first, "ucx_shm_posix_1")),
          true, "2 files .. /dev/shm .. 3.00 MiB: ucx_shm_posix_1, ...",
          "rm /dev/shm/ucx_shm_posix_1 and the like, once");
    CHECK((m->memory.left_files = 1, strcpy(m->memory.left_first, "ucx_shm_posix_1")), true,
          "ucx_shm_posix_1", "rm /dev/shm/ucx_shm_posix_1, once");
    CHECK(m->memory.locked_bytes = 8388608, true, "8.00 MiB", "ulimit -l unlimited");
    CHECK((m->memory.locked_bytes = 8388608, m->n_ports = 0), /* the limit matters only with RDMA */
          false, "RDMA", "rdma_rxe");
}

TEST(each_finding_about_devices_and_plugins_has_a_remedy)
{
    CHECK(j.port.state = "DOWN", true, "ACTIVE (mlx5_0 port 1: DOWN)", "rdma link show");
    CHECK(m->gpu_driver = "", false, "1 GPUs .. driver", "nvidia-driver");
    CHECK(m->n_gpus = 0, false, "no GPU of NVIDIA", "");
    CHECK(m->n_programs = 0, false, "mpirun .. PATH", "apt install openmpi-bin");
    CHECK(m->n_libraries = 0, false, "libcublasLt.so.13 .. ag_then_gemm .. own kernels",
          "LD_LIBRARY_PATH");
    CHECK(j.plugin[4].name = "other", false, "transport ucx .. built",
          "UCX (Debian: libucx-dev) .. build");
    CHECK((j.ucx.lacks_library = true, j.plugin[4].text = "its library libucp.so.0 is missing"),
          false, "transport ucx .. libucp.so.0", "apt install libucx0");
    CHECK((j.plugin[4].loaded = false, j.plugin[4].text = "its function open is missing"), true,
          NULL, NULL);
}
