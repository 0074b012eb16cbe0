/* Runs what is to end its process, in one of its own. The process that calls must not have run a
 * kernel before: threads that run blocks are not copied. */
#ifndef PROBE_RUN_H
#define PROBE_RUN_H

enum { PROBE_SAID = 16384 };

/* Runs it with standard error in `said`; returns what waitpid() says. */
int probe_status(void (*probe)(void), char said[PROBE_SAID]);
/* It fails, and says `words`, as an assertion of cmocka. */
void probe_expect(void (*probe)(void), const char *words);

#endif
