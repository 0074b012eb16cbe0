/* Broadcast through PMIx, which mpirun and srun --mpi=pmix provide. */
#ifndef PMIX_BROADCAST_H
#define PMIX_BROADCAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

/* Returns true if a PMIx server has started this process and this host has the PMIx library, which the
 * first call loads. */
bool pmix_is_usable(void);

/* Collective, if pmix_is_usable(): broadcasts `n` bytes of rank 0. Waits for all ranks of the job
 * without a time limit. The first call initialises the PMIx library; exit() finalises it. One thread at
 * a time. */
enum epa_status pmix_broadcast(uint32_t rank, void *bytes, size_t n, struct epa_error *);

#endif
