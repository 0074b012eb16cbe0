/* The thread of a launcher's rank. One thread serves all launches, since a library that meet() starts may
 * accept calls of one thread only. */
#include "launch/launcher_rank.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include <epa2a/wait.h>
#include "base/text.h"
#include "boot/death.h"
#include "launch/crash.h"
#include "launch/launch_rank.h"
#include "launch/launcher_state.h"

static enum epa_status run_order(struct launcher *l)
{
    const struct order *order = &l->order;
    struct launch launch = {.asked = order->asked, .control = l->control};
    struct epa_world world = order->world;
    enum epa_status status;

    if (pin_plan_init(&launch.pins, order->pin, order->welcome.shares, order->asked.threads,
                      NULL) == EPA_OK)
        world.cores = pin_plan_rank(&launch.pins, order->welcome.share, &world.core);
    status = launch_run_rank(&launch, &world, l->wake);
    pin_plan_finish(&launch.pins);
    return status;
}

static void give_order(struct launcher *l, enum order_kind kind)
{
    pthread_mutex_lock(&l->lock);
    l->order.kind = kind;
    pthread_cond_signal(&l->ordered);
    pthread_mutex_unlock(&l->lock);
}

static enum order_kind take_order(struct launcher *l)
{
    enum order_kind kind;

    pthread_mutex_lock(&l->lock);
    while (l->order.kind == ORDER_NONE)
        pthread_cond_wait(&l->ordered, &l->lock);
    kind = l->order.kind;
    l->order.kind = ORDER_NONE;
    pthread_mutex_unlock(&l->lock);
    return kind;
}

static void meet_ranks(struct launcher *l)
{
    enum epa_status status;

    if (l->params.meet == NULL)
        return;
    status = l->params.meet(l->params.arg, &l->meet_contact, &l->meet_err);
    if (status != EPA_OK)
        (void)epa_fail(&l->meet_err, status, "no reason was given");
    /* Release: pairs with the acquire in check_meeting(). */
    __atomic_store_n(&l->meet_over, 1, __ATOMIC_RELEASE);
    (void)eventfd_write(l->wake, 1);
}

static void *run_ranks(void *arg)
{
    struct launcher *l = arg;
    struct pin_plan all = {0};

    meet_ranks(l);
    (void)pin_plan_init(&all, PIN_NONE, 1, 1, NULL);
    while (take_order(l) == ORDER_RUN) {
        if (all.cores > 0) /* an earlier launch may have pinned this thread to one core */
            (void)pin_self(all.order, all.cores);
        (void)run_order(l);
        (void)eventfd_write(l->wake, 1);
    }
    pin_plan_finish(&all);
    if (l->params.leave != NULL)
        l->params.leave(l->params.arg);
    /* Release: pairs with the acquire in launcher_end_rank(). */
    __atomic_store_n(&l->left, 1, __ATOMIC_RELEASE);
    return NULL;
}

enum epa_status launcher_start_rank(struct launcher *l, struct epa_error *err)
{
    int failed = launch_create_thread(&l->thread, run_ranks, l);

    if (failed != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "thread of %s: %s%s%s", l->me, strerror(failed),
                        memory_limit(), process_limit(failed));
    l->has_thread = true;
    return EPA_OK;
}

void launcher_run_rank(struct launcher *l)
{
    launch_set_live(l->launch->rank, true);
    give_order(l, ORDER_RUN);
}

void launcher_check_rank(struct launcher *l)
{
    struct launch_rank *rank = l->launch->rank;
    enum epa_status status;
    char how[DEATH_TEXT];

    if (!rank->live)
        return;
    if (control_returned(l->control, l->rank, &status)) {
        launch_set_live(rank, false);
        launch_rank_returned(l->launch, status);
    } else if (crash_signal() != 0) {
        death_describe((int)crash_signal(), how);
        launch_rank_died(rank, crash_signal(), how);
        launch_leak_thread(rank);
    }
}

bool launcher_end_rank(struct launcher *l, uint32_t ms)
{
    uint64_t limit_ns = ms * UINT64_C(1000000), begun_ns = 0, waited_ns = 0;

    if (!l->has_thread)
        return true;
    if (crash_signal() != 0) /* of an idle rank */
        return false;
    give_order(l, ORDER_LEAVE);
    while (__atomic_load_n(&l->left, __ATOMIC_ACQUIRE) == 0) {
        waited_ns = epa_waited_ns(&begun_ns, waited_ns, limit_ns);
        if (waited_ns > limit_ns)
            return false;
        (void)poll(NULL, 0, 1);
    }
    (void)pthread_join(l->thread, NULL);
    l->has_thread = false;
    return true;
}
