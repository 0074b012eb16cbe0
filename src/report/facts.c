/* What machine, what build, what environment: read once at the start from /proc, /sys and
 * the compiler. Nothing here fails: what a machine does not tell stays empty. */
#include "report/facts.h"

#include <gnu/libc-version.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "git_id.h"
#include "epa2a/quant.h"

#define CPU_DIR "/sys/devices/system/cpu"

#ifdef NDEBUG
enum { ASSERTS = 0 };
#else
enum { ASSERTS = 1 };
#endif
#ifdef __OPTIMIZE__
enum { OPTIMIZED = 1 };
#else
enum { OPTIMIZED = 0 };
#endif
#ifdef __clang__
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

extern char **environ;

/* "48K", "2048K", "1M", as caches have it. */
static uint64_t cache_size(const char *text)
{
    char *end;
    uint64_t n = strtoull(text, &end, 10);

    if (*end == 'K')
        return n << 10;
    return *end == 'M' ? n << 20 : n;
}

/* Machines of more than 1024 cores need a larger set than cpu_set_t: the kernel refuses one
 * that is too small. */
static uint32_t cores_allowed(uint32_t *first)
{
    uint32_t n = 0;

    *first = 0;
    for (int room = 1024; n == 0 && room <= 1 << 20; room *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)room);
        size_t bytes = CPU_ALLOC_SIZE((size_t)room);

        if (set != NULL && sched_getaffinity(0, bytes, set) == 0) {
            n = (uint32_t)CPU_COUNT_S(bytes, set);
            while (*first < (uint32_t)room && !CPU_ISSET_S(*first, bytes, set))
                *first += 1;
        }
        CPU_FREE(set);
    }
    return n != 0 ? n : (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
}

static void collect_caches(const char *root, uint32_t core, struct facts *out)
{
    uint64_t *const level[] = {NULL, &out->l1d_bytes, &out->l2_bytes, &out->l3_bytes};

    for (uint32_t i = 0; i < 8; i++) {
        char path[128], text[64];
        uint64_t at;

        snprintf(path, sizeof(path), CPU_DIR "/cpu%u/cache/index%u/type", core, i);
        if (!sysfile_line(root, path, text, sizeof(text)) || strcmp(text, "Instruction") == 0)
            continue;
        snprintf(path, sizeof(path), CPU_DIR "/cpu%u/cache/index%u/level", core, i);
        at = sysfile_number(root, path);
        snprintf(path, sizeof(path), CPU_DIR "/cpu%u/cache/index%u/size", core, i);
        if (at >= 1 && at <= 3 && sysfile_line(root, path, text, sizeof(text)))
            *level[at] = cache_size(text);
    }
}

/* Package numbers are small and without gaps on all but exotic machines. */
static uint32_t count_sockets(const char *root)
{
    uint64_t seen = 0;
    uint32_t last = 0;
    char list[1024];
    const char *dash;

    if (!sysfile_line(root, CPU_DIR "/possible", list, sizeof(list)))
        return 0;
    dash = strrchr(list, '-');
    if (dash != NULL)
        last = (uint32_t)strtoul(dash + 1, NULL, 10);
    for (uint32_t core = 0; core <= last; core++) {
        char path[128], text[32];

        snprintf(path, sizeof(path), CPU_DIR "/cpu%u/topology/physical_package_id", core);
        if (sysfile_line(root, path, text, sizeof(text)) && text[0] != '-')
            seen |= 1ull << (strtoul(text, NULL, 10) & 63);
    }
    return (uint32_t)__builtin_popcountll(seen);
}

static void collect_cpu(const char *root, struct facts *out)
{
    uint32_t first;
    char path[128], list[256];

    out->cores = cores_allowed(&first);
    if (!sysfile_field(root, "/proc/cpuinfo", "model name", out->cpu, sizeof(out->cpu)))
        snprintf(out->cpu, sizeof(out->cpu), "%s", out->arch);
    out->sockets = count_sockets(root);
    if (sysfile_line(root, "/sys/devices/system/node/online", list, sizeof(list)))
        out->numa_nodes = sysfile_list_count(list);
    snprintf(path, sizeof(path), CPU_DIR "/cpu%u/topology/thread_siblings_list", first);
    if (sysfile_line(root, path, list, sizeof(list)))
        out->threads_per_core = sysfile_list_count(list);
    snprintf(path, sizeof(path), CPU_DIR "/cpu%u/cpufreq/scaling_governor", first);
    sysfile_line(root, path, out->governor, sizeof(out->governor));
    collect_caches(root, first, out);
}

static double timer_step(void)
{
    double step = 0;

    for (int i = 0; i < 64; i++) {
        struct timespec a, b;
        double d = 0;

        clock_gettime(CLOCK_MONOTONIC, &a);
        for (int tries = 0; d <= 0 && tries < 1000000; tries++) {
            clock_gettime(CLOCK_MONOTONIC, &b);
            d = (double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec);
        }
        if (step <= 0 || d < step)
            step = d;
    }
    return step;
}

static void collect_system(const char *root, struct facts *out)
{
    struct utsname names;
    char text[64];

    if (uname(&names) == 0) {
        snprintf(out->host, sizeof(out->host), "%s", names.nodename);
        snprintf(out->kernel, sizeof(out->kernel), "%s %s", names.sysname, names.release);
        snprintf(out->arch, sizeof(out->arch), "%.31s", names.machine);
    }
    sysfile_line(root, "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                 out->clocksource, sizeof(out->clocksource));
    if (sysfile_field(root, "/proc/meminfo", "MemTotal", text, sizeof(text)))
        out->memory_bytes = strtoull(text, NULL, 10) << 10;
    if (sysfile_line(root, "/proc/loadavg", text, sizeof(text)))
        out->load_average = strtod(text, NULL);
    sysfile_chosen(root, "/sys/kernel/mm/transparent_hugepage/enabled", out->huge_pages,
                   sizeof(out->huge_pages));
    sysfile_chosen(root, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", out->shmem_huge_pages,
                   sizeof(out->shmem_huge_pages));
    out->timer_ns = timer_step();
}

static void collect_build(struct facts *out)
{
    const char *refused = NULL;

    snprintf(out->isa, sizeof(out->isa), "%s", epa_kernels_get(EPA_BF16, &refused)->isa);
    if (refused != NULL)
        snprintf(out->isa_refused, sizeof(out->isa_refused), "%s", refused);
    snprintf(out->compiler, sizeof(out->compiler), "%s", COMPILER);
    snprintf(out->version, sizeof(out->version), "%s", EPA2A_VERSION);
    snprintf(out->build_type, sizeof(out->build_type), "%s", EPA2A_BUILD_TYPE);
    snprintf(out->sanitizers, sizeof(out->sanitizers), "%s", EPA2A_SANITIZE);
    snprintf(out->git, sizeof(out->git), "%s", EPA2A_GIT);
    snprintf(out->libc, sizeof(out->libc), "glibc %s", gnu_get_libc_version());
    out->debug_build = ASSERTS || !OPTIMIZED || strcmp(EPA2A_SANITIZE, "none") != 0;
}

/* By name, whether a variable is of this program's world. Anything else stays at home. */
static bool allowed(const char *variable)
{
    static const char *const prefix[] = {
        "EPA2A_",   "UCX_", "OMPI_MCA_",     "NCCL_",
        "NVSHMEM_", "OMP_", "SLURM_JOB_ID=", "CUDA_VISIBLE_DEVICES="};

    for (size_t i = 0; i < sizeof(prefix) / sizeof(prefix[0]); i++)
        if (strncmp(variable, prefix[i], strlen(prefix[i])) == 0)
            return strchr(variable, '=') != NULL;
    return false;
}

/* A result is a file that people pass on: a value that may open a door is not in it. */
static bool secret(const char *variable)
{
    static const char *const word[] = {"key", "token", "secret", "passw", "credential"};
    const char *value = strchr(variable, '=') + 1, *scheme = strstr(value, "://");
    char name[128];

    snprintf(name, sizeof(name), "%.*s", (int)(value - variable - 1), variable);
    for (size_t i = 0; i < sizeof(word) / sizeof(word[0]); i++) {
        if (strcasestr(name, word[i]) != NULL)
            return true;
    }
    return scheme != NULL && strchr(scheme, '@') != NULL; /* scheme://user:password@host */
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void collect_environment(struct facts *out)
{
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        char *copy;
        int n;

        if (out->n_environment == FACTS_ENVIRONMENT || !allowed(*at))
            continue;
        if (secret(*at))
            n = asprintf(&copy, "%.*s=(redacted)", (int)strcspn(*at, "="), *at);
        else
            n = asprintf(&copy, "%s", *at);
        if (n >= 0)
            out->environment[out->n_environment++] = copy;
    }
    qsort(out->environment, out->n_environment, sizeof(out->environment[0]), by_text);
}

void facts_collect_from(const char *root, struct facts *out)
{
    memset(out, 0, sizeof(*out));
    collect_system(root, out);
    collect_cpu(root, out);
    collect_build(out);
    collect_environment(out);
}

void facts_collect(struct facts *out)
{
    facts_collect_from("", out);
}

void facts_finish(struct facts *facts)
{
    for (uint32_t i = 0; i < facts->n_environment; i++)
        free(facts->environment[i]);
    facts->n_environment = 0;
}
