/* What came of one experiment, in plain memory: made from a session after the launch,
 * whatever its end, and read by the reports. */
#ifndef RESULT_H
#define RESULT_H

#include <time.h>

#include "config/experiment.h"
#include "report/facts.h"
#include "session/session.h"
#include "base/stats.h"
#include "trace/write.h"

/* Bytes of one iteration. */
struct result_traffic {
    double needed, out; /* means over ranks: payload; bytes that left */
    double bottleneck;  /* of the busiest rank: the larger of what it sent and received */
    double least;       /* of the busiest rank: what any algorithm would have to move */
};

/* What the links between ranks can do, where their transport knows. */
struct result_peak {
    bool known;
    double bytes_per_ns, latency_ns; /* as measured, of the fastest rank */
};

/* What computing takes at least, of the busiest rank, by what its workers can do. */
struct result_computing {
    bool known;
    double flops_per_ns, bytes_per_ns; /* of a rank, the best of all */
    double weights;                    /* bytes that a rank reads in an iteration, the most */
    double flops_ns, weights_ns;
};

struct result_stage {
    const char *name;
    struct stats slowest; /* over samples; a sample is one iteration of the slowest rank */
    double *sample;       /* [n_samples], in order */
    struct stats *rank;   /* [ranks], each over its own times */
    /* GB/s at the median. NaN without samples, and for a stage that shares its dispatch or
     * combine with others: what crosses in it alone is not known. */
    double goodput, wire, bottleneck;
    double flops;   /* of all that it computes, a second; NaN: nothing, or not known */
    double peak_ns; /* the least time that links, and computing, allow; NaN: not known */
    bool beaten;    /* not known as the median was shorter by more than 3 % */
};

/* One expectation, and what came of it. */
struct verdict {
    char row[32];              /* "": of the result, not of a row */
    enum expect_figure figure; /* EXPECT_FIGURES: `wrong` */
    double bound, measured;    /* in its unit; measured NaN: not known */
    bool met;
};

enum { RESULT_WARNINGS = 16 };

struct result {
    const struct session *session; /* read by the reports: it must outlive the result */
    const struct facts *facts;
    enum epa_status status;
    int exit_code;
    char error[1024]; /* why it ended early, in words, or what was missed; "": neither */
    char started[40]; /* RFC 3339, UTC */
    double elapsed_s;
    uint64_t n_samples;    /* iterations that all ranks finished */
    enum stop_reason stop; /* why there are no more of them */
    /* Rows: a stage each, or the figures of graphs; the last is "total". */
    uint32_t n_stages;
    struct result_stage stage[SESSION_STAGES + OPEN_ROWS];
    struct result_traffic phase[OP_PHASES], total; /* phases as the operation has them */
    double flops; /* of a rank in an iteration, mean; 0: it computes nothing */
    /* Parts of the stage that ran alone: medians of the slowest rank. Which share of the first is
     * hidden behind the others; NaN: not known. */
    uint32_t n_parts;
    double part_ns[EPA_PARTS], hidden;
    struct result_peak peak;
    struct result_computing computing;
    uint64_t compared, wrong; /* elements, of all ranks */
    uint64_t checked;         /* iterations that all ranks checked */
    const char *unchecked;    /* why bench checked none, in words; "": it did, or failed */
    double skew_ns;           /* median over samples of slowest minus fastest rank, total */
    uint32_t straggler;       /* the rank that is slowest most often, and in which share */
    double straggler_share;
    struct verdict *verdict; /* [n_verdicts] of what was expected; owned */
    uint32_t n_verdicts, n_missed;
    struct trace_written trace;     /* by who made this result; path "": none */
    char *warning[RESULT_WARNINGS]; /* owned */
    uint32_t n_warnings;
};

/* `status` and `error` as the launcher and the ranks told; see launch in world.h. Without a
 * text, the one of the rank that failed first is taken. An interrupted result has the exit
 * code of SIGINT; a caller that knows better sets exit_code(). */
enum epa_status result_make(const struct session *, const struct facts *, enum epa_status,
                            const char *error, struct result *out, struct epa_error *);
void result_finish(struct result *);

/* `started` by CLOCK_REALTIME. */
void result_when(struct result *, time_t started, double elapsed_s);

/* Width of the 95 % interval of the last row's median, as a part of the median; NaN: there
 * is no interval. */
double result_ci95(const struct result *);

/* "host", "events", "graph"; NULL: no times were taken. */
const char *result_clock_name(const struct result *);

/* Of an open loop: which part of samples was due before the rank could begin, of the rank that
 * was late most often. */
double result_late(const struct result *);

/* How often a planted fault struck; false: what that rank did is not known here. */
bool result_fault_struck(const struct result *, uint64_t *out);

/* Fills result->verdict of a result that ended well, with all else in it; where something is
 * missed, also `error` and the exit code. Part of result_make(). EPA_ERR_NOMEM. */
enum epa_status verdicts_make(struct result *);

/* "total median <= 120 us": what was asked for; and "131.4 us (+9.5 %)", or why there is
 * none. Both return buf. */
char *verdict_wanted(const struct verdict *, char *buf, size_t room);
char *verdict_found(const struct result *, const struct verdict *, char *buf, size_t room);

/* ---- result_warnings.c ---- */

/* Fills `warning`; part of result_make(). */
void result_warn(struct result *);

/* Warnings, one a line, "warning: " first. */
void report_warnings(FILE *, const struct result *);
/* Those of several runs, each kind once: alike are texts in which only numbers differ. */
struct warnings {
    struct warnings_kind *kind;
    uint32_t n, runs; /* kinds; runs that were added */
};

/* `who` is what the run is called. */
void warnings_add(struct warnings *, const char *who, const struct result *);
void warnings_print(FILE *, const struct warnings *);
void warnings_free(struct warnings *);

#endif
