/* A temporary folder in place of /, which contains files of /proc and /sys as the test needs
 * them. */
#ifndef FAKE_ROOT_H
#define FAKE_ROOT_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static inline void root_create(char *root, size_t room)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(root, room, "%s/epa2a-root-XXXXXX", tmp != NULL ? tmp : "/tmp");
    if (mkdtemp(root) == NULL)
        abort();
}

/* Writes `text` to root + path and creates the folders of the path. */
static inline void root_put(const char *root, const char *path, const char *text)
{
    char full[1024];
    FILE *file;

    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = 0;
        mkdir(full, 0777);
        *at = '/';
    }
    file = fopen(full, "w");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0)
        abort();
}

static inline int root_remove_one(const char *path, const struct stat *at, int type,
                                  struct FTW *ftw)
{
    return remove(path);
}

static inline void root_destroy(const char *root)
{
    nftw(root, root_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
