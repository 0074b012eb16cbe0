/* Starts threads of plugins. The rank's own thread is pinned, and a new thread would inherit its
 * core. The new thread blocks all signals, which the launcher handles. */
#include "helper_thread.h"

#include <sched.h>
#include <signal.h>
#include <string.h>

int helper_thread_start(void *(*run)(void *arg), void *arg, pthread_t *out)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    cpu_set_t cores;
    int error = pthread_attr_init(&attributes);

    if (error != 0)
        return error;
    memset(&cores, 0xff, sizeof(cores)); /* the kernel reduces it to the allowed cores */
    (void)pthread_attr_setaffinity_np(&attributes, sizeof(cores), &cores);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    error = pthread_create(out, &attributes, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}
