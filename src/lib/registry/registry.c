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
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/program_dir.h"
#include "base/memory.h"
#include "base/terminal.h"
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
};

static const struct epa_plugin *const builtins[] = {
    &backend_host_plugin.plugin,
    &launch_env_plugin.plugin,
    &launch_fork_plugin.plugin,
    &launch_thread_plugin.plugin,
};

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

static void add_entry(struct registry *registry, struct registry_entry entry)
{
    registry->entry = memory_grow(registry->entry, (registry->n + 1) * sizeof(*registry->entry));
    registry->entry[registry->n++] = entry;
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
static void add_file(struct registry *registry, const char *folder, const char *base, uint32_t *n)
{
    struct registry_entry entry = {0}, *first;
    const char *name;
    char *printable;
    size_t bytes;

    if (!parse_base(base, &entry.kind, &name, &bytes))
        return;
    ++*n;
    printable = arena_strndup(registry->arena, name, bytes);
    for (char *c = printable; *c != '\0'; c++)
        *c = (unsigned char)*c < ' ' || *c == 127 ? '?' : *c;
    entry.name = printable;
    entry.file = arena_printf(registry->arena, "%s/%s", folder, base);
    first = find_entry(registry, entry.kind, entry.name);
    if (first == NULL)
        add_entry(registry, entry);
    else if (first->file == NULL ||
             strcmp(first->file, entry.file) != 0) /* or the same folder twice */
        first->hides =
            arena_printf(registry->arena, "%s%s%s", first->hides == NULL ? "" : first->hides,
                         first->hides == NULL ? "" : ", ", entry.file);
}

/* Adds the plugins of a folder and counts them in *n. A default folder (`what` is NULL) may be
 * missing. */
static enum epa_status add_folder(struct registry *registry, const char *path, const char *what,
                                  uint32_t *n, struct epa_error *err)
{
    const char *folder = arena_strndup(registry->arena, path, strlen(path));
    const struct dirent *file;
    DIR *dir;

    text_add(&registry->searched, "%s%s", registry->searched.bytes == 0 ? "" : ", ", folder);
    dir = opendir(folder);
    if (dir == NULL && errno == ENOENT && what == NULL)
        return EPA_OK;
    if (dir == NULL)
        return epa_fail(err, errno == ENOENT || errno == ENOTDIR ? EPA_ERR_CONFIG : EPA_ERR_SYSTEM,
                        "%s %s: %s", what == NULL ? "the plugin folder" : what, folder,
                        strerror(errno));
    while ((file = readdir(dir)) != NULL)
        add_file(registry, folder, file->d_name, n);
    closedir(dir);
    return EPA_OK;
}

/* Records that `folder` has no plugin, if n is 0. */
static void note_empty(struct registry *registry, const char *folder, uint32_t n)
{
    if (n == 0)
        text_add(&registry->empty, "%s%s %s", registry->empty.bytes == 0 ? "" : "; ",
                 access(folder, F_OK) == 0 ? "no plugins in" : "there is no plugin folder", folder);
}

/* In a build tree each plugin is in plugins/<kind>/<name>/. */
static enum epa_status add_build_tree(struct registry *registry, const char *top,
                                      struct epa_error *err)
{
    enum epa_status status = EPA_OK;
    uint32_t n = 0;

    for (uint32_t kind = 0; status == EPA_OK && kind < PLUGIN_KINDS; kind++) {
        const char *path =
            arena_printf(registry->arena, "%s/plugins/%s", top, plugin_kind_name(kind));
        struct dirent *file;
        DIR *dir = opendir(path);

        if (dir == NULL && errno != ENOENT)
            status =
                epa_fail(err, EPA_ERR_SYSTEM, "the plugin folder %s: %s", path, strerror(errno));
        while (status == EPA_OK && dir != NULL && (file = readdir(dir)) != NULL) {
            if (plugin_name_ok(file->d_name))
                status =
                    add_folder(registry, arena_printf(registry->arena, "%s/%s", path, file->d_name),
                               NULL, &n, err);
        }
        if (dir != NULL)
            closedir(dir);
    }
    note_empty(registry, arena_printf(registry->arena, "%s/plugins", top), n);
    return status;
}

void registry_installed_folder(char *out, size_t room)
{
    program_installed(EPA2A_PLUGIN_DIR, out, room);
}

static enum epa_status add_asked(struct registry *registry, const char *folder, const char *what,
                                 struct epa_error *err)
{
    uint32_t n = 0;
    enum epa_status status = add_folder(registry, folder, what, &n, err);

    if (status == EPA_OK)
        note_empty(registry, folder, n);
    return status;
}

/* Adds the absolute folders of a list separated by :. */
static enum epa_status add_environment(struct registry *registry, const char *list,
                                       uint32_t *folders, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (size_t bytes; status == EPA_OK && *list != '\0'; list += bytes) {
        bytes = strcspn(list, ":");
        if (list[0] == '/') {
            status = add_asked(registry, arena_strndup(registry->arena, list, bytes),
                               "EPA2A_PLUGIN_PATH", err);
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
    if (readlink("/proc/self/exe", top, sizeof(top)) < 0)
        return epa_fail(err, EPA_ERR_SYSTEM,
                        "plugins are found from where this program is, which /proc/self/exe does "
                        "not say: %s; mount /proc, or set EPA2A_PLUGIN_PATH",
                        strerror(errno));
    if (program_build_tree(top, sizeof(top)))
        return add_build_tree(registry, top, err);
    registry_installed_folder(folder, sizeof(folder));
    return add_asked(registry, folder, NULL, err);
}

enum epa_status registry_create(const char *const *plugin_path, struct registry **out,
                                struct epa_error *err)
{
    struct registry *registry = memory_alloc(1, sizeof(*registry));
    enum epa_status status;

    registry->arena = arena_create();
    for (size_t i = 0; i < sizeof(builtins) / sizeof(builtins[0]); i++)
        add_entry(registry, (struct registry_entry){.kind = builtins[i]->kind,
                                                    .name = builtins[i]->name,
                                                    .plugin = builtins[i]});
    status = add_files(registry, plugin_path, err);
    qsort(registry->entry, registry->n, sizeof(*registry->entry), by_kind_and_name);
    if (status == EPA_OK)
        *out = registry;
    else
        registry_destroy(registry);
    return status;
}

void registry_destroy(struct registry *registry)
{
    FILE *own;

    if (registry == NULL)
        return;
    own = stdout_lend();
    for (uint32_t i = 0; i < registry->n; i++) {
        if (registry->entry[i].handle != NULL)
            dlclose(registry->entry[i].handle);
    }
    stdout_take_back(own);
    free(registry->entry);
    text_free(&registry->searched);
    text_free(&registry->empty);
    arena_destroy(registry->arena);
    free(registry);
}

/* dlerror() returns "libx.so.0: cannot open shared object file: ..." for a library that `path`
 * needs, and "PATH: undefined symbol: x" for a defect of the file itself. */
static enum epa_status explain_dlopen(const char *path, struct epa_error *err)
{
    const char *text = dlerror(), *colon;

    if (text == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "dlopen fails without a reason");
    if (strncmp(text, path, strlen(path)) == 0 && text[strlen(path)] == ':')
        text += strlen(path) + strspn(text + strlen(path), ": ");
    colon = strstr(text, ": cannot open shared object file");
    if (colon != NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its library %.*s is missing",
                        (int)(colon - text), text);
    /* The dynamic linker leaves out the reason: too little memory, or a file system without exec. */
    return epa_fail(err, EPA_ERR_UNSUPPORTED, "%s%s", text,
                    strstr(text, "failed to map segment") != NULL ? memory_limit() : "");
}

/* Libraries of plugins may install signal handlers when they are loaded, like UCX for SIGHUP.
 * Restores the handlers of signals that end the program, and loses no signal meanwhile. */
static void *open_file(const char *path)
{
    static const int ends[] = {SIGHUP, SIGINT, SIGTERM};
    enum { ENDS = sizeof(ends) / sizeof(ends[0]) };
    struct sigaction action[ENDS];
    sigset_t set, before;
    FILE *own = stdout_lend();
    void *handle;

    sigemptyset(&set);
    for (uint32_t i = 0; i < ENDS; i++) {
        sigaddset(&set, ends[i]);
        (void)sigaction(ends[i], NULL, &action[i]);
    }
    pthread_sigmask(SIG_BLOCK, &set, &before);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (uint32_t i = 0; i < ENDS; i++)
        (void)sigaction(ends[i], &action[i], NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    stdout_take_back(own);
    return handle;
}

static enum epa_status load_file(struct registry_entry *entry, const struct epa_plugin **out,
                                 struct epa_error *err)
{
    const char *base = strrchr(entry->file, '/') + 1;
    char path[PATH_MAX], folder[PATH_MAX];
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
    entry->handle = open_file(path);
    if (entry->handle == NULL)
        return explain_dlopen(path, err);
    plugin = dlsym(entry->handle, EPA_PLUGIN_SYMBOL);
    if (plugin == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "it exports no " EPA_PLUGIN_SYMBOL);
    status = plugin_check(plugin, entry->kind, entry->name, err);
    if (status == EPA_OK)
        *out = plugin;
    return status;
}

/* Loads a plugin once; a failure sets `why`. */
static void load_entry(struct registry *registry, struct registry_entry *entry)
{
    struct epa_error err = {EPA_OK, ""};

    if (entry->plugin != NULL || entry->why != NULL)
        return;
    if (load_file(entry, &entry->plugin, &err) != EPA_OK) {
        error_add_remedy(&err);
        entry->why = arena_strndup(registry->arena, err.text, strlen(err.text));
    }
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

static enum epa_status fail_unknown(const struct registry *registry, enum epa_plugin_kind kind,
                                    const char *name, struct epa_error *err)
{
    const char *word = plugin_kind_name(kind);
    struct nearest nearest = {.want = name};
    text_auto have = {0};

    for (uint32_t i = 0; i < registry->n; i++) {
        if (registry->entry[i].kind != kind)
            continue;
        text_add(&have, "%s%s", have.bytes == 0 ? "" : ", ", registry->entry[i].name);
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
        return fail_unknown(registry, kind, name, err);
    load_entry(registry, entry);
    if (entry->plugin == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "%s plugin '%s' cannot be loaded: %s",
                        plugin_kind_name(kind), name, entry->why);
    *out = entry->plugin;
    return EPA_OK;
}

uint32_t registry_list(struct registry *registry, const struct registry_entry **out)
{
    for (uint32_t i = 0; i < registry->n; i++)
        load_entry(registry, &registry->entry[i]);
    *out = registry->entry;
    return registry->n;
}

const char *registry_empty(const struct registry *registry)
{
    return registry->empty.bytes == 0 ? NULL : registry->empty.data;
}
