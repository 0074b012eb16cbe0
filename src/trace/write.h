/* What ranks noted: the events of all on one clock, in order, with the flows that are whole; and as
 * Chrome traces, a file for each rank and one of all. */
#ifndef TRACE_WRITE_H
#define TRACE_WRITE_H

#include "base/json.h"
#include "session/session.h"

enum { TRACE_SCHEMA = 1 }; /* "trace" in otherData */

struct gathered_event {
    uint64_t begin_ns, end_ns; /* by the clock of rank 0, or what is known of it */
    uint64_t iteration;
    const struct epa_trace_event *event;
    uint32_t rank, lane;
    int8_t beside; /* enum epa_trace_beside_kind; -1: noted in an iteration, by a worker */
    bool cut;      /* a flow's end without the other */
};

struct gathered_rank {
    const struct record *record; /* NULL: it left nothing */
    int64_t offset_ns;           /* its clock less that of rank 0, at the end */
    double error_ns;             /* of that; NAN: not known */
    double drift;                /* how much the offset grew a second; NAN: not known */
    uint64_t *begin_ns;          /* [iterations that are kept], by its own clock; 0: none */
    uint64_t dropped;
};

struct gathered {
    struct gathered_rank *rank;
    uint32_t ranks;
    struct gathered_event *event; /* by time; of those that begin together the longest first */
    uint64_t n;
    uint64_t first, last; /* iterations; first > last: none */
    uint64_t base_ns;     /* the earliest begin */
    uint64_t slices, flows, cut, dropped, busiest;
    uint32_t missing;
};

struct gathered trace_gather(const struct session *);
void trace_gather_free(struct gathered *);

/* A file: its head, with otherData, which is taken; then an event a line; "\n]}\n" ends it. */
void trace_begin(struct text *, json_int_t base_ns, json_t *other);
void trace_add_event(struct text *, const json_t *event, bool first);

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
