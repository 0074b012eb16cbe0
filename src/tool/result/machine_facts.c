/* Reads the machine from /proc and /sys, and the build from the compiler. These functions do not
 * fail. */
#include "result/machine_facts.h"

#include <epa2a/plugin.h>
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/sysfile.h"
#include "epa2a/quant.h"
#include "git_id.h"
#include "host/pin.h"

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

/* Parses the sizes of caches: "48K", "2048K", "1M". */
static uint64_t cache_size(const char *text)
{
    char *end;
    uint64_t n = strtoull(text, &end, 10);

    if (*end == 'K')
        return n << 10;
    return *end == 'M' ? n << 20 : n;
}

/* Returns the number of cores that this process may use, and the first of them. */
static uint32_t cores_allowed(uint32_t *first)
{
    struct pin_plan plan = {.cores = 0};
    uint32_t n;

    (void)pin_plan_init(&plan, PIN_NONE, 1, 1, NULL);
    *first = plan.cores > 0 ? (uint32_t)plan.order[0] : 0;
    n = plan.cores > 0 ? plan.cores : (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    pin_plan_finish(&plan);
    return n;
}

/* Returns the count of numbers in the list of a file. */
static uint64_t count_in(const char *root, const char *path)
{
    char list[256];

    return sysfile_line(root, path, list, sizeof(list)) ? sysfile_list_count(list) : 0;
}

static void read_caches(const char *root, uint32_t core, uint64_t cache_bytes[4])
{
    for (uint32_t i = 0; i < 8; i++) {
        char path[128], text[64];
        uint64_t level;

        snprintf(path, sizeof(path), CPU_DIR "/cpu%u/cache/index%u/type", core, i);
        if (!sysfile_line(root, path, text, sizeof(text)) || strcmp(text, "Instruction") == 0)
            continue;
        snprintf(path, sizeof(path), CPU_DIR "/cpu%u/cache/index%u/level", core, i);
        level = sysfile_number(root, path);
        snprintf(path, sizeof(path), CPU_DIR "/cpu%u/cache/index%u/size", core, i);
        if (level >= 1 && level <= 3 && sysfile_line(root, path, text, sizeof(text)))
            cache_bytes[level] = cache_size(text);
    }
}

/* Package numbers are small and without gaps on all common machines. */
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

struct build_facts build_facts(void)
{
    struct build_facts b = {.version = EPA2A_RELEASE,
                            .git = EPA2A_GIT,
                            .compiler = COMPILER,
                            .type = EPA2A_BUILD_TYPE,
                            .sanitizers = EPA2A_SANITIZE,
                            .libc = gnu_get_libc_version()};

    b.isa = epa_kernels_get(EPA_BF16, &b.isa_refused)->isa;
    b.debug = ASSERTS || !OPTIMIZED || strcmp(EPA2A_SANITIZE, "none") != 0;
    return b;
}

/* Reads the first line of a file; leaves `out` empty if the file is unreadable. */
static void read_line(const char *root, const char *path, char *out, size_t room)
{
    if (!sysfile_line(root, path, out, room))
        out[0] = '\0';
}

static void read_cores(const char *root, struct machine_facts *m)
{
    uint32_t first;
    char path[128];

    m->cores = cores_allowed(&first);
    m->sockets = count_sockets(root);
    m->numa_nodes = count_in(root, "/sys/devices/system/node/online");
    snprintf(path, sizeof(path), CPU_DIR "/cpu%u/topology/thread_siblings_list", first);
    m->threads_per_core = count_in(root, path);
    snprintf(path, sizeof(path), CPU_DIR "/cpu%u/cpufreq/scaling_governor", first);
    read_line(root, path, m->governor, sizeof(m->governor));
    read_caches(root, first, m->cache_bytes);
}

void machine_facts_read(const char *root, struct machine_facts *m)
{
    struct utsname names = {0};
    char text[64] = "";

    *m = (struct machine_facts){.build = build_facts()};
    (void)uname(&names);
    snprintf(m->host, sizeof(m->host), "%s", names.nodename);
    snprintf(m->kernel, sizeof(m->kernel), "%s %s", names.sysname, names.release);
    snprintf(m->arch, sizeof(m->arch), "%s", names.machine);
    if (!sysfile_field(root, "/proc/cpuinfo", "model name", m->cpu, sizeof(m->cpu)))
        snprintf(m->cpu, sizeof(m->cpu), "%s", names.machine);
    (void)sysfile_line(root, "/proc/loadavg", text, sizeof(text));
    m->load_average = strtod(text, NULL);
    text[0] = '\0';
    (void)sysfile_field(root, "/proc/meminfo", "MemTotal", text, sizeof(text));
    m->memory_bytes = strtoull(text, NULL, 10) << 10;
    read_line(root, "/sys/devices/system/clocksource/clocksource0/current_clocksource",
              m->clocksource, sizeof(m->clocksource));
    m->timer_ns = timer_step();
    sysfile_chosen(root, "/sys/kernel/mm/transparent_hugepage/enabled", m->huge_pages,
                   sizeof(m->huge_pages));
    sysfile_chosen(root, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", m->shmem_huge_pages,
                   sizeof(m->shmem_huge_pages));
    read_cores(root, m);
}
