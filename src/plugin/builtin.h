/* Plugins that are part of the program. */
#ifndef BUILTIN_H
#define BUILTIN_H

#include <epa2a/backend.h>

extern const struct epa_launcher_plugin launch_env_plugin, launch_fork_plugin, launch_thread_plugin;
extern const struct epa_backend_plugin backend_host_plugin;

#endif
