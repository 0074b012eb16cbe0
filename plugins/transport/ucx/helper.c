/* A thread that makes progress while its rank does not.
 *
 * Where UCX has no transport that writes into a peer's memory by itself (tcp, or additions
 * over most others), what is put is a message that the peer executes. Then a rank that is in
 * its experts, or in the bootstrap, would hold up the quiet() of all others, and two such
 * ranks each other for ever. So once a rank has been elsewhere for a tick its helper looks
 * after what comes, in short turns under the lock; it costs a wake-up a tick, and a rank that
 * is in here often enough never meets it. */
#include "ucx.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

enum {
    TICK_NS = 500000,
    IDLE_TURNS = 3, /* in which nothing came, before it sleeps again */
};

/* Until the rank comes back or nothing comes any more. */
static void stand_in(struct ucx *u, uint64_t calls)
{
    for (uint32_t idle = 0; idle < IDLE_TURNS;) {
        bool back;

        if (pthread_mutex_trylock(&u->lock) != 0)
            return;
        back = u->helper.calls != calls;
        idle = back || ucp_worker_progress(u->worker) == 0 ? idle + 1 : 0;
        pthread_mutex_unlock(&u->lock);
        if (back || __atomic_load_n(&u->helper.stop, __ATOMIC_RELAXED) != 0)
            return;
    }
}

static void *run(void *arg)
{
    struct ucx *u = arg;
    uint64_t calls = 0;

    while (__atomic_load_n(&u->helper.stop, __ATOMIC_RELAXED) == 0) {
        uint64_t seen;

        nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
        if (pthread_mutex_trylock(&u->lock) != 0)
            continue;
        seen = u->helper.calls;
        pthread_mutex_unlock(&u->lock);
        if (seen == calls)
            stand_in(u, calls);
        calls = seen;
    }
    return NULL;
}

enum epa_status helper_start(struct ucx *u, struct epa_error *err)
{
    sigset_t all, before;
    int error;

    u->helper.on = true;
    sigfillset(&all); /* signals are the launcher's affair */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    error = pthread_create(&u->helper.thread, NULL, run, u);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        return EPA_OK;
    u->helper.on = false;
    return epa_fail(err, EPA_ERR_SYSTEM,
                    "ucx: no thread to make progress: %s; progress: calls does without",
                    strerror(error));
}

void helper_stop(struct ucx *u)
{
    if (!u->helper.on)
        return;
    __atomic_store_n(&u->helper.stop, 1, __ATOMIC_RELAXED);
    pthread_join(u->helper.thread, NULL);
    u->helper.on = false;
}
