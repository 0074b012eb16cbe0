/* A result as a table for people and as JSON. */
#ifndef REPORT_H
#define REPORT_H

#include <stdio.h>

#include "base/text.h"
#include "report/result.h"

/* The table; for VERB_VERIFY the lines that say what was compared. Data only: no warnings.
 * Lines that begin with '#' explain, the others are rows. */
void report_table(FILE *, const struct result *);
/* Whether the environment says that characters beyond ASCII can be shown. */
bool report_unicode(void);
/* Warnings, one a line, "warning: " first. */
void report_warnings(FILE *, const struct result *);

enum { REPORT_SCHEMA = 1 }; /* "schema" of the JSON; share/epa2a-result.schema.json */

/* Adds a result as JSON, behind a comma where `out` has one already. */
enum epa_status report_json_add(struct text *out, const struct result *, struct epa_error *);

/* One JSON document for all results of a command: the array `results`, made by
 * report_json_add(), and the rows (NULL or fewer than two: left out) as `summary`. */
struct report_batch;
enum epa_status report_json(const char *path, bool force, const struct text *results,
                            const struct report_batch *, struct epa_error *);

/* That document as text; and, of one result, on one line with its end. EPA_ERR_NOMEM. */
enum epa_status report_json_text(struct text *out, const struct text *results,
                                 const struct report_batch *, struct epa_error *);
enum epa_status report_json_line(struct text *out, const struct text *result, struct epa_error *);

/* The only result in such a document, as report_json_add() has it. One that is not of that id,
 * or did not end well, is refused. */
enum epa_status report_json_read(const char *path, const char *id, struct text *out,
                                 struct epa_error *);

/* Documents are written to a temporary file beside `path`, synced and renamed; a device or a
 * pipe is written to as it is, and "-" is standard output. Without `force` an existing file
 * is refused before anything runs, by the check, which also says whether the folder can be
 * written. `option`, such as "--json", begins what is said. */
enum epa_status report_file_check(const char *option, const char *path, bool force,
                                  struct epa_error *);
enum epa_status report_file(const char *option, const char *path, bool force, const char *data,
                            size_t bytes, struct epa_error *);

/* A file that grows while people read it; "-" is standard output. The caller closes fd. */
struct report_stream {
    const char *option, *path;
    int fd;
};
enum epa_status report_stream_open(struct report_stream *, bool force, struct epa_error *);
enum epa_status report_stream_add(const struct report_stream *, const struct text *,
                                  struct epa_error *);

#endif
