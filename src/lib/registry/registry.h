/* Finds plugins by name: the built-in ones and the shared objects of one versioned folder. All
 * dlopen() calls for plugins are behind this interface. */
#ifndef REGISTRY_H
#define REGISTRY_H

#include <epa2a/algorithm.h>
#include <epa2a/backend.h>

#include "registry/check.h"

extern const struct epa_backend_plugin backend_host_plugin; /* always part of a registry */

struct registry;

struct registry_params {
    /* Other plugins inside this program; NULL ends them; NULL: none. */
    const struct epa_plugin *const *builtin;
    /* Absolute folders, which must exist; NULL ends them; NULL: none. */
    const char *const *plugin_path;
    /* Calls call(arg), which loads or unloads the code of a plugin and of its libraries. These may
     * print and install signal handlers. NULL: the registry calls directly. */
    void (*around_load)(void (*call)(void *arg), void *arg);
};

/* The default search path is each absolute folder of $EPA2A_PLUGIN_PATH, separated by :
 * (secure_getenv). Without any, it is the build tree if the object with this code, the program or
 * libepa2a, is in one, otherwise registry_installed_folder(). The folders of `plugin_path` are
 * searched first, in order: the first plugin found hides others of the same kind and name. The
 * registry keeps the built-in plugins, and copies all strings. EPA_ERR_NOMEM without memory. */
enum epa_status registry_create(const struct registry_params *, struct registry **out,
                                struct epa_error *);

/* Unloads all plugins: none of them may be in use. */
void registry_destroy(struct registry *);

/* Loads a plugin on first use. EPA_ERR_CONFIG: the name is unknown (err lists the nearest);
 * EPA_ERR_UNSUPPORTED: the plugin exists but cannot be loaded, or this build does not contain it
 * (err has the reason, in one sentence). */
enum epa_status registry_find(struct registry *, enum epa_plugin_kind, const char *name,
                              const struct epa_plugin **out, struct epa_error *);

/* All plugins that are built in or have a file, by kind then name; if a plugin cannot be loaded,
 * `plugin` is NULL and `why` has the reason. Returns the number of plugins. */
struct registry_entry {
    enum epa_plugin_kind kind;
    const char *name, *file; /* file NULL: built in */
    const struct epa_plugin *plugin;
    const char *why;
    bool lacks_library; /* `why`: a library that the plugin needs is missing */
    const char *hides;  /* files of the same kind and name in later folders; NULL: none */
    void *handle;       /* handle of dlopen(), owned by the registry */
};
uint32_t registry_list(struct registry *, const struct registry_entry **out);

/* Returns a clause that names the searched folders that are missing or contain no plugin, as in an
 * incomplete copy of a tree. NULL: none. */
const char *registry_empty(const struct registry *);

/* Returns the folder of installed plugins, which is relative to the program or to libepa2a, so that
 * an installation may be moved. */
void registry_installed_folder(char *out, size_t room);

/* Plugins that a build leaves out if a library is missing: the requirements of the build, and the
 * Debian packages that loading needs. An entry without a name ends the list. */
extern const struct plugin_part {
    enum epa_plugin_kind kind;
    const char *name, *build, *run;
} plugin_parts[];

#endif
