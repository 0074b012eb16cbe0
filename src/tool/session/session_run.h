/* Runs a session: launches its ranks and chooses the reported failure. */
#ifndef SESSION_RUN_H
#define SESSION_RUN_H

#include "session/session.h"

/* Launches the ranks and waits for their end. stop_fd as in epa_launch. Returns the status of the run;
 * err contains the message of the rank that failed first. */
enum epa_status session_run(struct session *, int stop_fd, struct epa_error *);

#endif
