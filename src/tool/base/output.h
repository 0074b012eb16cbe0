/* Outputs that no process reads. A write to a full pipe blocks, and the program blocks the signals
 * that end it (see stop_signals_open()). */
#ifndef OUTPUT_H
#define OUTPUT_H

/* From this call on SIGINT, SIGTERM or SIGHUP ends a blocked write: if the signal is pending and an
 * output accepts no data for OUTPUT_WAIT_MS, the rest of this output goes to /dev/null. The guard
 * covers standard output, standard error and the stream of output_begin(). It uses SIGALRM and
 * ITIMER_REAL. Child processes inherit no timer. */
void output_guard(void);

/* Called when the program has received one of these signals, which is no longer pending. */
void output_stop(void);

/* Called before and after writes to a stream with its descriptor. */
void output_begin(int fd);
void output_end(void);

#endif
