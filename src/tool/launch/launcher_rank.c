/* The process of a launcher's rank. */
#include "launch/launcher_rank.h"

#include <sys/eventfd.h>

#include "boot/close_open.h"
#include "launch/launch_rank.h"
#include "launch/launcher_state.h"
#include "launch/rendezvous.h"

static enum epa_status run_order(struct launcher *l)
{
    const struct order *order = l->order;
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

/* Closes the launcher's descriptors in the process of the rank. */
static struct launcher *close_inherited(const struct launch_rank *rank)
{
    struct launcher *l = rank->launch->launcher;

    process_close_inherited(&rank->process);
    close_open(l->listener);
    close_open(l->conn.fd);
    if (l->rendezvous != NULL)
        rendezvous_close_inherited(l->rendezvous);
    return l;
}

int launcher_rank_process(void *rank)
{
    return process_code(run_order(close_inherited(rank)));
}

int launcher_kept_process(void *rank)
{
    struct launcher *l = close_inherited(rank);
    struct order *order = l->order;
    enum epa_status status;
    struct pin_plan all = {0};
    eventfd_t what;

    order->err.status = EPA_OK;
    status = l->params.meet(l->params.arg, &order->contact, &order->err);
    if (status != EPA_OK)
        (void)epa_fail(&order->err, status, "no reason was given");
    /* Release: pairs with the acquire in check_rank(). */
    __atomic_store_n(&order->met, 1, __ATOMIC_RELEASE);
    (void)eventfd_write(l->wake, 1);
    (void)pin_plan_init(&all, PIN_NONE, 1, 1, NULL);
    while (eventfd_read(l->orders, &what) == 0 && what == ORDER_RUN) {
        if (all.cores > 0) /* an earlier launch may have pinned this process to one core */
            (void)pin_self(all.order, all.cores);
        status = run_order(l);
        (void)eventfd_write(l->wake, 1);
    }
    pin_plan_finish(&all);
    if (l->params.leave != NULL)
        l->params.leave(l->params.arg);
    return process_code(status);
}
