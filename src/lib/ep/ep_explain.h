/* Explanations of failures. */
#ifndef EP_EXPLAIN_H
#define EP_EXPLAIN_H

#include "ep/ep.h"

/* Each function takes the status of a call and returns it. After a failure the owner of the failed
 * call writes the message to `err`. With EPA_ERR_ABORTED, where another rank failed first, `err`
 * does not change. */
enum epa_status ep_explain_boot(struct ep_comm *, enum epa_status, struct epa_error *err);
enum epa_status ep_explain_transport(struct ep *, enum epa_status, struct epa_error *err);
enum epa_status ep_explain_algorithm(struct ep *, enum epa_status, struct epa_error *err);
/* A failure of a kernel is explained by the transport or the algorithm that queued the kernel, each
 * other failure by the backend. */
enum epa_status ep_explain_backend(struct ep *, enum epa_status, struct epa_error *err);

#endif
