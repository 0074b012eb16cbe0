/* The events of all ranks on one clock, in order, with the flows that are whole. */
#ifndef TRACE_GATHER_H
#define TRACE_GATHER_H

#include "session/session.h"

struct gathered_event {
    uint64_t begin_ns, end_ns; /* by the clock of rank 0, or what is known of it */
    uint64_t iteration;
    const struct epa_trace_event *event;
    uint32_t rank, lane;
    bool cut; /* a flow's end without the other */
};

struct gathered_rank {
    const struct record *record; /* NULL: it left nothing */
    int64_t offset_ns;           /* its clock less that of rank 0, at the end */
    double error_ns;             /* of that; NAN: not known */
    double drift;                /* how much the offset grew a second; NAN: not known */
    uint64_t events, dropped;
};

struct gathered {
    struct gathered_rank *rank;
    struct gathered_event *event; /* by time; of those that begin together the longest first */
    uint64_t n;
    uint64_t first, last; /* iterations; first > last: none */
    uint64_t base_ns;     /* the earliest begin */
    uint64_t slices, flows, cut, dropped, busiest;
    uint32_t missing;
};

enum epa_status gather(const struct session *, struct gathered *out, struct epa_error *);
void gather_free(struct gathered *);

#endif
