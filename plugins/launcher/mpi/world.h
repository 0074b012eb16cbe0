/* All that this plugin wants of MPI. Called in the process of a rank, by one thread. */
#ifndef MPI_WORLD_H
#define MPI_WORLD_H

#include <epa2a/world.h>

/* MPI_Init. Returns once all ranks of the job have called it, which nothing in MPI limits:
 * somebody else has to watch, and kill. */
enum epa_status mpi_world_join(const struct epa_process_id *, struct epa_error *);

/* What rank 0 has in `bytes`, all have when it returns. */
enum epa_status mpi_world_report(void *bytes, size_t n, struct epa_error *);

/* MPI_Finalize; waits for all ranks as well. */
void mpi_world_leave(void);

#endif
