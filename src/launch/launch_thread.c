/* Ranks as threads of this process, each at addresses of its own, so that ThreadSanitizer
 * sees what they do to each other (it is blind between processes).
 *
 * The launching thread polls stop_fd and an eventfd that each rank writes when it is done.
 * A thread cannot be killed: one that does not return after the grace is reported and left
 * behind; whoever is last, it or the launching thread, frees the launch. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "plugin/registry.h"
#include "launch/launch.h"

enum { STACK_BYTES = 8 << 20 };

struct config {
    int pin;
};

struct rank {
    pthread_t thread;
    bool live; /* to be joined */
    uint32_t number;
    struct launch *launch;
};

struct launch {
    struct epa_launch asked;
    struct control *control;
    uint32_t *nodes;
    struct pin_plan pins;
    struct watch watch;
    struct rank *rank; /* [ranks] */
    int done_fd;
    uint32_t live;  /* threads to join */
    uint32_t users; /* threads that may still look at this, the launching one included */
};

static void release(struct launch *launch)
{
    /* Each releases what it did here; the last acquires it and may free. */
    if (__atomic_sub_fetch(&launch->users, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    if (launch->done_fd >= 0)
        close(launch->done_fd);
    free(launch->rank);
    free(launch->nodes);
    pin_plan_finish(&launch->pins);
    control_destroy(launch->control);
    free(launch);
}

static void *rank_thread(void *arg)
{
    struct rank *rank = arg;
    struct launch *launch = rank->launch;
    struct epa_world world =
        launch_world(&launch->asked, launch->nodes, &launch->pins, rank->number);
    struct bootstrap boot;
    enum epa_status status;

    launch_pin(&world);
    bootstrap_init(&boot, launch->control, &world, launch->asked.timeout_ns);
    status = launch->asked.rank_main(&boot.base, launch->asked.arg);
    control_return(launch->control, rank->number, status);
    eventfd_write(launch->done_fd, 1);
    release(launch);
    return NULL;
}

/* Signals are the launching thread's, except those that tell of a fault in this one. */
static void block_signals(sigset_t *before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    sigset_t all;

    sigfillset(&all);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_BLOCK, &all, before);
}

static int start_rank(struct launch *launch, uint32_t r, const pthread_attr_t *attr)
{
    struct rank *rank = &launch->rank[r];
    int failed;

    rank->number = r;
    rank->launch = launch;
    __atomic_add_fetch(&launch->users, 1, __ATOMIC_RELAXED);
    failed = pthread_create(&rank->thread, attr, rank_thread, rank);
    rank->live = failed == 0;
    if (failed == 0)
        launch->live++;
    else
        release(launch);
    return failed;
}

static void start_all(struct launch *launch)
{
    pthread_attr_t attr;
    sigset_t before;
    int failed = pthread_attr_init(&attr);

    if (failed == 0)
        failed = pthread_attr_setstacksize(&attr, STACK_BYTES);
    block_signals(&before);
    for (uint32_t r = 0; r < launch->asked.ranks && failed == 0; r++)
        failed = start_rank(launch, r, &attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (failed != 0)
        watch_failed(&launch->watch, EPA_ERR_SYSTEM, "thread for rank %u: %s", launch->live,
                     strerror(failed));
}

static void join_done(struct launch *launch)
{
    for (uint32_t r = 0; r < launch->asked.ranks; r++) {
        struct rank *rank = &launch->rank[r];
        enum epa_status status;

        if (!rank->live || !control_returned(launch->control, r, &status))
            continue;
        pthread_join(rank->thread, NULL);
        rank->live = false;
        launch->live--;
        watch_returned(&launch->watch, status);
    }
}

/* False: the grace is over and some rank has not returned. */
static bool turn(struct launch *launch)
{
    struct pollfd fds[2] = {{.fd = launch->watch.stop_fd, .events = POLLIN},
                            {.fd = launch->done_fd, .events = POLLIN}};
    eventfd_t count;

    if (poll(fds, 2, watch_pause_ms(&launch->watch)) > 0) {
        watch_stop(&launch->watch, fds[0].revents);
        if (fds[1].revents != 0)
            eventfd_read(launch->done_fd, &count);
    }
    join_done(launch);
    return !watch_turn(&launch->watch);
}

static void give_up(struct launch *launch)
{
    char who[32];

    for (uint32_t r = 0; r < launch->asked.ranks; r++) {
        if (!launch->rank[r].live)
            continue;
        pthread_detach(launch->rank[r].thread);
        if (launch->asked.leaked_ranks != NULL)
            ++*launch->asked.leaked_ranks;
        snprintf(who, sizeof(who), "rank %u", r);
        watch_gave_up(&launch->watch, who);
    }
}

static enum epa_status init(struct launch *launch, const struct config *config,
                            struct epa_error *err)
{
    uint32_t ranks = launch->asked.ranks;
    enum epa_status status = control_create(ranks, &launch->control, err);

    if (status == EPA_OK)
        status = launch_nodes(&launch->asked, &launch->nodes, err);
    if (status == EPA_OK)
        status =
            pin_plan_init(&launch->pins, (enum pin)config->pin, ranks, launch->asked.threads, err);
    if (status != EPA_OK)
        return status;
    launch->rank = calloc(ranks, sizeof(*launch->rank));
    if (launch->rank == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u ranks", ranks);
    launch->done_fd = eventfd(0, EFD_CLOEXEC);
    if (launch->done_fd < 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "eventfd: %s", strerror(errno));
    watch_init(&launch->watch, &launch->asked, launch->control, err);
    return EPA_OK;
}

static enum epa_status launch_thread(const void *config, const struct epa_launch *asked,
                                     struct epa_error *err)
{
    struct launch *launch = calloc(1, sizeof(*launch));
    enum epa_status status;

    if (launch == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a launch");
    launch->asked = *asked;
    launch->done_fd = -1;
    launch->users = 1;
    status = init(launch, config, err);
    if (status == EPA_OK) {
        start_all(launch);
        while (launch->live > 0 && turn(launch))
            continue;
        give_up(launch);
        status = launch->watch.first;
    }
    release(launch);
    return status;
}

static const struct config defaults = {.pin = PIN_CORE};
static const struct epa_option options[] = {
    {.name = "pin",
     EPA_CHOICE(struct config, pin),
     .choices = pin_choices,
     .help = "cores of the ranks"},
    {0},
};

const struct epa_launcher_plugin launch_thread_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin), .name = "thread",
               .summary = "ranks are threads of this process, for ThreadSanitizer",
               .options = {options, sizeof(struct config), &defaults}},
    .launch = launch_thread,
};
