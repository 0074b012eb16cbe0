/* Facts of memory, limits and cores; devices are in devices.c, programs in programs.c. */
#include "doctor/machine.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/sysfile.h"
#include "doctor/parts.h"
#include "epa2a/gemm.h"
#include "session/memory.h"

/* "200000 100000" of cgroup v2, or two files of v1; "max" and -1 are no quota. */
static double quota_in(const char *root, const char *folder)
{
    char path[700], line[64], *end;
    double quota = 0, period = 0;

    snprintf(path, sizeof(path), "%s/cpu.max", folder);
    if (sysfile_line(root, path, line, sizeof(line))) {
        quota = strtod(line, &end);
        period = strtod(end, NULL);
    } else {
        snprintf(path, sizeof(path), "%s/cpu.cfs_quota_us", folder);
        if (sysfile_line(root, path, line, sizeof(line)))
            quota = strtod(line, NULL);
        snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", folder);
        period = (double)sysfile_number(root, path);
    }
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* From a group up to the top: each may have a quota, and the least counts. */
static double quota_upwards(const char *root, const char *mount, const char *path)
{
    char folder[600];
    double least = 0;
    size_t top = strlen(mount);

    snprintf(folder, sizeof(folder), "%s%s", mount, path);
    for (;;) {
        double quota = quota_in(root, folder);
        char *slash = strrchr(folder, '/');

        if (quota > 0 && (!(least > 0) || quota < least))
            least = quota;
        if (strlen(folder) <= top || slash == NULL)
            return least;
        *slash = 0;
    }
}

/* Lines of /proc/self/cgroup: "0::/user.slice" of v2, "4:cpu,cpuacct:/x" of v1. */
static double cores_quota(const char *root)
{
    char full[512], line[512];
    double least = 0;
    FILE *file;

    snprintf(full, sizeof(full), "%s/proc/self/cgroup", root);
    file = fopen(full, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        char *controllers = strchr(line, ':');
        char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        double quota;

        if (path == NULL)
            continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        if (controllers[1] != 0 && strstr(controllers + 1, "cpu") == NULL)
            continue;
        quota = quota_upwards(root, controllers[1] == 0 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu",
                              path);
        if (quota > 0 && (!(least > 0) || quota < least))
            least = quota;
    }
    if (file != NULL)
        fclose(file);
    return least;
}

static void collect_cores(const char *root, struct machine *out)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512", "avx512_bf16", "amx"};
    char text[4096];

    out->cores_quota = cores_quota(root);
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

static uint64_t limit_of(int resource)
{
    struct rlimit limit;

    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

static void collect_memory(const char *root, struct machine *out)
{
    char text[64];

    out->available_bytes = memory_available(root, out->available_by, sizeof(out->available_by));
    out->address_space = limit_of(RLIMIT_AS);
    out->locked_bytes = limit_of(RLIMIT_MEMLOCK);
    out->files = limit_of(RLIMIT_NOFILE);
    if (sysfile_field(root, "/proc/meminfo", "Hugepagesize", text, sizeof(text)))
        out->huge_bytes = strtoull(text, NULL, 10) << 10;
    if (sysfile_field(root, "/proc/meminfo", "HugePages_Total", text, sizeof(text)))
        out->huge_pages = strtoull(text, NULL, 10);
    if (sysfile_field(root, "/proc/meminfo", "HugePages_Free", text, sizeof(text)))
        out->huge_free = strtoull(text, NULL, 10);
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

void machine_collect(const char *root, struct machine *out)
{
    memset(out, 0, sizeof(*out));
    facts_collect_from(root, &out->facts);
    collect_cores(root, out);
    collect_memory(root, out);
    collect_shm(root, out);
    devices_collect(root, out);
    programs_collect(out);
}

void machine_finish(struct machine *m)
{
    facts_finish(&m->facts);
}
