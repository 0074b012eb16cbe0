/* Construction and calls of an algorithm on one rank: backend, transport, plan, algorithm, stages. */
#include "ep/ep.h"

#include <string.h>

#include "ep/ep_explain.h"

/* ---- comm ---- */

enum epa_status ep_comm_open(struct ep_comm *comm, struct epa_bootstrap *boot,
                             const struct ep_choice *backend, uint64_t timeout_ns,
                             struct epa_error *err)
{
    const struct epa_backend_plugin *plugin = (const void *)backend->plugin;

    boot->timeout_ns = timeout_ns;
    *comm = (struct ep_comm){.boot = boot, .timeout_ns = timeout_ns};
    return plugin->open(backend->config, boot, &comm->backend, err);
}

enum epa_status ep_comm_begin(struct ep_comm *comm, void *stream, struct epa_error *err)
{
    struct epa_backend *b = comm->backend;
    enum epa_status status = b->ops->begin != NULL ? b->ops->begin(b, stream) : EPA_OK;

    if (status != EPA_OK)
        b->ops->explain(b, err);
    return status;
}

void ep_comm_end(struct ep_comm *comm)
{
    if (comm->backend->ops->end != NULL)
        comm->backend->ops->end(comm->backend);
}

enum epa_status ep_comm_finish(struct ep_comm *comm, struct epa_error *err)
{
    struct epa_backend *b = comm->backend;
    enum epa_status status = b->ops->finish != NULL ? b->ops->finish(b) : EPA_OK;

    if (status != EPA_OK)
        b->ops->explain(b, err);
    return status;
}

void ep_comm_stop(struct ep_comm *comm)
{
    if (comm->backend != NULL)
        (void)comm->backend->ops->sync(comm->backend); /* the caller has the first failure */
}

void ep_comm_close(struct ep_comm *comm)
{
    if (comm->backend != NULL)
        comm->backend->ops->close(comm->backend);
    comm->backend = NULL;
}

enum epa_status ep_comm_barrier(struct ep_comm *comm, struct epa_error *err)
{
    return ep_explain_boot(comm, comm->boot->barrier(comm->boot), err);
}

/* ---- transport ---- */

enum epa_status ep_open(struct ep *ep, struct ep_comm *comm, const struct ep_transport_params *p,
                        struct epa_error *err)
{
    const struct epa_transport_plugin *plugin = (const void *)p->transport.plugin;

    *ep = (struct ep){.comm = comm};
    return plugin->open(&(struct epa_transport_params){.boot = comm->boot,
                                                       .backend = comm->backend,
                                                       .config = p->transport.config,
                                                       .heap_bytes = p->heap_bytes,
                                                       .heap = p->heap,
                                                       .signals = p->signals,
                                                       .between = (const void *)p->between.plugin,
                                                       .between_config = p->between.config,
                                                       .trace = p->trace},
                        &ep->transport, err);
}

void ep_close(struct ep *ep)
{
    if (ep->transport != NULL)
        ep->transport->ops->close(ep->transport);
    ep->transport = NULL;
}

enum epa_status ep_barrier(struct ep *ep, struct epa_error *err)
{
    struct epa_transport *t = ep->transport;

    return ep_explain_transport(ep, t->ops->barrier(t, ep->comm->timeout_ns), err);
}

enum epa_status ep_clear_heap(struct ep *ep, struct epa_error *err)
{
    struct epa_backend *b = ep->comm->backend;
    struct epa_transport *t = ep->transport;
    enum epa_status status = b->ops->fill(b, t->heap, 0, t->heap_bytes);

    status = ep_explain_backend(ep, status, err);
    if (status == EPA_OK)
        status = ep_sync(ep, err);
    if (status == EPA_OK)
        status = ep_explain_transport(ep, t->ops->reset(t), err);
    return status;
}

/* ---- algorithm ---- */

enum epa_status ep_plan(const struct ep_choice *algorithm, const struct epa_problem *problem,
                        const struct epa_world *world, uint32_t transport_flags,
                        struct epa_footprint *out, struct epa_error *err)
{
    const struct epa_algorithm_plugin *plugin = (const void *)algorithm->plugin;
    enum epa_status status =
        plugin->plan(problem, world, transport_flags, algorithm->config, out, err);

    if (status != EPA_OK) /* if plan() wrote no message */
        (void)epa_fail(err, status, "algorithm '%s' refuses this shape", plugin->plugin.name);
    return status;
}

/* Checks that plan() announced the stages and capabilities that create() returned. */
static enum epa_status check_plan(const struct ep *ep, const char *algorithm, struct epa_error *err)
{
    const struct epa_footprint *planned = &ep->footprint;
    const char *const *name = planned->stages;
    const struct epa_algorithm *a = ep->algorithm;

    if (planned->discards != (a->discard != NULL) || planned->combines_again != a->combines_again)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "plan() of %s announces that it %s discard and %s combine again, but "
                        "create() returned other capabilities",
                        algorithm, planned->discards ? "can" : "cannot",
                        planned->combines_again ? "can" : "cannot");
    for (uint32_t i = 0; name != NULL && i <= a->n_stages; i++)
        if (i == a->n_stages ? name[i] != NULL
                             : name[i] == NULL || strcmp(name[i], a->stages[i].name) != 0)
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "plan() of %s announces stage %u as '%s', but create() returned '%s'",
                            algorithm, i, name[i] != NULL ? name[i] : "",
                            i < a->n_stages ? a->stages[i].name : "");
    return EPA_OK;
}

void ep_add_algorithm(struct ep_comm *comm, struct epa_algorithm *algorithm)
{
    comm->algorithms++;
    comm->algorithm = algorithm;
}

void ep_remove_algorithm(struct ep_comm *comm, const struct epa_algorithm *algorithm)
{
    comm->algorithms--;
    if (comm->algorithm == algorithm)
        comm->algorithm = NULL;
}

enum epa_status ep_create(struct ep *ep, const struct ep_algorithm_params *p, struct epa_error *err)
{
    const struct epa_algorithm_plugin *plugin = (const void *)p->algorithm.plugin;
    const struct ep_comm *comm = ep->comm;
    enum epa_status status;

    ep->footprint = *p->footprint;
    status = plugin->create(&(struct epa_algorithm_params){.problem = p->problem,
                                                           .world = comm->boot->world,
                                                           .transport = ep->transport,
                                                           .backend = comm->backend,
                                                           .config = p->algorithm.config,
                                                           .transport_flags = p->transport_flags,
                                                           .heap = p->heap_at,
                                                           .signal = p->signal_at,
                                                           .epoch = p->epoch,
                                                           .timeout_ns = comm->timeout_ns,
                                                           .trace = p->trace,
                                                           .observer = comm->boot->observer},
                            &ep->algorithm, err);
    return status == EPA_OK ? check_plan(ep, plugin->plugin.name, err) : status;
}

void ep_destroy(struct ep *ep)
{
    if (ep->algorithm != NULL)
        ep->algorithm->destroy(ep->algorithm);
    ep->algorithm = NULL;
}

enum epa_status ep_call(struct ep *ep, const struct epa_stage *stage, struct epa_problem *problem,
                        struct epa_error *err)
{
    return ep_explain_algorithm(ep, stage->run(ep->algorithm, problem), err);
}

enum epa_status ep_discard(struct ep *ep, struct epa_problem *problem, struct epa_error *err)
{
    return ep_explain_algorithm(ep, ep->algorithm->discard(ep->algorithm, problem), err);
}

enum epa_status ep_ended(struct ep *ep, enum epa_stage_kind kind, uint32_t n, uint64_t *ns,
                         struct epa_error *err)
{
    return ep_explain_algorithm(ep, ep->algorithm->ended(ep->algorithm, kind, n, ns), err);
}

enum epa_status ep_sync(struct ep *ep, struct epa_error *err)
{
    struct epa_backend *b = ep->comm->backend;

    return ep_explain_backend(ep, b->ops->sync(b), err);
}
