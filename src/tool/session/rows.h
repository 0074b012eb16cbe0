/* Rows of a report. */
#ifndef ROWS_H
#define ROWS_H

#include "session/session.h"

/* A row of a report: the sum of `n` rows of session_times(), from `first` on. */
struct session_row {
    const char *name;
    enum epa_stage_kind kind; /* SEND: the row moves no bytes of its own */
    uint32_t first, n;
    bool is_stage; /* the row is the stage `first` */
};
enum { SESSION_ROWS = SESSION_STAGES + OPEN_ROWS };

/* Lists the rows of a report: the first n_stages stages, or the figures of graphs, and last the whole
 * iteration. Returns the number of rows. */
uint32_t session_rows(const struct session *, uint32_t n_stages,
                      struct session_row out[SESSION_ROWS]);
struct session_row session_total(const struct session *); /* the last row */
/* Returns the time of a rank in a sample. */
double session_row_ns(const struct session *, const struct session_row *, uint32_t rank,
                      uint64_t sample);

#endif
