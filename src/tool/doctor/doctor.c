/* Tries each plugin by opening it in a separate launch, in order of dependency. Ranks are
 * processes, so that a crash of a library ends its rank only, and pinned memory is released. They
 * are forked before this process creates threads. */
#include "doctor/doctor.h"

#include <string.h>
#include <sys/mman.h>

#include <epa2a/algorithm.h>

#include "base/memory.h"
#include "base/terminal.h"
#include "doctor/machine.h"
#include "ep/ep.h"
#include "launch/program_registry.h"
#include "registry/check.h"
#include "report/summary.h"
#include "report/fill_json.h"
#include "report/lines.h"
#include "session/session.h"

enum { PLUGINS = 48, RANKS_MOST = 8, HEAP_BYTES = 4 << 20 };

static const uint64_t timeout_ns = 20000000000u, grace_ns = 2000000000u;

/* ---- opening ---- */

/* The findings of each rank, in shared memory. */
struct leaves {
    enum epa_status status;
    char why[512];
    struct peak peak;
    struct session_facts facts;
};

struct asked {
    const struct epa_backend_plugin *backend;
    const struct epa_transport_plugin *transport; /* NULL: the backend alone */
    bool quick;                                   /* skip the measurement of links */
    struct leaves *leaves;                        /* [ranks] */
};

bool doctor_gpu_data(const struct epa_transport_plugin *plugin, char *out, size_t room)
{
    struct epa_error why = {EPA_OK, ""};

    if ((plugin->flags & EPA_TRANSPORT_NODES) == 0 || plugin->between_nodes != NULL)
        return false;
    if (plugin->takes == NULL)
        (void)epa_fail(&why, EPA_ERR_UNSUPPORTED, "it takes no memory that it does not allocate");
    else
        (void)plugin->takes(NULL, plugin->plugin.options.defaults, EPA_MEMORY_CUDA, &why);
    if (why.status == EPA_OK)
        snprintf(out, room, "direct, where GPUs have GPUDirect RDMA: it takes their memory");
    else
        snprintf(out, room, "staged in host memory: %s", why.text);
    return true;
}

static struct ep_choice choose_defaults(const struct epa_plugin *plugin)
{
    return (struct ep_choice){plugin, plugin->options.defaults};
}

static enum epa_status with_transport(const struct asked *asked, struct ep_comm *comm,
                                      struct leaves *out, struct epa_error *err)
{
    const struct epa_transport_plugin *plugin = asked->transport;
    struct ep ep;
    char way[256];
    enum epa_status status =
        ep_open(&ep, comm,
                &(struct ep_transport_params){.transport = choose_defaults(&plugin->plugin),
                                              .heap_bytes = HEAP_BYTES,
                                              .signals = PEAK_SIGNALS},
                err);

    if (status != EPA_OK)
        return status;
    if (ep.transport->ops->describe != NULL)
        ep.transport->ops->describe(ep.transport, session_keep_fact, &out->facts);
    if (doctor_gpu_data(plugin, way, sizeof(way)))
        session_keep_fact(&out->facts, "data of GPUs", way);
    if (!asked->quick)
        status = peak_measure(comm->boot, comm->backend, ep.transport, 0, &out->peak, err);
    if (status == EPA_OK)
        status = ep_comm_barrier(comm, err); /* no rank leaves while another measures */
    ep_close(&ep);
    return status;
}

static enum epa_status probe_main(struct epa_bootstrap *boot, void *arg)
{
    const struct asked *asked = arg;
    struct leaves *mine = &asked->leaves[boot->world.rank];
    const struct ep_choice backend = choose_defaults(&asked->backend->plugin);
    struct ep_comm comm;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = ep_comm_open(&comm, boot, &backend, boot->timeout_ns, &err);

    if (status == EPA_OK && asked->transport != NULL)
        status = with_transport(asked, &comm, mine, &err);
    else if (status == EPA_OK && comm.backend->ops->describe != NULL)
        comm.backend->ops->describe(comm.backend, session_keep_fact, &mine->facts);
    ep_comm_close(&comm);
    snprintf(mine->why, sizeof(mine->why), "%s", err.text);
    mine->status = status;
    return status;
}

/* Adds the findings of rank 0 about a plugin, and the links of a transport. */
static void put_probed(json_t *out, uint32_t ranks, const struct leaves *leaves)
{
    json_t *facts = json_object(), *links = json_null();

    for (uint32_t i = 0; i < leaves->facts.n; i++)
        json_object_set_new(facts, leaves->facts.fact[i].key,
                            json_text(leaves->facts.fact[i].value));
    if (leaves->peak.latency_ns > 0 || leaves->peak.bytes_per_ns > 0)
        links = json_object_of(
            "ranks", json_count(ranks), "rate",
            leaves->peak.bytes_per_ns > 0 ? json_number(leaves->peak.bytes_per_ns) : json_null(),
            "latency_ns",
            leaves->peak.latency_ns > 0 ? json_number(leaves->peak.latency_ns) : json_null(), NULL);
    json_object_set_new(out, "facts", facts);
    json_object_set_new(out, "links", links);
}

/* Calls check(), then open() on each rank; collects facts and measures the links of a transport.
 * All options have their defaults. A failure is explained by the rank's own message, else by the
 * launcher's. */
static enum epa_status probe_plugin(const struct epa_backend_plugin *backend,
                                    const struct epa_transport_plugin *transport, bool quick,
                                    uint32_t ranks, json_t *out, struct epa_error *err)
{
    struct asked asked = {.backend = backend, .transport = transport, .quick = quick};
    size_t bytes = ranks * sizeof(struct leaves);
    struct epa_error why = {EPA_OK, ""};
    uint32_t failed_rank = 0, leaked_ranks = 0;
    enum epa_status status = EPA_OK;

    if (transport != NULL && transport->check != NULL)
        status = transport->check(transport->plugin.options.defaults, err);
    if (status != EPA_OK)
        return status;
    asked.leaves = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (asked.leaves == MAP_FAILED)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the findings of %u ranks", ranks);
    status = launch_fork_plugin.launch(launch_fork_plugin.plugin.options.defaults,
                                       &(struct epa_launch){.ranks = ranks,
                                                            .threads = 1,
                                                            .stop_fd = -1,
                                                            .grace_ns = grace_ns,
                                                            .timeout_ns = timeout_ns,
                                                            .rank_main = probe_main,
                                                            .arg = &asked,
                                                            .block = (char *)asked.leaves,
                                                            .block_bytes = sizeof(struct leaves),
                                                            .fingerprint = "",
                                                            .failed_rank = &failed_rank,
                                                            .leaked_ranks = &leaked_ranks},
                                       &why);
    if (status == EPA_OK) {
        put_probed(out, ranks, &asked.leaves[0]);
    } else {
        const char *text = why.text[0] != '\0' ? why.text : "it cannot be opened";

        for (uint32_t r = ranks; r-- > 0;) {
            if (asked.leaves[r].status == status && asked.leaves[r].why[0] != '\0')
                text = asked.leaves[r].why;
        }
        (void)epa_fail(err, status, "%s", text);
    }
    munmap(asked.leaves, bytes);
    return status;
}

/* ---- plugins ---- */

struct exam {
    const json_t *machine; /* the document so far */
    bool quick;
    json_t *plugins;                        /* examined plugins */
    const struct epa_plugin *seen[PLUGINS]; /* usable plugins */
    uint32_t n;
};

/* Returns a usable backend with memory of these kinds, the host's first; NULL: none. */
static const struct epa_backend_plugin *find_backend(const struct exam *x, uint32_t memory)
{
    const struct epa_backend_plugin *found = NULL;

    for (uint32_t i = 0; i < x->n; i++) {
        const struct epa_backend_plugin *backend = (const struct epa_backend_plugin *)x->seen[i];

        if (x->seen[i]->kind == EPA_PLUGIN_BACKEND && (backend->memory & memory) != 0 &&
            (found == NULL || backend->memory == EPA_MEMORY_HOST))
            found = backend;
    }
    return found;
}

static uint32_t bounded(uint32_t n, uint32_t least)
{
    return n < least ? least : n > RANKS_MOST ? RANKS_MOST : n;
}

/* Returns the number of ranks: one for each GPU, or for each core if data use shared memory. */
static uint32_t ranks_for(const struct exam *x, uint32_t memory, const char *name, uint32_t least)
{
    if ((memory & EPA_MEMORY_HOST) == 0)
        return bounded((uint32_t)json_array_size(json_at(x->machine, "devices.gpus")), least);
    return strcmp(name, "shm") == 0
               ? bounded((uint32_t)json_number_at(x->machine, "machine.cores"), least)
               : least;
}

/* Returns true if the algorithm has code for the flags of the transport. */
static bool algorithm_fits(const struct epa_algorithm_plugin *algorithm,
                           const struct epa_transport_plugin *transport)
{
    uint32_t memory = algorithm->memory & transport->memory;

    if ((memory & EPA_MEMORY_HOST) != 0 && (algorithm->needs_host & ~transport->flags) == 0)
        return true;
    return (memory & EPA_MEMORY_CUDA) != 0 && (algorithm->needs_cuda & ~transport->flags) == 0;
}

static enum epa_status examine_transport(const struct exam *x,
                                         const struct epa_transport_plugin *transport, json_t *out,
                                         struct text *how, struct epa_error *err)
{
    const struct epa_backend_plugin *backend = find_backend(x, transport->memory);
    uint32_t ranks = ranks_for(x, transport->memory, transport->plugin.name, 2);

    if (backend == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "no usable backend has memory of its kind");
    text_add(how, "%u ranks, backend %s%s", ranks, backend->plugin.name,
             transport->between_nodes != NULL
                 ? "; between nodes GPU data take the path shown for that transport"
                 : "");
    return probe_plugin(backend, transport, x->quick, ranks, out, err);
}

/* Launchers that start ranks need nothing; the others need the program that starts the
 * processes. */
static enum epa_status examine_launcher(const struct exam *x, const struct epa_plugin *plugin,
                                        struct text *how, struct epa_error *err)
{
    const json_t *program = json_at(x->machine, "devices.programs.0");

    if (strcmp(plugin->name, "mpi") != 0)
        return EPA_OK;
    if (strcmp(json_text_at(program, "name"), "mpirun") != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "there is no mpirun on PATH to start ranks with");
    text_add(how, "under %s", json_text_at(program, "path"));
    return EPA_OK;
}

static enum epa_status examine_algorithm(const struct exam *x,
                                         const struct epa_algorithm_plugin *algorithm,
                                         struct text *how, struct epa_error *err)
{
    for (uint32_t i = 0; i < x->n; i++)
        if (x->seen[i]->kind == EPA_PLUGIN_TRANSPORT &&
            algorithm_fits(algorithm, (const struct epa_transport_plugin *)x->seen[i]))
            text_add(how, "%s%s", how->bytes == 0 ? "over " : ", ", x->seen[i]->name);
    return how->bytes > 0 ? EPA_OK
                          : epa_fail(err, EPA_ERR_UNSUPPORTED,
                                     "no usable transport has the features that it needs");
}

/* Examines a plugin: writes its use to `how`, and adds "links" and "facts" to `out` if it was
 * opened. */
static enum epa_status examine_plugin(const struct exam *x, const struct epa_plugin *plugin,
                                      json_t *out, struct text *how, struct epa_error *err)
{
    const struct epa_backend_plugin *backend = (const struct epa_backend_plugin *)plugin;

    switch (plugin->kind) {
    case EPA_PLUGIN_BACKEND:
        return probe_plugin(backend, NULL, true, ranks_for(x, backend->memory, plugin->name, 1),
                            out, err);
    case EPA_PLUGIN_LAUNCHER:
        return examine_launcher(x, plugin, how, err);
    case EPA_PLUGIN_TRANSPORT:
        return examine_transport(x, (const struct epa_transport_plugin *)plugin, out, how, err);
    case EPA_PLUGIN_ALGORITHM:
        break;
    }
    return examine_algorithm(x, (const struct epa_algorithm_plugin *)plugin, how, err);
}

static void examine_entry(struct exam *x, const struct registry_entry *entry, struct epa_error *shm)
{
    json_t *out = json_object_of(
        "kind", json_text(plugin_kind_name(entry->kind)), "name", json_text(entry->name), "loaded",
        json_boolean(entry->plugin != NULL), "links", json_null(), "facts", json_object(), NULL);
    struct epa_error why = {EPA_OK, ""};
    text_auto how = {0};
    enum epa_status status;

    if (entry->plugin == NULL)
        status = epa_fail(&why, EPA_ERR_UNSUPPORTED, "%s", entry->why);
    else
        status = examine_plugin(x, entry->plugin, out, &how, &why);
    json_object_set_new(out, "usable", json_boolean(status == EPA_OK));
    json_object_set_new(out, "text", json_text_or_null(status == EPA_OK ? how.data : why.text));
    json_array_append_new(x->plugins, out);
    if (status == EPA_OK && x->n < PLUGINS)
        x->seen[x->n++] = entry->plugin;
    if (entry->kind == EPA_PLUGIN_TRANSPORT && strcmp(entry->name, "shm") == 0) {
        *shm = why;
        shm->status = status;
    }
}

enum epa_status doctor_examine(const char *const *plugin_path, bool quick, json_t **out,
                               struct epa_error *shm, struct epa_error *err)
{
    struct exam x = {.quick = quick, .plugins = json_array()};
    const struct registry_entry *entry;
    struct registry *registry = NULL;
    FILE *own = stdout_lend();
    enum epa_status status = program_registry_create(plugin_path, &registry, err);
    json_t *d = status == EPA_OK ? machine_collect("") : NULL;
    const char *no_plugins = status == EPA_OK ? registry_empty(registry) : NULL;

    (void)epa_fail(shm, EPA_ERR_UNSUPPORTED, "%s",
                   no_plugins != NULL ? no_plugins : "there is no such plugin");
    x.machine = d;
    for (uint32_t kind = 0; kind < PLUGIN_KINDS && status == EPA_OK; kind++)
        for (uint32_t i = 0, n = registry_list(registry, &entry); i < n; i++)
            if (entry[i].kind == (enum epa_plugin_kind)kind)
                examine_entry(&x, &entry[i], shm);
    json_object_set_new(d, "schema", json_integer(DOCTOR_SCHEMA));
    json_object_set_new(d, "program", json_text("epa2a"));
    json_object_set_new(d, "runs", json_boolean(shm->status == EPA_OK));
    json_object_set_new(d, "plugins", x.plugins);
    if (status == EPA_OK && d == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory for an examination");
    if (status == EPA_OK) {
        uint32_t n = registry_list(registry, &entry);

        machine_judge(d, no_plugins, entry, n);
    }
    registry_destroy(registry);
    stdout_take_back(own);
    *out = d;
    return status;
}

/* ---- text ---- */

enum { LEFT = 19 };

/* Prints a row. A long `left` has its own line; further lines are aligned with the first. */
static void print_row(FILE *to, const char *left, const char *text)
{
    char lead[64], next[LEFT + 1];

    snprintf(next, sizeof(next), "%*s", LEFT, "");
    snprintf(lead, sizeof(lead), "  %-*s", LEFT - 2, left);
    if (strlen(left) >= LEFT - 2)
        fprintf(to, "%s\n", lead);
    text_fold(to, strlen(left) >= LEFT - 2 ? next : lead, next, text);
}

/* Writes a key in words, without the unit that its value shows. Returns out. */
static char *key_words(const char *key, char out[64])
{
    size_t n = strlen(key);

    n -= n > 6 && strcmp(key + n - 6, "_bytes") == 0 ? 6 : 0;
    n -= n > 3 && strcmp(key + n - 3, "_ns") == 0 ? 3 : 0;
    snprintf(out, 64, "%.*s", (int)n, key);
    for (char *c = out; *c != '\0'; c++)
        *c = *c == '_' ? ' ' : *c;
    return out;
}

/* Adds a value: "avx2, scalar", "version 0.1.0, type release", "mlx5_0, port 1, ACTIVE". Unknown
 * values are left out. `bare`: texts have no key before them. */
static void add_value(struct text *out, const char *key, const json_t *value, bool bare)
{
    double x = json_number_value(value);
    char buffer[64];

    if (json_is_array(value)) {
        for (struct json_walk part = {value}; json_next(&part);)
            add_value(out, key, part.value, true);
        return;
    }
    if (json_is_object(value)) {
        for (struct json_walk part = {value}; json_next(&part);) {
            if (!json_is_null(part.value) && out->bytes > 0)
                text_add(out, ", ");
            if (!json_is_null(part.value) && !(bare && json_is_string(part.value)))
                text_add(out, "%s ",
                         strcmp(key, "environment") == 0 ? part.key : key_words(part.key, buffer));
            add_value(out, part.key, part.value, false);
        }
        return;
    }
    if (bare && out->bytes > 0)
        text_add(out, ", ");
    if (json_is_string(value))
        text_add(out, "%s", json_string_value(value));
    else if (json_is_boolean(value))
        text_add(out, "%s", json_is_true(value) ? "yes" : "no");
    else if (json_is_number(value) && strstr(key, "bytes") != NULL)
        text_add(out, "%s", text_size(buffer, sizeof(buffer), (uint64_t)x));
    else if (json_is_number(value))
        text_add(out, "%.10g%s", x, strstr(key, "_ns") != NULL ? " ns" : "");
}

/* Prints a row for each key, and for each object of a list. */
static void print_section(FILE *to, const char *name, const json_t *section)
{
    char left[64];

    fprintf(to, "%s\n", name);
    for (struct json_walk it = {section}; json_next(&it);) {
        bool rows = json_is_object(json_array_get(it.value, 0));
        size_t n = rows ? json_array_size(it.value) : 1;

        for (size_t i = 0; i < n && !json_is_null(it.value); i++) {
            text_auto text = {0};

            add_value(&text, it.key, rows ? json_array_get(it.value, i) : it.value, rows);
            print_row(to, i == 0 ? key_words(it.key, left) : "",
                      text.bytes > 0 ? text.data : "none");
        }
    }
}

static void print_plugin(FILE *to, const json_t *p)
{
    static const char how[] =
        "[{usable=true}can be used|{loaded=true}cannot be used|cannot be loaded][: {text}]";
    static const char speed[] =
        "links: {links.rate%.1f} GB/s out of each rank while all send, [{links.latency_ns/1e3%.2f} "
        "us for a signal|the time of a signal is unknown, since other programs use the cores]";
    text_auto line = {0}, links = {0};

    (void)fill_add(&line, how, p, NULL);
    print_row(to, json_text_at(p, "name"), line.data);
    if (fill_add(&links, speed, p, NULL))
        print_row(to, "", links.data);
    for (struct json_walk it = {json_at(p, "facts")}; json_next(&it);) {
        text_auto fact = {0};

        text_add(&fact, "%s: %s", it.key, json_string_value(it.value));
        print_row(to, "", fact.data);
    }
}

static void print_plugins(FILE *to, const json_t *plugins)
{
    const char *before = "";

    for (struct json_walk p = {plugins}; json_next(&p);) {
        const char *kind = json_text_at(p.value, "kind");

        if (strcmp(kind, before) != 0)
            fprintf(to, "\n%ss\n", kind);
        before = kind;
        print_plugin(to, p.value);
    }
}

static void print_findings(FILE *to, const char *name, const json_t *findings)
{
    if (json_array_size(findings) > 0)
        fprintf(to, "\n%s\n", name);
    for (struct json_walk f = {findings}; json_next(&f);) {
        print_row(to, "-", json_text_at(f.value, "what"));
        if (*json_text_at(f.value, "fix") != '\0')
            print_row(to, "", json_text_at(f.value, "fix"));
    }
}

void doctor_print(FILE *to, const json_t *d)
{
    print_section(to, "machine", json_at(d, "machine"));
    print_section(to, "\nmemory", json_at(d, "memory"));
    print_section(to, "\ndevices", json_at(d, "devices"));
    print_plugins(to, json_at(d, "plugins"));
    print_findings(to, "warnings", json_at(d, "warnings"));
    print_findings(to, "missing", json_at(d, "missing"));
    fprintf(to, "\n%s\n",
            json_is_true(json_at(d, "runs"))
                ? "Ranks of this host can talk: transport shm runs."
                : "Ranks of this host cannot talk: transport shm does not run.");
}
