/* Checks that the selected plugins fit together. */
#include "options/requirements.h"

static bool is_host(const struct selection *s)
{
    return s->backend->memory == EPA_MEMORY_HOST;
}

uint32_t selection_flags(const struct selection *s)
{
    uint32_t flags = s->transport->flags;

    return s->between == NULL ? flags
                              : (flags & ~(uint32_t)EPA_TRANSPORT_LOAD_STORE) | EPA_TRANSPORT_NODES;
}

enum epa_status selection_check_operation(const struct selection *s, enum epa_op op,
                                          struct epa_error *err)
{
    static const char *const name[] = {
        [EPA_OP_MOE] = "dispatch and combine",
        [EPA_OP_AG_GEMM] = "AllGather and matrix product",
        [EPA_OP_ALLGATHER] = "AllGather",
    };

    if (s->algorithm->op == op)
        return EPA_OK;
    return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.name",
                        "algorithm '%s' is for another operation than %s",
                        s->algorithm->plugin.name, name[op]);
}

enum epa_status selection_check_memory(const struct selection *s, struct epa_error *err)
{
    const char *backend = s->backend->plugin.name;

    if ((s->algorithm->memory & s->backend->memory) == 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "algorithm.name backend.name",
                            "algorithm '%s' has no code for backend '%s'",
                            s->algorithm->plugin.name, backend);
    if ((s->transport->memory & s->backend->memory) == 0)
        return epa_fail_key(err, EPA_ERR_CONFIG, "transport.name backend.name",
                            "transport '%s' has no heap in the memory of backend '%s'",
                            s->transport->plugin.name, backend);
    return EPA_OK;
}

enum epa_status selection_check_flags(const struct selection *s, struct epa_error *err)
{
    uint32_t needs = is_host(s) ? s->algorithm->needs_host : s->algorithm->needs_cuda;
    uint32_t missing = needs & ~selection_flags(s);

    if (s->between != NULL && missing == EPA_TRANSPORT_LOAD_STORE)
        return epa_fail_key(err, EPA_ERR_CONFIG, "transport.between_nodes",
                            "algorithm '%s' stores to all ranks from its kernels, and with "
                            "transport.between_nodes: %s those of other nodes are reached by puts",
                            s->algorithm->plugin.name, s->between->plugin.name);
    if (missing != 0)
        return epa_fail_key(
            err, EPA_ERR_CONFIG, "algorithm.name transport.name",
            "algorithm '%s' needs a feature that transport '%s' lacks; `epa2a list` "
            "shows both",
            s->algorithm->plugin.name, s->transport->plugin.name);
    return EPA_OK;
}

bool selection_spans_nodes(const struct selection *s, bool device_nodes)
{
    return (selection_flags(s) & EPA_TRANSPORT_NODES) != 0 || (!is_host(s) && device_nodes);
}

enum epa_status selection_check_between(const struct epa_transport_plugin *between,
                                        struct epa_error *err)
{
    if ((between->memory & EPA_MEMORY_HOST) != 0 && (between->flags & EPA_TRANSPORT_HOST) != 0)
        return EPA_OK;
    return epa_fail_key(err, EPA_ERR_CONFIG, "transport.between_nodes",
                        "transport '%s' cannot stand between nodes: its heap is not in host memory",
                        between->plugin.name);
}

enum epa_status selection_check_workers(const struct selection *s, const void *backend_config,
                                        const struct epa_footprint *footprint,
                                        struct epa_error *err)
{
    uint32_t least = footprint->least_workers, workers;

    if (least == 0 || !is_host(s))
        return EPA_OK;
    workers = s->backend->threads(backend_config);
    if (workers >= least)
        return EPA_OK;
    return epa_fail_key(err, EPA_ERR_CONFIG, "backend.workers",
                        "backend.workers (%u) are too few: '%s' needs %u with these options",
                        workers, s->algorithm->plugin.name, least);
}

enum epa_status selection_check_layout(const struct selection *s, enum epa_layout layout,
                                       const struct epa_footprint *footprint, struct epa_error *err)
{
    static const char *const name[] = {[EPA_LAYOUT_EXPERT] = "expert", [EPA_LAYOUT_RANK] = "rank"};

    if (footprint->u.moe.layout == layout)
        return EPA_OK;
    return epa_fail_key(
        err, EPA_ERR_CONFIG, "algorithm.name",
        "algorithm '%s' delivers rows by %s with these options, and the shape requires "
        "rows by %s",
        s->algorithm->plugin.name, name[footprint->u.moe.layout], name[layout]);
}
