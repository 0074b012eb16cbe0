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

/* Returns "machine" of a result, except devices and links. `root` is the prefix of /proc and /sys:
 * "" except in tests. */
json_t *facts_collect(const char *root);

/* Returns the first line of a file as text; null: the file is unreadable or empty. */
json_t *facts_line(const char *root, const char *path);

/* Returns the problem of an experiment without algorithm, transport, backend and launcher: equal
 * for comparable runs. */
json_t *result_shape(const struct experiment *);
/* Returns these four and their options. */
json_t *result_means(const struct experiment *);

/* Adds "experiment" to "plugins". */
void result_put_origin(json_t *result, const struct session *, const struct facts *);
/* Returns "world"; "fault" is null in a normal run. */
json_t *result_world(const struct session *);
json_t *result_fault(const struct session *);
/* result_profile() returns "profile": the written trace, and the recording cost of the busiest
 * thread in an iteration; null: none. The next function formats a time as RFC 3339, UTC; null:
 * 0. */
json_t *result_profile(const struct trace_written *);
json_t *result_time(time_t);
/* Returns the facts that a backend reports about its device, or a transport about its links; null:
 * none. */
json_t *result_facts(const struct session_facts *);

/* ---- findings.c ---- */

/* Return "error", null after success, and "status". */
json_t *result_error(const struct session *, const struct result_end *);
const char *result_outcome(const struct result_end *);

/* Fills "expect" of a successful result, after all else is complete; after a missed expectation
 * also sets "status", "exit_code" and "error". */
void verdicts_make(json_t *result, const struct session *);

/* Adds "total median <= 120 us", the expectation, then `between`, then "131.4 us (+9.5 %)", or the
 * reason of a missing figure. */
void verdict_add(struct text *, const json_t *result, const json_t *verdict, const char *between);

/* Fills "warnings". */
void result_warn(json_t *result, const struct session *);

/* Prints warnings, one on each line, with the prefix "warning: ". */
void report_warnings(FILE *, const json_t *result);

/* Warnings of several runs. Warnings that differ only in numbers are one kind and printed once. */
struct warnings {
    json_t *kinds; /* initially {0}; owned */
    uint32_t runs;
};

/* Adds the warnings of a run. `who` is the name of the run. */
void warnings_add(struct warnings *, const char *who, const json_t *result);
void warnings_print(FILE *, const struct warnings *);

/* ---- exit codes ---- */

/* Exit codes and their meanings, for help and the man page. */
struct exit_meaning {
    enum epa_exit code;
    const char *help; /* NULL ends the list */
};
extern const struct exit_meaning exit_meanings[];

/* Returns the exit code of a status; `signal` is the signal that requested the end (SIGINT or
 * SIGTERM). */
int exit_code(enum epa_status, int signal);

/* ---- report.c ---- */

/* Returns the result, and "total", "ci95", ... for sentences about it. */
json_t *report_facts(const struct session *, const json_t *result);

/* Prints the table; for VERB_VERIFY the lines about the comparison. Data only: no warnings. Lines
 * that begin with '#' explain, the others are rows. Fits 100 columns. */
void report_table(FILE *, const struct session *, const json_t *result);

#endif
