/* Waits, and the helper thread. */
#ifndef UCX_WAITS_H
#define UCX_WAITS_H

#include "state.h"

/* The helper thread. */
enum epa_status helper_start(struct ucx *, struct epa_error *);
void helper_stop(struct ucx *);

/* `failure` describes the expected value; a failed wait stores it in u->failure. */
enum epa_status wait_word(struct ucx *, const uint64_t *word, uint64_t timeout_ns,
                          struct failure failure);
enum epa_status wait_flushed(struct ucx *, uint64_t timeout_ns);
void wait_acknowledged(struct ucx *, uint64_t timeout_ns); /* waits for all remaining peers */
enum epa_status wait_progress(struct epa_transport *);
/* Waits for a request of set-up or teardown; returns true if it completed. */
bool wait_request(struct ucx *, ucs_status_ptr_t request, uint64_t timeout_ns);

enum epa_status wait_give_up(struct ucx *u, struct failure failure, enum epa_status status);
/* Decides after a burst of unsuccessful polls whether the wait continues. */
enum epa_status wait_step(struct ucx *u, struct epa_wait *wait, struct failure *failure);
/* Waits for the flush, which peers that execute puts acknowledge, and for all counted requests. */
enum epa_status wait_flush(struct ucx *u, ucs_status_ptr_t request, uint64_t timeout_ns,
                           struct failure failure);

#endif
