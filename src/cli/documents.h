/* What --json, --markdown, --csv, --json-lines, --html, --junit and --openmetrics ask for, and the
 * tables of --out-dir: written whole while runs go on and at their end. */
#ifndef DOCUMENTS_H
#define DOCUMENTS_H

#include "base/file.h"
#include "cli/runs.h"
#include "report/summary.h"

enum document_kind {
    DOCUMENT_JSON,
    DOCUMENT_MARKDOWN,
    DOCUMENT_CSV,
    DOCUMENT_STREAM, /* --json-lines */
    DOCUMENT_JUNIT,
    DOCUMENT_METRICS,
    DOCUMENT_HTML,
    DOCUMENT_FOLDER, /* the first of those in --out-dir */
    DOCUMENT_FOLDER_CSV = DOCUMENT_FOLDER,
    DOCUMENT_FOLDER_MARKDOWN,
    DOCUMENTS
};

struct documents {
    const struct cli *cli;
    const struct runs *runs;
    enum verb verb;
    bool ours;                /* this process reports */
    json_t *rows;             /* of runs, as written */
    char *path[DOCUMENTS];    /* NULL: not asked for */
    json_t *one;              /* the last result; NULL: it has none */
    json_t *results;          /* all of them, where a document wants them */
    struct warnings warnings; /* of runs of a batch, printed after its table */
    struct file_stream stream;
    bool is_ours[DOCUMENTS];  /* written by this command, so to be written over */
    bool reported[DOCUMENTS]; /* that it cannot be written */
    uint64_t written_ns, cost_ns;
};

/* Whether the files can be written. */
enum epa_status documents_check(const struct cli *, struct epa_error *);

/* With a row for each run; `runs` must outlive it. */
void documents_init(struct documents *, const struct cli *, enum verb, const struct runs *,
                    bool ours);
/* Begins what is written while runs go on. */
enum epa_status documents_open(struct documents *, struct epa_error *);
void documents_finish(struct documents *);

/* A document of one result, on a line. */
void documents_line(struct text *out, json_t *result, const struct report_batch *);

/* Adds a result, which it takes, and leaves it in `one`. */
void documents_add(struct documents *, json_t *result);

/* One of them is standard output, where nothing else may be then. */
bool documents_have_stdout(const struct documents *);

/* Writes all; before the last time only if it was long enough ago that writing stays a small
 * part of the whole. Says what is wrong, and is false then. */
bool documents_write(struct documents *, bool last);

/* page.c: a page of a batch for a browser, with nothing outside it. */
void page_html(struct text *out, const struct documents *, const struct report_batch *);

#endif
