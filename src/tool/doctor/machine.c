/* The machine: cores, memory and limits, RDMA ports, GPUs and networks from /proc, /sys and /dev,
 * the programs that start ranks, the matrix libraries; and the problems of the machine. No other
 * library is used. */
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

#include "base/sysfile.h"
#include "doctor/machine.h"

#include "epa2a/gemm.h"
#include "kernels/libraries.h"
#include "registry/registry.h"
#include "registry/check.h"
#include "result/result.h"
#include "report/origin_json.h"
#include "report/summary.h"
#include "report/fill_json.h"

/* ---- cores ---- */

static json_t *line_of(const char *root, const char *folder, const char *name, const char *file)
{
    char path[700];

    snprintf(path, sizeof(path), "%s/%s/%s", folder, name, file);
    return facts_line(root, path);
}

static json_t *cores_json(const char *root)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};
    json_t *out, *known = json_array();
    struct machine_facts machine;
    struct cpu_quota quota;
    char text[4096];
    bool virtual;

    machine_facts_read(root, &machine);
    out = machine_json(&machine);
    cpu_quota_read(root, &quota);
    json_object_set_new(out, "cores_quota", json_number(quota.cores));
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

/* Returns a resource limit; null: unlimited. */
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

/* Returns true for the names of shared memory of UCX, Open MPI, MPICH and NVSHMEM. */
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

/* Calls visit for each entry of a folder in the order of their names, without hidden entries. */
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

/* Adds a port. `path` is /sys/class/infiniband/DEVICE/ports. "4: ACTIVE" is shown without its
 * number. */
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

/* Adds a GPU. Vendor 0x10de, class 0x03: a display or 3D controller of NVIDIA. */
static void add_gpu(const char *root, const char *path, const char *name, json_t *out)
{
    json_auto_t *vendor = line_of(root, path, name, "vendor");
    json_auto_t *class = line_of(root, path, name, "class");

    if (json_is_string(vendor) && strcmp(json_string_value(vendor), "0x10de") == 0 &&
        json_is_string(class) && strncmp(json_string_value(class), "0x03", 4) == 0)
        json_array_append_new(out, json_text(name));
}

/* Adds a network interface that is up, except the loopback. Speed -1: unknown. */
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

/* Finds a program on PATH. Skips relative folders of PATH: they depend on the current folder. */
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

/* Returns the first line of `path --version`; a program that does not end is killed. */
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
    (void)pclose(from); /* the exit status has no information about the version */
    return json_text_or_null(line);
}

/* Returns launch programs on PATH. Does not run torchrun for its version: torchrun takes seconds to
 * load. */
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

/* ---- problems and missing parts ---- */

/* A finding about a machine, a template of fill_json.c; so is `fix`. */
struct finding {
    const char *what, *fix; /* fix NULL: no remedy exists */
};

#define SHM "memory.dev_shm."
#define NO_HUGE \
    "transparent huge pages of shared memory: {machine.shmem_huge_pages}; shm requests them " \
    "itself where the kernel allows it, and else has pages of 4 KiB"
static const struct finding warnings[] = {
    {"{machine.cores<2}one core for all ranks: they alternate, and measured times are meaningless",
     NULL},
    {"{machine.cores_online/machine.cores>1}only {machine.cores%.0f} of "
     "{machine.cores_online%.0f} cores may be used",
     "taskset -c 0-$(($(nproc --all) - 1)) epa2a ..., or a wider cpuset"},
    {"{machine.cores_quota/machine.cores<1}the cgroup allows {machine.cores_quota%.2f} cores' "
     "worth of time on {machine.cores%.0f} cores: ranks are stopped for tens of milliseconds once "
     "it is used up",
     "raise cpu.max of the cgroup, or docker run --cpus"},
    {"{machine.load_average/machine.cores>0.5}crowded: a load of {machine.load_average%.1f} on "
     "{machine.cores%.0f} cores; other processes run where ranks are measured",
     "top -o %CPU shows them"},
    {"{machine.governor!performance}the frequency governor is {machine.governor}: the first "
     "microseconds of a burst are slow",
     "apt install linux-cpupower; cpupower frequency-set -g performance"},
    {"{machine.arch=x86_64}{machine.clocksource!tsc}the clock is {machine.clocksource}: reading it "
     "costs more[, and steps are {machine.timer_ns%.0f} ns]",
     "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource"},
    {"{machine.virtual=true}a virtual machine: the load of the host is invisible", NULL},
    {"{machine.numa_balancing=true}{machine.numa_nodes>1}automatic NUMA balancing is on: it unmaps "
     "pages of ranks to find their users",
     "sysctl kernel.numa_balancing=0"},
    {"EPA2A_ISA={machine.build.isa_refused} is not supported by this CPU; {machine.build.isa} is "
     "used",
     "unset EPA2A_ISA"},
    {"{machine.build.debug=true}a debug build ({machine.build.type}, sanitizers "
     "{machine.build.sanitizers}): not for benchmarks",
     "meson setup --buildtype=release build-release"},
    {"[{machine.shmem_huge_pages=never}" NO_HUGE "|{machine.shmem_huge_pages=deny}" NO_HUGE "]",
     "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"},
    {"{machine.huge_pages=never}transparent huge pages: never; inputs are in pages of 4 KiB",
     "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"},
    {"the address space of a process is limited to {memory.address_space_bytes%size}",
     "ulimit -v unlimited"},
    {"{memory.open_files<1024}a process may open {memory.open_files%.0f} files; ranks need some "
     "for each other",
     "ulimit -n 4096"},
    {"{memory.available_bytes/1048576<512}only {memory.available_bytes%size} of memory is "
     "available ({memory.available_by})",
     NULL},
    {"{" SHM "bytes>0}{" SHM "free_bytes/1048576<256}/dev/shm has {" SHM "free_bytes%size} free; "
     "UCX and MPI need it, epa2a does not",
     "mount -o remount,size=4G /dev/shm, or docker run --shm-size=4g"},
    {"{" SHM "left_files>0}{" SHM "left_files} files of UCX or MPI in /dev/shm hold "
     "{" SHM "left_bytes%size}: {" SHM "left_first}[{" SHM "left_files>1}, ...]",
     "rm /dev/shm/{" SHM "left_first}[{" SHM "left_files>1} and the like], once nothing runs that "
     "may use it"},
    {"{found.rdma>0}{memory.locked_bytes/1048576<1024}a process may lock "
     "{memory.locked_bytes%size}, and RDMA locks the whole heap",
     "ulimit -l unlimited"},
    {"{found.rdma>0}{found.active=false}RDMA: no port is ACTIVE ({devices.rdma.0.device} port "
     "{devices.rdma.0.port}: [{devices.rdma.0.state}])",
     "rdma link show; ip link set DEV up"},
};
static const struct finding missing[] = {
    {"{found.rdma=0}no RDMA device: ranks of several hosts use TCP",
     "apt install rdma-core ibverbs-providers for an adapter; without one: modprobe rdma_rxe; "
     "rdma link add rxe0 type rxe netdev eth0"},
    {"{found.gpus=0}no GPU of NVIDIA: experiments run on the host", NULL},
    {"{found.gpus>0}{found.driver=false}{found.gpus} GPUs of NVIDIA and no driver",
     "apt install nvidia-driver (section non-free), then boot"},
    {"{found.gpus>0}{found.cublaslt=false}no libcublasLt.so.13 or .12: on GPUs ag_then_gemm "
     "uses its own kernels",
     "set LD_LIBRARY_PATH to its folder in a CUDA toolkit"},
    {"{found.mpirun=false}no mpirun on PATH", "apt install openmpi-bin"},
    {"{no_plugins}", "install epa2a as a whole, or pass --plugin-path DIR"},
};
/* A plugin that is not in this build, or that lacks a library here. */
static const struct finding lacking = {
    "{kind} {name} [cannot be loaded: {text}|is not built]",
    "[{text!}[apt install {run}]|install {build}; build again]",
};

static void add_findings(json_t *list, const struct finding *finding, size_t n, const json_t *facts)
{
    for (size_t i = 0; i < n; i++) {
        text_auto what = {0}, fix = {0};

        if (!fill_add(&what, finding[i].what, facts, NULL))
            continue;
        if (finding[i].fix != NULL)
            (void)fill_add(&fix, finding[i].fix, facts, NULL);
        json_array_append_new(list, json_object_of("what", json_text(what.data), "fix",
                                                   json_text_or_null(fix.data), NULL));
    }
}

/* Returns the properties of lists that findings need. */
static json_t *found_json(const json_t *devices)
{
    const json_t *rdma = json_object_get(devices, "rdma");

    return json_object_of(
        "rdma", json_count(json_array_size(rdma)), "active",
        json_boolean(json_find(rdma, "state", "ACTIVE") != NULL), "gpus",
        json_count(json_array_size(json_object_get(devices, "gpus"))), "driver",
        json_boolean(*json_text_at(devices, "gpu_driver") != '\0'), "cublaslt",
        json_boolean(json_find(json_object_get(devices, "libraries"), "name", "cuBLASLt") != NULL),
        "mpirun",
        json_boolean(json_find(json_object_get(devices, "programs"), "name", "mpirun") != NULL),
        NULL);
}

/* Returns true if the plugin exists, and a library that it needs is missing. */
static bool lacks_library(const struct registry_entry *entry, uint32_t n,
                          const struct plugin_part *part)
{
    for (uint32_t i = 0; i < n; i++)
        if (entry[i].kind == part->kind && strcmp(entry[i].name, part->name) == 0)
            return entry[i].lacks_library;
    return false;
}

void machine_judge(json_t *d, const char *no_plugins, const struct registry_entry *entry,
                   uint32_t n)
{
    json_auto_t *facts = json_copy(d);
    json_t *warned = json_array(), *missed = json_array();

    json_object_set_new(facts, "found", found_json(json_object_get(d, "devices")));
    json_object_set_new(facts, "no_plugins", json_text_or_null(no_plugins));
    add_findings(warned, warnings, sizeof(warnings) / sizeof(warnings[0]), facts);
    add_findings(missed, missing, sizeof(missing) / sizeof(missing[0]), facts);
    for (const struct plugin_part *part = plugin_parts; part->name != NULL; part++) {
        const json_t *p = json_find(json_object_get(d, "plugins"), "name", part->name);
        const char *text = json_text_at(p, "text");
        json_auto_t *of =
            json_object_of("kind", json_text(plugin_kind_name(part->kind)), "name",
                           json_text(part->name), "build", json_text(part->build), "run",
                           json_text_or_null(part->run), "text", json_text_or_null(text), NULL);

        if (p == NULL ? no_plugins == NULL : lacks_library(entry, n, part))
            add_findings(missed, &lacking, 1, of);
    }
    json_object_set_new(d, "warnings", warned);
    json_object_set_new(d, "missing", missed);
}
