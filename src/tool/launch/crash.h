/* Deadly signals of a rank that is a thread of the watching process. */
#ifndef CRASH_H
#define CRASH_H

#include <stdint.h>

/* Called by the watching thread: from here on a deadly signal (SIGSEGV, SIGABRT and others) in another
 * thread does not end the process at once: the thread stays in the handler, and the handler writes the
 * eventfd `wake`. Replaces handlers that libraries such as UCX install when they are loaded, so each
 * launch calls the function again. Handlers of sanitizers stay. */
void crash_catch(int wake);

/* Returns the first signal that a handler has caught; 0: none. */
uint32_t crash_signal(void);

#endif
