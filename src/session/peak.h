/* Link peak: what the links between ranks can do at best, measured where the transport runs. */
#ifndef PEAK_H
#define PEAK_H

#include <epa2a/transport.h>

struct peak {
    double bytes_per_ns; /* out of each rank while all send to all others; 0: not known */
    double latency_ns;   /* of a signal, from its sender to the rank that polls; 0: not known */
};

enum { PEAK_SIGNALS = 1 };

/* Collective, between other calls; *out is the same on all ranks. Overwrites the heap and
 * counts in signals `signal` to signal + PEAK_SIGNALS - 1, which are 0 before. One rank has no
 * links; a heap with no room leaves the rate unknown. */
enum epa_status peak_measure(struct epa_bootstrap *, struct epa_backend *, struct epa_transport *,
                             uint32_t signal, struct peak *out, struct epa_error *);

#endif
