/* The comm of a rank that calls epa2a.h. */
#include "caller/caller.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <epa2a/wait.h>
#include "base/memory.h"
#include "base/text.h"
#include "caller/caller_ag_gemm.h"
#include "caller/caller_check.h"
#include "caller/caller_layer.h"
#include "caller/caller_memory.h"
#include "caller/caller_moe.h"
#include "caller/caller_options.h"
#include "caller/caller_status.h"

/* ---- the comm ---- */

static int gather(void *arg, const void *mine, size_t bytes, void *all)
{
    struct epa_bootstrap *boot = arg;

    return boot->allgather(boot, mine, bytes, all) == EPA_OK ? 0 : -1;
}

/* A rank that waits inside the library does not see that the launcher or another rank has ended the
 * run. */
static void *watch_bootstrap(void *arg)
{
    const long period_ns = 20000000, second_ns = 1000000000;
    struct caller *c = arg;

    pthread_mutex_lock(&c->lock);
    while (!c->ends) {
        struct timespec until;

        if (epa_aborted(c->params.boot)) {
            epa2a_comm_abort(c->comm);
            break;
        }
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += period_ns;
        until.tv_sec += until.tv_nsec / second_ns;
        until.tv_nsec %= second_ns;
        (void)pthread_cond_timedwait(&c->wakes, &c->lock, &until);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* The thread receives no signals: handlers of the rank run in the rank's own thread. */
static enum epa_status start_watcher(struct caller *c, struct epa_error *err)
{
    pthread_condattr_t monotonic;
    sigset_t all, before;
    int failed;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->wakes, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&c->lock, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&c->watcher, NULL, watch_bootstrap, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    c->watches = failed == 0;
    if (c->watches)
        return EPA_OK;
    pthread_cond_destroy(&c->wakes);
    pthread_mutex_destroy(&c->lock);
    return epa_fail_errno(err, EPA_ERR_SYSTEM, failed, "cannot start a thread: %s",
                          strerror(failed));
}

static void stop_watcher(struct caller *c)
{
    if (!c->watches)
        return;
    pthread_mutex_lock(&c->lock);
    c->ends = true;
    pthread_cond_signal(&c->wakes);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->watcher, NULL);
    pthread_cond_destroy(&c->wakes);
    pthread_mutex_destroy(&c->lock);
    c->watches = false;
}

enum epa_status caller_open(const struct caller_params *params, struct caller **out,
                            struct epa_error *err)
{
    struct caller *c = memory_alloc(1, sizeof(*c));
    text_auto options = {0}, path = {0};
    enum epa_status status;
    EPA2A_STRUCT(epa2a_comm_params, p);

    c->params = *params;
    c->x = params->experiment;
    c->stream = params->backend->stream;
    caller_comm_options(c->x, &options);
    caller_plugin_path(c->x, &path);
    caller_algorithm_options(c->x, &c->options);
    p.version = EPA2A_VERSION;
    p.rank = params->boot->world.rank;
    p.ranks = params->boot->world.size;
    p.allgather = gather;
    p.arg = params->boot;
    p.device = params->backend->device;
    p.timeout_ns = c->x->timeout_ns;
    p.options = options.data;
    p.plugin_path = path.data;
    status = caller_set_up(c, epa2a_comm_create(&p, &c->comm), err);
    if (status == EPA_OK)
        status = start_watcher(c, err);
    *out = c;
    return status;
}

void caller_close(struct caller *c, bool failed)
{
    if (c == NULL)
        return;
    stop_watcher(c);
    if (failed && c->comm != NULL)
        epa2a_comm_abort(c->comm);
    if (c->object != NULL)
        c->object->base.destroy(&c->object->base);
    epa2a_comm_destroy(c->comm);
    text_free(&c->options);
    free(c);
}

/* ---- the object ---- */

enum epa_status caller_create(struct caller *c, const struct op_rank *op,
                              struct epa_algorithm **out, struct epa_error *err)
{
    enum epa_status (*create)(struct caller *, const struct op_rank *, struct caller_object **,
                              struct epa_error *) = algorithm_of(c->x)->op == EPA_OP_AG_GEMM
                                                        ? caller_ag_gemm_create
                                                    : caller_uses_layer(c->x) ? caller_layer_create
                                                                              : caller_moe_create;
    enum epa_status status = create(c, op, &c->object, err);

    if (status == EPA_OK)
        *out = &c->object->base;
    return status;
}

enum epa_status caller_complete(struct caller *c, struct epa_problem *problem,
                                struct epa_error *err)
{
    return c->object->complete != NULL ? c->object->complete(c->object, problem, err) : EPA_OK;
}

enum epa_status caller_sync(struct caller *c, struct epa_error *err)
{
    enum epa_status status;

    if (!caller_is_on_device(c))
        return EPA_OK;
    status = caller_called(c, epa2a_comm_sync(c->comm, c->stream));
    return status == EPA_OK || status == EPA_ERR_ABORTED ? status
                                                         : epa_fail_copy(err, status, &c->failure);
}

bool caller_keeps_rows(struct caller *c, const struct epa_problem *problem)
{
    return c->object->keeps_rows == NULL || c->object->keeps_rows(c->object, problem);
}

uint32_t caller_calls(const struct caller *c)
{
    return c->object->calls;
}

const struct epa_error *caller_failure(const struct caller *c)
{
    return &c->failure;
}
