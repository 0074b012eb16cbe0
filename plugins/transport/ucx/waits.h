/* Waits, barriers, and the helper thread. */
#ifndef UCX_WAITS_H
#define UCX_WAITS_H

#include "ucx.h"

/* waits.c: the helper thread. */
enum epa_status helper_start(struct ucx *, struct epa_error *);
void helper_stop(struct ucx *);

/* waits.c. `failure` describes the expected value; a failed wait stores it in u->failure. */
enum epa_status wait_word(struct ucx *, const uint64_t *word, uint64_t timeout_ns,
                          struct failure failure);
enum epa_status wait_flushed(struct ucx *, uint64_t timeout_ns);
void wait_acknowledged(struct ucx *, uint64_t timeout_ns); /* waits for all remaining peers */
/* Functions of ucx_ops. */
enum epa_status wait_barrier(struct epa_transport *, uint64_t timeout_ns);
enum epa_status wait_progress(struct epa_transport *);
/* Waits for a request of set-up or teardown; returns true if it completed. */
bool wait_request(struct ucx *, ucs_status_ptr_t request, uint64_t timeout_ns);

#endif
