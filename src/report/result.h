/* The result of one experiment: a JSON object, an entry of "results" in a document, made once from
 * a session after the launch, for any end of the launch. Reports, rows of a summary and verdicts
 * read it; share/epa2a-result.schema.json describes it. Numbers are numbers, times are whole
 * nanoseconds, unmeasured values are null, and invalid UTF-8 is replaced: the document always
 * parses. */
#ifndef RESULT_H
#define RESULT_H

#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "session/session.h"
#include "trace/trace.h"
#include "trace/write.h"

enum { RESULT_SCHEMA = 1 }; /* "schema" of a document */

/* ---- result.c ---- */

/* Facts of this process, common to all its results. */
struct facts {
    json_t *machine;            /* from facts_collect(); owned by the caller */
    const char *const *context; /* "NAME=TEXT" notes of the user */
    uint32_t n_context;
};

/* End of a launch, reported by its caller. */
struct result_end {
    enum epa_status status; /* with `error`: reported by the launcher and the ranks */
    const char *error;      /* NULL, "": use the message of the rank that failed first */
    int signal;             /* signal that interrupted the launch; 0: SIGINT */
    bool skips;             /* the command has several runs: EPA_ERR_UNSUPPORTED skips this one */
    time_t started;         /* by CLOCK_REALTIME; 0: unknown */
    double elapsed_s;
    struct cpu_quota
        quota; /* of this process, with the stops of this launch alone; cores 0: none */
    const struct trace_written *trace; /* NULL: none */
};

json_t *result_make(const struct session *, const struct facts *, const struct result_end *);

/* Returns the samples of the last row in the order of measurement; the return value is their
 * number. */
uint64_t result_samples(const struct session *, struct arena *, double **out);

/* Return the exit code, and the name of the last row: "total", "wall" or "latency". */
int result_exit_code(const json_t *result);
const json_t *result_total(const json_t *result);

/* ---- origin.c: origin of a result ---- */

/* ---- findings.c ---- */

/* Warnings of several runs. Warnings that differ only in numbers are one kind and printed once. */
struct warnings {
    json_t *kinds; /* initially {0}; owned */
    uint32_t runs;
};

/* ---- report.c ---- */

#endif
