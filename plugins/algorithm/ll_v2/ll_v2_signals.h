/* ll_v2 on hosts: puts and signals. */
#ifndef LL_V2_SIGNALS_H
#define LL_V2_SIGNALS_H

#include "ll_v2_state.h"

/* Puts the next `rows` of the h->left[peer] rows for a peer, to row `row` and the following rows of
 * its messages (DATA) or its outputs (OUTPUT). `src` is in the heap and stays unchanged until
 * quiet. The last put signals the peer. */
enum epa_status ll_put(struct ll_host *, enum ll_signal kind, const struct ll_set *, uint64_t row,
                       const void *src, uint32_t rows, uint32_t peer);
/* Signals the ranks in the bit mask `ranks`, except ranks that a put has signalled. The signal
 * follows all stores and puts of the epoch. */
enum epa_status ll_signal(struct ll_host *, enum ll_signal kind, uint64_t epoch, uint64_t ranks);
/* Partner of ll_put() and ll_signal(): waits until each rank in `ranks` has signalled at least
 * `epoch`. */
enum epa_status ll_wait(struct ll_host *, enum ll_signal kind, uint64_t epoch, uint64_t ranks);
/* Calls ll_wait() and then quiet(), so that no put or signal of this rank stays buffered. */
enum epa_status ll_wait_and_leave(struct ll_host *, enum ll_signal kind, uint64_t epoch,
                                  uint64_t ranks);

#endif
