/* What runs on this machine, for `status` and for completions. */
#ifndef CMD_STATUS_H
#define CMD_STATUS_H

#include "session/status.h"

/* Each command of this user that runs experiments; what is handed out ends with the call. */
void status_each(void (*tell)(void *arg, const struct status *), void *arg);

#endif
