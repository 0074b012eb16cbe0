/* The registry of the program: plugins of files, and the launchers inside the program. */
#ifndef PROGRAM_REGISTRY_H
#define PROGRAM_REGISTRY_H

#include "registry/registry.h"

extern const struct epa_launcher_plugin launch_env_plugin, launch_fork_plugin, launch_thread_plugin;

/* Calls registry_create() with the built-in launchers. While plugins are loaded and unloaded,
 * standard output belongs to their libraries, and the signal handlers of the program stay. */
enum epa_status program_registry_create(const char *const *plugin_path, struct registry **out,
                                        struct epa_error *);

#endif
