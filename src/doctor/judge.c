/* What is wrong and what is missing, each with the command that mends it. Packages are those
 * of Debian. */
#include <string.h>

#include "doctor/doctor.h"
#include "plugin/registry.h"

static const uint64_t mib = 1u << 20;

EPA_PRINTF(4, 0)
static void add_finding(struct doctor *d, bool missing, const char *fix, const char *fmt,
                        va_list args)
{
    struct doctor_finding *f = &d->finding[d->findings];

    if (d->findings == DOCTOR_FINDINGS)
        return;
    d->findings++;
    f->missing = missing;
    vsnprintf(f->what, sizeof(f->what), fmt, args);
    snprintf(f->fix, sizeof(f->fix), "%s", fix);
}

EPA_PRINTF(3, 4)
static void warn(struct doctor *d, const char *fix, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    add_finding(d, false, fix, fmt, args);
    va_end(args);
}

EPA_PRINTF(3, 4)
static void miss(struct doctor *d, const char *fix, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    add_finding(d, true, fix, fmt, args);
    va_end(args);
}

static void judge_cores(struct doctor *d)
{
    const struct machine *m = &d->machine;
    const struct facts *f = &m->facts;

    if (f->cores < 2)
        warn(d, "", "one core for all ranks: they take turns, and no time means much");
    if (m->cores_online > f->cores)
        warn(d, "taskset -c 0-$(($(nproc --all) - 1)) epa2a ..., or a wider cpuset",
             "only %u of %u cores may be used", f->cores, m->cores_online);
    if (m->cores_quota > 0 && m->cores_quota < f->cores)
        warn(d, "raise cpu.max of the cgroup, or docker run --cpus",
             "the cgroup allows %.2f cores' worth of time on %u cores: ranks are stopped "
             "for tens of milliseconds once it is used up",
             m->cores_quota, f->cores);
    if (f->load_average > 0.5 * f->cores)
        warn(d, "see who: top -o %CPU",
             "crowded: a load of %.1f on %u cores; others run where ranks are measured",
             f->load_average, f->cores);
    if (f->governor[0] != '\0' && strcmp(f->governor, "performance") != 0)
        warn(d, "apt install linux-cpupower; cpupower frequency-set -g performance",
             "the frequency governor is %s: the first microseconds of a burst are slow",
             f->governor);
    if (f->clocksource[0] != '\0' && strcmp(f->clocksource, "tsc") != 0 &&
        strstr(f->arch, "86") != NULL)
        warn(d, "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
             "the clock is %s: reading it costs more, and steps are %.0f ns", f->clocksource,
             f->timer_ns);
    if (m->virtual_machine)
        warn(d, "", "a virtual machine: whoever shares its host is not to be seen here");
    if (m->numa_balancing && f->numa_nodes > 1)
        warn(d, "sysctl kernel.numa_balancing=0",
             "automatic NUMA balancing is on: it unmaps pages of ranks to see who uses them");
    if (f->isa_refused[0] != '\0')
        warn(d, "unset EPA2A_ISA", "EPA2A_ISA is %s, which cannot be had: %s is used",
             f->isa_refused, f->isa);
    if (f->debug_build)
        warn(d, "meson setup --buildtype=release build-release",
             "a debug build (%s, sanitizers %s): not for benchmarks", f->build_type, f->sanitizers);
}

static void judge_memory(struct doctor *d)
{
    const struct machine *m = &d->machine;
    char size[32], fix[320];

    if (strcmp(m->facts.shmem_huge_pages, "never") == 0 ||
        strcmp(m->facts.shmem_huge_pages, "deny") == 0)
        warn(d, "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
             "transparent huge pages of shared memory: %s; shm requests them itself "
             "where the kernel allows it, and else has pages of 4 KiB",
             m->facts.shmem_huge_pages);
    if (strcmp(m->facts.huge_pages, "never") == 0)
        warn(d, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
             "transparent huge pages: never; inputs are in pages of 4 KiB");
    if (m->address_space != UINT64_MAX)
        warn(d, "ulimit -v unlimited", "the address space of a process is limited to %s",
             text_size(size, sizeof(size), m->address_space));
    if (m->files < 1024)
        warn(d, "ulimit -n 4096",
             "a process may open %llu files; ranks need some for each "
             "other",
             (unsigned long long)m->files);
    if (m->available_bytes < 512 * mib)
        warn(d, "", "only %s of memory may be taken (%s)",
             text_size(size, sizeof(size), m->available_bytes), m->available_by);
    if (m->shm_bytes > 0 && m->shm_free < 256 * mib)
        warn(d, "mount -o remount,size=4G /dev/shm, or docker run --shm-size=4g",
             "/dev/shm has %s free; epa2a needs none of it, UCX and MPI do",
             text_size(size, sizeof(size), m->shm_free));
    if (m->left_files > 0) {
        snprintf(fix, sizeof(fix), "rm /dev/shm/%s%s, once nothing runs that may use it",
                 m->left_first, m->left_files > 1 ? " and the like" : "");
        warn(d, fix, "%u files of UCX or MPI in /dev/shm hold %s: %s%s", m->left_files,
             text_size(size, sizeof(size), m->left_bytes), m->left_first,
             m->left_files > 1 ? ", ..." : "");
    }
    if (m->ports > 0 && m->locked_bytes < 1024 * mib)
        warn(d, "ulimit -l unlimited", "a process may lock %s, and RDMA locks all of a heap",
             text_size(size, sizeof(size), m->locked_bytes));
}

static bool some_port_is_up(const struct machine *m)
{
    for (uint32_t i = 0; i < m->ports; i++) {
        if (strcmp(m->port[i].state, "ACTIVE") == 0)
            return true;
    }
    return false;
}

static void judge_devices(struct doctor *d)
{
    const struct machine *m = &d->machine;
    const struct machine_program *mpirun = machine_program(m, "mpirun");

    if (m->ports == 0)
        miss(d,
             "apt install rdma-core ibverbs-providers for an adapter; without one: modprobe "
             "rdma_rxe; rdma link add rxe0 type rxe netdev eth0",
             "no RDMA device: ranks of several hosts talk by TCP");
    else if (!some_port_is_up(m))
        warn(d, "rdma link show; ip link set DEV up",
             "RDMA: no port is ACTIVE (%s port %u: "
             "%s)",
             m->port[0].device, m->port[0].port, m->port[0].state);
    if (m->gpus > 0 && m->gpu_driver[0] == '\0')
        miss(d, "apt install nvidia-driver (section non-free), then boot",
             "%u GPUs of NVIDIA and no driver", m->gpus);
    else if (m->gpus == 0)
        miss(d, "", "no GPU of NVIDIA: experiments run on the host");
    if (mpirun == NULL || mpirun->path[0] == '\0')
        miss(d, "apt install openmpi-bin", "no mpirun on PATH");
}

static void judge_plugins(struct doctor *d)
{
    char fix[320];

    if (d->empty[0] != '\0')
        miss(d, "install epa2a as a whole, or say --plugin-path DIR", "%.300s", d->empty);
    for (const struct plugin_part *part = plugin_parts; part->name != NULL; part++) {
        const struct doctor_plugin *p = doctor_plugin(d, part->kind, part->name);
        const char *kind = plugin_kind_name(part->kind);

        if (p == NULL && d->empty[0] == '\0') {
            snprintf(fix, sizeof(fix), "install %s; build again", part->build);
            miss(d, fix, "%s %s is not built", kind, part->name);
        } else if (p != NULL && !p->loaded && strstr(p->text, " is missing") != NULL) {
            snprintf(fix, sizeof(fix), "%s%s", part->run[0] != '\0' ? "apt install " : "",
                     part->run);
            miss(d, fix, "%s %s cannot be loaded: %.200s", kind, part->name, p->text);
        }
    }
}

void doctor_judge(struct doctor *d)
{
    d->findings = 0;
    judge_cores(d);
    judge_memory(d);
    judge_devices(d);
    judge_plugins(d);
}
