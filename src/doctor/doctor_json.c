/* The examination as JSON. What is not known is null; tests/cli/doctor.schema.json says what
 * may stand where. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "doctor/doctor.h"

static json_t *text(const char *bytes)
{
    return bytes[0] != '\0' ? json_text(bytes) : json_null();
}

static json_t *count(uint64_t n)
{
    return n > INT64_MAX ? json_null() : json_integer((json_int_t)n);
}

static json_t *count_or_null(uint64_t n)
{
    return n != 0 ? count(n) : json_null();
}

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
        text(f->host), "kernel", text(f->kernel), "arch", text(f->arch), "cpu", text(f->cpu),
        "virtual", (int)m->virtual_machine, "cores", count(f->cores), "cores_online",
        count_or_null(m->cores_online), "cores_quota", real(m->cores_quota), "sockets",
        count_or_null(f->sockets), "numa_nodes", count_or_null(f->numa_nodes), "threads_per_core",
        count_or_null(f->threads_per_core), "l1d_bytes", count_or_null(f->l1d_bytes), "l2_bytes",
        count_or_null(f->l2_bytes), "l3_bytes", count_or_null(f->l3_bytes), "governor",
        text(f->governor), "clocksource", text(f->clocksource), "timer_ns", real(f->timer_ns),
        "load_average", f->load_average, "isa", text(f->isa), "isas", text(m->isas));
}

static json_t *memory_json(const struct machine *m)
{
    return json_pack(
        "{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:{s:o,s:o,s:o},s:{s:o,s:o,s:o,s:o}}", "bytes",
        count_or_null(m->facts.memory_bytes), "available_bytes", count(m->available_bytes),
        "available_by", text(m->available_by), "address_space_bytes", count(m->address_space),
        "locked_bytes", count(m->locked_bytes), "open_files", count(m->files),
        "transparent_huge_pages", text(m->facts.huge_pages), "shmem_huge_pages",
        text(m->facts.shmem_huge_pages), "huge_pages", "bytes", count_or_null(m->huge_bytes),
        "reserved", count(m->huge_pages), "free", count(m->huge_free), "dev_shm", "bytes",
        count_or_null(m->shm_bytes), "free_bytes", count(m->shm_free), "left_files",
        count(m->left_files), "left_bytes", count(m->left_bytes));
}

static json_t *devices_json(const struct machine *m)
{
    json_t *ports = json_array(), *networks = json_array(), *programs = json_array();

    for (uint32_t i = 0; i < m->ports; i++)
        json_array_append_new(
            ports, json_pack("{s:o,s:o,s:o,s:o,s:o}", "device", text(m->port[i].device), "port",
                             count(m->port[i].port), "state", text(m->port[i].state), "link",
                             text(m->port[i].link), "rate", text(m->port[i].rate)));
    for (uint32_t i = 0; i < m->networks; i++)
        json_array_append_new(networks,
                              json_pack("{s:o,s:o}", "name", text(m->network[i].name), "megabits",
                                        count_or_null(m->network[i].megabits)));
    for (uint32_t i = 0; i < m->programs; i++)
        json_array_append_new(programs, json_pack("{s:o,s:o,s:o}", "name", text(m->program[i].name),
                                                  "path", text(m->program[i].path), "version",
                                                  text(m->program[i].version)));
    return json_pack("{s:o,s:o,s:o,s:{s:o,s:o}}", "rdma", ports, "networks", networks, "programs",
                     programs, "gpus", "count", count(m->gpus), "driver", text(m->gpu_driver));
}

static json_t *links_json(const struct probe *p)
{
    if (!(p->peak.latency_ns > 0))
        return json_null();
    return json_pack("{s:o,s:o,s:o}", "ranks", count(p->ranks), "rate", real(p->peak.bytes_per_ns),
                     "latency_ns", real(p->peak.latency_ns));
}

static json_t *plugins_json(const struct doctor *d)
{
    static const char *const kind[] = {[EPA_PLUGIN_BACKEND] = "backend",
                                       [EPA_PLUGIN_LAUNCHER] = "launcher",
                                       [EPA_PLUGIN_TRANSPORT] = "transport",
                                       [EPA_PLUGIN_ALGORITHM] = "algorithm"};
    json_t *plugins = json_array();

    for (uint32_t i = 0; i < d->plugins; i++) {
        const struct doctor_plugin *p = &d->plugin[i];
        json_t *facts = json_array();

        for (uint32_t k = 0; k < p->probe.facts.n; k++)
            json_array_append_new(facts,
                                  json_pack("{s:o,s:o}", "key", text(p->probe.facts.fact[k].key),
                                            "value", text(p->probe.facts.fact[k].value)));
        json_array_append_new(plugins,
                              json_pack("{s:s,s:o,s:b,s:b,s:o,s:o,s:o}", "kind", kind[p->kind],
                                        "name", text(p->name), "loaded", (int)p->loaded, "usable",
                                        (int)p->usable, "text", text(p->text), "links",
                                        links_json(&p->probe), "facts", facts));
    }
    return plugins;
}

static json_t *rates_json(const struct measure_rates *r)
{
    return json_pack("{s:o,s:o,s:o}", "read", real(r->read), "write", real(r->write), "copy",
                     real(r->copy));
}

static json_t *measured_json(const struct doctor *d)
{
    const struct measure_flags *f = &d->flags;
    json_t *memory = json_null(), *flags = json_null();

    if (d->has_memory)
        memory = json_pack("{s:o,s:o,s:o,s:o}", "bytes", count(d->memory.bytes), "cores",
                           count(d->memory.cores), "one", rates_json(&d->memory.one), "all",
                           rates_json(&d->memory.all));
    if (d->has_flags && f->pairs > 0)
        flags =
            json_pack("{s:o,s:o,s:o,s:o,s:o,s:[i,i],s:[i,i]}", "pairs", count(f->pairs), "missed",
                      count(f->missed), "least_ns", real(f->least), "median_ns", real(f->median),
                      "most_ns", real(f->most), "least_cores", f->least_core[0], f->least_core[1],
                      "most_cores", f->most_core[0], f->most_core[1]);
    return json_pack("{s:b,s:o,s:o}", "quick", (int)d->quick, "memory", memory, "flags", flags);
}

static json_t *findings_json(const struct doctor *d, bool missing)
{
    json_t *findings = json_array();

    for (uint32_t i = 0; i < d->findings; i++) {
        if (d->finding[i].missing == missing)
            json_array_append_new(findings, json_pack("{s:o,s:o}", "what", text(d->finding[i].what),
                                                      "fix", text(d->finding[i].fix)));
    }
    return findings;
}

/* json_pack() gives NULL where any part is: no document then, rather than one with holes. */
enum epa_status doctor_json(const struct doctor *d, struct text *out, struct epa_error *err)
{
    const struct facts *f = &d->machine.facts;
    json_t *root = json_pack(
        "{s:i,s:s,s:s,s:i,s:b,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "schema", DOCTOR_SCHEMA, "program",
        "epa2a", "version", f->version, "plugin_abi", (int)EPA_ABI, "runs", (int)(d->shm == EPA_OK),
        "machine", cores_json(&d->machine), "memory", memory_json(&d->machine), "devices",
        devices_json(&d->machine), "plugins", plugins_json(d), "measured", measured_json(d),
        "warnings", findings_json(d, false), "missing", findings_json(d, true));
    char *dump = root != NULL ? json_dumps(root, JSON_INDENT(2)) : NULL;

    json_decref(root);
    if (dump == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the JSON of an examination");
    text_add(out, "%s\n", dump);
    free(dump);
    return EPA_OK;
}
