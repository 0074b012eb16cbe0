/* The examination as a table for people, and as JSON, in which what is not known is null. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "doctor/doctor.h"
#include "plugin/registry.h"

enum { COLUMNS = 100, LEFT = 17 };

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
            fprintf(to, "\n%ss\n", plugin_kind_name(p->kind));
        say(to, p->name, "%s%s%s",
            p->usable   ? "can be used"
            : p->loaded ? "cannot be used"
                        : "cannot be loaded",
            p->text[0] != '\0' ? ": " : "", p->text);
        for (uint32_t k = 0; k < p->facts.n; k++)
            say(to, "", "%s: %s", p->facts.fact[k].key, p->facts.fact[k].value);
    }
}

static void print_links(FILE *to, const struct doctor *d)
{
    bool first = true;

    for (uint32_t i = 0; i < d->plugins; i++) {
        const struct doctor_plugin *p = &d->plugin[i];

        if (!p->usable || !(p->peak.latency_ns > 0))
            continue;
        fprintf(to, "%s", first ? "\nlinks\n" : "");
        first = false;
        say(to, p->name, "%u ranks: %.1f GB/s out of each while all send, %.2f us for a signal",
            p->ranks, p->peak.bytes_per_ns, p->peak.latency_ns / 1e3);
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
    print_links(to, d);
    print_findings(to, d, false);
    print_findings(to, d, true);
    fprintf(to, "\n%s\n",
            d->shm == EPA_OK ? "Ranks of this host can talk: transport shm runs."
                             : "Ranks of this host cannot talk: transport shm does not run.");
}

/* ---- JSON; tests/cli/doctor.py has its shape ---- */

/* 0: not known. */
static json_t *real(double x)
{
    return isfinite(x) && x > 0 ? json_real(x) : json_null();
}

static json_t *cores_json(const struct machine *m)
{
    const struct facts *f = &m->facts;

    return json_pack(
        "{s:o,s:o,s:o,s:o,s:b,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:f,s:o,s:o}", "host",
        json_text_or_null(f->host), "kernel", json_text_or_null(f->kernel), "arch",
        json_text_or_null(f->arch), "cpu", json_text_or_null(f->cpu), "virtual",
        (int)m->virtual_machine, "cores", json_count(f->cores), "cores_online",
        json_count_or_null(m->cores_online), "cores_quota", real(m->cores_quota), "sockets",
        json_count_or_null(f->sockets), "numa_nodes", json_count_or_null(f->numa_nodes),
        "threads_per_core", json_count_or_null(f->threads_per_core), "l1d_bytes",
        json_count_or_null(f->l1d_bytes), "l2_bytes", json_count_or_null(f->l2_bytes), "l3_bytes",
        json_count_or_null(f->l3_bytes), "governor", json_text_or_null(f->governor), "clocksource",
        json_text_or_null(f->clocksource), "timer_ns", real(f->timer_ns), "load_average",
        f->load_average, "isa", json_text_or_null(f->isa), "isas", json_text_or_null(m->isas));
}

static json_t *memory_json(const struct machine *m)
{
    return json_pack(
        "{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:{s:o,s:o,s:o},s:{s:o,s:o,s:o,s:o}}", "bytes",
        json_count_or_null(m->facts.memory_bytes), "available_bytes",
        json_count(m->available_bytes), "available_by", json_text_or_null(m->available_by),
        "address_space_bytes", json_count(m->address_space), "locked_bytes",
        json_count(m->locked_bytes), "open_files", json_count(m->files), "transparent_huge_pages",
        json_text_or_null(m->facts.huge_pages), "shmem_huge_pages",
        json_text_or_null(m->facts.shmem_huge_pages), "huge_pages", "bytes",
        json_count_or_null(m->huge_bytes), "reserved", json_count(m->huge_pages), "free",
        json_count(m->huge_free), "dev_shm", "bytes", json_count_or_null(m->shm_bytes),
        "free_bytes", json_count(m->shm_free), "left_files", json_count(m->left_files),
        "left_bytes", json_count(m->left_bytes));
}

static json_t *devices_json(const struct machine *m)
{
    json_t *ports = json_array(), *networks = json_array(), *programs = json_array();

    for (uint32_t i = 0; i < m->ports; i++)
        json_array_append_new(ports, json_pack("{s:o,s:o,s:o,s:o,s:o}", "device",
                                               json_text_or_null(m->port[i].device), "port",
                                               json_count(m->port[i].port), "state",
                                               json_text_or_null(m->port[i].state), "link",
                                               json_text_or_null(m->port[i].link), "rate",
                                               json_text_or_null(m->port[i].rate)));
    for (uint32_t i = 0; i < m->networks; i++)
        json_array_append_new(networks,
                              json_pack("{s:o,s:o}", "name", json_text_or_null(m->network[i].name),
                                        "megabits", json_count_or_null(m->network[i].megabits)));
    for (uint32_t i = 0; i < m->programs; i++)
        json_array_append_new(programs, json_pack("{s:o,s:o,s:o}", "name",
                                                  json_text_or_null(m->program[i].name), "path",
                                                  json_text_or_null(m->program[i].path), "version",
                                                  json_text_or_null(m->program[i].version)));
    return json_pack("{s:o,s:o,s:o,s:{s:o,s:o}}", "rdma", ports, "networks", networks, "programs",
                     programs, "gpus", "count", json_count(m->gpus), "driver",
                     json_text_or_null(m->gpu_driver));
}

static json_t *links_json(const struct doctor_plugin *p)
{
    if (!(p->peak.latency_ns > 0))
        return json_null();
    return json_pack("{s:o,s:o,s:o}", "ranks", json_count(p->ranks), "rate",
                     real(p->peak.bytes_per_ns), "latency_ns", real(p->peak.latency_ns));
}

static json_t *plugins_json(const struct doctor *d)
{
    json_t *plugins = json_array();

    for (uint32_t i = 0; i < d->plugins; i++) {
        const struct doctor_plugin *p = &d->plugin[i];
        json_t *facts = json_array();

        for (uint32_t k = 0; k < p->facts.n; k++)
            json_array_append_new(facts, json_pack("{s:o,s:o}", "key",
                                                   json_text_or_null(p->facts.fact[k].key), "value",
                                                   json_text_or_null(p->facts.fact[k].value)));
        json_array_append_new(
            plugins, json_pack("{s:s,s:o,s:b,s:b,s:o,s:o,s:o}", "kind", plugin_kind_name(p->kind),
                               "name", json_text_or_null(p->name), "loaded", (int)p->loaded,
                               "usable", (int)p->usable, "text", json_text_or_null(p->text),
                               "links", links_json(p), "facts", facts));
    }
    return plugins;
}

static json_t *findings_json(const struct doctor *d, bool missing)
{
    json_t *findings = json_array();

    for (uint32_t i = 0; i < d->findings; i++) {
        if (d->finding[i].missing == missing)
            json_array_append_new(findings, json_pack("{s:o,s:o}", "what",
                                                      json_text_or_null(d->finding[i].what), "fix",
                                                      json_text_or_null(d->finding[i].fix)));
    }
    return findings;
}

/* json_pack() gives NULL where any part is: no document then, rather than one with holes. */
json_t *doctor_json(const struct doctor *d)
{
    return json_pack("{s:i,s:s,s:s,s:i,s:b,s:o,s:o,s:o,s:o,s:o,s:o}", "schema", DOCTOR_SCHEMA,
                     "program", "epa2a", "version", d->machine.facts.version, "plugin_abi",
                     (int)EPA_ABI, "runs", (int)(d->shm == EPA_OK), "machine",
                     cores_json(&d->machine), "memory", memory_json(&d->machine), "devices",
                     devices_json(&d->machine), "plugins", plugins_json(d), "warnings",
                     findings_json(d, false), "missing", findings_json(d, true));
}
