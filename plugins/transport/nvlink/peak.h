/* Peak of the links between GPUs. */
#ifndef NVLINK_PEAK_H
#define NVLINK_PEAK_H

#include "state.h"

/* Functions of struct epa_transport_ops. */
enum epa_status nvlink_device_peak(struct epa_transport *, const struct epa_peak_run *, double *ns);

#endif
