/* Rows of a summary: the runs of a command, and their ends. */
#ifndef REPORT_ROWS_H
#define REPORT_ROWS_H

#include <stdint.h>

#include "base/json.h"
#include "session/session.h"

/* "end" of a row */
#define REPORT_NOT_RUN "not run" /* the command ended before */
#define REPORT_OK "ok"
#define REPORT_FAILED "failed"
#define REPORT_SKIPPED "skipped" /* a requirement is missing here */

/* All runs of a command, in written order, and their ends. */
struct report_batch {
    enum verb verb;
    json_t *rows;
    const char *order;          /* "declared", "interleaved" or "shuffled" */
    uint64_t seed;              /* of that order; unused for declared */
    const char *const *context; /* "NAME=TEXT", see struct facts */
    uint32_t n_context;
};

#endif
