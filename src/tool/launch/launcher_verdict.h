/* The result of a launch for all ranks. */
#ifndef LAUNCHER_VERDICT_H
#define LAUNCHER_VERDICT_H

#include "boot/conn.h"

struct launcher;

/* Sets the verdict, unless the launcher has one, and ends the rank after a failure. */
void launcher_set_verdict(struct launcher *, struct conn_word verdict);

/* Reports the return of a rank (status 0) or a failure to the rendezvous, now or later. A failure becomes
 * the verdict if the rendezvous is out of reach. */
void launcher_report(struct launcher *, const struct conn_word *);

#endif
