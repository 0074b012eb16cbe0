/* Finds and loads plugins. Creating a registry reads file names only. A file becomes a plugin on
 * first use: who can write to it is checked, then dlopen(), then its descriptor
 * (below).
 *
 * dlopen() is given the resolved path and not /proc/self/fd/N: nobody but root and this user can
 * make that path mean another file, debuggers and sanitizers find the file by it, and a
 * descriptor's number names another file once it is used again. */
#include "plugin/registry.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"

#define PREFIX "epa2a-"
#define SUFFIX ".so"

struct registry {
    struct arena *arena;          /* every string */
    struct registry_entry *entry; /* [n], sorted once all are there */
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

/* "epa2a-<kind>-<name>.so"; the name is not checked, so that a bad one can be listed. */
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

/* Counts in *n what is the name of a plugin. */
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
    else if (first->file == NULL || strcmp(first->file, entry.file) != 0) /* or a folder twice */
        first->hides =
            arena_printf(registry->arena, "%s%s%s", first->hides == NULL ? "" : first->hides,
                         first->hides == NULL ? "" : ", ", entry.file);
}

/* Counts in *n what it finds. A folder that nobody asked for by name (`what` is NULL) may be
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

/* Notes that no plugin was found in `folder`, if so. */
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

/* This program is <top>/src/epa2a or <top>/tests/unit/X of a tree that meson has set up. */
static bool find_build_tree(char *top, size_t room)
{
    ssize_t n = readlink("/proc/self/exe", top, room - 1);

    top[n < 0 ? 0 : n] = '\0';
    for (uint32_t up = 0; up < 3; up++) {
        char *slash = strrchr(top, '/');
        char mark[PATH_MAX + 16];
        struct stat stat;

        if (slash == NULL)
            return false;
        *slash = '\0';
        snprintf(mark, sizeof(mark), "%s/meson-info", top);
        if (up > 0 && lstat(mark, &stat) == 0 && S_ISDIR(stat.st_mode))
            return true;
    }
    return false;
}

void registry_installed_folder(char *out, size_t room)
{
    const char *folder = EPA2A_PLUGIN_DIR; /* absolute, or from that of the program */
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    char *slash;

    exe[n < 0 ? 0 : n] = '\0';
    slash = strrchr(exe, '/');
    if (folder[0] == '/' || slash == NULL) {
        snprintf(out, room, "%s", folder);
        return;
    }
    *slash = '\0';
    for (; strncmp(folder, "../", 3) == 0; folder += 3) {
        slash = strrchr(exe, '/');
        if (slash != NULL)
            *slash = '\0';
    }
    snprintf(out, room, "%s/%s", exe, folder);
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

/* The absolute ones of folders with : between them. */
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
    if (find_build_tree(top, sizeof(top)))
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
    if (registry == NULL)
        return;
    for (uint32_t i = 0; i < registry->n; i++) {
        if (registry->entry[i].handle != NULL)
            dlclose(registry->entry[i].handle);
    }
    free(registry->entry);
    text_free(&registry->searched);
    text_free(&registry->empty);
    arena_destroy(registry->arena);
    free(registry);
}

/* dlerror() says "libx.so.0: cannot open shared object file: ..." of a library that `path`
 * needs, and "PATH: undefined symbol: x" of what is wrong in itself. */
static enum epa_status explain_dlopen(const char *path, struct epa_error *err)
{
    const char *text = dlerror(), *colon;

    if (text == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "dlopen fails and does not say why");
    if (strncmp(text, path, strlen(path)) == 0 && text[strlen(path)] == ':')
        text += strlen(path) + strspn(text + strlen(path), ": ");
    colon = strstr(text, ": cannot open shared object file");
    if (colon != NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its library %.*s is missing",
                        (int)(colon - text), text);
    return epa_fail(err, EPA_ERR_UNSUPPORTED, "%s", text);
}

/* Libraries of plugins may install signal handlers when they are loaded, as UCX does for SIGHUP.
 * Restores the handlers of signals that end the program, and loses none that arrives meanwhile. */
static void *open_file(const char *path)
{
    static const int ends[] = {SIGHUP, SIGINT, SIGTERM};
    enum { ENDS = sizeof(ends) / sizeof(ends[0]) };
    struct sigaction action[ENDS];
    sigset_t set, before;
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

/* Once; a failure leaves `why`. */
static void load(struct registry *registry, struct registry_entry *entry)
{
    struct epa_error err = {EPA_OK, ""};

    if (entry->plugin == NULL && entry->why == NULL &&
        load_file(entry, &entry->plugin, &err) != EPA_OK)
        entry->why = arena_strndup(registry->arena, err.text, strlen(err.text));
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
    load(registry, entry);
    if (entry->plugin == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "%s plugin '%s' cannot be loaded: %s",
                        plugin_kind_name(kind), name, entry->why);
    *out = entry->plugin;
    return EPA_OK;
}

uint32_t registry_list(struct registry *registry, const struct registry_entry **out)
{
    for (uint32_t i = 0; i < registry->n; i++)
        load(registry, &registry->entry[i]);
    *out = registry->entry;
    return registry->n;
}

const char *registry_empty(const struct registry *registry)
{
    return registry->empty.bytes == 0 ? NULL : registry->empty.data;
}

/* Checks before and after dlopen(). Before: owner and mode of the file and its folders. After:
 * the ABI number, then every part of the descriptor that the program later relies on, so that a
 * faulty plugin causes an error message and not a crash. */

enum { MAX_OPTIONS = 256, MAX_CHOICES = 256, MAX_SUMMARY = 200, MAX_CONFIG_BYTES = 1 << 20 };

#define MUST(type, function) \
    { \
#function, offsetof(struct epa_##type##_plugin, function) \
    }

/* The descriptor of each plugin kind: the offset of its memory kinds (0: none), and its required
 * functions. */
static const struct {
    const char *name, *article;
    uint32_t size;
    size_t memory;
    struct {
        const char *name;
        size_t offset;
    } must[2];
} kinds[PLUGIN_KINDS] = {
    [EPA_PLUGIN_BACKEND] = {"backend",
                            "a",
                            sizeof(struct epa_backend_plugin),
                            offsetof(struct epa_backend_plugin, memory),
                            {MUST(backend, open)}},
    [EPA_PLUGIN_LAUNCHER] =
        {"launcher", "a", sizeof(struct epa_launcher_plugin), 0, {MUST(launcher, launch)}},
    [EPA_PLUGIN_TRANSPORT] = {"transport",
                              "a",
                              sizeof(struct epa_transport_plugin),
                              offsetof(struct epa_transport_plugin, memory),
                              {MUST(transport, open)}},
    [EPA_PLUGIN_ALGORITHM] = {"algorithm",
                              "an",
                              sizeof(struct epa_algorithm_plugin),
                              offsetof(struct epa_algorithm_plugin, memory),
                              {MUST(algorithm, plan), MUST(algorithm, create)}},
};

/* By enum epa_option_type: the bytes of the field, and their alignment. */
static const struct {
    size_t bytes, align;
} fields[] = {
    [EPA_OPTION_BOOL] = {sizeof(bool), _Alignof(bool)},
    [EPA_OPTION_U32] = {sizeof(uint32_t), _Alignof(uint32_t)},
    [EPA_OPTION_U64] = {sizeof(uint64_t), _Alignof(uint64_t)},
    [EPA_OPTION_REAL] = {sizeof(double), _Alignof(double)},
    [EPA_OPTION_BYTES] = {sizeof(uint64_t), _Alignof(uint64_t)},
    [EPA_OPTION_DURATION] = {sizeof(uint64_t), _Alignof(uint64_t)},
    [EPA_OPTION_STRING] = {sizeof(char *), _Alignof(char *)},
    [EPA_OPTION_CHOICE] = {sizeof(int), _Alignof(int)},
    [EPA_OPTION_U32_LIST] = {sizeof(struct epa_u32_list), _Alignof(struct epa_u32_list)},
};

const char *plugin_kind_name(enum epa_plugin_kind kind)
{
    return kinds[kind].name;
}

static bool name_of(const char *name, size_t most)
{
    size_t n = strnlen(name, most + 1);

    return n >= 1 && n <= most && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

bool plugin_name_ok(const char *name)
{
    return name_of(name, PLUGIN_NAME_MAX);
}

/* ---- before dlopen() ---- */

static const char *describe_type(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return "a folder";
    case S_IFLNK:
        return "a symbolic link";
    case S_IFIFO:
        return "a pipe";
    case S_IFSOCK:
        return "a socket";
    default:
        return "a device";
    }
}

/* `what` begins the sentence. POSIX ACLs that let others write show in the group bits. */
static enum epa_status check_owner(const struct stat *stat, const char *what, bool may_be_sticky,
                                   struct epa_error *err)
{
    bool sticky = (stat->st_mode & S_ISVTX) != 0 && may_be_sticky;

    if (stat->st_uid != 0 && stat->st_uid != geteuid())
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s belongs to user %u, neither to root nor to you", what,
                        (unsigned)stat->st_uid);
    if ((stat->st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "%s can be written by others (mode %04o)", what,
                        (unsigned)(stat->st_mode & 07777));
    return EPA_OK;
}

static enum epa_status check_folder(const char *folder, bool is_above, struct epa_error *err)
{
    char what[320];
    struct stat stat;

    snprintf(what, sizeof(what), "the folder %s", folder);
    if (lstat(folder, &stat) != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "%s: %s", what, strerror(errno));
    return check_owner(&stat, what, is_above, err);
}

/* From / downwards: once a folder is trusted, nobody else can replace what is checked next. */
enum epa_status plugin_trust(const char *folder, const char *base, char *out, size_t room,
                             struct epa_error *err)
{
    char *real = realpath(folder, NULL);
    enum epa_status status;
    struct stat stat;
    int n;

    if (real == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "the folder %s: %s", folder, strerror(errno));
    n = snprintf(out, room, "%s/%s", strcmp(real, "/") == 0 ? "" : real, base);
    status = n < 0 || (size_t)n >= room ? epa_fail(err, EPA_ERR_UNSUPPORTED, "its path is too long")
                                        : check_folder("/", real[1] != '\0', err);
    for (char *at = real + 1; status == EPA_OK && *at != '\0';) {
        char *end = at + strcspn(at, "/"), was = *end;

        *end = '\0';
        status = check_folder(real, was != '\0', err);
        *end = was;
        at = end + (was != '\0');
    }
    free(real);
    if (status != EPA_OK)
        return status;
    if (lstat(out, &stat) != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "the file cannot be opened: %s", strerror(errno));
    if (!S_ISREG(stat.st_mode))
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "the file is %s", describe_type(stat.st_mode));
    return check_owner(&stat, "the file", false, err);
}

/* ---- after it ---- */

static bool one_line(const char *text, size_t most)
{
    size_t n = strnlen(text, most + 1);

    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] < ' ' || text[i] == 127)
            return false;
    }
    return n >= 1 && n <= most;
}

static enum epa_status refuse_choices(const struct epa_option *option, const void *defaults,
                                      struct epa_error *err)
{
    uint32_t n = 0;
    bool holds_default = false;
    int value;

    memcpy(&value, (const char *)defaults + option->offset, sizeof(value));
    for (; option->choices != NULL && option->choices[n].name != NULL; n++) {
        if (n == MAX_CHOICES || !one_line(option->choices[n].name, 64))
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "choice %u of its option '%s' has no usable name", n, option->name);
        holds_default = holds_default || option->choices[n].value == value;
    }
    if (n == 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its option '%s' has no choices", option->name);
    if (!holds_default)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "the default of its option '%s' (%d) is none of the choices", option->name,
                        value);
    return EPA_OK;
}

static enum epa_status check_option(const struct epa_options *options, uint32_t i,
                                    struct epa_error *err)
{
    const struct epa_option *option = &options->table[i];
    uint32_t type = option->type;

    if (!name_of(option->name, 64))
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "the name of its option %u is not made of a-z, 0-9 and _", i);
    if (strcmp(option->name, "name") == 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "its option 'name' has the key that names the plugin");
    for (uint32_t j = 0; j < i; j++) {
        if (strcmp(option->name, options->table[j].name) == 0)
            return epa_fail(err, EPA_ERR_UNSUPPORTED, "its option '%s' is there twice",
                            option->name);
    }
    if (option->help == NULL || !one_line(option->help, 500))
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its option '%s' has no line of help",
                        option->name);
    if (type >= sizeof(fields) / sizeof(fields[0]))
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its option '%s' has the unknown type %u",
                        option->name, type);
    if (fields[type].bytes > options->size || option->offset > options->size - fields[type].bytes ||
        option->offset % fields[type].align != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "its option '%s' is at offset %zu, which does not fit a struct of %zu "
                        "bytes",
                        option->name, option->offset, options->size);
    if ((option->max != 0 && option->min > option->max) || option->least > option->most)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its option '%s' allows no value", option->name);
    return type == EPA_OPTION_CHOICE ? refuse_choices(option, options->defaults, err) : EPA_OK;
}

static enum epa_status check_options(const struct epa_options *options, struct epa_error *err)
{
    if (options->size > MAX_CONFIG_BYTES)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its options would take %zu bytes",
                        options->size);
    if (options->table == NULL)
        return EPA_OK;
    if (options->size == 0 || options->defaults == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "it has options and no defaults");
    for (uint32_t i = 0; options->table[i].name != NULL; i++) {
        enum epa_status status =
            i < MAX_OPTIONS ? check_option(options, i, err)
                            : epa_fail(err, EPA_ERR_UNSUPPORTED, "its table of options has no end");

        if (status != EPA_OK)
            return status;
    }
    return EPA_OK;
}

static enum epa_status check_numbers(const struct epa_plugin *p, enum epa_plugin_kind kind,
                                     struct epa_error *err)
{
    if (p->abi != EPA_ABI)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "it was built for plugin ABI %u, and this program has %u", p->abi, EPA_ABI);
    if ((uint32_t)p->kind >= PLUGIN_KINDS)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "it is of the unknown kind %u", p->kind);
    if (p->kind != kind)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "it is %s %s, not %s %s", kinds[p->kind].article,
                        kinds[p->kind].name, kinds[kind].article, kinds[kind].name);
    if (p->size != kinds[kind].size)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "its descriptor has %u bytes, and %s %s of this program has %u", p->size,
                        kinds[kind].article, kinds[kind].name, kinds[kind].size);
    return EPA_OK;
}

enum epa_status plugin_check(const struct epa_plugin *plugin, enum epa_plugin_kind kind,
                             const char *name, struct epa_error *err)
{
    enum epa_status status = check_numbers(plugin, kind, err);
    uint32_t memory = EPA_MEMORY_HOST;
    void (*function)(void);

    if (status != EPA_OK)
        return status;
    if (plugin->name == NULL || !plugin_name_ok(plugin->name))
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its name is not 1 to %d of a-z, 0-9 and _",
                        PLUGIN_NAME_MAX);
    if (strcmp(plugin->name, name) != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "it calls itself '%s'", plugin->name);
    if (plugin->summary == NULL || !one_line(plugin->summary, MAX_SUMMARY))
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its summary is not one line of text");
    for (uint32_t i = 0; i < 2 && kinds[kind].must[i].name != NULL; i++) {
        memcpy(&function, (const char *)plugin + kinds[kind].must[i].offset, sizeof(function));
        if (function == NULL)
            return epa_fail(err, EPA_ERR_UNSUPPORTED, "its function %s is missing",
                            kinds[kind].must[i].name);
    }
    if (kinds[kind].memory != 0)
        memcpy(&memory, (const char *)plugin + kinds[kind].memory, sizeof(memory));
    if ((memory & (EPA_MEMORY_HOST | EPA_MEMORY_CUDA)) == 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "it says of no kind of memory that it works there");
    return check_options(&plugin->options, err);
}
