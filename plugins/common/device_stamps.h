/* Time stamps that kernels store for the trace. */
#ifndef DEVICE_STAMPS_H
#define DEVICE_STAMPS_H

#include <epa2a/backend.h>
#include <epa2a/trace.h>

#include <stddef.h>

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

/* Records of kernels in device memory. A record has the time at which an interval ended, a uint64_t by
 * the device's nanosecond clock, 0 without interval, and a uint32_t, the number of the call. */
struct device_records {
    const void *at;
    uint64_t n;
    size_t bytes;           /* of a record */
    size_t end_at, call_at; /* bytes before the two fields */
};

/* Copies of records in host memory, and the clock of the device. */
struct device_reading {
    void *record; /* the caller calls free(); NULL after a failure */
    uint32_t last_call;
    uint64_t ahead, error_ns; /* device clock minus host clock; maximum error of the difference */
};

enum epa_status device_read_records(struct epa_backend *, const struct device_records *,
                                    struct device_reading *out);

/* Adds the last call of each stage to the trace of the run, in host time. */
enum epa_status device_add_stamps(struct epa_backend *, struct epa_trace *,
                                  const struct device_stamped *);

/* Reports a failure on stderr: the run itself has succeeded. EPA_OK: does nothing. */
void device_report_stamps(const char *name, struct epa_backend *, enum epa_status);

#endif
