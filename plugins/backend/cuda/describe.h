/* Facts about the device of a rank. */
#ifndef CUDA_DESCRIBE_H
#define CUDA_DESCRIBE_H

#include "state.h"

void cuda_describe(struct epa_backend *, void (*say)(void *arg, const char *key, const char *value),
                   void *arg);

#endif
