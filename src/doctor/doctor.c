/* The examination: plugins one by one, in the order in which they need each other. What plugins
 * can do here is found out by opening them, in a launch of its own for each: ranks are processes,
 * so that a library that crashes takes nobody with it, and memory that it pins is given back. They
 * are forked before this process has had threads of its own. */
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
 * options are as the plugin has them. A rank's own words say why not, where one has some; else
 * those of the launcher. */
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

/* ---- what it means ---- */

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

/* ---- all of it ---- */

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
