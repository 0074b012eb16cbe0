/* Facts of NVML about a device. */
#ifndef CUDA_NVML_H
#define CUDA_NVML_H

#include "state.h"

void nvml_describe(const struct nvml_question *);

#endif
