/* Trace files, for `epa2a trace`. */
#ifndef TRACE_H
#define TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include <epa2a/status.h>

struct trace_item {
    char ph;           /* M, X, C, s or f */
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
    struct text text;        /* contents of the file */
    void *root;              /* json_t; owns all strings */
    const json_t *other;     /* otherData */
    struct trace_item *item; /* by time; of items with the same begin the longest first */
    size_t n;
    bool has[TRACE_RANKS]; /* the file has events of the rank */
};

static inline int64_t trace_end_ns(const struct trace_item *i)
{
    return i->ts_ns + i->dur_ns;
}

static inline bool trace_is_stage(const struct trace_item *i)
{
    return i->ph == 'X' && strcmp(i->cat, "stage") == 0;
}

#endif
