/* Peak rates of a device. */
#ifndef CUDA_PEAK_H
#define CUDA_PEAK_H

#include "state.h"

enum epa_status cuda_peaks(struct epa_backend *, enum epa_dtype, double *flops_per_ns,
                           double *bytes_per_ns);

#endif
