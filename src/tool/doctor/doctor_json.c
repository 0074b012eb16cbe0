/* Writes the machine, its plugins and findings as JSON. Unknown values are null. */
#include "doctor/doctor_json.h"

#include <math.h>

#include "report/origin_json.h"
#include "session/session.h"

enum { DOCTOR_SCHEMA = 4 };

static json_t *cores_json(const struct machine *m)
{
    json_t *out = machine_json(&m->facts), *isas = json_array();

    for (uint32_t i = 0; i < m->n_isas; i++)
        json_array_append_new(isas, json_text(m->isa[i]));
    json_object_set_new(out, "cores_quota", json_number(m->cores_quota));
    json_object_set_new(out, "cores_online",
                        m->cores_online >= 0 ? json_integer(m->cores_online) : json_null());
    json_object_set_new(out, "virtual", json_boolean(m->virtual));
    json_object_set_new(out, "numa_balancing", json_boolean(m->numa_balancing));
    json_object_set_new(out, "isas", isas);
    return out;
}

static json_t *memory_json(const struct machine_memory *m)
{
    return json_object_of(
        "available_bytes", json_count(m->available_bytes), "available_by",
        json_text_or_null(m->available_by), "address_space_bytes",
        json_count(m->address_space_bytes), "locked_bytes", json_count(m->locked_bytes),
        "open_files", json_count(m->open_files), "reserved_huge_pages",
        json_object_of("bytes", json_count_or_null(m->huge_bytes), "pages",
                       json_count(m->huge_pages), "free", json_count(m->huge_free), NULL),
        "dev_shm",
        json_object_of("bytes", json_count_or_null(m->shm_bytes), "free_bytes",
                       json_count(m->shm_free_bytes), "left_files", json_count(m->left_files),
                       "left_bytes", json_count(m->left_bytes), "left_first",
                       json_text_or_null(m->left_first), NULL),
        NULL);
}

json_t *libraries_json(const struct library_found *library, uint32_t n)
{
    json_t *out = json_array();

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(out, json_object_of("name", json_text(library[i].name), "path",
                                                  json_text(library[i].file), "version",
                                                  json_text(library[i].version), "use",
                                                  json_text(library[i].use), NULL));
    return out;
}

static json_t *devices_json(const struct machine *m)
{
    json_t *rdma = json_array(), *gpus = json_array(), *networks = json_array(),
           *programs = json_array();

    for (uint32_t i = 0; i < m->n_ports; i++) {
        const struct machine_port *port = &m->port[i];

        json_array_append_new(rdma, json_object_of("device", json_text(port->device), "port",
                                                   json_count(port->number), "state",
                                                   json_text_or_null(port->state), "link",
                                                   json_text_or_null(port->link), "rate",
                                                   json_text_or_null(port->rate), NULL));
    }
    for (uint32_t i = 0; i < m->n_gpus; i++)
        json_array_append_new(gpus, json_text(m->gpu[i]));
    for (uint32_t i = 0; i < m->n_networks; i++)
        json_array_append_new(networks,
                              json_object_of("name", json_text(m->network[i].name), "megabits",
                                             json_count_or_null(m->network[i].megabits), NULL));
    for (uint32_t i = 0; i < m->n_programs; i++)
        json_array_append_new(programs,
                              json_object_of("name", json_text(m->program[i].name), "path",
                                             json_text(m->program[i].path), "version",
                                             json_text_or_null(m->program[i].version), NULL));
    return json_object_of("rdma", rdma, "gpus", gpus, "gpu_driver",
                          json_text_or_null(m->gpu_driver), "networks", networks, "programs",
                          programs, "libraries", libraries_json(m->library, m->n_libraries), NULL);
}

json_t *hardware_json(const struct machine *m)
{
    return json_object_of("machine", cores_json(m), "memory", memory_json(&m->memory), "devices",
                          devices_json(m), NULL);
}

static json_t *plugin_json(const struct examined *p)
{
    json_t *facts = json_object(), *links = json_null();

    for (uint32_t i = 0; p->facts != NULL && i < p->facts->n; i++)
        json_object_set_new(facts, p->facts->fact[i].key, json_text(p->facts->fact[i].value));
    if (p->latency_ns > 0 || p->bytes_per_ns > 0)
        links =
            json_object_of("ranks", json_count(p->ranks), "rate",
                           json_number(p->bytes_per_ns > 0 ? p->bytes_per_ns : NAN), "latency_ns",
                           json_number(p->latency_ns > 0 ? p->latency_ns : NAN), NULL);
    return json_object_of("kind", json_text(plugin_kind_name(p->kind)), "name", json_text(p->name),
                          "loaded", json_boolean(p->loaded), "links", links, "facts", facts,
                          "usable", json_boolean(p->usable), "text", json_text_or_null(p->text),
                          NULL);
}

static json_t *findings_json(const struct finding *finding, uint32_t n)
{
    json_t *out = json_array();

    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(out, json_object_of("what", json_text(finding[i].what), "fix",
                                                  json_text_or_null(finding[i].fix), NULL));
    return out;
}

json_t *doctor_json(const struct doctor *d)
{
    json_t *out = hardware_json(&d->machine), *plugins = json_array();

    for (uint32_t i = 0; i < d->n_plugins; i++)
        json_array_append_new(plugins, plugin_json(&d->plugin[i]));
    json_object_set_new(out, "schema", json_integer(DOCTOR_SCHEMA));
    json_object_set_new(out, "program", json_text("epa2a"));
    json_object_set_new(out, "runs", json_boolean(d->runs));
    json_object_set_new(out, "plugins", plugins);
    json_object_set_new(out, "warnings", findings_json(d->found.warning, d->found.n_warnings));
    json_object_set_new(out, "missing", findings_json(d->found.missing, d->found.n_missing));
    return out;
}
