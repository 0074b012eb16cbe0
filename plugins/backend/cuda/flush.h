/* Memory of twice the size of L2, whose write flushes the cache. */
#ifndef CUDA_FLUSH_H
#define CUDA_FLUSH_H

#include "state.h"

/* Allocates the memory at the first call: applications never need it. Not within a capture. */
enum epa_status cuda_flush_make(struct cuda *);
enum epa_status cuda_flush_cache(struct epa_backend *);

#endif
