/* Watches the ranks of a launch. */
#ifndef LAUNCH_WATCH_H
#define LAUNCH_WATCH_H

#include "launch/launch.h"

/* Raises the signal that stopped another rank in this process, so that all processes of a launch end
 * with the same status. No effect unless the process blocks signals and reads them itself. */
void launch_share_signal(uint32_t number);

/* Polls until all ranks have ended and the launcher is done. */
void launch_watch(struct launch *);

#endif
