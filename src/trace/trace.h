/* Traces as files: what `epa2a trace` works on. */
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
    char ph;           /* M, X, C, s, f; another: one of those that nothing here knows */
    uint32_t pid, tid; /* rank and lane */
    int64_t ts_ns, dur_ns;
    const char *name, *cat, *id; /* "" where there is none */
    int64_t iteration, from, to; /* -1: not said */
    uint64_t bytes;
    size_t index;                   /* in traceEvents, from 0 */
    const void *json;               /* all of it */
    const struct trace_item *in;    /* the innermost slice of its lane around it; NULL: none */
    const struct trace_item *other; /* of a flow, its other end; NULL: it is not here */
};

enum { TRACE_RANKS = 4096 }; /* those above are in no summary */

struct trace_file {
    const char *path;
    bool ours;               /* epa2a wrote it, by otherData */
    struct text text;        /* as it was read */
    void *root;              /* json_t; owns all strings */
    const json_t *other;     /* otherData */
    struct trace_item *item; /* by time; of those that begin together the longest first */
    size_t n;
    bool has[TRACE_RANKS]; /* events of the rank */
    struct text flaws;     /* all that is wrong with it, a line each */
    uint32_t n_flaws;
};

/* EPA_ERR_CONFIG: the file is no trace (err says why); EPA_ERR_SYSTEM: it cannot be read.
 * Events that make no sense are left out. The caller frees `out` in any case. */
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

/* summary.c: where time went, as text. */
void trace_summary(const struct trace_file *, struct text *out);

/* Traces of one run as one; of a stage alone, if it is not NULL. And a page that draws one, with
 * nothing from elsewhere. */
enum epa_status trace_merge(const struct trace_file *, uint32_t n, const char *stage,
                            struct text *out, struct epa_error *);
void trace_view(const struct trace_file *, struct text *out);

/* Traces that ranks recorded: their events on one clock, in order, with complete flows; written
 * as Chrome traces, one file for each rank and one for all. */

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
    struct record_offset clock;
    uint64_t *begin_ns;          /* [iterations that are kept], by its own clock; 0: none */
    uint64_t end_ns;             /* of the last of them, by that; 0: none */
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

/* Facts about the written trace, for the report. */
struct trace_written {
    char path[4096];     /* of the merged file; "": none */
    uint64_t iterations; /* that are in it */
    uint64_t slices, flows, dropped;
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
