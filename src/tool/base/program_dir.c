/* Finds the build tree, the installed folders and the data files of the running program. */
#include "base/json.h"
#include "base/memory.h"
#include "base/program_dir.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>


#define EXECUTABLE "/proc/self/exe"

static bool read_own_path(char *out, size_t room)
{
    ssize_t n = readlink(EXECUTABLE, out, room - 1);

    out[n < 0 ? 0 : n] = '\0';
    return n > 0;
}

bool program_build_tree(char *top, size_t room)
{
    if (!read_own_path(top, room))
        return false;
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

void program_installed(const char *folder, char *out, size_t room)
{
    char exe[PATH_MAX];
    char *slash;

    if (folder[0] == '/' || !read_own_path(exe, sizeof(exe))) {
        snprintf(out, room, "%s", folder);
        return;
    }
    slash = strrchr(exe, '/');
    *slash = '\0';
    for (; strncmp(folder, "../", 3) == 0; folder += 3) {
        slash = strrchr(exe, '/');
        if (slash != NULL)
            *slash = '\0';
    }
    snprintf(out, room, "%s/%s", exe, folder);
}

/* Meson records the source tree of a build tree in meson-info.json. */
static bool find_source_tree(char *out, size_t room)
{
    char top[PATH_MAX], path[PATH_MAX + 32];
    json_t *info;
    const char *source;
    bool found;

    if (!program_build_tree(top, sizeof(top)))
        return false;
    snprintf(path, sizeof(path), "%s/meson-info/meson-info.json", top);
    info = json_load_file(path, 0, NULL);
    source = json_text_at(info, "directories.source");
    found = source[0] == '/' && snprintf(out, room, "%s", source) < (int)room;
    json_decref(info);
    return found;
}

static bool join_existing(const char *folder, const char *path, char *out, size_t room)
{
    int bytes = snprintf(out, room, "%s/%s", folder, path);

    return bytes > 0 && (size_t)bytes < room && access(out, R_OK) == 0;
}

bool program_data_find(const char *path, char *out, size_t room)
{
    char folder[PATH_MAX], share[PATH_MAX + 8];

    if (find_source_tree(folder, sizeof(folder))) {
        snprintf(share, sizeof(share), "%s/share", folder);
        return join_existing(folder, path, out, room) || join_existing(share, path, out, room);
    }
    program_installed(EPA2A_DATA_DIR, folder, sizeof(folder));
    return join_existing(folder, path, out, room);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

uint32_t program_data_names(const char *folder, const char *suffix, struct arena *arena,
                            const char ***names)
{
    char path[PATH_MAX];
    DIR *dir = program_data_find(folder, path, sizeof(path)) ? opendir(path) : NULL;
    const struct dirent *file;
    const char **name = NULL;
    uint32_t n = 0;

    while (dir != NULL && (file = readdir(dir)) != NULL) {
        size_t bytes = strlen(file->d_name), end = strlen(suffix);

        if (bytes <= end || strcmp(file->d_name + bytes - end, suffix) != 0)
            continue;
        name = memory_grow(name, (n + 1) * sizeof(*name));
        name[n++] = arena_strndup(arena, file->d_name, bytes - end);
    }
    if (dir != NULL)
        closedir(dir);
    if (n > 0)
        qsort(name, n, sizeof(*name), by_name);
    *names = arena_alloc(arena, (n + 1) * sizeof(*name));
    if (n > 0)
        memcpy(*names, name, n * sizeof(*name));
    free(name);
    return n;
}
