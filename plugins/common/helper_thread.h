/* A thread of a plugin beside the rank's own thread. */
#ifndef PLUGINS_HELPER_THREAD_H
#define PLUGINS_HELPER_THREAD_H

#include <pthread.h>

/* Starts a thread that may run on all cores and receives no signals. Returns 0 or an errno value. */
int helper_thread_start(void *(*run)(void *arg), void *arg, pthread_t *out);

#endif
