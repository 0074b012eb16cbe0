/* Finds the data files of the running program. */
#include "base/program_data.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/object_path.h"

/* Meson records the source tree of a build tree in meson-info.json. */
static bool find_source_tree(char *out, size_t room)
{
    char top[PATH_MAX], path[PATH_MAX + 32];
    json_t *info;
    const char *source;
    bool found;

    if (!object_build_tree(top, sizeof(top)))
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
    object_folder(EPA2A_DATA_DIR, folder, sizeof(folder));
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
