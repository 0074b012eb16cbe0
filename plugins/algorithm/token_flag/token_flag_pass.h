/* token_flag on hosts: passes of workers, and their waits for flags. */
#ifndef TOKEN_FLAG_PASS_H
#define TOKEN_FLAG_PASS_H

#include "token_flag_state.h"

/* Runs fn on all workers. Returns the error of the worker that stopped the pass, if any. */
enum epa_status tf_run_pass(struct tf_task *,
                            void (*fn)(void *, uint32_t worker, uint32_t workers));
/* Waits until a flag in this heap has reached the set's epoch, and acquires the data that it
 * covers. Returns false if the pass has to end. Called by workers; `what`, `peer` and `row` name
 * the awaited data in errors. */
bool tf_await_flag(struct tf_task *, const uint64_t *flag, uint32_t worker, const char *what,
                   uint32_t peer, uint32_t row);
/* Ends the pass with a failure about `what` of rank `peer`. Returns false if another worker was
 * first. */
bool tf_stop_pass(struct tf_task *task, enum epa_status status, const char *what, uint32_t peer,
                  uint32_t row);

/* Ends a worker's part of a pass with waits: worker 0 drives the transport until all workers are
 * done. */
void tf_tend(struct tf_task *, uint32_t worker, uint32_t workers);

#endif
