/* The examination: plugins one by one, in the order in which they need each other. What plugins can do here is found out by opening them, in a launch of its own for each:
 * ranks are processes, so that a library that crashes takes nobody with it, and memory that it pins
 * is given back. They are forked before this process has had threads of its own. */
#include "doctor/doctor.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "plugin/registry.h"

enum { RANKS_MOST = 8, HEAP_BYTES = 4 << 20 };

static const uint64_t timeout_ns = 20000000000u, grace_ns = 2000000000u;

static const enum epa_plugin_kind order[] = {EPA_PLUGIN_BACKEND, EPA_PLUGIN_LAUNCHER,
                                             EPA_PLUGIN_TRANSPORT, EPA_PLUGIN_ALGORITHM};

/* ---- opening ---- */

/* What each rank leaves in memory that all processes share. */
struct leaves {
    enum epa_status status;
    char why[512];
    struct peak peak;
    struct session_facts facts;
};

struct asked {
    const struct epa_backend_plugin *backend;
    const struct epa_transport_plugin *transport; /* NULL: the backend alone */
    bool quick;                                   /* its links are not measured */
    struct leaves *leaves;                        /* [ranks] */
};

static enum epa_status with_transport(const struct asked *asked, struct epa_bootstrap *boot,
                                      struct epa_backend *backend, struct leaves *out,
                                      struct epa_error *err)
{
    const struct epa_transport_plugin *plugin = asked->transport;
    struct epa_transport *t = NULL;
    enum epa_status status =
        plugin->open(&(struct epa_transport_params){.boot = boot,
                                                    .backend = backend,
                                                    .config = plugin->plugin.options.defaults,
                                                    .heap_bytes = HEAP_BYTES,
                                                    .signals = PEAK_SIGNALS},
                     &t, err);

    if (status != EPA_OK)
        return status;
    if (t->ops->describe != NULL)
        t->ops->describe(t, session_keep_fact, &out->facts);
    if (!asked->quick)
        status = peak_measure(boot, backend, t, 0, &out->peak, err);
    if (status == EPA_OK)
        status = boot->barrier(boot); /* nobody leaves while another measures */
    t->ops->close(t);
    return status;
}

static enum epa_status probe_main(struct epa_bootstrap *boot, void *arg)
{
    const struct asked *asked = arg;
    struct leaves *mine = &asked->leaves[boot->world.rank];
    const struct epa_backend_plugin *plugin = asked->backend;
    struct epa_backend *backend = NULL;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = plugin->open(plugin->plugin.options.defaults, boot, &backend, &err);

    if (status == EPA_OK && asked->transport != NULL)
        status = with_transport(asked, boot, backend, mine, &err);
    else if (status == EPA_OK && backend->ops->describe != NULL)
        backend->ops->describe(backend, session_keep_fact, &mine->facts);
    if (backend != NULL)
        backend->ops->close(backend);
    snprintf(mine->why, sizeof(mine->why), "%s", err.text);
    mine->status = status;
    return status;
}

/* check(), then open() on each rank; asks what it is and measures the links of a transport. All
 * options are as the plugin has them. A rank's own words say why not, where one has some; else those
 * of the launcher. */
static enum epa_status probe(const struct epa_backend_plugin *backend,
                             const struct epa_transport_plugin *transport, bool quick,
                             uint32_t ranks, struct doctor_plugin *out, struct epa_error *err)
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
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for what %u ranks find", ranks);
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
        out->ranks = ranks;
        out->peak = asked.leaves[0].peak;
        out->facts = asked.leaves[0].facts;
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

/* What is known of a plugin that has been looked at, beyond what is told of it. */
struct exam {
    struct doctor *doctor;
    bool quick;
    const struct registry_entry *entry;
    uint32_t entries;
    const struct epa_plugin *seen[DOCTOR_PLUGINS]; /* as doctor->plugin */
};

const struct doctor_plugin *doctor_plugin(const struct doctor *d, enum epa_plugin_kind kind,
                                          const char *name)
{
    for (uint32_t i = 0; i < d->plugins; i++) {
        if (d->plugin[i].kind == kind && strcmp(d->plugin[i].name, name) == 0)
            return &d->plugin[i];
    }
    return NULL;
}

EPA_PRINTF(3, 4)
static void refuse(struct doctor_plugin *p, enum epa_status status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(p->text, sizeof(p->text), fmt, args);
    va_end(args);
    p->status = status;
    p->usable = false;
}

/* A usable backend with memory of these kinds, the host's first; NULL: none. */
static const struct epa_backend_plugin *find_backend(const struct exam *x, uint32_t memory)
{
    const struct epa_backend_plugin *found = NULL;

    for (uint32_t i = 0; i < x->doctor->plugins; i++) {
        const struct epa_backend_plugin *backend = (const struct epa_backend_plugin *)x->seen[i];

        if (x->doctor->plugin[i].kind != EPA_PLUGIN_BACKEND || !x->doctor->plugin[i].usable ||
            (backend->memory & memory) == 0)
            continue;
        if (found == NULL || backend->memory == EPA_MEMORY_HOST)
            found = backend;
    }
    return found;
}

static uint32_t bounded(uint32_t n, uint32_t least, uint32_t most)
{
    return n < least ? least : n > most ? most : n;
}

static uint32_t ranks_for(const struct exam *x, uint32_t memory, const char *name)
{
    const struct machine *m = &x->doctor->machine;

    if ((memory & EPA_MEMORY_HOST) == 0)
        return bounded(m->gpus, 2, RANKS_MOST);
    return strcmp(name, "shm") == 0 ? bounded(m->facts.cores, 2, RANKS_MOST) : 2;
}

static void examine_backend(const struct exam *x, const struct epa_plugin *plugin,
                            struct doctor_plugin *p)
{
    const struct epa_backend_plugin *backend = (const struct epa_backend_plugin *)plugin;
    uint32_t ranks = (backend->memory & EPA_MEMORY_HOST) != 0
                         ? 1
                         : bounded(x->doctor->machine.gpus, 1, RANKS_MOST);
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = probe(backend, NULL, true, ranks, p, &err);

    if (status != EPA_OK)
        refuse(p, status, "%s", err.text);
}

/* Launchers that start ranks need nothing; the others need whoever has started them. */
static void examine_launcher(const struct exam *x, const struct epa_plugin *plugin,
                             struct doctor_plugin *p)
{
    const struct machine_program *mpirun = machine_program(&x->doctor->machine, "mpirun");

    (void)plugin;
    if (strcmp(p->name, "mpi") != 0)
        return;
    if (mpirun == NULL || mpirun->path[0] == '\0')
        refuse(p, EPA_ERR_UNSUPPORTED, "there is no mpirun on PATH to start ranks with");
    else
        snprintf(p->text, sizeof(p->text), "under %s", mpirun->path);
}

static void examine_transport(const struct exam *x, const struct epa_plugin *plugin,
                              struct doctor_plugin *p)
{
    const struct epa_transport_plugin *transport = (const struct epa_transport_plugin *)plugin;
    const struct epa_backend_plugin *backend = find_backend(x, transport->memory);
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;

    if (backend == NULL) {
        refuse(p, EPA_ERR_UNSUPPORTED, "no backend that can be used here has memory for it");
        return;
    }
    status = probe(backend, transport, x->quick, ranks_for(x, transport->memory, p->name), p, &err);
    if (status != EPA_OK)
        refuse(p, status, "%s", err.text);
    else
        snprintf(p->text, sizeof(p->text), "%u ranks, backend %s%s", p->ranks, backend->plugin.name,
                 transport->between_nodes != NULL
                     ? "; between nodes data are staged: transports there take host memory alone"
                     : "");
}

/* Whether an algorithm has code for what a transport gives. */
static bool fits(const struct epa_algorithm_plugin *algorithm,
                 const struct epa_transport_plugin *transport)
{
    uint32_t memory = algorithm->memory & transport->memory;

    if ((memory & EPA_MEMORY_HOST) != 0 && (algorithm->needs_host & ~transport->flags) == 0)
        return true;
    return (memory & EPA_MEMORY_CUDA) != 0 && (algorithm->needs_cuda & ~transport->flags) == 0;
}

static void examine_algorithm(const struct exam *x, const struct epa_plugin *plugin,
                              struct doctor_plugin *p)
{
    const struct epa_algorithm_plugin *algorithm = (const struct epa_algorithm_plugin *)plugin;
    size_t bytes = 0;

    for (uint32_t i = 0; i < x->doctor->plugins; i++) {
        const struct doctor_plugin *other = &x->doctor->plugin[i];

        if (other->kind != EPA_PLUGIN_TRANSPORT || !other->usable ||
            !fits(algorithm, (const struct epa_transport_plugin *)x->seen[i]) ||
            bytes + sizeof(other->name) > sizeof(p->text))
            continue;
        bytes += (size_t)snprintf(p->text + bytes, sizeof(p->text) - bytes, "%s%s",
                                  bytes == 0 ? "over " : ", ", other->name);
    }
    if (bytes == 0)
        refuse(p, EPA_ERR_UNSUPPORTED, "no transport that can be used here has what it needs");
}

static void examine_plugin(struct exam *x, const struct registry_entry *entry)
{
    static void (*const examine[])(const struct exam *, const struct epa_plugin *,
                                   struct doctor_plugin *) = {
        [EPA_PLUGIN_BACKEND] = examine_backend,
        [EPA_PLUGIN_LAUNCHER] = examine_launcher,
        [EPA_PLUGIN_TRANSPORT] = examine_transport,
        [EPA_PLUGIN_ALGORITHM] = examine_algorithm,
    };
    struct doctor *d = x->doctor;
    struct doctor_plugin *p = &d->plugin[d->plugins];

    if (d->plugins == DOCTOR_PLUGINS)
        return;
    p->kind = entry->kind;
    p->loaded = entry->plugin != NULL;
    p->usable = true;
    snprintf(p->name, sizeof(p->name), "%s", entry->name);
    if (!p->loaded)
        refuse(p, EPA_ERR_UNSUPPORTED, "%s", entry->why);
    else
        examine[entry->kind](x, entry->plugin, p);
    x->seen[d->plugins++] = entry->plugin;
}

static void examine_plugins(struct doctor *d, struct registry *registry, bool quick)
{
    struct exam x = {.doctor = d, .quick = quick};
    const struct doctor_plugin *shm;

    x.entries = registry_list(registry, &x.entry);
    for (size_t k = 0; k < sizeof(order) / sizeof(order[0]); k++) {
        for (uint32_t i = 0; i < x.entries; i++) {
            if (x.entry[i].kind == order[k])
                examine_plugin(&x, &x.entry[i]);
        }
    }
    shm = doctor_plugin(d, EPA_PLUGIN_TRANSPORT, "shm");
    d->shm = shm == NULL ? EPA_ERR_UNSUPPORTED : shm->status;
}

enum epa_status doctor_examine(const char *const *plugin_path, bool quick, struct doctor **out,
                               struct epa_error *err)
{
    struct registry *registry = NULL;
    struct doctor *d = calloc(1, sizeof(*d));
    enum epa_status status;

    if (d == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for an examination");
    status = registry_create(plugin_path, &registry, err);
    if (status != EPA_OK) {
        free(d);
        return status;
    }
    machine_collect("", &d->machine);
    if (registry_empty(registry) != NULL)
        snprintf(d->empty, sizeof(d->empty), "%s", registry_empty(registry));
    examine_plugins(d, registry, quick);
    registry_destroy(registry);
    doctor_judge(d);
    *out = d;
    return EPA_OK;
}

void doctor_destroy(struct doctor *d)
{
    if (d == NULL)
        return;
    machine_finish(&d->machine);
    free(d);
}
