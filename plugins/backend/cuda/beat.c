/* A thread that changes a word of pinned memory while the process runs. SIGSTOP and a frozen cgroup
 * suspend the thread together with all other threads of the rank, but not its kernels, which read
 * the word before they count time. The rank's own thread cannot do this: it may be busy with other
 * work, or blocked in a launch, while kernels wait for a failed rank.
 *
 * The thread also ends kernels that wait after a rank has failed: the application may wait for its
 * stream in a function of CUDA meanwhile. */
#include "beat.h"

#include "stream.h"

#include <string.h>
#include <time.h>

#include "../../common/helper_thread.h"

enum { BEAT_NS = 5000000 };

static void *beat(void *arg)
{
    struct cuda *c = arg;

    /* Relaxed: the words themselves are the messages. Kernels read the beat in
     * epa_dev_poll_expired(). */
    while (__atomic_load_n(&c->beat.stop, __ATOMIC_RELAXED) == 0) {
        __atomic_add_fetch(&c->words->beat, 1, __ATOMIC_RELAXED);
        if (epa_aborted(c->boot))
            cuda_raise_stop(c);
        nanosleep(&(struct timespec){.tv_nsec = BEAT_NS}, NULL);
    }
    return NULL;
}

enum epa_status beat_start(struct cuda *c)
{
    int error = helper_thread_start(beat, c, &c->beat.thread);

    if (error != 0)
        return epa_fail_errno(&c->last, EPA_ERR_SYSTEM, error,
                              "cuda: no thread for the beat of the rank: %s", strerror(error));
    c->beat.started = true;
    return EPA_OK;
}

void beat_stop(struct cuda *c)
{
    if (!c->beat.started)
        return;
    __atomic_store_n(&c->beat.stop, 1, __ATOMIC_RELAXED);
    pthread_join(c->beat.thread, NULL);
    c->beat.started = false;
}
