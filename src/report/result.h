/* The result of one experiment: a JSON object, an entry of "results" in a document, made once from
 * a session after the launch, whatever its end. Reports, rows of a summary and verdicts read it;
 * share/epa2a-result.schema.json describes it. Numbers are numbers, times are whole nanoseconds,
 * what was not measured is null, and text that is no UTF-8 is made so: it parses whatever
 * happened. */
#ifndef RESULT_H
#define RESULT_H

#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "session/session.h"
#include "trace/trace.h"

enum { RESULT_SCHEMA = 1 }; /* "schema" of a document */

/* ---- result.c ---- */

/* Of this process, which all its results have. */
struct facts {
    json_t *machine;            /* of facts_collect(); owned by the caller */
    const char *const *context; /* "NAME=TEXT" that the user noted */
    uint32_t n_context;
};

/* How a launch ended, as its caller knows it. */
struct result_end {
    enum epa_status status; /* with `error` as the launcher and the ranks reported */
    const char *error;      /* NULL, "": that of the rank that failed first is taken */
    int signal;             /* that interrupted it; 0: SIGINT */
    bool skips;             /* the command has several runs: EPA_ERR_UNSUPPORTED skips this one */
    time_t started;         /* by CLOCK_REALTIME; 0: not known */
    double elapsed_s;
    struct cpu_quota
        quota; /* of this process, with the stops of this launch alone; cores 0: none */
    const struct trace_written *trace; /* NULL: none */
};

json_t *result_make(const struct session *, const struct facts *, const struct result_end *);

/* Its last row alone, in the order in which samples were taken; returns how many. */
uint64_t result_samples(const struct session *, struct arena *, double **out);

/* Its exit code, and its last row: "total", "wall" or "latency". */
int result_exit_code(const json_t *result);
const json_t *result_total(const json_t *result);

/* ---- origin.c: where a result comes from ---- */

/* "machine" of a result, but for devices and links. `root` is put before /proc and /sys: "" except
 * in tests. */
json_t *facts_collect(const char *root);

/* The first line of a file as text; null: it cannot be read, or is empty. */
json_t *facts_line(const char *root, const char *path);

/* The problem of an experiment without algorithm, transport, backend and launcher: equal for
 * runs that can be compared. */
json_t *result_shape(const struct experiment *);
/* These four and their options. */
json_t *result_means(const struct experiment *);

/* "experiment" to "plugins": what ran. */
void result_put_origin(json_t *result, const struct session *, const struct facts *);
/* "world"; "fault", null: the run is a normal one. */
json_t *result_world(const struct session *);
json_t *result_fault(const struct session *);
/* "profile": what was written, and what noting it takes the busiest thread of an iteration; null:
 * nothing. A time as RFC 3339, UTC; null: 0. */
json_t *result_profile(const struct trace_written *);
json_t *result_time(time_t);
/* Facts that a backend reports of its device, or a transport of its links; null: none. */
json_t *result_facts(const struct session_facts *);

/* ---- findings.c ---- */

/* "error": null where it ended well; and "status". */
json_t *result_error(const struct session *, const struct result_end *);
const char *result_outcome(const struct result_end *);

/* Fills "expect" of a result that ended well, with all else in it; where something is missed, also
 * "status", "exit_code" and "error". */
void verdicts_make(json_t *result, const struct session *);

/* "total median <= 120 us", what was asked for, `between`, and "131.4 us (+9.5 %)", or why there is
 * none. */
void verdict_add(struct text *, const json_t *result, const json_t *verdict, const char *between);

/* Fills "warnings". */
void result_warn(json_t *result, const struct session *);

/* Warnings, one a line, "warning: " first. */
void report_warnings(FILE *, const json_t *result);

/* Warnings of several runs. Warnings that differ only in numbers are one kind and printed once. */
struct warnings {
    json_t *kinds; /* {0} to begin with; owned */
    uint32_t runs;
};

/* `who` is what the run is called. */
void warnings_add(struct warnings *, const char *who, const json_t *result);
void warnings_print(FILE *, const struct warnings *);

/* ---- exit codes ---- */

/* What each means, for help and the man page. */
struct exit_meaning {
    enum epa_exit code;
    const char *help; /* NULL ends the list */
};
extern const struct exit_meaning exit_meanings[];

/* The one of a status; `signal` says who asked to stop (SIGINT or SIGTERM). */
int exit_code(enum epa_status, int signal);

/* ---- report.c ---- */

/* The result, and "total", "ci95", ... for sentences about it. */
json_t *report_facts(const struct session *, const json_t *result);

/* The table; for VERB_VERIFY the lines that say what was compared. Data only: no warnings.
 * Lines that begin with '#' explain, the others are rows. Fits 100 columns. */
void report_table(FILE *, const struct session *, const json_t *result);

#endif
