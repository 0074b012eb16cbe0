/* Time stamps that kernels store for the trace. */
#ifndef DEVICE_STAMPS_H
#define DEVICE_STAMPS_H

#include <epa2a/backend.h>
#include <epa2a/trace.h>

/* Time stamp of a phase, 16 bytes, which one lane stores: when the warp ended the phase, by the
 * device's nanosecond clock, how long the phase took, and in which call. Stamps of calls before the
 * last call of the stage are invalid; no kernel clears them. */
struct device_stamp {
    uint64_t end; /* 0: no stamp */
    uint32_t took_ns, call;
};

/* Stamps of kernels in device memory: [warps][stages][phases]. A stage is a kernel, or several
 * kernels of one call. */
struct device_stamped {
    const struct device_stamp *stamp;
    uint32_t warps, block_warps; /* of all blocks; of a block */
    uint32_t stages, phases;
    const char *const *name; /* [stages][phases]; NULL: the stage has no such phase */
};

/* Adds the last call of each stage to the trace of the run, in host time. */
enum epa_status device_add_stamps(struct epa_backend *, struct epa_trace *,
                                  const struct device_stamped *);

/* Reports a failure on stderr: the run itself has succeeded. EPA_OK: does nothing. */
void device_report_stamps(const char *name, struct epa_backend *, enum epa_status);

#endif
