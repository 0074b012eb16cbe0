/* What a command leaves behind: results as JSON, and a line for each run as text, JSON,
 * Markdown and CSV. All are written again while runs go on, so that whatever ends the
 * command, what was measured is there. */
#ifndef RUN_DOCUMENTS_H
#define RUN_DOCUMENTS_H

#include "base/file.h"
#include "cli/cli.h"
#include "cli/runs.h"
#include "report/report.h"
#include "report/summary.h"

enum document_kind {
    DOCUMENT_JSON,
    DOCUMENT_MARKDOWN,
    DOCUMENT_CSV,
    DOCUMENT_STREAM, /* --json-lines */
    DOCUMENT_FOLDER, /* the first of those in --out-dir */
    DOCUMENT_FOLDER_CSV = DOCUMENT_FOLDER,
    DOCUMENT_FOLDER_MARKDOWN,
    DOCUMENTS
};

struct documents {
    const struct cli *cli;
    const struct runs *runs;
    enum verb verb;
    bool ours;              /* this process reports */
    struct report_row *row; /* [n], as written */
    uint32_t n;
    char *path[DOCUMENTS];    /* NULL: not asked for */
    struct text one;          /* JSON of the last result */
    struct text results;      /* see report_json_add() */
    struct warnings warnings; /* of runs of a batch, told after its table */
    struct file_stream stream;
    bool is_ours[DOCUMENTS];  /* written by this command, so to be written over */
    bool reported[DOCUMENTS]; /* that it cannot be written */
    uint64_t written_ns, cost_ns;
};

/* Whether the files can be written. */
enum epa_status documents_check(const struct cli *, struct epa_error *);

/* With a row for each run; `runs` must outlive it. */
enum epa_status documents_init(struct documents *, const struct cli *, enum verb,
                               const struct runs *, bool ours, struct epa_error *);
/* Begins what is written while runs go on. */
enum epa_status documents_open(struct documents *, struct epa_error *);
void documents_finish(struct documents *);

/* Adds a result, and leaves it in `one`; take() adds one that is JSON already. */
enum epa_status documents_add(struct documents *, const struct result *, struct epa_error *);
enum epa_status documents_take(struct documents *, const struct text *result, struct epa_error *);

/* One of them is standard output, where nothing else may be then. */
bool documents_have_stdout(const struct documents *);

/* Writes all; before the last time only if it was long enough ago that writing stays a small
 * part of the whole. Says what is wrong, and is false then. */
bool documents_write(struct documents *, bool last);

#endif
