/* The signals that stop a command. */
#ifndef STOP_SIGNALS_H
#define STOP_SIGNALS_H

#include <signal.h>

#include <epa2a/status.h>

/* Returns the signals that stop a command: SIGTERM, and SIGINT and SIGHUP unless they are ignored.
 * nohup ignores SIGHUP; a script that runs `epa2a &` ignores SIGINT. */
void stop_signals_find(sigset_t *out);
/* Blocks SIGUSR1, so that it requests the state of the ranks and does not end the process; returns
 * the signals of stop_signals_find(). The caller has not loaded plugins yet: their libraries may
 * install handlers, as UCX does. */
void stop_signals_catch(sigset_t *stops);
/* Blocks the stop signals and opens *stop_fd, a signalfd, so that they end a session and not the
 * program. *stop_fd is -1 before the call. */
enum epa_status stop_signals_open(const sigset_t *stops, int *stop_fd, struct epa_error *);
/* Returns the next pending signal of stop_fd, SIGTERM for SIGHUP; 0: none. */
int stop_signals_read(int stop_fd);

#endif
