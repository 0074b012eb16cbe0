/* See probe.h: a launch of its own for each plugin. */
#include "doctor/probe.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "plugin/registry.h"

enum { HEAP_BYTES = 4 << 20, SIGNALS = PEAK_SIGNALS };

static const uint64_t timeout_ns = 20000000000u;
static const uint64_t grace_ns = 2000000000u;

/* What each rank leaves in memory that all processes share. */
struct leaves {
    enum epa_status status;
    char why[512];
    struct probe probe;
};

struct asked {
    const struct epa_backend_plugin *backend;
    const struct epa_transport_plugin *transport; /* NULL: the backend alone */
    struct leaves *leaves;                        /* [ranks] */
};

static void keep_fact(void *arg, const char *key, const char *value)
{
    struct probe_facts *to = arg;

    if (to->n == PROBE_FACTS)
        return;
    snprintf(to->fact[to->n].key, sizeof(to->fact->key), "%s", key);
    snprintf(to->fact[to->n].value, sizeof(to->fact->value), "%s", value);
    to->n++;
}

static enum epa_status with_transport(const struct asked *asked, struct epa_bootstrap *boot,
                                      struct epa_backend *backend, struct probe *out,
                                      struct epa_error *err)
{
    const struct epa_transport_plugin *plugin = asked->transport;
    struct epa_transport *t = NULL;
    enum epa_status status =
        plugin->open(&(struct epa_transport_params){.boot = boot,
                                                    .backend = backend,
                                                    .config = plugin->plugin.options.defaults,
                                                    .heap_bytes = HEAP_BYTES,
                                                    .signals = SIGNALS},
                     &t, err);

    if (status != EPA_OK)
        return status;
    if (t->ops->describe != NULL)
        t->ops->describe(t, keep_fact, &out->facts);
    status = peak_measure(boot, backend, t, 0, &out->peak, err);
    if (status == EPA_OK)
        status = boot->barrier(boot); /* nobody leaves while another measures */
    t->ops->close(t);
    return status;
}

static enum epa_status rank_main(struct epa_bootstrap *boot, void *arg)
{
    const struct asked *asked = arg;
    struct leaves *mine = &asked->leaves[boot->world.rank];
    const struct epa_backend_plugin *plugin = asked->backend;
    struct epa_backend *backend = NULL;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = plugin->open(plugin->plugin.options.defaults, boot, &backend, &err);

    if (status == EPA_OK && asked->transport != NULL)
        status = with_transport(asked, boot, backend, &mine->probe, &err);
    else if (status == EPA_OK && backend->ops->describe != NULL)
        backend->ops->describe(backend, keep_fact, &mine->probe.facts);
    if (backend != NULL)
        backend->ops->close(backend);
    snprintf(mine->why, sizeof(mine->why), "%s", err.text);
    mine->status = status;
    return status;
}

/* A rank's own words where one has some; else those of the launcher. */
static enum epa_status explain(const struct leaves *leaves, uint32_t ranks, enum epa_status status,
                               const struct epa_error *why, struct epa_error *err)
{
    for (uint32_t r = 0; r < ranks; r++) {
        if (leaves[r].status == status && leaves[r].why[0] != '\0')
            return epa_fail(err, status, "%s", leaves[r].why);
    }
    return epa_fail(err, status, "%s", why->text[0] != '\0' ? why->text : "it cannot be opened");
}

static enum epa_status launch(struct asked *asked, uint32_t ranks, struct probe *out,
                              struct epa_error *err)
{
    size_t bytes = ranks * sizeof(struct leaves);
    struct epa_error why = {EPA_OK, ""};
    uint32_t failed_rank = 0, leaked_ranks = 0;
    enum epa_status status;

    asked->leaves = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (asked->leaves == MAP_FAILED)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for what %u ranks find", ranks);
    status = launch_fork_plugin.launch(launch_fork_plugin.plugin.options.defaults,
                                       &(struct epa_launch){.ranks = ranks,
                                                            .threads = 1,
                                                            .stop_fd = -1,
                                                            .grace_ns = grace_ns,
                                                            .timeout_ns = timeout_ns,
                                                            .rank_main = rank_main,
                                                            .arg = asked,
                                                            .block = (char *)asked->leaves,
                                                            .block_bytes = sizeof(struct leaves),
                                                            .fingerprint = "",
                                                            .failed_rank = &failed_rank,
                                                            .leaked_ranks = &leaked_ranks},
                                       &why);
    if (status == EPA_OK) {
        *out = asked->leaves[0].probe;
        out->ranks = ranks;
    } else {
        status = explain(asked->leaves, ranks, status, &why, err);
    }
    munmap(asked->leaves, bytes);
    return status;
}

enum epa_status probe_backend(const struct epa_backend_plugin *backend, uint32_t ranks,
                              struct probe *out, struct epa_error *err)
{
    struct asked asked = {.backend = backend};

    return launch(&asked, ranks, out, err);
}

enum epa_status probe_transport(const struct epa_transport_plugin *transport,
                                const struct epa_backend_plugin *backend, uint32_t ranks,
                                struct probe *out, struct epa_error *err)
{
    struct asked asked = {.backend = backend, .transport = transport};
    enum epa_status status = EPA_OK;

    if (transport->check != NULL)
        status = transport->check(transport->plugin.options.defaults, err);
    return status == EPA_OK ? launch(&asked, ranks, out, err) : status;
}
