/* Trace files, for `epa2a trace`. */
#ifndef TRACE_H
#define TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/text.h"
#include "base/json.h"
#include "session/session.h"
#include <epa2a/status.h>

struct trace_item {
    char ph;           /* M, X, C, s, f; or a letter that this program does not use */
    uint32_t pid, tid; /* rank and lane */
    int64_t ts_ns, dur_ns;
    const char *name, *cat, *id; /* "": absent */
    int64_t iteration, from, to; /* -1: absent */
    uint64_t bytes;
    size_t index;                   /* in traceEvents, from 0 */
    const void *json;               /* the whole event */
    const struct trace_item *in;    /* innermost slice of its lane around it; NULL: none */
    const struct trace_item *other; /* of a flow, its other end; NULL: not in this file */
};

enum { TRACE_RANKS = 4096 }; /* ranks from this number on are in no summary */

struct trace_file {
    const char *path;
    bool ours;               /* otherData names epa2a as writer */
    struct text text;        /* contents of the file */
    void *root;              /* json_t; owns all strings */
    const json_t *other;     /* otherData */
    struct trace_item *item; /* by time; of items with the same begin the longest first */
    size_t n;
    bool has[TRACE_RANKS]; /* the file has events of the rank */
    struct text flaws;     /* flaws of the file, one on each line */
    uint32_t n_flaws;
};

/* Reads a trace. EPA_ERR_CONFIG: the file is not a trace (err has the reason); EPA_ERR_SYSTEM: it
 * cannot be read. Invalid events are left out. The caller frees `out` in any case. */
enum epa_status trace_read(const char *path, struct trace_file *out, struct epa_error *);
void trace_free(struct trace_file *);

static inline int64_t trace_end_ns(const struct trace_item *i)
{
    return i->ts_ns + i->dur_ns;
}

static inline bool trace_is_stage(const struct trace_item *i)
{
    return i->ph == 'X' && strcmp(i->cat, "stage") == 0;
}

/* Adds the tables of time as text (summary.c). */
void trace_summary(const struct trace_file *, struct text *out);

/* Merges traces of one run; only `stage`, if it is not NULL. And writes a self-contained page that
 * draws one trace. */
enum epa_status trace_merge(const struct trace_file *, uint32_t n, const char *stage,
                            struct text *out, struct epa_error *);
void trace_view(const struct trace_file *, struct text *out);

/* Traces that ranks recorded: their events on one clock, in order, with complete flows; written as
 * Chrome traces, one file for each rank and one for all ranks. */

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

/* Begins a file: its head, with otherData, whose reference is taken; one event on each line
 * follows; "\n]}\n" ends it. */
void trace_begin(struct text *, json_int_t base_ns, json_t *other);
void trace_add_event(struct text *, const json_t *event, bool first);

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
