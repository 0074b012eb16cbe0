/* The link peak: rate and latency of a transport. */
#ifndef PEAK_H
#define PEAK_H

#include <epa2a/backend.h>
#include <epa2a/transport.h>

struct peak {
    double bytes_per_ns; /* sent by each rank while all ranks send to all others; 0: unknown */
    double latency_ns;   /* of a signal, from its sender to the rank that polls; 0: unknown, since
                          * other processes occupied the cores */
};

enum { PEAK_SIGNALS = 1 };

/* Measures the link peak. Collective; no other call may be in progress. *out is identical on all
 * ranks. Overwrites the heap and the signals `signal` to signal + PEAK_SIGNALS - 1, which must be 0
 * before. A single rank has no links. A heap without room leaves the rate unknown. */
enum epa_status peak_measure(struct epa_bootstrap *, struct epa_backend *, struct epa_transport *,
                             uint32_t signal, struct peak *out, struct epa_error *);

#endif
