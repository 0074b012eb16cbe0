/* Results of calls of the public interface. */
#ifndef CALLER_STATUS_H
#define CALLER_STATUS_H

#include "caller/caller_state.h"

/* Take the status of a call of the interface. The first also writes the message to `err`. The second
 * serves data calls: the message stays in `failure`, for explain() of the object. The launcher reports
 * a lost rank, so the other ranks only end. */
enum epa_status caller_set_up(struct caller *, int status, struct epa_error *);
enum epa_status caller_called(struct caller *, int status);

/* explain() of all objects. */
void caller_explain(struct epa_algorithm *, struct epa_error *);

#endif
