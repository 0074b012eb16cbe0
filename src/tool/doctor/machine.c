/* The machine: cores, memory and limits, RDMA ports, GPUs and networks from /proc, /sys and /dev,
 * the programs that start ranks, the matrix libraries; and the problems of the machine. No other
 * library is used. */
#include "doctor/machine.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/sysfile.h"
#include "epa2a/gemm.h"
#include "kernels/libraries.h"
#include "registry/check.h"
#include "registry/registry.h"

/* ---- cores ---- */

/* Returns the first line of a file; "": the file is unreadable or empty. */
static const char *line_of(struct arena *arena, const char *root, const char *folder,
                           const char *name, const char *file)
{
    char path[700], line[256];

    snprintf(path, sizeof(path), "%s/%s/%s", folder, name, file);
    return sysfile_line(root, path, line, sizeof(line)) ? arena_printf(arena, "%s", line) : "";
}

static void read_cores(const char *root, struct machine *out)
{
    static const char *const isas[] = {"scalar",      "avx2",        "avx512",
                                       "avx512_vnni", "avx512_bf16", "amx"};
    struct cpu_quota quota;
    char text[4096];

    machine_facts_read(root, &out->facts);
    cpu_quota_read(root, &quota);
    out->cores_quota = quota.cores;
    out->cores_online = sysfile_line(root, "/sys/devices/system/cpu/online", text, sizeof(text))
                            ? (int64_t)sysfile_list_count(text)
                            : -1;
    out->virtual = sysfile_field(root, "/proc/cpuinfo", "flags", text, sizeof(text)) &&
                   strstr(text, " hypervisor") != NULL;
    out->numa_balancing = sysfile_number(root, "/proc/sys/kernel/numa_balancing") != 0;
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++)
        if (epa_gemm_by_name(isas[i], EPA_BF16) != NULL ||
            epa_gemm_by_name(isas[i], EPA_INT8) != NULL)
            out->isa[out->n_isas++] = isas[i];
}

/* ---- memory ---- */

/* Returns a resource limit; UINT64_MAX: unlimited. */
static uint64_t limit_of(int resource)
{
    struct rlimit limit;

    return getrlimit((__rlimit_resource_t)resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY
               ? UINT64_MAX
               : limit.rlim_cur;
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

static void read_shm(const char *root, struct machine_memory *out)
{
    char path[512];
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
        if (out->left_files++ == 0)
            snprintf(out->left_first, sizeof(out->left_first), "%.63s", entry->d_name);
        out->left_bytes += (uint64_t)at.st_blocks * 512;
    }
    if (dir != NULL)
        closedir(dir);
    out->shm_bytes = fs.f_blocks * fs.f_frsize;
    out->shm_free_bytes = fs.f_bavail * fs.f_frsize;
}

static void read_memory(const char *root, struct machine_memory *out)
{
    out->available_bytes = memory_available(root, out->available_by, sizeof(out->available_by));
    out->address_space_bytes = limit_of(RLIMIT_AS);
    out->locked_bytes = limit_of(RLIMIT_MEMLOCK);
    out->open_files = limit_of(RLIMIT_NOFILE);
    out->huge_bytes = meminfo(root, "Hugepagesize") << 10;
    out->huge_pages = meminfo(root, "HugePages_Total");
    out->huge_free = meminfo(root, "HugePages_Free");
    read_shm(root, out);
}

/* ---- devices ---- */

/* A machine that is read. */
struct machine_reading {
    const char *root;
    struct arena *arena;
    struct machine *out;
};

/* Returns room for one more item behind `n` items. */
static void *grow_list(struct arena *arena, const void *list, uint32_t n, size_t size)
{
    void *out = arena_alloc(arena, (n + 1) * size);

    if (n > 0)
        memcpy(out, list, n * size);
    return out;
}

/* Calls visit for each entry of a folder in the order of their names, without hidden entries. */
static void each_entry(const struct machine_reading *r, const char *path,
                       void (*visit)(const struct machine_reading *, const char *path,
                                     const char *name))
{
    struct dirent **entry;
    char full[700];
    int n;

    snprintf(full, sizeof(full), "%s%s", r->root, path);
    n = scandir(full, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (entry[i]->d_name[0] != '.')
            visit(r, path, entry[i]->d_name);
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
}

/* Adds a port. `path` is /sys/class/infiniband/DEVICE/ports. "4: ACTIVE" is shown without its
 * number. */
static void add_port(const struct machine_reading *r, const char *path, const char *name)
{
    const char *device = path + strlen("/sys/class/infiniband/"), *word;
    struct machine *m = r->out;
    struct machine_port port = {
        .device = arena_strndup(r->arena, device, strcspn(device, "/")),
        .state = line_of(r->arena, r->root, path, name, "state"),
        .link = line_of(r->arena, r->root, path, name, "link_layer"),
        .rate = line_of(r->arena, r->root, path, name, "rate"),
        .number = strtoul(name, NULL, 10),
    };

    word = strchr(port.state, ':');
    if (word != NULL)
        port.state = word + 1 + strspn(word + 1, " ");
    m->port = grow_list(r->arena, m->port, m->n_ports, sizeof(*m->port));
    m->port[m->n_ports++] = port;
}

static void add_rdma(const struct machine_reading *r, const char *path, const char *name)
{
    char ports[400];

    snprintf(ports, sizeof(ports), "%s/%s/ports", path, name);
    each_entry(r, ports, add_port);
}

/* Adds a GPU. Vendor 0x10de, class 0x03: a display or 3D controller of NVIDIA. */
static void add_gpu(const struct machine_reading *r, const char *path, const char *name)
{
    struct machine *m = r->out;

    if (strcmp(line_of(r->arena, r->root, path, name, "vendor"), "0x10de") != 0 ||
        strncmp(line_of(r->arena, r->root, path, name, "class"), "0x03", 4) != 0)
        return;
    m->gpu = grow_list(r->arena, m->gpu, m->n_gpus, sizeof(*m->gpu));
    m->gpu[m->n_gpus++] = arena_printf(r->arena, "%s", name);
}

/* Adds a network interface that is up, except the loopback. Speed -1: unknown. */
static void add_network(const struct machine_reading *r, const char *path, const char *name)
{
    const char *speed = line_of(r->arena, r->root, path, name, "speed");
    struct machine *m = r->out;

    if (strcmp(name, "lo") == 0 ||
        strcmp(line_of(r->arena, r->root, path, name, "operstate"), "up") != 0)
        return;
    m->network = grow_list(r->arena, m->network, m->n_networks, sizeof(*m->network));
    m->network[m->n_networks++] = (struct machine_network){
        arena_printf(r->arena, "%s", name), *speed == '-' ? 0 : strtoull(speed, NULL, 10)};
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

/* Returns the first line of `path --version`, or ""; a program that does not end is killed. */
static const char *ask_version(struct arena *arena, const char *path)
{
    char command[400], line[128] = "";
    FILE *from;

    if (strchr(path, '\'') != NULL)
        return "";
    snprintf(command, sizeof(command), "timeout -s KILL 3 '%s' --version </dev/null 2>/dev/null",
             path);
    from = popen(command, "re");
    if (from == NULL)
        return "";
    if (fgets(line, sizeof(line), from) != NULL)
        line[strcspn(line, "\n")] = 0;
    (void)pclose(from); /* the exit status has no information about the version */
    return arena_printf(arena, "%s", line);
}

/* Finds launch programs on PATH. Does not run torchrun for its version: torchrun takes seconds to
 * load. */
static void find_programs(struct arena *arena, struct machine *out)
{
    static const char *const name[] = {"mpirun", "srun", "torchrun"};
    char path[256];

    out->program = arena_alloc(arena, sizeof(name) / sizeof(name[0]) * sizeof(*out->program));
    for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++)
        if (find_on_path(name[i], path, sizeof(path)))
            out->program[out->n_programs++] = (struct machine_program){
                name[i], arena_printf(arena, "%s", path),
                strcmp(name[i], "torchrun") == 0 ? "" : ask_version(arena, path)};
}

uint32_t machine_libraries(struct library_found out[LIBRARY_IDS])
{
    uint32_t n = 0;

    for (int i = 0; i < LIBRARY_IDS; i++)
        n += library_find((enum library_id)i, &out[n]);
    return n;
}

void machine_collect(const char *root, struct arena *arena, struct machine *out)
{
    const struct machine_reading reading = {root, arena, out};
    char driver[128] = "";

    *out = (struct machine){0};
    read_cores(root, out);
    read_memory(root, &out->memory);
    each_entry(&reading, "/sys/class/infiniband", add_rdma);
    each_entry(&reading, "/sys/bus/pci/devices", add_gpu);
    each_entry(&reading, "/sys/class/net", add_network);
    (void)sysfile_field(root, "/proc/driver/nvidia/version", "NVRM version", driver,
                        sizeof(driver));
    out->gpu_driver = arena_printf(arena, "%s", driver);
    find_programs(arena, out);
    out->n_libraries = machine_libraries(out->library);
}

/* ---- problems and missing parts ---- */

/* Findings that are collected. */
struct judging {
    struct arena *arena;
    struct finding *list;
    uint32_t *n;
};

/* Adds a finding; fix "": no remedy exists. */
EPA_PRINTF(3, 4)
static void add_finding(const struct judging *j, const char *fix, const char *fmt, ...)
{
    va_list args;
    char *what = NULL;

    if (*j->n == FINDINGS)
        return;
    va_start(args, fmt);
    if (vasprintf(&what, fmt, args) < 0)
        what = memory_printf("%s", fmt);
    va_end(args);
    j->list[(*j->n)++] = (struct finding){arena_printf(j->arena, "%s", what), fix};
    free(what);
}

static void judge_cores(const struct judging *j, const struct machine *m)
{
    const struct machine_facts *f = &m->facts;
    double cores = f->cores;

    if (f->cores < 2)
        add_finding(j, "",
                    "one core for all ranks: they alternate, and measured times are meaningless");
    if ((double)m->cores_online / cores > 1)
        add_finding(j, "taskset -c 0-$(($(nproc --all) - 1)) epa2a ..., or a wider cpuset",
                    "only %.0f of %.0f cores may be used", cores, (double)m->cores_online);
    if (m->cores_quota / cores < 1)
        add_finding(j, "raise cpu.max of the cgroup, or docker run --cpus",
                    "the cgroup allows %.2f cores' worth of time on %.0f cores: ranks are stopped "
                    "for tens of milliseconds once it is used up",
                    m->cores_quota, cores);
    if (f->load_average / cores > 0.5)
        add_finding(j, "top -o %CPU shows them",
                    "crowded: a load of %.1f on %.0f cores; other processes run where ranks are "
                    "measured",
                    f->load_average, cores);
    if (f->governor[0] != '\0' && strcmp(f->governor, "performance") != 0)
        add_finding(j, "apt install linux-cpupower; cpupower frequency-set -g performance",
                    "the frequency governor is %s: the first microseconds of a burst are slow",
                    f->governor);
    if (strcmp(f->arch, "x86_64") == 0 && f->clocksource[0] != '\0' &&
        strcmp(f->clocksource, "tsc") != 0) {
        char steps[48] = "";

        if (isfinite(f->timer_ns))
            snprintf(steps, sizeof(steps), ", and steps are %.0f ns", f->timer_ns);
        add_finding(j,
                    "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
                    "the clock is %s: reading it costs more%s", f->clocksource, steps);
    }
    if (m->virtual)
        add_finding(j, "", "a virtual machine: the load of the host is invisible");
    if (m->numa_balancing && f->numa_nodes > 1)
        add_finding(j, "sysctl kernel.numa_balancing=0",
                    "automatic NUMA balancing is on: it unmaps pages of ranks to find their users");
    if (f->build.isa_refused != NULL && f->build.isa_refused[0] != '\0')
        add_finding(j, "unset EPA2A_ISA", "EPA2A_ISA=%s is not supported by this CPU; %s is used",
                    f->build.isa_refused, f->build.isa);
    if (f->build.debug)
        add_finding(j, "meson setup --buildtype=release build-release",
                    "a debug build (%s, sanitizers %s): not for benchmarks", f->build.type,
                    f->build.sanitizers);
}

static void judge_memory(const struct judging *j, const struct machine *m)
{
    const char *huge = m->facts.shmem_huge_pages;
    const struct machine_memory *of = &m->memory;
    char size[32];

    if (strcmp(huge, "never") == 0 || strcmp(huge, "deny") == 0)
        add_finding(j, "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
                    "transparent huge pages of shared memory: %s; shm requests them itself where "
                    "the kernel allows it, and else has pages of 4 KiB",
                    huge);
    if (strcmp(m->facts.huge_pages, "never") == 0)
        add_finding(j, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
                    "transparent huge pages: never; inputs are in pages of 4 KiB");
    if (of->address_space_bytes <= INT64_MAX)
        add_finding(j, "ulimit -v unlimited", "the address space of a process is limited to %s",
                    text_size(size, sizeof(size), of->address_space_bytes));
    if (of->open_files < 1024)
        add_finding(j, "ulimit -n 4096",
                    "a process may open %" PRIu64 " files; ranks need some for each other",
                    of->open_files);
    if (of->available_bytes < UINT64_C(512) << 20 && of->available_by[0] != '\0')
        add_finding(j, "", "only %s of memory is available (%s)",
                    text_size(size, sizeof(size), of->available_bytes), of->available_by);
    if (of->shm_bytes > 0 && of->shm_free_bytes < UINT64_C(256) << 20)
        add_finding(j, "mount -o remount,size=4G /dev/shm, or docker run --shm-size=4g",
                    "/dev/shm has %s free; UCX and MPI need it, epa2a does not",
                    text_size(size, sizeof(size), of->shm_free_bytes));
    if (of->left_files > 0)
        add_finding(j,
                    arena_printf(j->arena, "rm /dev/shm/%s%s, once nothing runs that may use it",
                                 of->left_first, of->left_files > 1 ? " and the like" : ""),
                    "%" PRIu64 " files of UCX or MPI in /dev/shm hold %s: %s%s", of->left_files,
                    text_size(size, sizeof(size), of->left_bytes), of->left_first,
                    of->left_files > 1 ? ", ..." : "");
}

static void judge_rdma(const struct judging *j, const struct machine *m)
{
    const struct machine_port *first = m->port;
    bool active = false;
    char size[32];

    for (uint32_t i = 0; i < m->n_ports; i++)
        active = active || strcmp(m->port[i].state, "ACTIVE") == 0;
    if (m->n_ports > 0 && m->memory.locked_bytes < UINT64_C(1024) << 20)
        add_finding(j, "ulimit -l unlimited",
                    "a process may lock %s, and RDMA locks the whole heap",
                    text_size(size, sizeof(size), m->memory.locked_bytes));
    if (m->n_ports > 0 && !active)
        add_finding(j, "rdma link show; ip link set DEV up",
                    "RDMA: no port is ACTIVE (%s port %" PRIu64 ": %s)", first->device,
                    first->number, first->state);
}

static bool has_library(const struct machine *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_libraries; i++)
        if (strcmp(m->library[i].name, name) == 0)
            return true;
    return false;
}

static bool has_program(const struct machine *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_programs; i++)
        if (strcmp(m->program[i].name, name) == 0)
            return true;
    return false;
}

static void find_missing_devices(const struct judging *j, const struct machine *m)
{
    if (m->n_ports == 0)
        add_finding(j,
                    "apt install rdma-core ibverbs-providers for an adapter; without one: modprobe "
                    "rdma_rxe; rdma link add rxe0 type rxe netdev eth0",
                    "no RDMA device: ranks of several hosts use TCP");
    if (m->n_gpus == 0)
        add_finding(j, "", "no GPU of NVIDIA: experiments run on the host");
    if (m->n_gpus > 0 && m->gpu_driver[0] == '\0')
        add_finding(j, "apt install nvidia-driver (section non-free), then boot",
                    "%u GPUs of NVIDIA and no driver", m->n_gpus);
    if (m->n_gpus > 0 && !has_library(m, "cuBLASLt"))
        add_finding(j, "set LD_LIBRARY_PATH to its folder in a CUDA toolkit",
                    "no libcublasLt.so.13 or .12: on GPUs ag_gemm_2d and ag_then_gemm use own "
                    "kernels");
    if (!has_program(m, "mpirun"))
        add_finding(j, "apt install openmpi-bin", "no mpirun on PATH");
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

static const struct examined *find_examined(const struct examined *list, uint32_t n,
                                            const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0)
            return &list[i];
    return NULL;
}

/* Adds a plugin that is not in this build, or that lacks a library here. */
static void add_missing_plugin(const struct judging *j, const struct plugin_part *part,
                               const char *text)
{
    const char *kind = plugin_kind_name(part->kind);

    if (text[0] == '\0')
        add_finding(j, arena_printf(j->arena, "install %s; build again", part->build),
                    "%s %s is not built", kind, part->name);
    else
        add_finding(j,
                    part->run[0] != '\0' ? arena_printf(j->arena, "apt install %s", part->run) : "",
                    "%s %s cannot be loaded: %s", kind, part->name, text);
}

void machine_judge(const struct machine *m, const struct examined *plugin, uint32_t n,
                   const char *no_plugins, const struct registry_entry *entry, uint32_t n_entries,
                   struct arena *arena, struct findings *out)
{
    const struct judging warnings = {arena, out->warning, &out->n_warnings};
    const struct judging missing = {arena, out->missing, &out->n_missing};

    *out = (struct findings){0};
    judge_cores(&warnings, m);
    judge_memory(&warnings, m);
    judge_rdma(&warnings, m);
    find_missing_devices(&missing, m);
    if (no_plugins != NULL)
        add_finding(&missing, "install epa2a as a whole, or pass --plugin-path DIR", "%s",
                    no_plugins);
    for (const struct plugin_part *part = plugin_parts; part->name != NULL; part++) {
        const struct examined *of = find_examined(plugin, n, part->name);

        if (of == NULL ? no_plugins == NULL : lacks_library(entry, n_entries, part))
            add_missing_plugin(&missing, part, of != NULL ? of->text : "");
    }
}
