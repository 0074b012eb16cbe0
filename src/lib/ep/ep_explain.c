/* Explanations of failures: a data call only returns a status, and the failed plugin knows the
 * reason. */
#include "ep/ep_explain.h"

#include <stdbool.h>

static bool has_explanation(enum epa_status status)
{
    return status != EPA_OK && status != EPA_ERR_ABORTED;
}

enum epa_status ep_explain_boot(struct ep_comm *comm, enum epa_status status, struct epa_error *err)
{
    if (status == EPA_ERR_TIMEOUT)
        comm->boot->explain(comm->boot, err);
    else if (has_explanation(status))
        (void)epa_fail(err, status, "the bootstrap exchange between ranks failed");
    return status;
}

enum epa_status ep_explain_transport(struct ep *ep, enum epa_status status, struct epa_error *err)
{
    if (has_explanation(status))
        ep->transport->ops->explain(ep->transport, err);
    return status;
}

enum epa_status ep_explain_algorithm(struct ep *ep, enum epa_status status, struct epa_error *err)
{
    if (has_explanation(status))
        ep->algorithm->explain(ep->algorithm, err);
    return status;
}

enum epa_status ep_explain_backend(struct ep *ep, enum epa_status status, struct epa_error *err)
{
    struct epa_backend *b = ep->comm->backend;

    if (!has_explanation(status))
        return status;
    if (b->fault.status != EPA_OK && b->fault.stage == EPA_FAULT_TRANSPORT)
        ep->transport->ops->explain(ep->transport, err);
    else if (b->fault.status != EPA_OK && ep->algorithm != NULL)
        ep->algorithm->explain(ep->algorithm, err);
    b->ops->explain(b, err);
    return status;
}
