/* The examination as a table for people. */
#include <inttypes.h>
#include <string.h>

#include "doctor/doctor.h"

enum { COLUMNS = 100, LEFT = 17 };

static const char *const kinds[] = {[EPA_PLUGIN_BACKEND] = "backend",
                                    [EPA_PLUGIN_LAUNCHER] = "launcher",
                                    [EPA_PLUGIN_TRANSPORT] = "transport",
                                    [EPA_PLUGIN_ALGORITHM] = "algorithm"};

/* Breaks at blanks; further lines begin under the first. */
static void row(FILE *to, const char *left, const char *text)
{
    size_t room = COLUMNS - LEFT, n = strlen(text);

    fprintf(to, "  %-*s", LEFT - 2, left);
    if (strlen(left) >= LEFT - 2) /* a line of its own */
        fprintf(to, "\n%*s", LEFT, "");
    while (n > room) {
        size_t at = room;

        while (at > 0 && text[at] != ' ')
            at--;
        if (at == 0)
            break;
        fprintf(to, "%.*s\n%*s", (int)at, text, LEFT, "");
        text += at + 1;
        n -= at + 1;
    }
    fprintf(to, "%s\n", text);
}

EPA_PRINTF(3, 4)
static void say(FILE *to, const char *left, const char *fmt, ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    row(to, left, text);
}

static const char *or_none(const char *text)
{
    return text[0] != '\0' ? text : "not known";
}

/* "none" where there is no limit. */
static const char *limit(char *buf, size_t room, uint64_t bytes)
{
    if (bytes == UINT64_MAX)
        snprintf(buf, room, "none");
    else
        text_size(buf, room, bytes);
    return buf;
}

static void print_cores(FILE *to, const struct machine *m)
{
    const struct facts *f = &m->facts;
    char l1[32], l2[32], l3[32];

    fprintf(to, "machine\n");
    say(to, "cpu", "%s%s", f->cpu, m->virtual_machine ? ", virtual" : "");
    say(to, "cores",
        "%u of %u online; sockets %u, NUMA nodes %u, threads of a core %u; governor %s", f->cores,
        m->cores_online, f->sockets, f->numa_nodes, f->threads_per_core, or_none(f->governor));
    if (m->cores_quota > 0)
        say(to, "", "the cgroup allows %.2f cores' worth of time", m->cores_quota);
    say(to, "kernels", "%s of %s", f->isa, m->isas);
    say(to, "caches", "L1d %s, L2 %s, L3 %s", text_size(l1, sizeof(l1), f->l1d_bytes),
        text_size(l2, sizeof(l2), f->l2_bytes), text_size(l3, sizeof(l3), f->l3_bytes));
    say(to, "clock", "%s, steps of %.0f ns; load %.2f", or_none(f->clocksource), f->timer_ns,
        f->load_average);
    say(to, "system", "%s, %s, %s", f->kernel, f->libc, f->arch);
    say(to, "build", "epa2a %s (plugin ABI %u), %s, %s", f->version, EPA_ABI, f->compiler,
        f->build_type);
}

static void print_memory(FILE *to, const struct machine *m)
{
    char a[32], b[32], c[32], files[32];

    fprintf(to, "\nmemory\n");
    say(to, "of all ranks", "%s, of which %s may be taken (%s)",
        text_size(a, sizeof(a), m->facts.memory_bytes), limit(b, sizeof(b), m->available_bytes),
        m->available_by);
    snprintf(files, sizeof(files), "%" PRIu64, m->files);
    say(to, "limits", "address space %s, locked memory %s, open files %s",
        limit(a, sizeof(a), m->address_space), limit(b, sizeof(b), m->locked_bytes),
        m->files == UINT64_MAX ? "none" : files);
    say(to, "huge pages",
        "transparent %s, of shared memory %s; reserved %" PRIu64 " of %s, %" PRIu64 " free",
        or_none(m->facts.huge_pages), or_none(m->facts.shmem_huge_pages), m->huge_pages,
        text_size(a, sizeof(a), m->huge_bytes), m->huge_free);
    if (m->shm_bytes == 0)
        say(to, "/dev/shm", "not there");
    else
        say(to, "/dev/shm", "%s, %s free; left over: %u files, %s",
            text_size(a, sizeof(a), m->shm_bytes), text_size(b, sizeof(b), m->shm_free),
            m->left_files, text_size(c, sizeof(c), m->left_bytes));
}

static void print_devices(FILE *to, const struct machine *m)
{
    fprintf(to, "\ndevices\n");
    for (uint32_t i = 0; i < m->ports; i++)
        say(to, i == 0 ? "RDMA" : "", "%s port %u: %s, %s, %s", m->port[i].device, m->port[i].port,
            or_none(m->port[i].state), or_none(m->port[i].link), or_none(m->port[i].rate));
    if (m->ports == 0)
        row(to, "RDMA", "none");
    if (m->gpus == 0)
        row(to, "GPUs", "none");
    else
        say(to, "GPUs", "%u of NVIDIA, driver: %s", m->gpus,
            m->gpu_driver[0] != '\0' ? m->gpu_driver : "not loaded");
    for (uint32_t i = 0; i < m->networks; i++) {
        char speed[32] = "";

        if (m->network[i].megabits > 0)
            snprintf(speed, sizeof(speed), ", %g Gb/s", (double)m->network[i].megabits / 1000);
        say(to, i == 0 ? "networks" : "", "%s%s", m->network[i].name, speed);
    }
    if (m->networks == 0)
        row(to, "networks", "none up");
    for (uint32_t i = 0; i < m->programs; i++)
        say(to, m->program[i].name, "%s%s%s",
            m->program[i].path[0] != '\0' ? m->program[i].path : "not on PATH",
            m->program[i].version[0] != '\0' ? ": " : "", m->program[i].version);
}

static void print_plugins(FILE *to, const struct doctor *d)
{
    for (uint32_t i = 0; i < d->plugins; i++) {
        const struct doctor_plugin *p = &d->plugin[i];

        if (i == 0 || p->kind != d->plugin[i - 1].kind)
            fprintf(to, "\n%ss\n", kinds[p->kind]);
        say(to, p->name, "%s%s%s",
            p->usable   ? "can be used"
            : p->loaded ? "cannot be used"
                        : "cannot be loaded",
            p->text[0] != '\0' ? ": " : "", p->text);
        for (uint32_t k = 0; k < p->probe.facts.n; k++)
            say(to, "", "%s: %s", p->probe.facts.fact[k].key, p->probe.facts.fact[k].value);
    }
}

static void print_rates(FILE *to, const char *who, const struct measure_rates *r)
{
    fprintf(to, "  %-*s%8.1f %8.1f %8.1f\n", LEFT - 2, who, r->read, r->write, r->copy);
}

static void print_measured(FILE *to, const struct doctor *d)
{
    char size[32], who[32];

    fprintf(to, "\nmeasured%s\n", d->quick ? ", quickly" : "");
    if (d->has_memory) {
        fprintf(to, "  %-*s    read    write     copy  [GB/s], %s a core\n", LEFT - 2, "memory",
                text_size(size, sizeof(size), d->memory.bytes));
        print_rates(to, "one core", &d->memory.one);
        snprintf(who, sizeof(who), "all %u", d->memory.cores);
        print_rates(to, who, &d->memory.all);
    }
    if (d->has_flags && d->flags.pairs == 1)
        say(to, "flag", "%.0f ns from core %d to %d", d->flags.least, d->flags.least_core[0],
            d->flags.least_core[1]);
    else if (d->has_flags && d->flags.pairs > 1)
        say(to, "flag",
            "%.0f ns from core %d to %d, median %.0f ns, at most %.0f ns from core %d to %d; "
            "%u pairs",
            d->flags.least, d->flags.least_core[0], d->flags.least_core[1], d->flags.median,
            d->flags.most, d->flags.most_core[0], d->flags.most_core[1], d->flags.pairs);
    if (d->has_flags && d->flags.missed > 0)
        say(to, "", "%u pairs of cores exceeded the time limit", d->flags.missed);
    for (uint32_t i = 0; i < d->plugins; i++) {
        const struct probe *p = &d->plugin[i].probe;

        if (d->plugin[i].usable && p->peak.latency_ns > 0)
            say(to, d->plugin[i].name,
                "%u ranks: %.1f GB/s out of each while all send, %.2f us for a signal", p->ranks,
                p->peak.bytes_per_ns, p->peak.latency_ns / 1e3);
    }
}

static void print_findings(FILE *to, const struct doctor *d, bool missing)
{
    bool first = true;

    for (uint32_t i = 0; i < d->findings; i++) {
        const struct doctor_finding *f = &d->finding[i];

        if (f->missing != missing)
            continue;
        if (first)
            fprintf(to, "\n%s\n", missing ? "missing" : "warnings");
        first = false;
        say(to, missing ? "-" : "!", "%s", f->what);
        if (f->fix[0] != '\0')
            say(to, "", "%s", f->fix);
    }
}

void doctor_print(FILE *to, const struct doctor *d)
{
    print_cores(to, &d->machine);
    print_memory(to, &d->machine);
    print_devices(to, &d->machine);
    print_plugins(to, d);
    print_measured(to, d);
    print_findings(to, d, false);
    print_findings(to, d, true);
    fprintf(to, "\n%s\n",
            d->shm == EPA_OK ? "Ranks of this host can talk: transport shm runs."
                             : "Ranks of this host cannot talk: transport shm does not run.");
}
