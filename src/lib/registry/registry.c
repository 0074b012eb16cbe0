/* Finds and loads plugins. Creating a registry reads file names only. A file becomes a plugin on
 * first use: after checks of its owner and mode (trust.c) and of its size (elf_file.c), dlopen(),
 * and checks of its descriptor (check.c).
 *
 * dlopen() receives the resolved path instead of /proc/self/fd/N: only trusted users can replace
 * the file at that path, debuggers and sanitizers find the file by the path, and the number of a
 * descriptor names another file after its next use. */
#include "registry/registry.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/object_path.h"
#include "base/text.h"
#include "registry/check.h"
#include "registry/elf_file.h"
#include "registry/trust.h"

#define PREFIX "epa2a-"
#define SUFFIX ".so"

struct registry {
    struct arena *arena;          /* owns all strings */
    struct registry_entry *entry; /* [n], sorted when complete */
    uint32_t n;
    struct text searched; /* the folders, for messages */
    struct text empty;    /* "no plugins in X; no plugin folder Y" */
    void (*around_load)(void (*call)(void *arg), void *arg);
};

static enum epa_status fail_registry_memory(struct epa_error *err)
{
    return epa_fail(err, EPA_ERR_NOMEM, "no memory for the list of plugins");
}

static int by_kind_and_name(const void *left, const void *right)
{
    const struct registry_entry *a = left, *b = right;

    return a->kind != b->kind ? (a->kind < b->kind ? -1 : 1) : strcmp(a->name, b->name);
}

static struct registry_entry *find_entry(const struct registry *registry, enum epa_plugin_kind kind,
                                         const char *name)
{
    for (uint32_t i = 0; i < registry->n; i++) {
        if (registry->entry[i].kind == kind && strcmp(registry->entry[i].name, name) == 0)
            return &registry->entry[i];
    }
    return NULL;
}

static enum epa_status add_registry_entry(struct registry *registry, struct registry_entry entry,
                                          struct epa_error *err)
{
    struct registry_entry *grown =
        realloc(registry->entry, (registry->n + 1) * sizeof(*registry->entry));

    if (grown == NULL)
        return fail_registry_memory(err);
    registry->entry = grown;
    registry->entry[registry->n++] = entry;
    return EPA_OK;
}

/* Parses "epa2a-<kind>-<name>.so"; the name is not validated, so that an invalid one can be
 * listed. */
static bool parse_base(const char *base, enum epa_plugin_kind *kind, const char **name,
                       size_t *bytes)
{
    size_t n = strlen(base);

    if (n < strlen(PREFIX SUFFIX) || strncmp(base, PREFIX, strlen(PREFIX)) != 0 ||
        strcmp(base + n - strlen(SUFFIX), SUFFIX) != 0)
        return false;
    for (uint32_t k = 0; k < PLUGIN_KINDS; k++) {
        const char *rest = base + strlen(PREFIX), *word = plugin_kind_name(k);
        size_t word_bytes = strlen(word);

        if (strncmp(rest, word, word_bytes) == 0 && rest[word_bytes] == '-') {
            *kind = k;
            *name = rest + word_bytes + 1;
            *bytes = n - (size_t)(*name - base) - strlen(SUFFIX);
            return true;
        }
    }
    return false;
}

/* Adds a file if its name is the name of a plugin, and counts it in *n. */
static enum epa_status add_file(struct registry *registry, const char *folder, const char *base,
                                uint32_t *n, struct epa_error *err)
{
    struct registry_entry entry = {0}, *first;
    const char *name;
    char *printable;
    size_t bytes;

    if (!parse_base(base, &entry.kind, &name, &bytes))
        return EPA_OK;
    ++*n;
    printable = arena_try_strndup(registry->arena, name, bytes);
    entry.file = arena_try_printf(registry->arena, "%s/%s", folder, base);
    if (printable == NULL || entry.file == NULL)
        return fail_registry_memory(err);
    for (char *c = printable; *c != '\0'; c++)
        *c = (unsigned char)*c < ' ' || *c == 127 ? '?' : *c;
    entry.name = printable;
    first = find_entry(registry, entry.kind, entry.name);
    if (first == NULL)
        return add_registry_entry(registry, entry, err);
    if (first->file != NULL && strcmp(first->file, entry.file) == 0)
        return EPA_OK; /* the same folder twice */
    first->hides =
        arena_try_printf(registry->arena, "%s%s%s", first->hides == NULL ? "" : first->hides,
                         first->hides == NULL ? "" : ", ", entry.file);
    return first->hides == NULL ? fail_registry_memory(err) : EPA_OK;
}

static enum epa_status fail_folder(const char *what, const char *folder, struct epa_error *err)
{
    enum epa_status status = errno == ENOMEM                       ? EPA_ERR_NOMEM
                             : errno == ENOENT || errno == ENOTDIR ? EPA_ERR_CONFIG
                                                                   : EPA_ERR_SYSTEM;

    return epa_fail_errno(err, status, errno, "%s %s: %s",
                          what == NULL ? "the plugin folder" : what, folder, strerror(errno));
}

/* Adds the plugins of a folder and counts them in *n. A default folder (`what` is NULL) may be
 * missing. */
static enum epa_status add_folder(struct registry *registry, const char *path, const char *what,
                                  uint32_t *n, struct epa_error *err)
{
    const char *folder = arena_try_strndup(registry->arena, path, strlen(path));
    enum epa_status status = EPA_OK;
    const struct dirent *file;
    DIR *dir;

    if (folder == NULL || !text_try_add(&registry->searched, "%s%s",
                                        registry->searched.bytes == 0 ? "" : ", ", folder))
        return fail_registry_memory(err);
    dir = opendir(folder);
    if (dir == NULL && errno == ENOENT && what == NULL)
        return EPA_OK;
    if (dir == NULL)
        return fail_folder(what, folder, err);
    while (status == EPA_OK && (file = readdir(dir)) != NULL)
        status = add_file(registry, folder, file->d_name, n, err);
    closedir(dir);
    return status;
}

/* Records that `folder` has no plugin, if n is 0. */
static enum epa_status note_empty(struct registry *registry, const char *folder, uint32_t n,
                                  struct epa_error *err)
{
    if (n == 0 &&
        !text_try_add(&registry->empty, "%s%s %s", registry->empty.bytes == 0 ? "" : "; ",
                      access(folder, F_OK) == 0 ? "no plugins in" : "there is no plugin folder",
                      folder))
        return fail_registry_memory(err);
    return EPA_OK;
}

/* Adds the plugins of all folders of <top>/plugins/<kind>. */
static enum epa_status add_kind(struct registry *registry, const char *path, uint32_t *n,
                                struct epa_error *err)
{
    enum epa_status status = EPA_OK;
    char folder[PATH_MAX];
    struct dirent *file;
    DIR *dir = opendir(path);

    if (dir == NULL && errno == ENOENT)
        return EPA_OK;
    if (dir == NULL)
        return fail_folder(NULL, path, err);
    while (status == EPA_OK && (file = readdir(dir)) != NULL) {
        if (plugin_name_ok(file->d_name) &&
            snprintf(folder, sizeof(folder), "%s/%s", path, file->d_name) < (int)sizeof(folder))
            status = add_folder(registry, folder, NULL, n, err);
    }
    closedir(dir);
    return status;
}

/* In a build tree each plugin is in plugins/<kind>/<name>/. */
static enum epa_status add_build_tree(struct registry *registry, const char *top,
                                      struct epa_error *err)
{
    enum epa_status status = EPA_OK;
    char path[PATH_MAX + 64];
    uint32_t n = 0;

    for (uint32_t kind = 0; status == EPA_OK && kind < PLUGIN_KINDS; kind++) {
        snprintf(path, sizeof(path), "%s/plugins/%s", top, plugin_kind_name(kind));
        status = add_kind(registry, path, &n, err);
    }
    snprintf(path, sizeof(path), "%s/plugins", top);
    return status != EPA_OK ? status : note_empty(registry, path, n, err);
}

void registry_installed_folder(char *out, size_t room)
{
    object_folder(object_is_program() ? EPA2A_PLUGIN_DIR : EPA2A_LIBRARY_PLUGIN_DIR, out, room);
}

static enum epa_status add_asked(struct registry *registry, const char *folder, const char *what,
                                 struct epa_error *err)
{
    uint32_t n = 0;
    enum epa_status status = add_folder(registry, folder, what, &n, err);

    return status != EPA_OK ? status : note_empty(registry, folder, n, err);
}

/* Adds the absolute folders of a list separated by :. */
static enum epa_status add_environment(struct registry *registry, const char *list,
                                       uint32_t *folders, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (size_t bytes; status == EPA_OK && *list != '\0'; list += bytes) {
        bytes = strcspn(list, ":");
        if (list[0] == '/') {
            const char *folder = arena_try_strndup(registry->arena, list, bytes);

            status = folder == NULL ? fail_registry_memory(err)
                                    : add_asked(registry, folder, "EPA2A_PLUGIN_PATH", err);
            ++*folders;
        }
        bytes += list[bytes] == ':';
    }
    return status;
}

static enum epa_status add_files(struct registry *registry, const char *const *plugin_path,
                                 struct epa_error *err)
{
    const char *env = secure_getenv("EPA2A_PLUGIN_PATH");
    char top[PATH_MAX], folder[PATH_MAX];
    enum epa_status status = EPA_OK;
    uint32_t folders = 0;

    for (; status == EPA_OK && plugin_path != NULL && *plugin_path != NULL; plugin_path++) {
        if (**plugin_path != '/')
            return epa_fail(err, EPA_ERR_CONFIG, "the plugin path '%s' is not absolute",
                            *plugin_path);
        status = add_asked(registry, *plugin_path, "the plugin path", err);
    }
    if (status == EPA_OK && env != NULL)
        status = add_environment(registry, env, &folders, err);
    if (status != EPA_OK || folders > 0)
        return status;
    if (!object_path(top, sizeof(top)))
        return epa_fail_errno(
            err, EPA_ERR_SYSTEM, errno,
            "the path of this %s, next to which plugins are, is unknown: %s; %s, or "
            "set EPA2A_PLUGIN_PATH",
            object_is_program() ? "program" : "library", strerror(errno),
            object_is_program() ? "mount /proc" : "load it by an absolute path");
    if (object_build_tree(top, sizeof(top)))
        return add_build_tree(registry, top, err);
    registry_installed_folder(folder, sizeof(folder));
    return add_asked(registry, folder, NULL, err);
}

/* Adds the backend host and the built-in plugins of the caller. */
static enum epa_status add_builtins(struct registry *registry,
                                    const struct epa_plugin *const *builtin, struct epa_error *err)
{
    const struct epa_plugin *plugin = &backend_host_plugin.plugin;
    enum epa_status status = EPA_OK;

    while (status == EPA_OK && plugin != NULL) {
        status = add_registry_entry(
            registry,
            (struct registry_entry){.kind = plugin->kind, .name = plugin->name, .plugin = plugin},
            err);
        plugin = builtin == NULL ? NULL : *builtin++;
    }
    return status;
}

static void call_directly(void (*call)(void *), void *arg)
{
    call(arg);
}

enum epa_status registry_create(const struct registry_params *params, struct registry **out,
                                struct epa_error *err)
{
    struct registry *registry = calloc(1, sizeof(*registry));
    enum epa_status status;

    if (registry == NULL)
        return fail_registry_memory(err);
    registry->around_load = params->around_load == NULL ? call_directly : params->around_load;
    registry->arena = arena_try_create();
    status = registry->arena == NULL ? fail_registry_memory(err)
                                     : add_builtins(registry, params->builtin, err);
    if (status == EPA_OK)
        status = add_files(registry, params->plugin_path, err);
    if (status != EPA_OK) {
        registry_destroy(registry);
        return status;
    }
    qsort(registry->entry, registry->n, sizeof(*registry->entry), by_kind_and_name);
    *out = registry;
    return EPA_OK;
}

static void call_dlclose(void *arg)
{
    struct registry *registry = arg;

    for (uint32_t i = 0; i < registry->n; i++) {
        if (registry->entry[i].handle != NULL)
            dlclose(registry->entry[i].handle);
    }
}

void registry_destroy(struct registry *registry)
{
    if (registry == NULL)
        return;
    registry->around_load(call_dlclose, registry);
    free(registry->entry);
    text_free(&registry->searched);
    text_free(&registry->empty);
    arena_destroy(registry->arena);
    free(registry);
}

/* Key of the error of a plugin whose library is missing. */
#define MISSING_LIBRARY "library"

/* dlerror() returns "libx.so.0: cannot open shared object file: ..." for a library that `path`
 * needs, and "PATH: undefined symbol: x" for a defect of the file itself. */
static enum epa_status explain_dlopen(const char *path, int failed, struct epa_error *err)
{
    const char *text = dlerror(), *colon;

    if (text == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "dlopen fails without a reason");
    if (strncmp(text, path, strlen(path)) == 0 && text[strlen(path)] == ':')
        text += strlen(path) + strspn(text + strlen(path), ": ");
    if (failed == ENOMEM) /* the linker leaves out the reason of most failed allocations */
        return epa_fail_key(err, EPA_ERR_NOMEM, EPA_LIMIT_NAMED, "%s: no memory%s", text,
                            memory_limit());
    colon = strstr(text, ": cannot open shared object file");
    if (colon != NULL)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, MISSING_LIBRARY,
                            "its library %.*s is missing", (int)(colon - text), text);
    /* The dynamic linker leaves out the reason: too little memory, or a file system without exec. */
    return epa_fail(err, EPA_ERR_UNSUPPORTED, "%s%s", text,
                    strstr(text, "failed to map segment") != NULL ? memory_limit() : "");
}

struct opening {
    const char *path;
    void *handle;
    int failed; /* errno after a failure */
};

static void call_dlopen(void *arg)
{
    struct opening *opening = arg;

    errno = 0;
    opening->handle = dlopen(opening->path, RTLD_NOW | RTLD_LOCAL);
    opening->failed = errno;
}

static enum epa_status load_file(const struct registry *registry, struct registry_entry *entry,
                                 const struct epa_plugin **out, struct epa_error *err)
{
    const char *base = strrchr(entry->file, '/') + 1;
    char path[PATH_MAX], folder[PATH_MAX];
    struct opening opening = {.path = path};
    const struct epa_plugin *plugin;
    enum epa_status status;

    if (!plugin_name_ok(entry->name))
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "a name is 1 to %d of a-z, 0-9 and _",
                        PLUGIN_NAME_MAX);
    snprintf(folder, sizeof(folder), "%.*s", (int)(base - entry->file - 1), entry->file);
    status = plugin_trust(folder, base, path, sizeof(path), err);
    if (status == EPA_OK)
        status = elf_file_check(path, err);
    if (status != EPA_OK)
        return status;
    registry->around_load(call_dlopen, &opening);
    entry->handle = opening.handle;
    if (entry->handle == NULL)
        return explain_dlopen(path, opening.failed, err);
    plugin = dlsym(entry->handle, EPA_PLUGIN_SYMBOL);
    if (plugin == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "it exports no " EPA_PLUGIN_SYMBOL);
    status = plugin_check(plugin, entry->kind, entry->name, err);
    if (status == EPA_OK)
        *out = plugin;
    return status;
}

/* Loads a plugin once; a failure sets `why`. */
/* Loads the plugin unless an earlier call has decided. After EPA_ERR_NOMEM a later call tries again. */
static enum epa_status load_entry(struct registry *registry, struct registry_entry *entry,
                                  struct epa_error *err)
{
    struct epa_error found = {EPA_OK, ""};

    if (entry->plugin != NULL || entry->why != NULL ||
        load_file(registry, entry, &entry->plugin, &found) == EPA_OK)
        return EPA_OK;
    if (found.status == EPA_ERR_NOMEM)
        return epa_fail_key(err, found.status, found.key, "%s plugin '%s' cannot be loaded: %s",
                            plugin_kind_name(entry->kind), entry->name, found.text);
    entry->lacks_library = strcmp(found.key, MISSING_LIBRARY) == 0;
    entry->why = arena_try_strndup(registry->arena, found.text, strlen(found.text));
    return entry->why != NULL ? EPA_OK : fail_registry_memory(err);
}

const struct plugin_part plugin_parts[] = {
    {EPA_PLUGIN_ALGORITHM, "alltoallv", "an MPI library (Debian: libopenmpi-dev)", "libopenmpi3"},
    {EPA_PLUGIN_BACKEND, "cuda", "nvcc of CUDA 13", ""},
    {EPA_PLUGIN_LAUNCHER, "mpi", "an MPI library (Debian: libopenmpi-dev)",
     "openmpi-bin libopenmpi3"},
    {EPA_PLUGIN_TRANSPORT, "nvlink", "nvcc of CUDA 13", ""},
    {EPA_PLUGIN_TRANSPORT, "ucx", "UCX (Debian: libucx-dev)", "libucx0"},
    {EPA_PLUGIN_TRANSPORT, "verbs", "libibverbs (Debian: libibverbs-dev)",
     "libibverbs1 ibverbs-providers"},
    {0},
};

static enum epa_status fail_left_out(enum epa_plugin_kind kind, const char *name,
                                     struct epa_error *err)
{
    for (const struct plugin_part *part = plugin_parts; part->name != NULL; part++) {
        if (part->kind == kind && strcmp(part->name, name) == 0)
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "%s '%s' is not part of this build: building it needs %s",
                            plugin_kind_name(kind), name, part->build);
    }
    return EPA_OK;
}

static enum epa_status fail_unknown_plugin(const struct registry *registry,
                                           enum epa_plugin_kind kind, const char *name,
                                           struct epa_error *err)
{
    const char *word = plugin_kind_name(kind);
    struct nearest nearest = {.want = name};
    text_auto have = {0};

    for (uint32_t i = 0; i < registry->n; i++) {
        if (registry->entry[i].kind != kind)
            continue;
        if (!text_try_add(&have, "%s%s", have.bytes == 0 ? "" : ", ", registry->entry[i].name))
            return fail_registry_memory(err);
        nearest_try(&nearest, registry->entry[i].name);
    }
    if (nearest.name != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "there is no %s '%.64s'; is it '%s'?", word, name,
                        nearest.name);
    if (registry->empty.bytes != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "there is no %s '%.64s': %s", word, name,
                        registry->empty.data);
    if (have.bytes != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "there is no %s '%.64s'; there is %s", word, name,
                        have.data);
    return epa_fail(err, EPA_ERR_CONFIG, "there is no %s '%.64s', nor any other in %s", word, name,
                    registry->searched.bytes == 0 ? "any folder" : registry->searched.data);
}

enum epa_status registry_find(struct registry *registry, enum epa_plugin_kind kind,
                              const char *name, const struct epa_plugin **out,
                              struct epa_error *err)
{
    struct registry_entry *entry;

    if (!plugin_name_ok(name))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "'%.64s' cannot name a plugin: a name is 1 to %d of a-z, 0-9 and _", name,
                        PLUGIN_NAME_MAX);
    entry = find_entry(registry, kind, name);
    if (entry == NULL && registry->empty.bytes == 0 && fail_left_out(kind, name, err) != EPA_OK)
        return EPA_ERR_UNSUPPORTED;
    if (entry == NULL)
        return fail_unknown_plugin(registry, kind, name, err);
    if (load_entry(registry, entry, err) != EPA_OK)
        return EPA_ERR_NOMEM;
    if (entry->plugin == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "%s plugin '%s' cannot be loaded: %s",
                        plugin_kind_name(kind), name, entry->why);
    *out = entry->plugin;
    return EPA_OK;
}

uint32_t registry_list(struct registry *registry, const struct registry_entry **out)
{
    for (uint32_t i = 0; i < registry->n; i++)
        if (load_entry(registry, &registry->entry[i], NULL) != EPA_OK)
            registry->entry[i].why = "no memory";
    *out = registry->entry;
    return registry->n;
}

const char *registry_empty(const struct registry *registry)
{
    return registry->empty.bytes == 0 ? NULL : registry->empty.data;
}
