/* What ranks noted, as Chrome traces: a file for each rank and one of all. */
#ifndef TRACE_WRITE_H
#define TRACE_WRITE_H

#include "session/session.h"

enum { TRACE_SCHEMA = 1 }; /* "trace" in otherData */

/* What was written, for the report. */
struct trace_written {
    char path[4096];     /* of the merged file; "": none */
    uint64_t iterations; /* that are in it */
    uint64_t slices, flows, dropped;
    uint64_t cut;     /* ends of flows without the other, of iterations that are not kept */
    uint32_t missing; /* ranks that left nothing */
    double event_ns;  /* what noting a slice takes; of the slowest rank */
    double busiest;   /* events of the busiest lane in an iteration */
    double error_ns;  /* that clocks may be off by; NAN: not known */
};

/* Whether FILE.json and all FILE.RANK.json may be written; before anything runs. */
enum epa_status trace_write_check(const struct session *, bool force, struct epa_error *);

/* After session_run(), however it ended, in the process that reports. Nothing where nobody
 * profiles. */
enum epa_status trace_write(const struct session *, bool force, enum epa_status ended,
                            struct trace_written *out, struct epa_error *);

#endif
