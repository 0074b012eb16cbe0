/* Finds installed configurations by name. A file of the current folder goes before a configuration
 * of the same name. */
#include "cli/config_name.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "base/program_data.h"

static const char folder[] = "configs", suffix[] = ".yaml";

uint32_t config_names(struct arena *arena, const char ***names)
{
    return program_data_names(folder, suffix, arena, names);
}

static bool is_file(const char *path)
{
    struct stat at;

    return stat(path, &at) == 0 && !S_ISDIR(at.st_mode);
}

static bool is_folder(const char *path)
{
    struct stat at;

    return stat(path, &at) == 0 && S_ISDIR(at.st_mode);
}

/* Returns the length of a word without the suffix ".yaml". */
static size_t name_bytes(const char *word)
{
    size_t bytes = strlen(word), end = strlen(suffix);

    return bytes > end && strcmp(word + bytes - end, suffix) == 0 ? bytes - end : bytes;
}

enum epa_status config_name_resolve(struct arena *arena, const char *word, const char **path,
                                    struct epa_error *err)
{
    const char *name = arena_strndup(arena, word, name_bytes(word));
    char file[NAME_MAX + 16], found[PATH_MAX], hint[NEAREST_ROOM];
    struct nearest nearest = {.want = name};
    const char **names;

    *path = word;
    if (is_file(word) || strchr(word, '/') != NULL || *word == '\0' || strlen(name) > NAME_MAX)
        return EPA_OK;
    snprintf(file, sizeof(file), "%s/%s%s", folder, name, suffix);
    if (program_data_find(file, found, sizeof(found))) {
        *path = arena_strndup(arena, found, strlen(found));
        return EPA_OK;
    }
    for (uint32_t i = 0, n = config_names(arena, &names); i < n; i++)
        nearest_try(&nearest, names[i]);
    if (nearest.name == NULL && (strchr(word, '.') != NULL || is_folder(word)))
        return EPA_OK; /* a folder of results, or the reader of the file reports the error */
    return epa_fail(err, EPA_ERR_CONFIG, "no file or configuration has the name '%.200s'; %s", word,
                    nearest_hint(&nearest, hint, "'epa2a list configs' lists them"));
}
