/* token_flag on hosts: passes of workers, and their waits for flags. */
#include "token_flag_pass.h"

#include <epa2a/wait.h>

enum epa_status tf_run_pass(struct tf_task *task,
                            void (*fn)(void *, uint32_t worker, uint32_t workers))
{
    enum epa_status status;

    task->pass.done = 0;
    status = algo_parallel(&task->h->a, fn, task);
    return status == EPA_OK ? task->pass.status : status;
}

bool tf_stop_pass(struct tf_task *task, enum epa_status status, const char *what, uint32_t peer,
                  uint32_t row)
{
    if (!algo_stop(&task->pass, status))
        return false;
    task->h->a.last.what = what;
    task->h->a.last.peer = peer;
    task->h->a.last.row = row;
    return true;
}

static bool has_arrived(const uint64_t *flag, uint64_t epoch)
{
    /* Acquire: pairs with the release after the store of the row or expert output. */
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE) >= epoch;
}

bool tf_await_flag(struct tf_task *task, const uint64_t *flag, uint32_t worker, const char *what,
                   uint32_t peer, uint32_t row)
{
    struct tf_host *h = task->h;
    struct algo_look look = {.what = what, .number = row, .peer = peer, .wanted = task->set->epoch};

    while (!has_arrived(flag, task->set->epoch)) {
        enum epa_status status = EPA_OK;

        if (!algo_look_pause(&h->a, &look))
            continue;
        if (algo_stopped(&task->pass))
            return false;
        if (worker == 0)
            status = h->a.t->ops->progress(h->a.t);
        look.seen = __atomic_load_n(flag, __ATOMIC_RELAXED);
        algo_look_report(&h->a, &look);
        if (status == EPA_OK && look.waited_ns > h->a.timeout_ns)
            status = EPA_ERR_TIMEOUT;
        if (status == EPA_OK)
            continue;
        if (tf_stop_pass(task, status, what, peer, row) && status == EPA_ERR_TIMEOUT)
            (void)algo_fail(algo_awaits(&h->a, peer), status, "waited %.3f s for %s %u of rank %u",
                            (double)look.waited_ns * 1e-9, what, row, peer);
        return false;
    }
    epa_wait_clear(h->a.observer, look.reported_ns);
    return true;
}

void tf_tend(struct tf_task *task, uint32_t worker, uint32_t workers)
{
    struct algo_host *h = &task->h->a;
    enum epa_status status = algo_tend(h, &task->pass, worker, workers, NULL);

    if (status != EPA_OK)
        (void)tf_stop_pass(task, status, "the other workers of rank", h->world.rank, 0);
}
