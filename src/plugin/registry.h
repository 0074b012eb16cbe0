/* Names to plugins: the built-in ones and the shared objects of one versioned folder. The only
 * dlopen() is behind it. */
#ifndef REGISTRY_H
#define REGISTRY_H

#include <epa2a/algorithm.h>
#include <epa2a/backend.h>

enum { PLUGIN_KINDS = 4, PLUGIN_NAME_MAX = 32 };

/* Plugins that are part of the program. */
extern const struct epa_launcher_plugin launch_env_plugin, launch_fork_plugin, launch_thread_plugin;
extern const struct epa_backend_plugin backend_host_plugin;

struct registry;

/* The usual place is each absolute folder of $EPA2A_PLUGIN_PATH, with : between them
 * (secure_getenv); without any the build tree if this program is in one, else
 * registry_installed_folder(). The folders of `plugin_path` (absolute; NULL ends them; NULL:
 * none) are searched before it, in order: what is found first hides a plugin of the same kind
 * and name. A folder that was asked for must be there. */
enum epa_status registry_create(const char *const *plugin_path, struct registry **out,
                                struct epa_error *);

/* Unloads, so what was found must not be in use. */
void registry_destroy(struct registry *);

/* Loads on first use. EPA_ERR_CONFIG: no such name (err lists the nearest);
 * EPA_ERR_UNSUPPORTED: it is there and cannot be loaded, or this project has it and this
 * build does not (err says why, in one sentence). */
enum epa_status registry_find(struct registry *, enum epa_plugin_kind, const char *name,
                              const struct epa_plugin **out, struct epa_error *);

/* Every plugin that is built in or has a file, by kind then name; `plugin` is NULL where it
 * cannot be loaded and `why` then says why. Returns how many. */
struct registry_entry {
    enum epa_plugin_kind kind;
    const char *name, *file; /* file NULL: built in */
    const struct epa_plugin *plugin;
    const char *why;
    const char *hides; /* files of the same kind and name in folders after; NULL: none */
    void *handle;      /* the registry's: of dlopen() */
};
uint32_t registry_list(struct registry *, const struct registry_entry **out);

/* A clause that names the searched folders that are missing or hold no plugin, as in a partly
 * copied tree. NULL: none. */
const char *registry_empty(const struct registry *);

/* Where plugins are installed: found from this program's own path, so that an installation may
 * be moved. */
void registry_installed_folder(char *out, size_t room);

/* Plugins that a build leaves out where a library is not there: what building one needs, and the
 * Debian packages that loading it needs. An entry without a name ends it. */
extern const struct plugin_part {
    enum epa_plugin_kind kind;
    const char *name, *build, *run;
} plugin_parts[];

/* ---- check.c: whether a plugin may be loaded, and whether its descriptor can be worked
 * with. Each check refuses with the reason, to stand behind "... cannot be loaded: ". ---- */

/* The name as file names and `epa2a list` have it: "transport". */
const char *plugin_kind_name(enum epa_plugin_kind);

/* [a-z0-9_]{1,32} */
bool plugin_name_ok(const char *name);

EPA_CHECKED enum epa_status plugin_check(const struct epa_plugin *, enum epa_plugin_kind,
                                         const char *name, struct epa_error *);

#endif
