/* Creates a session: checks without ranks, and the memory that ranks share. */
#ifndef SESSION_CREATE_H
#define SESSION_CREATE_H

#include <stdint.h>

#include "session/session.h"

struct status_page; /* session/status_page.h */
struct status_page_run;

/* Plans `x` for `verb` with the checks of session_create_on(), except those for missing devices and
 * for the process launcher. Memory is checked. The session cannot run. */
enum epa_status session_plan(const struct experiment *x, enum verb verb, struct session **out,
                             struct epa_error *);

/* Plans `x` for `verb`, checks configuration, memory and plugins, and maps the memory that ranks
 * share, on the status page unless it is NULL. Page and experiment must outlive the session. */
enum epa_status session_create_on(struct status_page *, const struct experiment *x, enum verb verb,
                                  struct session **out, struct epa_error *);

/* The same without a status page, for a list of many runs. *memory_passed is the largest demand for
 * memory that passed before, first 0: the memory of the machine is read for larger demands only. */
enum epa_status session_check(const struct experiment *x, enum verb verb, uint64_t *memory_passed,
                              struct session **out, struct epa_error *);
void session_destroy(struct session *);

/* Returns the status page and the offsets of this session on it in `out`; NULL without a page. */
struct status_page *session_status_page(const struct session *, struct status_page_run *out);

#endif
