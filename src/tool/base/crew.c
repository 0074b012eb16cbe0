#include "base/crew.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "host/pin.h"

struct member {
    const struct crew *crew;
    void (*fn)(void *arg, uint32_t worker);
    void *arg;
    uint32_t worker;
    pthread_t thread;
};

static void *run_member(void *arg)
{
    const struct member *m = arg;

    if (m->crew->cores > 0)
        (void)pin_self(m->crew->core, m->crew->cores); /* a failure only costs speed */
    m->fn(m->arg, m->worker);
    return NULL;
}

void crew_run(const struct crew *crew, void (*fn)(void *arg, uint32_t worker), void *arg)
{
    struct member *member = crew->threads > 1 ? calloc(crew->threads, sizeof(*member)) : NULL;
    uint32_t n = 1;
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* threads of the launcher receive signals */
    for (; member != NULL && n < crew->threads; n++) {
        member[n] = (struct member){.crew = crew, .fn = fn, .arg = arg, .worker = n};
        if (pthread_create(&member[n].thread, NULL, run_member, &member[n]) != 0)
            break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    fn(arg, 0);
    for (uint32_t i = 1; i < n && member != NULL; i++)
        pthread_join(member[i].thread, NULL);
    free(member);
}
