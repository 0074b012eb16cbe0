/* An application of the public interface (epa2a.h) inside a rank: `api: calls` and `api: layer`.
 *
 * The rank creates a comm over its own bootstrap and passes the plugins and options of the experiment
 * as text, as any application does. The inputs, and most outputs, are memory of the caller. On a device
 * this is memory of the device, and all calls use the stream of the rank's own backend. Objects of the
 * interface appear as a struct epa_algorithm, so that the session runs, times and checks them like an
 * algorithm. The files of this folder call functions of epa2a.h only to reach algorithms. */
#ifndef CALLER_H
#define CALLER_H

#include "config/experiment.h"
#include "op/op.h"

struct caller;

struct caller_params {
    const struct experiment *experiment; /* outlives the caller */
    struct epa_bootstrap *boot;          /* carries the allgather of the application */
    struct epa_backend *backend;         /* of the rank: its memory, device and stream */
    /* false: dispatches use memory of the caller and memory of the library in turn. true: memory of
     * the library only, which saves copies. */
    bool library_memory;
};

/* Creates the comm. Collective. */
enum epa_status caller_open(const struct caller_params *, struct caller **out, struct epa_error *);

/* Creates the object of the operation. Collective. */
enum epa_status caller_create(struct caller *, const struct op_rank *, struct epa_algorithm **out,
                              struct epa_error *);

/* Completes the views of a dispatch: origin, weight and choice of each row, which the interface
 * returns in another form. On a device the first dispatch of inputs waits for the stream; no work may
 * be captured then. */
enum epa_status caller_complete(struct caller *, struct epa_problem *, struct epa_error *);

/* Waits until the stream has executed the calls, and takes the failure of a kernel. Has no effect on
 * hosts. */
enum epa_status caller_sync(struct caller *, struct epa_error *);

/* Returns true if the rows of the last dispatch of this problem remain unchanged after its combine. */
bool caller_keeps_rows(struct caller *, const struct epa_problem *);

/* Number of calls of the interface in one iteration. */
uint32_t caller_calls(const struct caller *);

/* Returns the failure that broke the comm; its text is "" without a failure. */
const struct epa_error *caller_failure(const struct caller *);

/* Destroys the comm. Local after a failure of this rank or an abort; otherwise collective. */
void caller_close(struct caller *, bool failed); /* accepts NULL */

#endif
