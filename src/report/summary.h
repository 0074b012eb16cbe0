/* The runs of a command: text and Markdown have one line for each distinct run; CSV and JSON also
 * have one for each repetition. */
#ifndef SUMMARY_H
#define SUMMARY_H

#include <stdio.h>

#include "base/json.h"
#include "base/text.h"
#include "report/result.h"
#include "op/op.h"

/* "end" of a row */
#define REPORT_NOT_RUN "not run" /* the command ended before */
#define REPORT_OK "ok"
#define REPORT_FAILED "failed"
#define REPORT_SKIPPED "skipped" /* a requirement is missing here */

/* Returns the row of a run that has not started. `who` is its label, with the file if there are
 * several; id NULL: unknown without its plugin. A caller may add "question" (equal for runs of the
 * same problem), "repetition" from 1, and "baseline": ratios of that question use its total as
 * denominator, otherwise the total of the first. Medians are the medians of the result's table;
 * figures that were not measured, or have no stage, are null. */
json_t *report_row(const char *who, const char *file, const char *label, const char *id);
void report_row_end(json_t *row, const char *end, enum epa_status, const char *error);

/* Fills the row from a result; the caller marks skipped runs. */
void report_row_fill(json_t *row, const struct session *, const json_t *result);
/* The same for a successful run, from its result and its row of "summary". */
void report_row_read(json_t *row, const json_t *result, const json_t *saved);

/* All runs of a command, in written order, and their ends. */
struct report_batch {
    enum verb verb;
    json_t *rows;
    const char *order;          /* "declared", "interleaved" or "shuffled" */
    uint64_t seed;              /* of that order; unused for declared */
    const char *const *context; /* "NAME=TEXT", see struct facts */
    uint32_t n_context;
};

void report_batch_text(FILE *, const struct report_batch *);
/* Adds the summary as Markdown or HTML. */
void report_batch_page(struct text *, const struct report_batch *, bool html);
void report_batch_csv(struct text *, const struct report_batch *);

/* Returns the line with the denominator of a question's ratios; NULL: no line has a total. */
const json_t *report_base(const json_t *lines, const json_t *question);

/* Returns the document of a list of results, whose reference is taken; with the rows as `summary`,
 * unless `batch` is NULL. */
json_t *report_document(json_t *results, const struct report_batch *);

/* ---- fill.c: sentences with values of a JSON object in them ---- */

#define FORM_BLANKS " \t\r"

/* ---- export.c: JUnit XML for CI, OpenMetrics text for monitoring, cells of CSV ---- */

/* Rows, which are JSON objects, under columns: as text of 100 columns, as Markdown and as CSV. */

struct table_column {
    const char *key;  /* in a row, or a path; NULL ends the list */
    const char *name; /* the heading */
    const char *unit; /* or NULL */
    double scale;     /* divisor of numbers; 0: none */
    /* Behind the point; -1: two significant digits; -2: two, or four below 0.1; of the first text:
     * minimum width, 0: TABLE_LABEL. */
    int digits;
    int width; /* of right-aligned numbers: too long numbers lose digits; 0: left-aligned text */
};

enum { TABLE_LABEL = 24 };

/* CSV by RFC 4180; an unknown value is an empty cell. */
enum table_form { TABLE_MARKDOWN, TABLE_HTML, TABLE_CSV };

/* Predicts the time of more ranks: a model of each phase, fitted to short runs with few ranks,
 * and its report. */

/* Additive costs of a rank: of a call, of each peer, of each row and each choice that it sends or
 * receives. A row costs less if there are few rows, which fit into caches. If ranks share a core,
 * another rank must run before a waiting rank continues, and leaves a cold cache: a call and a row
 * then cost more, in addition to the share of the core. */
enum {
    PREDICT_CALL,
    PREDICT_PEER,
    PREDICT_ROW,
    PREDICT_CHOICE,
    PREDICT_FEW_ROW,
    PREDICT_SHARED_CALL,
    PREDICT_SHARED_ROW,
    PREDICT_TERMS
};

struct predict_point {
    double term[PREDICT_TERMS]; /* number of units of each cost */
    double share;               /* threads that share a core: factor of all costs */
    double ns;                  /* measured time */
    double weight;              /* of its relative error */
};

/* Link between nodes; one for each rank, or one shared by all ranks of a node. */
struct predict_link {
    double bytes_per_ns, latency_ns, message_ns; /* message_ns: least time between two messages */
    bool node;
};

enum predict_bound { PREDICT_LOCAL, PREDICT_BYTES, PREDICT_MESSAGES, PREDICT_LATENCY };

struct predict_time {
    double ns, local_ns, bytes_ns, messages_ns, latency_ns;
    enum predict_bound bound; /* the largest of them */
};

/* A phase: the work of the rank, the traffic of its link and the time between two messages overlap,
 * and the longest counts. Latencies are added, except the latencies of signals within a node, which
 * `local_ns` contains: a rank sees the barrier before the phase up to one latency late, and its
 * rows take another. Without a link the phase stays within a node. */
enum { PREDICT_LATENCIES = 2 };

/* ---- the document ---- */

#endif
