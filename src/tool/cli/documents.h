/* The documents of --json, --markdown, --csv, --json-lines, --html, --junit, --openmetrics, and
 * the tables of --out-dir. The command rewrites them during the batch and at its end. */
#ifndef DOCUMENTS_H
#define DOCUMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/runs.h"
#include "base/file.h"
#include "base/json.h"
#include "report/result_parts.h"
#include "report/results.h"
#include "report/summary.h"
#include "report/rows.h"
#include "report/warning_lines.h"
#include "cli/cli.h"

enum document_kind {
    DOCUMENT_JSON,
    DOCUMENT_MARKDOWN,
    DOCUMENT_CSV,
    DOCUMENT_STREAM, /* --json-lines */
    DOCUMENT_JUNIT,
    DOCUMENT_METRICS,
    DOCUMENT_HTML,
    DOCUMENT_ROUTING, /* of import */
    DOCUMENT_OUT,     /* --out of other commands */
    DOCUMENT_FOLDER,  /* first document in --out-dir */
    DOCUMENT_FOLDER_CSV = DOCUMENT_FOLDER,
    DOCUMENT_FOLDER_MARKDOWN,
    DOCUMENTS
};

struct documents {
    const struct cli *cli;
    const struct runs *runs;
    enum verb verb;
    bool ours;              /* this process reports */
    struct arena *arena;    /* owns the texts of rows */
    struct report_row *row; /* [n_rows]: rows of the summary, in file order */
    uint32_t n_rows;
    char *path[DOCUMENTS]; /* NULL: not requested */
    /* Temporary file of a document that could not be renamed, and the message about it; or NULL. */
    char *kept[DOCUMENTS], *why[DOCUMENTS];
    json_t *one;              /* result of the last run; NULL: the run has none */
    json_t *results;          /* all results, for --json and --html */
    struct results all;       /* the same, for --openmetrics and documents_share() */
    bool shares;              /* documents_share() will need all results */
    struct warnings warnings; /* warnings of all runs of a batch, printed after the table */
    struct file_stream stream;
    bool is_ours[DOCUMENTS];  /* this command wrote the file and may overwrite it */
    bool reported[DOCUMENTS]; /* a write error has been reported */
    bool delayed;             /* a finished run is not written yet */
    uint64_t written_ns, cost_ns;
};

/* Initialises the documents with a row for each run. `runs` must outlive them. `shares`: the caller
 * calls documents_share(). */
void documents_init(struct documents *, const struct cli *, enum verb, const struct runs *,
                    bool ours, bool shares);
/* Opens the stream of --json-lines. */
enum epa_status documents_open(struct documents *, struct epa_error *);
void documents_finish(struct documents *);

/* Begins a run: the last run has no result yet. */
void documents_begin_run(struct documents *);
/* Adds the result of a run, and fills its row. */
void documents_add(struct documents *, struct report_row *, const struct result *,
                   const struct facts *);
/* The same for a run that has a result in a file. */
void documents_add_saved(struct documents *, struct report_row *, const struct results_run *);
/* Returns true if the last run has a result. */
bool documents_have_one(const struct documents *);
/* Adds this result and its row as a line, a document of its own. */
void documents_line(const struct documents *, uint32_t i, struct text *out);
/* Passes all results; results_free() frees them. */
void documents_share(struct documents *, struct results *out);

/* Returns true if standard output has lost its reader and no other document is requested. */
bool documents_are_unread(const struct documents *);

/* Returns true if documents_write() has delayed a document and would write it now. Called during the
 * next run, which may take long, and which may end with the program. */
bool documents_are_due(const struct documents *);

/* Writes all documents. Before the end of the batch a call does nothing if writing would take more
 * than a small part of the time. Prints errors and returns false after one. */
bool documents_write(struct documents *, bool last);

/* Fails if a document of --out-dir cannot be written into the folder. */
enum epa_status folder_documents_check(const char *folder, struct epa_error *);

/* Writes `document` to the file of --json, if given. Takes the reference to `document`. */
enum epa_status cli_write_json(const struct cli *, json_t *document, struct epa_error *);
/* Checks before the command runs that the files of its options can be written. */
enum epa_status cli_check_documents(const struct cli *, struct epa_error *);
/* Returns true if an option writes a document to standard output. The command then prints nothing
 * else there. */
bool cli_has_stdout(const struct cli *);
/* Writes `document` to --json and `markdown` to --markdown, if given. Takes the reference to
 * `document`. */
enum epa_status cli_write_documents(const struct cli *, json_t *document,
                                    const struct text *markdown, struct epa_error *);

#endif
