/* A command's runs: as text and Markdown a line for each that differs, as CSV and JSON one for each
 * repetition too. */
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
#define REPORT_SKIPPED "skipped" /* what it needs is not here */

/* The row of a run that has not started. `who` is its label, with the file if there are several;
 * id NULL: not known without its plugin. A caller may add "question" (equal for runs of the same
 * problem), "repetition" from 1, and "baseline": ratios of that question are over its total,
 * else over that of the first. Medians are those of the result's table; a figure that was not
 * measured, or that has no stage, is null. */
json_t *report_row(const char *who, const char *file, const char *label, const char *id);
void report_row_end(json_t *row, const char *end, enum epa_status, const char *error);

/* Fills the row from a result; the caller marks skipped runs. */
void report_row_fill(json_t *row, const struct session *, const json_t *result);
/* The same of a run that ended well, from its result and its row of "summary". */
void report_row_read(json_t *row, const json_t *result, const json_t *saved);

/* All of them, as written, and how they went. */
struct report_batch {
    enum verb verb;
    json_t *rows;
    const char *order;          /* "declared", "interleaved" or "shuffled" */
    uint64_t seed;              /* of that order; declared has none */
    const char *const *context; /* "NAME=TEXT", as in facts.h */
    uint32_t n_context;
};

void report_batch_text(FILE *, const struct report_batch *);
/* As Markdown or HTML. */
void report_batch_page(struct text *, const struct report_batch *, bool html);
void report_batch_csv(struct text *, const struct report_batch *);

/* The line which ratios of a question are over; NULL: none has a total. */
const json_t *report_base(const json_t *lines, const json_t *question);

/* findings.c: "geometric means of totals over 3 shapes: ...", or nothing. */
void report_means(const json_t *lines, struct text *out);

/* The document of a list of results, which it takes; with the rows as `summary`, unless `batch` is
 * NULL. */
json_t *report_document(json_t *results, const struct report_batch *);

/* ---- fill.c: sentences with values of a JSON object in them ---- */

/* Adds `form` with the values of `of`, each by `escape` (NULL: as it is); false: one is not known,
 * and nothing was added. Then as a comment of text_comment(). */
bool fill_add(struct text *out, const char *form, const json_t *of,
              void (*escape)(struct text *, const char *));
void fill_comment(FILE *, const char *form, const json_t *of);

/* The other way round, a line by a form: blanks stand for any number of them, {} for a word that is
 * of no use, {NAME%s} for a word and {NAME} for a number (of NAME+ the sum, of one that is there
 * twice the product), a * at the end for anything. NULL: it is such a line, and `out` has its
 * values. Else where it is not, and *wanted what should stand there; NULL: it does not even begin
 * so, up to the first value. */
const char *form_match(const char *form, const char *line, json_t *out, const char **wanted);
#define FORM_BLANKS " \t\r"

/* Text from files: as it is shown on a terminal, and as Markdown shows it as it is, on one line. */
void text_print_clean(FILE *, const char *text);
void text_add_markdown(struct text *, const char *);

/* Lines of 100 columns, folded at blanks: `lead` begins the first, `next` the others. */
void text_fold(FILE *, const char *lead, const char *next, const char *text);
/* A comment of such lines, with "# " and "#   ", cleaned as text_clean() does. */
__attribute__((format(printf, 2, 3))) void text_comment(FILE *, const char *fmt, ...);

/* ---- export.c: JUnit XML for CI, OpenMetrics text for monitoring, cells of CSV ---- */

/* Text as XML and HTML have it, in attributes too. */
void export_add_xml(struct text *, const char *text);

/* A test case for each row, by file; `results` (a list) have how long runs took. */
void export_junit(struct text *, const struct report_batch *, const json_t *results);

/* Puts into rows what CSV has of a run besides: percentiles and rates of its stages, and a cell for
 * each key of its experiment. Returns an object with the names of these columns, in order. */
json_t *export_cells(json_t *rows, bool stages);

/* Percentiles and rates of each stage of each result, and what was compared. */
void export_openmetrics(struct text *, const json_t *results);

/* Rows, which are JSON objects, under columns: as text of 100 columns, as Markdown and as CSV. */

struct table_column {
    const char *key;  /* in a row, or the path of it; NULL ends the list */
    const char *name; /* the heading */
    const char *unit; /* or NULL */
    double scale;     /* numbers are divided by it; 0: they are not */
    int digits; /* behind the point; -1: two that count; -2: two, or four below 0.1; of the first
                       * text: its least width, 0: TABLE_LABEL */
    int width;  /* of numbers, to the right: too long ones lose digits; 0: text, to the left */
};

enum { TABLE_LABEL = 24 };

/* A comment with the headings, one with the units, and a line for each row. A last text without a
 * heading is not padded. The key "colour" of a row ("bad", "good") is for its last text. */
void table_text(FILE *, const struct table_column *, const json_t *rows);
/* CSV by RFC 4180; an unknown value is an empty cell. */
enum table_form { TABLE_MARKDOWN, TABLE_HTML, TABLE_CSV };
void table_add(struct text *, enum table_form, const struct table_column *, const json_t *rows);

/* Predicts the time of more ranks: a model of each phase, fitted to short runs with few ranks,
 * and its report. */

/* Costs of a rank that add up: of a call, of each peer, of each row and each choice that it sends
 * or receives. Of few rows, which caches hold, one costs less. Where ranks share a core, another
 * has to run before one that waits goes on, and leaves it a cold cache: a call and a row cost more,
 * besides the share of the core. */
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
    double term[PREDICT_TERMS]; /* how many of each */
    double share;               /* threads that share a core: all costs are so many times as high */
    double ns;                  /* what was measured */
    double weight;              /* of its relative error */
};

/* Costs in ns, none below 0, with the least sum of squared relative errors. With fewer different
 * points than terms, some are 0. */
void predict_fit(const struct predict_point *, uint32_t n, double cost[PREDICT_TERMS]);
double predict_local(const double cost[PREDICT_TERMS], const struct predict_point *);

/* Between nodes; each rank has one, or all ranks of a node share it. */
struct predict_link {
    double bytes_per_ns, latency_ns, message_ns; /* message_ns: from one to the next, at least */
    bool node;
};

/* "50GB/s,2us", then ",10ns" and ",node" where wanted. */
enum epa_status predict_link_read(const char *text, struct predict_link *, struct epa_error *);

enum predict_bound { PREDICT_LOCAL, PREDICT_BYTES, PREDICT_MESSAGES, PREDICT_LATENCY };

struct predict_time {
    double ns, local_ns, bytes_ns, messages_ns, latency_ns;
    enum predict_bound bound; /* the largest of them */
};

/* A phase: what the rank does, what its link carries and the time between two messages go on at
 * the same time, and the longest counts; latencies, less those of signals in a node, which are in
 * `local_ns`, are added: a rank hears of the barrier before the phase up to one late, and its rows
 * take another. Without a link the phase stays within a node. */
enum { PREDICT_LATENCIES = 2 };
struct predict_time predict_time(double local_ns, const struct op_load *,
                                 const struct predict_link *, double signal_ns);

/* ---- the document ---- */

/* Keys of a prediction: "file", "link" (null), "cores", "worlds" (the one asked for, or those of a
 * sweep), "scales", "measured", "error", "check" (null), "machine"; help predicting says what they
 * are. The answer first; then a table with a row for each stage, or for each world of a sweep. */
void predict_text(FILE *, const json_t *);
void predict_markdown(struct text *, const json_t *);
void predict_csv(struct text *, const json_t *);

/* A row of "worlds": its name for people. */
const char *predict_bound_name(enum predict_bound);

#endif
