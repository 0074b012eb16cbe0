/* An algorithm of a comm: selection by options, plan, transport and algorithm. */
#ifndef API_OBJECT_H
#define API_OBJECT_H

#include "api/comm.h"

/* Initially zero. */
struct object {
    struct epa2a_comm *comm;
    struct choice choice;
    uint32_t transport_flags;
    struct epa_footprint footprint;
    void *heap;          /* memory of the caller; NULL: the transport allocates */
    uint64_t heap_bytes; /* taken from heap_bytes of the comm */
    struct ep ep;
};

struct object_params {
    enum epa_op op;
    bool layer;          /* as in struct choose_params */
    const char *options; /* of the caller; NULL: none */
    const char *preset;  /* as in struct choose_params */
};

/* Selects the algorithm and plans it for the shapes of the problem. Local. */
enum epa_status object_plan(struct object *, struct epa2a_comm *, const struct object_params *,
                            const struct epa_problem *, struct epa_error *err);

/* Opens the transport and creates the algorithm. Collective: EPA_ERR_CONFIG if another rank planned
 * for other shapes or options. The caller calls comm_agree() next. */
enum epa_status object_open(struct object *, const struct epa_problem *, struct epa_error *err);

/* Frees a planned or partly opened object. */
void object_free(struct object *);

/* Ends an object: waits until all ranks have finished their calls, then calls free_owner(owner). On a
 * broken comm the call is local. If the calling thread or process may not use the comm, the object
 * stays. `call`: as in comm_enter(). */
void object_destroy(struct object *, const char *call, void (*free_owner)(void *), void *owner);

/* Returns the status of a data call whose stage ended with `status`. The other ranks may wait for this
 * rank after a failure, so each failure breaks the comm: other statuses become EPA_ERR_SYSTEM. */
enum epa_status object_stage_status(enum epa_status status, struct epa_error *err);
/* Runs a stage, and returns object_stage_status(). */
enum epa_status object_call(struct object *, const struct epa_stage *, struct epa_problem *,
                            struct epa_error *err);

#endif
