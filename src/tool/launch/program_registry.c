/* Libraries of plugins print, and install signal handlers when they are loaded, like UCX for
 * SIGHUP. */
#include "launch/program_registry.h"

#include <signal.h>
#include <stdint.h>

#include "base/terminal.h"

/* Restores the handlers of signals that end the program, and loses no signal meanwhile. */
static void load_between_signals(void (*call)(void *), void *arg)
{
    static const int ends[] = {SIGHUP, SIGINT, SIGTERM};
    enum { ENDS = sizeof(ends) / sizeof(ends[0]) };
    struct sigaction action[ENDS];
    sigset_t set, before;
    FILE *own = stdout_lend();

    sigemptyset(&set);
    for (uint32_t i = 0; i < ENDS; i++) {
        sigaddset(&set, ends[i]);
        (void)sigaction(ends[i], NULL, &action[i]);
    }
    pthread_sigmask(SIG_BLOCK, &set, &before);
    call(arg);
    for (uint32_t i = 0; i < ENDS; i++)
        (void)sigaction(ends[i], &action[i], NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    stdout_take_back(own);
}

enum epa_status program_registry_create(const char *const *plugin_path, struct registry **out,
                                        struct epa_error *err)
{
    static const struct epa_plugin *const launchers[] = {
        &launch_env_plugin.plugin,
        &launch_fork_plugin.plugin,
        &launch_thread_plugin.plugin,
        NULL,
    };
    const struct registry_params params = {
        .builtin = launchers, .plugin_path = plugin_path, .around_load = load_between_signals};

    return registry_create(&params, out, err);
}
