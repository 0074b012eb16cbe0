/* The store instructions of algorithms on hosts: choice between temporal and non-temporal stores. */
#ifndef COMMON_ALGO_STORE_H
#define COMMON_ALGO_STORE_H

#include "algo_host.h"

/* Chooses nontemporal stores for rows that exceed the last-level cache; the trials of
 * algo_set_store() decide below that size. bytes: size of the rows that one token of each rank
 * becomes. stores: enum algo_nontemporal. own: the algorithm uses own_store, which may differ from
 * `store`. signal: first of ALGO_WAYS * size of the algorithm's signals. */
void algo_choose_store(struct algo_host *, int stores, double bytes, bool own, uint32_t signal);

/* Sets both stores for a stage of dispatch `epoch`. The faster store depends on the machine and on
 * other contents of its caches, which no size predicts. The stores of dispatch also decide in which
 * cache combine finds the rows, so both are timed together. The first dispatches and their combines
 * try the ways in turns that follow from the epoch, identically on all ranks. After each cycle the
 * ranks of a node exchange their times, and all keep the ways near the smallest sum, until one way
 * is left or ALGO_CYCLES have ended. The dispatch after a cycle waits for the ranks of this node,
 * so these must be about to make the same call. */
enum epa_status algo_set_store(struct algo_host *, uint64_t epoch);
/* Bracket the work of a stage that is timed if a trial is in progress. A stage may call the pair
 * several times. Waits for other ranks stay outside. */
void algo_begin_work(struct algo_host *);
void algo_end_work(struct algo_host *, uint64_t epoch, enum algo_half, uint32_t tokens);

#endif
