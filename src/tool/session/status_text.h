/* The status of a command as text. */
#ifndef STATUS_TEXT_H
#define STATUS_TEXT_H

#include "base/text.h"
#include "session/status.h"

const char *status_state_name(enum status_state);
const char *status_verb(const struct status *); /* "bench"; "?": unknown verb */
/* "dispatch", "set-up", "between stages" */
const char *status_stage(const struct status *, uint32_t rank);
/* "rows of rank 1 for 2.31 s: signal 12 is 6, wants 7"; "-": no wait. */
void status_waits_for(const struct status *, uint32_t rank, char *out, size_t room);

/* Prints a line for the run and a line for each rank; each line begins with `before`. */
void status_print(const struct status *, const char *before, struct text *out);
/* Prints the line for the run without a newline. */
void status_print_head(const struct status *, struct text *out);

#endif
