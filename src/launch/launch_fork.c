/* Ranks as processes of this host.
 *
 * The parent only watches: it sleeps in poll() on a pidfd and an output pipe of each rank
 * and on stop_fd, and runs no rank itself. */
#include <poll.h>
#include <stdlib.h>

#include "plugin/registry.h"
#include "launch/launch.h"
#include "launch/process.h"

struct config {
    int pin;
    bool prefix;
};

struct launch {
    const struct config *config;
    const struct epa_launch *asked;
    struct control *control;
    uint32_t *nodes;
    struct pin_plan pins;
    struct watch watch;
    struct process *rank; /* [ranks] */
    struct pollfd *poll;  /* room for [1 + 2 * ranks]: stop_fd, pidfd and output of each */
    nfds_t polled;
    uint32_t live;
    uint32_t starting; /* the rank that is started: which one a child is */
};

static int run_rank(void *arg)
{
    const struct launch *launch = arg;
    struct epa_world world =
        launch_world(launch->asked, launch->nodes, &launch->pins, launch->starting);
    struct bootstrap boot;
    enum epa_status status;

    for (uint32_t r = 0; r <= launch->starting; r++)
        process_close_inherited(&launch->rank[r]);
    launch_pin(&world);
    bootstrap_init(&boot, launch->control, &world, launch->asked->timeout_ns);
    status = launch->asked->rank_main(&boot.base, launch->asked->arg);
    control_return(launch->control, launch->starting, status);
    return process_code(status);
}

static void before_output(void *arg)
{
    const struct epa_launch *asked = arg;

    (void)asked->poll_launch(asked->poll_arg, EPA_POLL_PRINTING);
}

static enum epa_status start_rank(struct launch *launch, uint32_t r)
{
    struct relay *relay = &launch->rank[r].relay;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;

    launch->starting = r;
    status = process_start(&launch->rank[r], r, launch->config->prefix, run_rank, launch, &err);
    if (status != EPA_OK) {
        watch_failed(&launch->watch, status, "%s", err.text);
        return status;
    }
    launch->live++;
    if (launch->asked->poll_launch != NULL) {
        relay->before = before_output;
        relay->arg = (void *)(uintptr_t)launch->asked;
    }
    return EPA_OK;
}

/* What came of a rank that is no more; `code` as waitpid() gave it. */
static void judge(struct launch *launch, uint32_t r, int code)
{
    struct process *rank = &launch->rank[r];
    enum epa_status word = EPA_OK, before = launch->watch.first, status;
    bool has_word = control_returned(launch->control, r, &word);
    char who[64], how[256] = "";

    snprintf(who, sizeof(who), "rank %u (pid %d)", r, (int)rank->pid);
    status = process_judge(rank, code, has_word, word, who, how, sizeof(how));
    if (status == EPA_ERR_TIMEOUT)
        watch_gave_up(&launch->watch, who);
    else if (status != EPA_OK)
        watch_failed(&launch->watch, status, "%s", how);
    else
        watch_returned(&launch->watch, word);
    if (before != EPA_ERR_DIED && launch->watch.first == EPA_ERR_DIED &&
        launch->asked->failed_rank != NULL)
        *launch->asked->failed_rank = r;
}

static void reap(struct launch *launch, uint32_t r)
{
    struct process *rank = &launch->rank[r];
    enum epa_status word = EPA_OK;
    int code;

    (void)control_returned(launch->control, r, &word);
    if (!process_ended(rank, word, &code))
        return;
    judge(launch, r, code); /* before its last words: others wait for it */
    process_finish(rank);
    launch->live--;
}

static void add_poll(struct launch *launch, int fd)
{
    if (fd >= 0)
        launch->poll[launch->polled++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

/* Until a rank ends or says something, the user wants to stop, or it is time to look. True
 * if ranks may have news. Only what is open is polled: poll() counts against the limit of
 * open files. */
static bool wait_for_news(struct launch *launch)
{
    int pause_ms = watch_pause_ms(&launch->watch), ready;
    bool stop = launch->watch.stop_fd >= 0, blind = false;

    launch->polled = 0;
    add_poll(launch, launch->watch.stop_fd);
    for (uint32_t r = 0; r < launch->asked->ranks; r++) {
        if (launch->rank[r].pid == 0)
            continue;
        add_poll(launch, launch->rank[r].pidfd);
        add_poll(launch, launch->rank[r].relay.from);
        blind |= launch->rank[r].pidfd < 0;
    }
    ready = poll(launch->poll, launch->polled, blind ? 1 : pause_ms);
    if (ready > 0 && stop)
        watch_stop(&launch->watch, launch->poll[0].revents);
    return ready != 0 || blind;
}

static void turn(struct launch *launch)
{
    bool news = wait_for_news(launch), over = watch_turn(&launch->watch);

    for (uint32_t r = 0; r < launch->asked->ranks; r++) {
        struct process *rank = &launch->rank[r];

        if (rank->pid != 0 && news) {
            relay_turn(&rank->relay);
            reap(launch, r);
        }
        if (over)
            process_kill(rank);
    }
}

static void finish(struct launch *launch)
{
    free(launch->poll);
    free(launch->rank);
    free(launch->nodes);
    pin_plan_finish(&launch->pins);
    control_destroy(launch->control);
}

static enum epa_status init(struct launch *launch, struct epa_error *err)
{
    uint32_t ranks = launch->asked->ranks;
    enum epa_status status = control_create(ranks, &launch->control, err);

    if (status == EPA_OK)
        status = launch_nodes(launch->asked, &launch->nodes, err);
    if (status == EPA_OK)
        status = pin_plan_init(&launch->pins, (enum pin)launch->config->pin, ranks,
                               launch->asked->threads, err);
    if (status != EPA_OK)
        return status;
    launch->rank = calloc(ranks, sizeof(*launch->rank));
    launch->poll = calloc(1 + 2 * (size_t)ranks, sizeof(*launch->poll));
    if (launch->rank == NULL || launch->poll == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory to watch %u ranks", ranks);
    for (uint32_t r = 0; r < ranks; r++)
        process_init(&launch->rank[r]);
    watch_init(&launch->watch, launch->asked, launch->control, err);
    return EPA_OK;
}

static enum epa_status launch_fork(const void *config, const struct epa_launch *asked,
                                   struct epa_error *err)
{
    struct launch launch = {.config = config, .asked = asked};
    enum epa_status status = init(&launch, err);

    if (status == EPA_OK) {
        fflush(stdout); /* or ranks would print it again */
        fflush(stderr);
        for (uint32_t r = 0; r < asked->ranks && status == EPA_OK; r++)
            status = start_rank(&launch, r);
        while (launch.live > 0)
            turn(&launch);
        status = launch.watch.first;
    }
    finish(&launch);
    return status;
}

static const struct config defaults = {.pin = PIN_CORE, .prefix = true};
static const struct epa_option options[] = {
    {.name = "pin",
     EPA_CHOICE(struct config, pin),
     .choices = pin_choices,
     .help = "cores of the ranks"},
    {.name = "prefix",
     EPA_BOOL(struct config, prefix),
     .help = "prefix each line of a rank's standard error with its number"},
    {0},
};

const struct epa_launcher_plugin launch_fork_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin), .name = "fork",
               .summary = "ranks are processes of this host",
               .options = {options, sizeof(struct config), &defaults}},
    .launch = launch_fork,
};
