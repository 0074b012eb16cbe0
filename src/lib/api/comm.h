/* A comm, and the frame of each call of the public interface.
 *
 * A function of the interface has this form:
 *
 *     int epa2a_x_create(struct epa2a_comm *comm, ...)
 *     {
 *         struct epa_error err = {EPA_OK, ""};
 *         enum epa_status status = comm_enter(comm, "epa2a_x_create", &err);
 *
 *         if (status != EPA_OK)
 *             return api_fail(&err);
 *         ... the work: collective calls of the bootstrap, or local failures of this rank
 *         return comm_leave_together(comm, status, &err);
 *     }
 *
 * A set-up call ends with comm_leave_together(): if one rank fails, the call fails on all ranks,
 * and the comm stays usable after a failure such as EPA_ERR_NOMEM. The caller frees its objects
 * first if comm_agree() is not EPA_OK. A data call ends with comm_leave(). */
#ifndef API_COMM_H
#define API_COMM_H

#include <epa2a.h>

#include "api/fork_mark.h"
#include "ep/ep.h"
#include "options/choose.h"
#include "registry/registry.h"

struct epa2a_comm {
    struct ep_comm ep;
    struct epa_bootstrap *boot;
    struct registry *registry;
    struct choice choice; /* plugins of the comm; algorithm and transport are defaults */
    char *options;        /* epa2a_comm_params.options; NULL: none */
    int32_t device;       /* EPA2A_HOST, or the device of the rank */
    char *heap;           /* heap of the caller; NULL: none */
    uint64_t heap_bytes, heap_used;
    struct fork_mark mark;
    const char *call; /* name of the running call; NULL: none. Atomic */
    int32_t broken;   /* enum epa_status of the failure that broke the comm; atomic */
    char reason[512]; /* of this failure; written before `broken` */
};

/* Begins a call. EPA_ERR_CONFIG: the comm is NULL, belongs to the parent process, or another call
 * uses it. EPA_ERR_ABORTED: the comm is broken. `call`: name of the function, a literal. */
enum epa_status comm_enter(struct epa2a_comm *, const char *call, struct epa_error *);
/* The same for a call that queues work in a stream of the caller. */
enum epa_status comm_enter_stream(struct epa2a_comm *, const char *call, void *stream,
                                  struct epa_error *);
/* Refuses to create an object while a CUDA graph is captured: EPA_ERR_UNSUPPORTED. */
enum epa_status comm_check_capture(struct epa2a_comm *, struct epa_error *);

/* Ends all work of the rank on its device before the objects of a broken comm are freed, instead of
 * comm_enter(). ep_comm_end() follows. */
void comm_stop(struct epa2a_comm *);

static inline bool comm_is_cuda(const struct epa2a_comm *comm)
{
    return comm->device != EPA2A_HOST;
}

/* Collective: returns the status of the first failed rank, and its message. */
enum epa_status comm_agree(struct epa2a_comm *, enum epa_status, struct epa_error *);

/* End a call. Return the enum epa2a_status of the call and store its message. A time-out, a lost
 * rank, an abort or a failed system call breaks the comm and ends the waits of the other ranks. */
int comm_leave(struct epa2a_comm *, enum epa_status, struct epa_error *);
int comm_leave_together(struct epa2a_comm *, enum epa_status, struct epa_error *); /* collective */

/* Selects plugins and options for an object of the comm: options of the comm, then `text`, then
 * EPA2A_OPTIONS. `preset` as in struct choose_params. */
enum epa_status comm_choose(struct epa2a_comm *, enum epa_op, bool layer, const char *text,
                            const char *preset, struct choice *out, struct epa_error *);

/* Takes memory for the transport of an object from heap_bytes. *out is the memory of the caller, or
 * NULL if the transport allocates. Without heap_bytes there is no limit. comm_give_heap() returns
 * the memory; in memory of the caller an object that was created later keeps the space occupied. */
enum epa_status comm_take_heap(struct epa2a_comm *, uint64_t bytes, void **out, struct epa_error *);
void comm_give_heap(struct epa2a_comm *, const void *heap, uint64_t bytes);

#endif
