/* fused on hosts: puts, signals of puts, and waits of tasks. */
#ifndef FUSED_PROGRESS_H
#define FUSED_PROGRESS_H

#include "fused_state.h"

/* Waits until *word is at least `wanted`; returns false if the call must end. Acquire. */
bool fused_await(struct fused_host *, uint32_t worker, const uint64_t *word, uint64_t wanted,
                 const struct fused_wait *);
/* Called between tiles: in worker 0, makes progress on the transport. */
void fused_poll(struct fused_host *, uint32_t worker);
/* Queues a put by worker 0. */
void fused_request(struct fused_host *, uint32_t peer, uint64_t dst, const void *src, size_t bytes,
                   uint32_t signal);

/* Issues the remaining puts and waits until they are complete. */
enum epa_status fused_complete_puts(struct fused_host *h);

#endif
