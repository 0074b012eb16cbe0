/* The beat of the rank's process: see `beat` in struct epa_backend. */
#ifndef CUDA_BEAT_H
#define CUDA_BEAT_H

#include "state.h"

/* Starts the thread that changes c->words->beat. */
enum epa_status beat_start(struct cuda *);

/* Ends the thread; without effect if it was not started. Kernels that wait do not time out
 * afterwards: the stream is drained, or *stop is set. */
void beat_stop(struct cuda *);

#endif
