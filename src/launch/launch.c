/* A rank's world and the end of a launch; no processes or threads in here. */
#include "launch/launch.h"

#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>

#include "base/clock.h"

/* A rank can raise `aborted` and then hang, which nothing but a look at the word shows. */
enum { POLL_MS = 100 };

enum epa_status launch_nodes(const struct epa_launch *launch, uint32_t **out, struct epa_error *err)
{
    uint32_t *node;

    *out = NULL;
    if (launch->ranks_per_node == 0 || launch->ranks_per_node >= launch->ranks)
        return EPA_OK;
    node = calloc(launch->ranks, sizeof(*node));
    if (node == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the nodes of %u ranks", launch->ranks);
    for (uint32_t r = 0; r < launch->ranks; r++)
        node[r] = r / launch->ranks_per_node;
    *out = node;
    return EPA_OK;
}

struct epa_world launch_world(const struct epa_launch *launch, const uint32_t *nodes,
                              const struct pin_plan *plan, uint32_t rank)
{
    uint32_t node = launch->ranks_per_node;
    struct epa_world world = {.rank = rank, .size = launch->ranks, .node = nodes};

    if (node == 0 || node > launch->ranks)
        node = launch->ranks;
    world.local_rank = rank % node;
    world.local_size = launch->ranks - (rank - world.local_rank);
    if (world.local_size > node)
        world.local_size = node;
    /* Nodes of one host share its cores: a node has its part of them, so that a rank which
     * compares it with local_size yields exactly when all ranks are more than all cores. */
    world.local_cores = (uint32_t)((uint64_t)plan->cores * world.local_size / launch->ranks);
    if (world.local_cores == 0)
        world.local_cores = 1;
    world.cores = pin_plan_rank(plan, rank, &world.core);
    return world;
}

void launch_pin(struct epa_world *world)
{
    if (world->cores > 0 && !pin_self(world->core[0])) {
        world->core = NULL;
        world->cores = 0;
    }
}

void watch_init(struct watch *out, const struct epa_launch *launch, struct control *control,
                struct epa_error *err)
{
    *out = (struct watch){
        .launch = launch, .control = control, .err = err, .stop_fd = launch->stop_fd};
}

/* Whether a failure with `status` is the one that decides. */
static bool decides(struct watch *watch, enum epa_status status)
{
    bool first =
        watch->first == EPA_OK || (watch->first == EPA_ERR_ABORTED && status != EPA_ERR_ABORTED);

    if (first)
        watch->first = status;
    control_abort(watch->control);
    return first;
}

void watch_returned(struct watch *watch, enum epa_status status)
{
    if (status != EPA_OK)
        decides(watch, status); /* the rank has said why */
    else if (watch->last_end == 0 && watch->launch->timeout_ns != 0)
        watch->last_end = clock_ns() + watch->launch->timeout_ns;
}

void watch_failed(struct watch *watch, enum epa_status status, const char *fmt, ...)
{
    char text[sizeof(watch->err->text)];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (decides(watch, status))
        epa_fail(watch->err, status, "%s", text);
}

void watch_gave_up(struct watch *watch, const char *who)
{
    watch_failed(watch, EPA_ERR_TIMEOUT,
                 "%s did not return within %.3g s of the "
                 "request to stop",
                 who, (double)watch->launch->grace_ns * 1e-9);
}

void watch_stop(struct watch *watch, short revents)
{
    if (revents == 0)
        return;
    watch->stop_fd = -1;
    watch->stopping = (revents & (POLLIN | POLLHUP)) != 0;
    if (watch->stopping)
        watch_failed(watch, EPA_ERR_INTERRUPTED, "interrupted");
}

static uint32_t missing_rank(const struct watch *watch)
{
    enum epa_status status;
    uint32_t rank = 0;

    while (rank + 1 < watch->launch->ranks && control_returned(watch->control, rank, &status))
        rank++;
    return rank;
}

bool watch_turn(struct watch *watch)
{
    const struct epa_launch *launch = watch->launch;
    uint64_t now = clock_ns();
    enum epa_poll_reason why = watch->stopping ? EPA_POLL_STOPPING : EPA_POLL;
    bool at_once = launch->poll_launch != NULL && launch->poll_launch(launch->poll_arg, why);

    if (watch->last_end != 0 && now >= watch->last_end) {
        watch->last_end = 0;
        watch_failed(watch, EPA_ERR_TIMEOUT,
                     "rank %u did not return within %.3g s of the first that did",
                     missing_rank(watch), (double)watch->launch->timeout_ns * 1e-9);
    }
    if (watch->grace_end == 0 && control_aborted(watch->control))
        watch->grace_end = now + watch->launch->grace_ns;
    return watch->grace_end != 0 && (at_once || now >= watch->grace_end);
}

int watch_pause_ms(const struct watch *watch)
{
    uint64_t now = clock_ns(), end = now + POLL_MS * 1000000ull;

    if (watch->last_end != 0 && watch->last_end < end)
        end = watch->last_end;
    if (watch->grace_end != 0 && watch->grace_end < end)
        end = watch->grace_end;
    return end <= now ? 1 : (int)((end - now + 999999) / 1000000);
}
