/* What this machine is: cores, memory and limits, RDMA ports, GPUs and networks as /proc, /sys and
 * /dev have them, and the programs that epa2a is started by. No library is asked. */
#include <dirent.h>
#include <fcntl.h>
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

/* The first line of a file; "": it cannot be read. */
EPA_PRINTF(4, 5)
static bool read_line(const char *root, char *out, size_t room, const char *fmt, ...)
{
    char path[700];
    va_list args;

    va_start(args, fmt);
    vsnprintf(path, sizeof(path), fmt, args);
    va_end(args);
    return sysfile_line(root, path, out, room);
}

/* ---- cores ---- */

/* "200000 100000" of cgroup version 2, two files of version 1; "max" and -1 are no quota. */
static void take_least_quota(void *arg, const char *root, const char *folder, int version)
{
    double *least = arg, quota = 0, period = 0;
    char line[64], *end;

    if (version == 2 && read_line(root, line, sizeof(line), "%s/cpu.max", folder)) {
        quota = strtod(line, &end);
        period = strtod(end, NULL);
    } else if (version == 1) {
        if (read_line(root, line, sizeof(line), "%s/cpu.cfs_quota_us", folder))
            quota = strtod(line, NULL);
        if (read_line(root, line, sizeof(line), "%s/cpu.cfs_period_us", folder))
            period = strtod(line, NULL);
    }
    if (quota > 0 && period > 0 && (!(*least > 0) || quota / period < *least))
        *least = quota / period;
}

static void collect_cores(const char *root, struct machine *out)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};
    char text[4096];

    sysfile_cgroups(root, "cpu", take_least_quota, &out->cores_quota);
    if (sysfile_line(root, "/sys/devices/system/cpu/online", text, sizeof(text)))
        out->cores_online = sysfile_list_count(text);
    out->virtual_machine = sysfile_field(root, "/proc/cpuinfo", "flags", text, sizeof(text)) &&
                           strstr(text, " hypervisor") != NULL;
    out->numa_balancing = sysfile_number(root, "/proc/sys/kernel/numa_balancing") != 0;
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        size_t n = strlen(out->isas);

        if (epa_gemm_by_name(isas[i], EPA_BF16) != NULL)
            snprintf(out->isas + n, sizeof(out->isas) - n, "%s%s", n > 0 ? ", " : "", isas[i]);
    }
}

/* ---- memory ---- */

static uint64_t limit_of(int resource)
{
    struct rlimit limit;

    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

static uint64_t meminfo(const char *root, const char *key)
{
    char text[64];

    (void)sysfile_field(root, "/proc/meminfo", key, text, sizeof(text));
    return strtoull(text, NULL, 10);
}

static void collect_memory(const char *root, struct machine *out)
{
    out->available_bytes = memory_available(root, out->available_by, sizeof(out->available_by));
    out->address_space = limit_of(RLIMIT_AS);
    out->locked_bytes = limit_of(RLIMIT_MEMLOCK);
    out->files = limit_of(RLIMIT_NOFILE);
    out->huge_bytes = meminfo(root, "Hugepagesize") << 10;
    out->huge_pages = meminfo(root, "HugePages_Total");
    out->huge_free = meminfo(root, "HugePages_Free");
}

/* Names that UCX, Open MPI, MPICH and NVSHMEM give to what they share. */
static bool is_leftover(const char *name)
{
    static const char *const prefix[] = {"ucx_shm_",  "vader_segment.", "sm_segment.", "mpich_",
                                         "psm2_shm.", "nvshmem_",       "nccl-"};

    for (size_t i = 0; i < sizeof(prefix) / sizeof(prefix[0]); i++) {
        if (strncmp(name, prefix[i], strlen(prefix[i])) == 0)
            return true;
    }
    return false;
}

static void collect_shm(const char *root, struct machine *out)
{
    char path[512];
    struct statvfs fs;
    const struct dirent *entry;
    DIR *dir;

    snprintf(path, sizeof(path), "%s/dev/shm", root);
    if (statvfs(path, &fs) == 0) {
        out->shm_bytes = fs.f_blocks * fs.f_frsize;
        out->shm_free = fs.f_bavail * fs.f_frsize;
    }
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
}

/* ---- devices ---- */

/* Calls visit for each entry of a folder in the order of their names, hidden ones left out. */
static void each_entry(const char *root, const char *path,
                       void (*visit)(const char *root, const char *path, const char *name,
                                     struct machine *),
                       struct machine *out)
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

/* `path` is /sys/class/infiniband/DEVICE/ports. "4: ACTIVE" is shown without its number, "100
 * Gb/sec (4X EDR)" as it is. */
static void add_port(const char *root, const char *path, const char *name, struct machine *out)
{
    struct machine_port *to = &out->port[out->ports];
    const char *device = path + strlen("/sys/class/infiniband/"), *word;
    char text[64];

    if (out->ports == MACHINE_PORTS)
        return;
    out->ports++;
    snprintf(to->device, sizeof(to->device), "%.*s", (int)strcspn(device, "/"), device);
    to->port = (uint32_t)strtoul(name, NULL, 10);
    (void)read_line(root, text, sizeof(text), "%s/%s/state", path, name);
    word = strchr(text, ':');
    word = word != NULL ? word + 1 + strspn(word + 1, " ") : text;
    snprintf(to->state, sizeof(to->state), "%.23s", word);
    (void)read_line(root, to->rate, sizeof(to->rate), "%s/%s/rate", path, name);
    (void)read_line(root, to->link, sizeof(to->link), "%s/%s/link_layer", path, name);
}

static void add_rdma(const char *root, const char *path, const char *name, struct machine *out)
{
    char ports[400];

    snprintf(ports, sizeof(ports), "%s/%s/ports", path, name);
    each_entry(root, ports, add_port, out);
}

/* Vendor 0x10de, class 0x03: a display or 3D controller of NVIDIA. */
static void count_gpu(const char *root, const char *path, const char *name, struct machine *out)
{
    char vendor[16], class[16];

    if (read_line(root, vendor, sizeof(vendor), "%s/%s/vendor", path, name) &&
        strcmp(vendor, "0x10de") == 0 &&
        read_line(root, class, sizeof(class), "%s/%s/class", path, name))
        out->gpus += strncmp(class, "0x03", 4) == 0;
}

/* Those that are up; the loopback is everywhere. */
static void add_network(const char *root, const char *path, const char *name, struct machine *out)
{
    struct machine_network *to = &out->network[out->networks];
    char text[32];

    if (out->networks == MACHINE_NETWORKS || strcmp(name, "lo") == 0 ||
        !read_line(root, text, sizeof(text), "%s/%s/operstate", path, name) ||
        strcmp(text, "up") != 0)
        return;
    out->networks++;
    snprintf(to->name, sizeof(to->name), "%.31s", name);
    if (read_line(root, text, sizeof(text), "%s/%s/speed", path, name) && text[0] != '-')
        to->megabits = strtoull(text, NULL, 10);
}

/* ---- programs ---- */

/* Where on PATH it is. Relative folders of PATH are left out: whose they are depends on where
 * one stands. */
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
    out[0] = 0;
    return false;
}

/* The first line of what `path --version` prints; a program that does not end is killed. */
static void ask_version(const char *path, char *out, size_t room)
{
    char command[400];
    FILE *from;

    if (strchr(path, '\'') != NULL)
        return;
    snprintf(command, sizeof(command), "timeout -s KILL 3 '%s' --version </dev/null 2>/dev/null",
             path);
    from = popen(command, "re");
    if (from == NULL)
        return;
    if (fgets(out, (int)room, from) == NULL)
        out[0] = 0;
    out[strcspn(out, "\n")] = 0;
    (void)pclose(from); /* how it ended says nothing of its version */
}

static void collect_programs(struct machine *out)
{
    static const char *const name[MACHINE_PROGRAMS] = {"mpirun", "srun", "torchrun"};

    for (uint32_t i = 0; i < MACHINE_PROGRAMS; i++) {
        struct machine_program *program = &out->program[out->programs++];

        snprintf(program->name, sizeof(program->name), "%s", name[i]);
        /* What torchrun loads to tell its version takes seconds. */
        if (find_on_path(name[i], program->path, sizeof(program->path)) &&
            strcmp(name[i], "torchrun") != 0)
            ask_version(program->path, program->version, sizeof(program->version));
    }
}

/* ---- all of it ---- */

void machine_collect(const char *root, struct machine *out)
{
    memset(out, 0, sizeof(*out));
    facts_collect_from(root, &out->facts);
    collect_cores(root, out);
    collect_memory(root, out);
    collect_shm(root, out);
    each_entry(root, "/sys/class/infiniband", add_rdma, out);
    each_entry(root, "/sys/bus/pci/devices", count_gpu, out);
    (void)sysfile_field(root, "/proc/driver/nvidia/version", "NVRM version", out->gpu_driver,
                        sizeof(out->gpu_driver));
    each_entry(root, "/sys/class/net", add_network, out);
    collect_programs(out);
}

void machine_finish(struct machine *m)
{
    facts_finish(&m->facts);
}

const struct machine_program *machine_program(const struct machine *m, const char *name)
{
    for (uint32_t i = 0; i < m->programs; i++) {
        if (strcmp(m->program[i].name, name) == 0)
            return &m->program[i];
    }
    return NULL;
}
