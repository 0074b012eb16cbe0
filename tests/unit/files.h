/* Experiments in files of a folder that the tests of a program go to. */
#ifndef FILES_H
#define FILES_H

#include <sys/stat.h>
#include <unistd.h>

#include "fake_root.h"
#include "test.h"

static char folder[200];

static inline int enter_folder(void **state)
{
    (void)state;
    root_create(folder, sizeof(folder));
    return chdir(folder) != 0 || mkdir("sub", 0700) != 0;
}

static inline int leave_folder(void **state)
{
    (void)state;
    root_destroy(folder);
    return chdir("/");
}

static inline void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* Sets end in NULL. */
static inline uint32_t count_sets(const char *const *sets)
{
    uint32_t n = 0;

    while (sets != NULL && sets[n] != NULL)
        n++;
    return n;
}

#endif
