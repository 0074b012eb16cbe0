/* UCX's log messages, which UCX prints to standard output by default. */
#ifndef UCX_LOG_H
#define UCX_LOG_H

#include <stdbool.h>

/* Prints messages to standard error from now on. */
void log_to_stderr(void);

/* UCX logs to standard error. While muted, the handler drops messages, because the caller
 * reports the expected failure. */
void log_mute(bool mute);

#endif
