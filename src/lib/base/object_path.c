/* Asks the dynamic linker for the object with this code. The linker has no path for the main
 * program, but the kernel has. */
#include "base/object_path.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char here; /* an address in this object */

/* Returns the name of the shared library, or "" for the main program. */
static const char *library_name(void)
{
    const struct link_map *map = NULL;
    Dl_info info;

    if (dladdr1(&here, &info, (void **)(intptr_t)&map, RTLD_DL_LINKMAP) == 0 || map == NULL)
        return "";
    return map->l_name;
}

bool object_is_program(void)
{
    return library_name()[0] == '\0';
}

bool object_path(char *out, size_t room)
{
    const char *name = library_name();
    char real[PATH_MAX]; /* realpath() needs no memory then */
    size_t bytes;

    if (realpath(name[0] == '\0' ? "/proc/self/exe" : name, real) == NULL)
        return false;
    bytes = strlen(real);
    if (bytes >= room) {
        errno = ENAMETOOLONG;
        return false;
    }
    memcpy(out, real, bytes + 1);
    return true;
}

bool object_build_tree(char *top, size_t room)
{
    if (!object_path(top, room))
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

void object_folder(const char *folder, char *out, size_t room)
{
    char path[PATH_MAX];
    char *slash;

    if (folder[0] == '/' || !object_path(path, sizeof(path))) {
        snprintf(out, room, "%s", folder);
        return;
    }
    slash = strrchr(path, '/');
    *slash = '\0';
    for (; strncmp(folder, "../", 3) == 0; folder += 3) {
        slash = strrchr(path, '/');
        if (slash != NULL)
            *slash = '\0';
    }
    snprintf(out, room, "%s/%s", path, folder);
}
