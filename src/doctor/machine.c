/* The machine: cores, memory and limits, RDMA ports, GPUs and networks as /proc, /sys and /dev have
 * them, the programs that start ranks, the libraries that multiply; and what is wrong with
 * it. No other library is asked. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "doctor/doctor.h"
#include "epa2a/gemm.h"
#include "kernels/libraries.h"
#include "plugin/registry.h"
#include "report/result.h"

/* ---- cores ---- */

static json_t *line_of(const char *root, const char *folder, const char *name, const char *file)
{
    char path[700];

    snprintf(path, sizeof(path), "%s/%s/%s", folder, name, file);
    return facts_line(root, path);
}

/* "200000 100000" of cgroup version 2, two files of version 1; "max" and -1 are no quota. */
static void take_least_quota(void *arg, const char *root, const char *folder, int version)
{
    double *least = arg, quota = 0, period = 0;
    json_auto_t *line = line_of(root, folder, "", version == 2 ? "cpu.max" : "cpu.cfs_quota_us");
    json_auto_t *second = version == 2 ? NULL : line_of(root, folder, "", "cpu.cfs_period_us");
    char *end;

    if (json_is_string(line)) {
        quota = strtod(json_string_value(line), &end);
        period = strtod(json_is_string(second) ? json_string_value(second) : end, NULL);
    }
    if (quota > 0 && period > 0 && !(*least <= quota / period))
        *least = quota / period;
}

static json_t *cores_json(const char *root)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};
    json_t *out = facts_collect(root), *known = json_array();
    double quota = NAN;
    char text[4096];
    bool virtual;

    sysfile_cgroups(root, "cpu", take_least_quota, &quota);
    json_object_set_new(out, "cores_quota", json_number(quota));
    json_object_set_new(out, "cores_online",
                        sysfile_line(root, "/sys/devices/system/cpu/online", text, sizeof(text))
                            ? json_count(sysfile_list_count(text))
                            : json_null());
    virtual = sysfile_field(root, "/proc/cpuinfo", "flags", text, sizeof(text)) &&
              strstr(text, " hypervisor") != NULL;
    json_object_set_new(out, "virtual", json_boolean(virtual));
    json_object_set_new(out, "numa_balancing",
                        json_boolean(sysfile_number(root, "/proc/sys/kernel/numa_balancing") != 0));
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++)
        if (epa_gemm_by_name(isas[i], EPA_BF16) != NULL)
            json_array_append_new(known, json_text(isas[i]));
    json_object_set_new(out, "isas", known);
    return out;
}

/* ---- memory ---- */

/* null: there is none. */
static json_t *limit_of(int resource)
{
    struct rlimit limit;

    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return json_null();
    return json_count(limit.rlim_cur);
}

static uint64_t meminfo(const char *root, const char *key)
{
    char text[64] = "";

    (void)sysfile_field(root, "/proc/meminfo", key, text, sizeof(text));
    return strtoull(text, NULL, 10);
}

/* Names that UCX, Open MPI, MPICH and NVSHMEM give to what they share. */
static bool is_leftover(const char *name)
{
    static const char *const prefix[] = {"ucx_shm_",  "vader_segment.", "sm_segment.", "mpich_",
                                         "psm2_shm.", "nvshmem_",       "nccl-"};

    for (size_t i = 0; i < sizeof(prefix) / sizeof(prefix[0]); i++)
        if (strncmp(name, prefix[i], strlen(prefix[i])) == 0)
            return true;
    return false;
}

static json_t *shm_json(const char *root)
{
    char path[512], first[64] = "";
    uint64_t files = 0, bytes = 0;
    struct statvfs fs = {0};
    const struct dirent *entry;
    DIR *dir;

    snprintf(path, sizeof(path), "%s/dev/shm", root);
    (void)statvfs(path, &fs);
    dir = opendir(path);
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        struct stat at;

        if (!is_leftover(entry->d_name) ||
            fstatat(dirfd(dir), entry->d_name, &at, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (files++ == 0)
            snprintf(first, sizeof(first), "%.63s", entry->d_name);
        bytes += (uint64_t)at.st_blocks * 512;
    }
    if (dir != NULL)
        closedir(dir);
    return json_object_of("bytes", json_count_or_null(fs.f_blocks * fs.f_frsize), "free_bytes",
                          json_count(fs.f_bavail * fs.f_frsize), "left_files", json_count(files),
                          "left_bytes", json_count(bytes), "left_first", json_text_or_null(first),
                          NULL);
}

static json_t *memory_json(const char *root)
{
    char by[64] = "";
    uint64_t available = memory_available(root, by, sizeof(by));

    return json_object_of(
        "available_bytes", json_count(available), "available_by", json_text_or_null(by),
        "address_space_bytes", limit_of(RLIMIT_AS), "locked_bytes", limit_of(RLIMIT_MEMLOCK),
        "open_files", limit_of(RLIMIT_NOFILE), "reserved_huge_pages",
        json_object_of("bytes", json_count_or_null(meminfo(root, "Hugepagesize") << 10), "pages",
                       json_count(meminfo(root, "HugePages_Total")), "free",
                       json_count(meminfo(root, "HugePages_Free")), NULL),
        "dev_shm", shm_json(root), NULL);
}

/* ---- devices ---- */

/* Calls visit for each entry of a folder in the order of their names, hidden ones left out. */
static void each_entry(const char *root, const char *path,
                       void (*visit)(const char *root, const char *path, const char *name,
                                     json_t *out),
                       json_t *out)
{
    struct dirent **entry;
    char full[700];
    int n;

    snprintf(full, sizeof(full), "%s%s", root, path);
    n = scandir(full, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (entry[i]->d_name[0] != '.')
            visit(root, path, entry[i]->d_name, out);
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
}

/* `path` is /sys/class/infiniband/DEVICE/ports. "4: ACTIVE" is shown without its number. */
static void add_port(const char *root, const char *path, const char *name, json_t *out)
{
    const char *device = path + strlen("/sys/class/infiniband/"), *word;
    json_t *state = line_of(root, path, name, "state");

    word = json_is_string(state) ? strchr(json_string_value(state), ':') : NULL;
    if (word != NULL)
        json_string_set(state, word + 1 + strspn(word + 1, " "));
    json_array_append_new(out,
                          json_object_of("device", json_stringn(device, strcspn(device, "/")),
                                         "port", json_count(strtoul(name, NULL, 10)), "state",
                                         state, "link", line_of(root, path, name, "link_layer"),
                                         "rate", line_of(root, path, name, "rate"), NULL));
}

static void add_rdma(const char *root, const char *path, const char *name, json_t *out)
{
    char ports[400];

    snprintf(ports, sizeof(ports), "%s/%s/ports", path, name);
    each_entry(root, ports, add_port, out);
}

/* Vendor 0x10de, class 0x03: a display or 3D controller of NVIDIA. */
static void add_gpu(const char *root, const char *path, const char *name, json_t *out)
{
    json_auto_t *vendor = line_of(root, path, name, "vendor");
    json_auto_t *class = line_of(root, path, name, "class");

    if (json_is_string(vendor) && strcmp(json_string_value(vendor), "0x10de") == 0 &&
        json_is_string(class) && strncmp(json_string_value(class), "0x03", 4) == 0)
        json_array_append_new(out, json_text(name));
}

/* Network interfaces that are up, except the loopback. Speed -1: not known. */
static void add_network(const char *root, const char *path, const char *name, json_t *out)
{
    json_auto_t *up = line_of(root, path, name, "operstate"),
                *speed = line_of(root, path, name, "speed");
    const char *text = json_is_string(speed) ? json_string_value(speed) : "-";

    if (strcmp(name, "lo") != 0 && json_is_string(up) && strcmp(json_string_value(up), "up") == 0)
        json_array_append_new(
            out,
            json_object_of("name", json_text(name), "megabits",
                           json_count_or_null(*text == '-' ? 0 : strtoull(text, NULL, 10)), NULL));
}

/* Where on PATH it is. Relative folders of PATH are left out: they depend on the current one. */
static bool find_on_path(const char *name, char *out, size_t room)
{
    const char *path = getenv("PATH");

    while (path != NULL && *path != 0) {
        size_t n = strcspn(path, ":");

        if (path[0] == '/' && (size_t)snprintf(out, room, "%.*s/%s", (int)n, path, name) < room &&
            access(out, X_OK) == 0)
            return true;
        path += n + (path[n] == ':');
    }
    return false;
}

/* The first line of what `path --version` prints; a program that does not end is killed. */
static json_t *ask_version(const char *path)
{
    char command[400], line[128] = "";
    FILE *from;

    if (strchr(path, '\'') != NULL)
        return json_null();
    snprintf(command, sizeof(command), "timeout -s KILL 3 '%s' --version </dev/null 2>/dev/null",
             path);
    from = popen(command, "re");
    if (from == NULL)
        return json_null();
    if (fgets(line, sizeof(line), from) != NULL)
        line[strcspn(line, "\n")] = 0;
    (void)pclose(from); /* how it ended says nothing of its version */
    return json_text_or_null(line);
}

/* Launch programs on PATH. The version of torchrun is not asked for: loading it takes seconds. */
static json_t *programs_json(void)
{
    static const char *const name[] = {"mpirun", "srun", "torchrun"};
    json_t *out = json_array();
    char path[256];

    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++)
        if (find_on_path(name[i], path, sizeof(path)))
            json_array_append_new(
                out, json_object_of(
                         "name", json_text(name[i]), "path", json_text(path), "version",
                         strcmp(name[i], "torchrun") == 0 ? json_null() : ask_version(path), NULL));
    return out;
}

json_t *libraries_json(void)
{
    json_t *out = json_array();
    struct library_found at;

    for (int i = 0; i < LIBRARY_IDS; i++)
        if (library_find((enum library_id)i, &at))
            json_array_append_new(out, json_object_of("name", json_text(at.name), "path",
                                                      json_text(at.file), "version",
                                                      json_text(at.version), "use",
                                                      json_text(at.use), NULL));
    return out;
}

static json_t *devices_json(const char *root)
{
    json_t *rdma = json_array(), *gpus = json_array(), *networks = json_array();
    char driver[128] = "";

    each_entry(root, "/sys/class/infiniband", add_rdma, rdma);
    each_entry(root, "/sys/bus/pci/devices", add_gpu, gpus);
    each_entry(root, "/sys/class/net", add_network, networks);
    (void)sysfile_field(root, "/proc/driver/nvidia/version", "NVRM version", driver,
                        sizeof(driver));
    return json_object_of("rdma", rdma, "gpus", gpus, "gpu_driver", json_text_or_null(driver),
                          "networks", networks, "programs", programs_json(), "libraries",
                          libraries_json(), NULL);
}

json_t *machine_collect(const char *root)
{
    return json_object_of("machine", cores_json(root), "memory", memory_json(root), "devices",
                          devices_json(root), NULL);
}

/* ---- what is wrong or missing ---- */

/* A finding: `list` is "warnings" or "missing". fix "": nothing can be done about it. */
EPA_PRINTF(4, 5)
static void find(json_t *d, const char *list, const char *fix, const char *fmt, ...)
{
    char what[400];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    json_array_append_new(json_object_get(d, list), json_object_of("what", json_text(what), "fix",
                                                                   json_text_or_null(fix), NULL));
}

static const char warnings[] = "warnings", missing[] = "missing";

/* A number that is not known is NaN: less than nothing, and more than nothing. */
static void judge_cores(json_t *d)
{
    const json_t *m = json_object_get(d, "machine");
    double cores = json_number_at(m, "cores"), load = json_number_at(m, "load_average");
    const char *governor = json_text_at(m, "governor"), *clock = json_text_at(m, "clocksource");
    const char *refused = json_text_at(m, "build.isa_refused");

    if (cores < 2)
        find(d, warnings, "", "one core for all ranks: they take turns, and no time means much");
    if (json_number_at(m, "cores_online") > cores)
        find(d, warnings, "taskset -c 0-$(($(nproc --all) - 1)) epa2a ..., or a wider cpuset",
             "only %.0f of %.0f cores may be used", cores, json_number_at(m, "cores_online"));
    if (json_number_at(m, "cores_quota") < cores)
        find(d, warnings, "raise cpu.max of the cgroup, or docker run --cpus",
             "the cgroup allows %.2f cores' worth of time on %.0f cores: ranks are stopped "
             "for tens of milliseconds once it is used up",
             json_number_at(m, "cores_quota"), cores);
    if (load > 0.5 * cores)
        find(d, warnings, "top -o %CPU shows them",
             "crowded: a load of %.1f on %.0f cores; other processes run where ranks are measured",
             load, cores);
    if (*governor != '\0' && strcmp(governor, "performance") != 0)
        find(d, warnings, "apt install linux-cpupower; cpupower frequency-set -g performance",
             "the frequency governor is %s: the first microseconds of a burst are slow", governor);
    if (*clock != '\0' && strcmp(clock, "tsc") != 0 && strstr(json_text_at(m, "arch"), "86"))
        find(d, warnings,
             "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
             "the clock is %s: reading it costs more, and steps are %.0f ns", clock,
             json_number_at(m, "timer_ns"));
    if (json_is_true(json_at(m, "virtual")))
        find(d, warnings, "", "a virtual machine: the load of its host cannot be seen here");
    if (json_is_true(json_at(m, "numa_balancing")) && json_number_at(m, "numa_nodes") > 1)
        find(d, warnings, "sysctl kernel.numa_balancing=0",
             "automatic NUMA balancing is on: it unmaps pages of ranks to see who uses them");
    if (*refused != '\0')
        find(d, warnings, "unset EPA2A_ISA",
             "EPA2A_ISA=%s is not supported by this CPU; %s is used", refused,
             json_text_at(m, "build.isa"));
    if (json_is_true(json_at(m, "build.debug")))
        find(d, warnings, "meson setup --buildtype=release build-release",
             "a debug build (%s, sanitizers %s): not for benchmarks", json_text_at(m, "build.type"),
             json_text_at(m, "build.sanitizers"));
}

static void judge_memory(json_t *d)
{
    const json_t *m = json_object_get(d, "memory");
    const char *shared = json_text_at(d, "machine.shmem_huge_pages"),
               *first = json_text_at(m, "dev_shm.left_first");
    const double mib = 1 << 20;
    double left = json_number_at(m, "dev_shm.left_files");
    char size[32], fix[320];

#define SIZE_AT(path) text_size(size, sizeof(size), (uint64_t)json_number_at(m, path))
    if (strcmp(shared, "never") == 0 || strcmp(shared, "deny") == 0)
        find(d, warnings, "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
             "transparent huge pages of shared memory: %s; shm requests them itself "
             "where the kernel allows it, and else has pages of 4 KiB",
             shared);
    if (strcmp(json_text_at(d, "machine.huge_pages"), "never") == 0)
        find(d, warnings, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
             "transparent huge pages: never; inputs are in pages of 4 KiB");
    if (json_is_integer(json_at(m, "address_space_bytes")))
        find(d, warnings, "ulimit -v unlimited", "the address space of a process is limited to %s",
             SIZE_AT("address_space_bytes"));
    if (json_number_at(m, "open_files") < 1024)
        find(d, warnings, "ulimit -n 4096",
             "a process may open %.0f files; ranks need some for each other",
             json_number_at(m, "open_files"));
    if (json_number_at(m, "available_bytes") < 512 * mib)
        find(d, warnings, "", "only %s of memory may be taken (%s)", SIZE_AT("available_bytes"),
             json_text_at(m, "available_by"));
    if (json_number_at(m, "dev_shm.bytes") > 0 &&
        json_number_at(m, "dev_shm.free_bytes") < 256 * mib)
        find(d, warnings, "mount -o remount,size=4G /dev/shm, or docker run --shm-size=4g",
             "/dev/shm has %s free; epa2a needs none of it, UCX and MPI do",
             SIZE_AT("dev_shm.free_bytes"));
    if (left > 0) {
        snprintf(fix, sizeof(fix), "rm /dev/shm/%s%s, once nothing runs that may use it", first,
                 left > 1 ? " and the like" : "");
        find(d, warnings, fix, "%.0f files of UCX or MPI in /dev/shm hold %s: %s%s", left,
             SIZE_AT("dev_shm.left_bytes"), first, left > 1 ? ", ..." : "");
    }
    if (json_array_size(json_at(d, "devices.rdma")) > 0 &&
        json_number_at(m, "locked_bytes") < 1024 * mib)
        find(d, warnings, "ulimit -l unlimited",
             "a process may lock %s, and RDMA locks all of a heap", SIZE_AT("locked_bytes"));
#undef SIZE_AT
}

/* The one of a list whose `key` is `value`; NULL: none. */
static const json_t *find_in(const json_t *list, const char *key, const char *value)
{
    for (struct json_walk one = {list}; json_next(&one);) {
        if (strcmp(json_text_at(one.value, key), value) == 0)
            return one.value;
    }
    return NULL;
}

static void judge_devices(json_t *d)
{
    const json_t *m = json_object_get(d, "devices"), *rdma = json_object_get(m, "rdma");
    size_t gpus = json_array_size(json_object_get(m, "gpus"));

    if (json_array_size(rdma) == 0)
        find(d, missing,
             "apt install rdma-core ibverbs-providers for an adapter; without one: modprobe "
             "rdma_rxe; rdma link add rxe0 type rxe netdev eth0",
             "no RDMA device: ranks of several hosts talk by TCP");
    else if (find_in(rdma, "state", "ACTIVE") == NULL)
        find(d, warnings, "rdma link show; ip link set DEV up",
             "RDMA: no port is ACTIVE (%s port %.0f: %s)", json_text_at(rdma, "0.device"),
             json_number_at(rdma, "0.port"), json_text_at(rdma, "0.state"));
    if (gpus == 0)
        find(d, missing, "", "no GPU of NVIDIA: experiments run on the host");
    else if (*json_text_at(m, "gpu_driver") == '\0')
        find(d, missing, "apt install nvidia-driver (section non-free), then boot",
             "%zu GPUs of NVIDIA and no driver", gpus);
    if (gpus != 0 && find_in(json_object_get(m, "libraries"), "name", "cuBLASLt") == NULL)
        find(d, missing, "set LD_LIBRARY_PATH to its folder in a CUDA toolkit",
             "no libcublasLt.so.13 or .12: on GPUs ag_then_gemm multiplies by own kernels");
    if (find_in(json_object_get(m, "programs"), "name", "mpirun") == NULL)
        find(d, missing, "apt install openmpi-bin", "no mpirun on PATH");
}

static void judge_plugins(json_t *d, const char *no_plugins)
{
    char fix[320];

    if (no_plugins != NULL)
        find(d, missing, "install epa2a as a whole, or say --plugin-path DIR", "%.300s",
             no_plugins);
    for (const struct plugin_part *part = plugin_parts; part->name != NULL; part++) {
        const json_t *p = find_in(json_object_get(d, "plugins"), "name", part->name);
        const char *kind = plugin_kind_name(part->kind), *text = json_text_at(p, "text");

        if (p == NULL && no_plugins == NULL) {
            snprintf(fix, sizeof(fix), "install %s; build again", part->build);
            find(d, missing, fix, "%s %s is not built", kind, part->name);
        } else if (json_is_false(json_at(p, "loaded")) && strstr(text, " is missing") != NULL) {
            snprintf(fix, sizeof(fix), "%s%s", part->run[0] != '\0' ? "apt install " : "",
                     part->run);
            find(d, missing, fix, "%s %s cannot be loaded: %.200s", kind, part->name, text);
        }
    }
}

void machine_judge(json_t *d, const char *no_plugins)
{
    json_object_set_new(d, warnings, json_array());
    json_object_set_new(d, missing, json_array());
    judge_cores(d);
    judge_memory(d);
    judge_devices(d);
    judge_plugins(d, no_plugins);
}
