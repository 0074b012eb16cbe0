/* The launchers fork and thread, for ranks of this host. */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

#include <epa2a/plugin.h>
#include "launch/launch.h"
#include "launch/launch_rank.h"
#include "launch/launch_watch.h"

struct config {
    int pin;
    bool prefix;
};

static enum epa_status launch_here(const struct config *config, const struct epa_launch *asked,
                                   bool threads, struct epa_error *err)
{
    uint32_t per_node = asked->ranks_per_node != 0 ? asked->ranks_per_node : asked->ranks;
    struct launch *l = launch_create(asked, 0, asked->ranks, 0);
    enum epa_status status = control_create(asked->ranks, &l->control, err);

    if (status == EPA_OK)
        status = pin_plan_init(&l->pins, (enum pin)config->pin, asked->ranks, asked->threads, err);
    if (status == EPA_OK && threads && (l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        status = epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "eventfd: %s", strerror(errno));
    if (status == EPA_OK) {
        bool good = true;

        l->threads = threads;
        l->prefix = config->prefix;
        for (uint32_t r = 0; r < asked->ranks; r++)
            l->node[r] = r / per_node;
        if (threads)
            launch_start_threads(l);
        for (uint32_t r = 0; r < l->n && !threads && good; r++)
            good = launch_start_process(&l->rank[r], launch_process_main);
        launch_watch(l);
        status = launch_report(l, &l->failure, err);
    }
    launch_release(l);
    return status;
}

static enum epa_status launch_fork(const void *config, const struct epa_launch *asked,
                                   struct epa_error *err)
{
    return launch_here(config, asked, false, err);
}

static enum epa_status launch_thread(const void *config, const struct epa_launch *asked,
                                     struct epa_error *err)
{
    return launch_here(config, asked, true, err);
}

static const struct config defaults = {.pin = PIN_CORE, .prefix = true};
static const struct epa_option options[] = {
    {.name = "pin",
     EPA_CHOICE(struct config, pin),
     .choices = pin_choices,
     .help = "cores of the ranks",
     .tune = "*"},
    {.name = "prefix",
     EPA_BOOL(struct config, prefix),
     .help = "prefix each line of a rank's standard error with its number"},
    {0},
};
static const struct epa_option thread_options[] = {
    {.name = "pin",
     EPA_CHOICE(struct config, pin),
     .choices = pin_choices,
     .help = "cores of the ranks",
     .tune = "*"},
    {0},
};

const struct epa_launcher_plugin launch_fork_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin), .name = "fork",
               .summary = "ranks are processes of this host",
               .options = {options, sizeof(struct config), &defaults}},
    .launch = launch_fork,
};

const struct epa_launcher_plugin launch_thread_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin), .name = "thread",
               .summary = "ranks are threads of this process, for ThreadSanitizer",
               .options = {thread_options, sizeof(struct config), &defaults}},
    .launch = launch_thread,
};
