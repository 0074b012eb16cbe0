/* Traces that ranks recorded: their events on one clock, in order, with complete flows; written as
 * Chrome traces, one file for each rank and one for all ranks. */
#ifndef TRACE_WRITE_H
#define TRACE_WRITE_H

#include "base/text.h"
#include "session/session.h"

enum { TRACE_SCHEMA = 1 }; /* "trace" in otherData */

struct gathered_event {
    uint64_t begin_ns, end_ns; /* by the clock of rank 0, or the estimate of it */
    uint64_t iteration;
    const struct epa_trace_event *event;
    uint32_t rank, lane;
    int8_t beside; /* enum epa_trace_beside_kind; -1: recorded in an iteration, by a worker */
    bool cut;      /* one end of a flow without the other */
};

struct gathered_rank {
    const struct record *record; /* NULL: the rank left no record */
    struct record_offset clock;
    uint64_t *begin_ns; /* [kept iterations], by the rank's clock; 0: none */
    uint64_t end_ns;    /* end of the last iteration, by the rank's clock; 0: none */
    uint64_t dropped;
};

struct gathered {
    struct gathered_rank *rank;
    uint32_t ranks;
    struct gathered_event *event; /* by time; of events with the same begin the longest first */
    uint64_t n;
    uint64_t first, last; /* iterations; first > last: none */
    uint64_t base_ns;     /* the earliest begin */
    uint64_t slices, flows, cut, dropped, busiest;
    uint32_t missing;
};

struct gathered trace_gather(const struct session *);
void trace_gather_free(struct gathered *);

/* Facts about the written trace, for the report. */
struct trace_written {
    char path[4096];     /* of the merged file; "": none */
    uint64_t iterations; /* iterations in the file */
    uint64_t slices, flows, dropped;
    double event_ns; /* cost of recording a slice; of the slowest rank */
    double busiest;  /* events of the busiest lane in an iteration */
    double error_ns; /* error of the clocks; NAN: unknown */
};

/* Checks before a run that FILE.json and all FILE.RANK.json may be written. */
enum epa_status trace_write_check(const struct session *, bool force, struct epa_error *);

/* Called after session_run(), with any status, in the reporting process. Without a profile it does
 * nothing. */
enum epa_status trace_write(const struct session *, bool force, enum epa_status ended,
                            struct trace_written *out, struct epa_error *);

#endif
