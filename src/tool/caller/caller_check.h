/* Experiments that the public interface cannot run, and memory of the others. */
#ifndef CALLER_CHECK_H
#define CALLER_CHECK_H

#include "config/experiment.h"

/* Refuses an experiment that the public interface cannot run. */
enum epa_status caller_check(const struct experiment *, struct epa_error *);

/* Returns true if the experiment runs as complete layers. */
bool caller_uses_layer(const struct experiment *);

/* Returns the memory of one rank besides the memory of the operation and of the algorithm: host memory,
 * or memory of its device. */
uint64_t caller_bytes(const struct experiment *);

#endif
