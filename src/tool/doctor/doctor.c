/* Tries each plugin by opening it in a separate launch, in order of dependency. Ranks are
 * processes, so that a crash of a library ends its rank only, and pinned memory is released. They
 * are forked before this process creates threads. */
#include "doctor/doctor.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <epa2a/algorithm.h>

#include "base/memory.h"
#include "base/terminal.h"
#include "doctor/machine.h"
#include "ep/ep.h"
#include "launch/program_registry.h"
#include "registry/check.h"
#include "report/lines.h"
#include "report/recorded_variables.h"
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

/* An examination. */
struct exam {
    struct arena *arena;
    struct doctor *out;
    bool quick;
    const struct epa_plugin *seen[PLUGINS]; /* usable plugins */
    uint32_t n;
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

/* Copies the findings of rank 0 about a plugin. */
static void copy_findings(struct arena *arena, uint32_t ranks, const struct leaves *leaves,
                          struct examined *out)
{
    struct session_facts *facts = arena_alloc(arena, sizeof(*facts));

    *facts = leaves->facts;
    out->facts = facts;
    out->ranks = ranks;
    out->bytes_per_ns = leaves->peak.bytes_per_ns;
    out->latency_ns = leaves->peak.latency_ns;
}

/* Calls check(), then open() on each rank; collects facts and measures the links of a transport.
 * All options have their defaults. A failure is explained by the rank's own message, else by the
 * launcher's. */
static enum epa_status probe_plugin(const struct exam *x, const struct epa_backend_plugin *backend,
                                    const struct epa_transport_plugin *transport, uint32_t ranks,
                                    struct examined *out, struct epa_error *err)
{
    struct asked asked = {.backend = backend, .transport = transport, .quick = x->quick};
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
        copy_findings(x->arena, ranks, &asked.leaves[0], out);
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
        return bounded(x->out->machine.n_gpus, least);
    return strcmp(name, "shm") == 0 ? bounded(x->out->machine.facts.cores, least) : least;
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
                                         const struct epa_transport_plugin *transport,
                                         struct examined *out, struct text *how,
                                         struct epa_error *err)
{
    const struct epa_backend_plugin *backend = find_backend(x, transport->memory);
    uint32_t ranks = ranks_for(x, transport->memory, transport->plugin.name, 2);

    if (backend == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "no usable backend has memory of its kind");
    text_add(how, "%u ranks, backend %s%s", ranks, backend->plugin.name,
             transport->between_nodes != NULL
                 ? "; between nodes GPU data take the path shown for that transport"
                 : "");
    return probe_plugin(x, backend, transport, ranks, out, err);
}

/* Launchers that start ranks need nothing; the others need the program that starts the
 * processes. */
static enum epa_status examine_launcher(const struct exam *x, const struct epa_plugin *plugin,
                                        struct text *how, struct epa_error *err)
{
    const struct machine *m = &x->out->machine;

    if (strcmp(plugin->name, "mpi") != 0)
        return EPA_OK;
    if (m->n_programs == 0 || strcmp(m->program[0].name, "mpirun") != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "there is no mpirun on PATH to start ranks with");
    text_add(how, "under %s", m->program[0].path);
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

/* Examines a plugin: writes its use to `how`, and its links and facts to `out` if it was opened. */
static enum epa_status examine_plugin(const struct exam *x, const struct epa_plugin *plugin,
                                      struct examined *out, struct text *how, struct epa_error *err)
{
    const struct epa_backend_plugin *backend = (const struct epa_backend_plugin *)plugin;

    switch (plugin->kind) {
    case EPA_PLUGIN_BACKEND:
        return probe_plugin(x, backend, NULL, ranks_for(x, backend->memory, plugin->name, 1), out,
                            err);
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
    struct examined *out = &x->out->plugin[x->out->n_plugins++];
    struct epa_error why = {EPA_OK, ""};
    text_auto how = {0};
    enum epa_status status;

    *out = (struct examined){.kind = entry->kind,
                             .name = arena_printf(x->arena, "%s", entry->name),
                             .text = "",
                             .loaded = entry->plugin != NULL};
    if (entry->plugin == NULL)
        status = epa_fail(&why, EPA_ERR_UNSUPPORTED, "%s", entry->why);
    else
        status = examine_plugin(x, entry->plugin, out, &how, &why);
    out->usable = status == EPA_OK;
    if (status != EPA_OK || how.data != NULL)
        out->text = arena_printf(x->arena, "%s", status == EPA_OK ? how.data : why.text);
    if (status == EPA_OK && x->n < PLUGINS)
        x->seen[x->n++] = entry->plugin;
    if (entry->kind == EPA_PLUGIN_TRANSPORT && strcmp(entry->name, "shm") == 0) {
        *shm = why;
        shm->status = status;
    }
}

enum epa_status doctor_examine(const char *const *plugin_path, bool quick, struct arena *arena,
                               struct doctor *out, struct epa_error *shm, struct epa_error *err)
{
    struct exam x = {.arena = arena, .out = out, .quick = quick};
    const struct registry_entry *entry;
    struct registry *registry = NULL;
    FILE *own = stdout_lend();
    enum epa_status status = program_registry_create(plugin_path, &registry, err);

    *out = (struct doctor){0};
    if (status == EPA_OK) {
        uint32_t n = registry_list(registry, &entry);
        const char *no_plugins = registry_empty(registry);

        (void)epa_fail(shm, EPA_ERR_UNSUPPORTED, "%s",
                       no_plugins != NULL ? no_plugins : "there is no such plugin");
        machine_collect("", arena, &out->machine);
        out->plugin = arena_alloc(arena, n * sizeof(*out->plugin));
        for (uint32_t kind = 0; kind < PLUGIN_KINDS; kind++)
            for (uint32_t i = 0; i < n; i++)
                if (entry[i].kind == (enum epa_plugin_kind)kind)
                    examine_entry(&x, &entry[i], shm);
        out->runs = shm->status == EPA_OK;
        machine_judge(&out->machine, out->plugin, out->n_plugins, no_plugins, entry, n, arena,
                      &out->found);
    }
    registry_destroy(registry);
    stdout_take_back(own);
    return status;
}

/* ---- text ---- */

enum { FACT_LEFT = 19 };

/* Prints a row. A long `left` has its own line; further lines are aligned with the first. Variables of
 * the environment and names of files may hold any bytes. */
static void print_row(FILE *to, const char *left, const char *text)
{
    char lead[64], next[FACT_LEFT + 1], *clean = memory_printf("%s", text);

    snprintf(next, sizeof(next), "%*s", FACT_LEFT, "");
    snprintf(lead, sizeof(lead), "  %-*s", FACT_LEFT - 2, left);
    if (strlen(left) >= FACT_LEFT - 2)
        fprintf(to, "%s\n", lead);
    text_fold(to, strlen(left) >= FACT_LEFT - 2 ? next : lead, next, text_clean(clean));
    free(clean);
}

/* Prints a row of a list, of which only the first row has the name; "none" for an empty list. */
static void print_item(FILE *to, const char *left, uint32_t i, const struct text *text)
{
    print_row(to, i == 0 ? left : "", text->bytes > 0 ? text->data : "none");
}

/* Prints a text that is known. */
static void print_known(FILE *to, const char *left, const char *text)
{
    if (text[0] != '\0')
        print_row(to, left, text);
}

static void print_count(FILE *to, const char *left, uint64_t n)
{
    char text[32];

    snprintf(text, sizeof(text), "%.10g", (double)n);
    print_row(to, left, text);
}

/* Prints a count; 0: unknown. */
static void print_known_count(FILE *to, const char *left, uint64_t n)
{
    if (n > 0)
        print_count(to, left, n);
}

/* Prints a size; 0 or UINT64_MAX: unknown, or no limit. */
static void print_size(FILE *to, const char *left, uint64_t bytes)
{
    char text[32];

    if (bytes > 0 && bytes <= INT64_MAX)
        print_row(to, left, text_size(text, sizeof(text), bytes));
}

/* Prints a number with 9 digits and its unit; NaN: unknown. */
static void print_number(FILE *to, const char *left, double x, const char *unit)
{
    char text[64];

    if (!isfinite(x))
        return;
    snprintf(text, sizeof(text), "%.9g", x);
    snprintf(text, sizeof(text), "%.10g%s",
             fabs(x) >= 1e9 || x != floor(x) ? strtod(text, NULL) : x, unit);
    print_row(to, left, text);
}

static void print_flag(FILE *to, const char *left, bool set)
{
    print_row(to, left, set ? "yes" : "no");
}

static void print_build(FILE *to, const struct build_facts *b)
{
    text_auto text = {0};

    text_add(&text, "version %s", b->version);
    if (b->git != NULL && b->git[0] != '\0')
        text_add(&text, ", git %s", b->git);
    text_add(&text, ", plugin abi %u, compiler %s, type %s, sanitizers %s, debug %s, libc glibc %s",
             EPA_ABI, b->compiler, b->type, b->sanitizers, b->debug ? "yes" : "no", b->libc);
    text_add(&text, ", isa %s", b->isa);
    if (b->isa_refused != NULL && b->isa_refused[0] != '\0')
        text_add(&text, ", isa refused %s", b->isa_refused);
    print_row(to, "build", text.data);
}

static void add_variable(void *arg, const char *name, size_t bytes, const char *value)
{
    struct text *text = arg;

    text_add(text, "%s%.*s %s", text->bytes > 0 ? ", " : "", (int)bytes, name, value);
}

static void print_environment(FILE *to)
{
    text_auto text = {0};

    recorded_variables_each(add_variable, &text);
    print_item(to, "environment", 0, &text);
}

static void print_machine(FILE *to, const struct machine *m)
{
    const struct machine_facts *f = &m->facts;
    text_auto isas = {0};

    fprintf(to, "machine\n");
    print_known(to, "host", f->host);
    print_row(to, "kernel", f->kernel[0] != '\0' ? f->kernel : "none");
    print_known(to, "arch", f->arch);
    print_known(to, "cpu", f->cpu);
    print_count(to, "cores", f->cores);
    print_known_count(to, "sockets", f->sockets);
    print_known_count(to, "numa nodes", f->numa_nodes);
    print_size(to, "memory", f->memory_bytes);
    print_known(to, "clocksource", f->clocksource);
    print_number(to, "timer", f->timer_ns, " ns");
    print_known(to, "huge pages", f->huge_pages);
    print_known(to, "shmem huge pages", f->shmem_huge_pages);
    print_number(to, "load average", f->load_average, "");
    print_build(to, &f->build);
    print_environment(to);
    print_known_count(to, "threads per core", f->threads_per_core);
    print_known(to, "governor", f->governor);
    print_size(to, "l1d", f->cache_bytes[1]);
    print_size(to, "l2", f->cache_bytes[2]);
    print_size(to, "l3", f->cache_bytes[3]);
    print_number(to, "cores quota", m->cores_quota, "");
    if (m->cores_online >= 0)
        print_count(to, "cores online", (uint64_t)m->cores_online);
    print_flag(to, "virtual", m->virtual);
    print_flag(to, "numa balancing", m->numa_balancing);
    for (uint32_t i = 0; i < m->n_isas; i++)
        text_add(&isas, "%s%s", i > 0 ? ", " : "", m->isa[i]);
    print_item(to, "isas", 0, &isas);
}

static void print_memory(FILE *to, const struct machine_memory *m)
{
    char size[32], first[32];
    text_auto huge = {0}, shm = {0};

    fprintf(to, "\nmemory\n");
    if (m->available_bytes <= INT64_MAX)
        print_row(to, "available", text_size(size, sizeof(size), m->available_bytes));
    print_known(to, "available by", m->available_by);
    if (m->address_space_bytes <= INT64_MAX)
        print_row(to, "address space", text_size(size, sizeof(size), m->address_space_bytes));
    if (m->locked_bytes <= INT64_MAX)
        print_row(to, "locked", text_size(size, sizeof(size), m->locked_bytes));
    if (m->open_files <= INT64_MAX)
        print_count(to, "open files", m->open_files);
    if (m->huge_bytes > 0)
        text_add(&huge, "bytes %s, ", text_size(size, sizeof(size), m->huge_bytes));
    text_add(&huge, "pages %" PRIu64 ", free %" PRIu64, m->huge_pages, m->huge_free);
    print_row(to, "reserved huge pages", huge.data);
    if (m->shm_bytes > 0)
        text_add(&shm, "bytes %s, ", text_size(size, sizeof(size), m->shm_bytes));
    text_add(&shm, "free %s, left files %" PRIu64 ", left %s",
             text_size(size, sizeof(size), m->shm_free_bytes), m->left_files,
             text_size(first, sizeof(first), m->left_bytes));
    if (m->left_first[0] != '\0')
        text_add(&shm, ", left first %s", m->left_first);
    print_row(to, "dev shm", shm.data);
}

static void print_ports(FILE *to, const struct machine *m)
{
    for (uint32_t i = 0; i < m->n_ports; i++) {
        const struct machine_port *port = &m->port[i];
        const char *const known[] = {port->state, port->link, port->rate};
        text_auto text = {0};

        text_add(&text, "%s, port %" PRIu64, port->device, port->number);
        for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
            text_add(&text, "%s%s", known[k][0] != '\0' ? ", " : "", known[k]);
        print_item(to, "rdma", i, &text);
    }
    if (m->n_ports == 0)
        print_row(to, "rdma", "none");
}

static void print_networks(FILE *to, const struct machine *m)
{
    for (uint32_t i = 0; i < m->n_networks; i++) {
        text_auto text = {0};

        text_add(&text, "%s", m->network[i].name);
        if (m->network[i].megabits > 0)
            text_add(&text, ", megabits %" PRIu64, m->network[i].megabits);
        print_item(to, "networks", i, &text);
    }
    if (m->n_networks == 0)
        print_row(to, "networks", "none");
}

static void print_programs(FILE *to, const struct machine *m)
{
    for (uint32_t i = 0; i < m->n_programs; i++) {
        const struct machine_program *program = &m->program[i];
        text_auto text = {0};

        text_add(&text, "%s, %s%s%s", program->name, program->path,
                 program->version[0] != '\0' ? ", " : "", program->version);
        print_item(to, "programs", i, &text);
    }
    if (m->n_programs == 0)
        print_row(to, "programs", "none");
}

static void print_devices(FILE *to, const struct machine *m)
{
    text_auto gpus = {0};

    fprintf(to, "\ndevices\n");
    print_ports(to, m);
    for (uint32_t i = 0; i < m->n_gpus; i++)
        text_add(&gpus, "%s%s", i > 0 ? ", " : "", m->gpu[i]);
    print_item(to, "gpus", 0, &gpus);
    print_known(to, "gpu driver", m->gpu_driver);
    print_networks(to, m);
    print_programs(to, m);
    for (uint32_t i = 0; i < m->n_libraries; i++) {
        const struct library_found *library = &m->library[i];
        text_auto text = {0};

        text_add(&text, "%s, %s, %s, %s", library->name, library->file, library->version,
                 library->use);
        print_item(to, "libraries", i, &text);
    }
    if (m->n_libraries == 0)
        print_row(to, "libraries", "none");
}

static void print_plugin(FILE *to, const struct examined *p)
{
    text_auto line = {0}, links = {0};

    text_add(&line, "%s%s%s",
             p->usable   ? "can be used"
             : p->loaded ? "cannot be used"
                         : "cannot be loaded",
             p->text[0] != '\0' ? ": " : "", p->text);
    print_row(to, p->name, line.data);
    if (p->bytes_per_ns > 0) {
        text_add(&links, "links: %.1f GB/s out of each rank while all send, ", p->bytes_per_ns);
        if (p->latency_ns > 0)
            text_add(&links, "%.2f us for a signal", p->latency_ns / 1e3);
        else
            text_add(&links, "the time of a signal is unknown, since other programs use the cores");
        print_row(to, "", links.data);
    }
    for (uint32_t i = 0; p->facts != NULL && i < p->facts->n; i++) {
        text_auto fact = {0};

        text_add(&fact, "%s: %s", p->facts->fact[i].key, p->facts->fact[i].value);
        print_row(to, "", fact.data);
    }
}

static void print_plugins(FILE *to, const struct doctor *d)
{
    for (uint32_t i = 0; i < d->n_plugins; i++) {
        const struct examined *p = &d->plugin[i];

        if (i == 0 || p->kind != p[-1].kind)
            fprintf(to, "\n%ss\n", plugin_kind_name(p->kind));
        print_plugin(to, p);
    }
}

static void print_findings(FILE *to, const char *name, const struct finding *finding, uint32_t n)
{
    if (n > 0)
        fprintf(to, "\n%s\n", name);
    for (uint32_t i = 0; i < n; i++) {
        print_row(to, "-", finding[i].what);
        if (finding[i].fix[0] != '\0')
            print_row(to, "", finding[i].fix);
    }
}

void doctor_print(FILE *to, const struct doctor *d)
{
    print_machine(to, &d->machine);
    print_memory(to, &d->machine.memory);
    print_devices(to, &d->machine);
    print_plugins(to, d);
    print_findings(to, "warnings", d->found.warning, d->found.n_warnings);
    print_findings(to, "missing", d->found.missing, d->found.n_missing);
    fprintf(to, "\n%s\n",
            d->runs ? "Ranks of this host can talk: transport shm runs."
                    : "Ranks of this host cannot talk: transport shm does not run.");
}
