/* A result in memory: the arguments of result_make(), and access to rows of its JSON. */
#ifndef REPORT_RESULT_PARTS_H
#define REPORT_RESULT_PARTS_H

#include <time.h>

#include "base/json.h"
#include "base/sysfile.h"
#include "session/session.h"
#include "trace/trace.h"
#include "trace/write.h"

enum { RESULT_SCHEMA = 1 }; /* "schema" of a document */

/* Facts of this process, common to all its results. */
struct facts {
    json_t *machine;            /* from facts_collect(); owned by the caller */
    const char *const *context; /* "NAME=TEXT" notes of the user */
    uint32_t n_context;
};

/* Result of one run of one experiment, for any end of the run. */
struct result {
    struct session *session; /* measurements of the ranks; NULL: the run was rejected before */
    enum epa_status status;
    struct epa_error error; /* text "": use the message of the rank that failed first */
    int signal;             /* signal that interrupted the run; 0: SIGINT */
    bool skips;             /* the command has several runs: EPA_ERR_UNSUPPORTED skips this one */
    time_t started;         /* by CLOCK_REALTIME; 0: unknown */
    double elapsed_s;
    struct cpu_quota quota;       /* of this process, with the stops of this run; cores 0: none */
    struct trace_written trace;   /* path "": none */
    struct epa_error trace_error; /* a file of the profile could not be written */
};

/* Returns the last row: "total", "wall" or "latency". */
static inline const json_t *result_total(const json_t *result)
{
    const json_t *stages = json_object_get(result, "stages");

    return json_array_get(stages, json_array_size(stages) - 1);
}

#endif
