/* Small files that the kernel makes up as they are read. */
#include "base/sysfile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *open_under(const char *root, const char *path)
{
    char full[1024];

    snprintf(full, sizeof(full), "%s%s", root, path);
    return fopen(full, "re");
}

bool sysfile_line(const char *root, const char *path, char *out, size_t room)
{
    FILE *file = open_under(root, path);

    out[0] = 0;
    if (file == NULL)
        return false;
    if (fgets(out, (int)room, file) == NULL)
        out[0] = 0;
    fclose(file);
    out[strcspn(out, "\n")] = 0;
    return out[0] != 0;
}

bool sysfile_field(const char *root, const char *path, const char *key, char *out, size_t room)
{
    FILE *file = open_under(root, path);
    char line[1024];
    size_t n = strlen(key);

    out[0] = 0;
    if (file == NULL)
        return false;
    while (out[0] == 0 && fgets(line, sizeof(line), file) != NULL) {
        const char *at = line + n;

        if (strncmp(line, key, n) != 0)
            continue;
        at += strspn(at, " \t");
        if (*at != ':')
            continue;
        at += 1 + strspn(at + 1, " \t");
        snprintf(out, room, "%.*s", (int)strcspn(at, "\n"), at);
    }
    fclose(file);
    return out[0] != 0;
}

uint64_t sysfile_number(const char *root, const char *path)
{
    char line[64];

    return sysfile_line(root, path, line, sizeof(line)) ? strtoull(line, NULL, 10) : 0;
}

void sysfile_chosen(const char *root, const char *path, char *out, size_t room)
{
    char line[128];
    const char *open;

    out[0] = 0;
    sysfile_line(root, path, line, sizeof(line));
    open = strchr(line, '[');
    if (open != NULL)
        snprintf(out, room, "%.*s", (int)strcspn(open + 1, "]"), open + 1);
}

uint32_t sysfile_list_count(const char *list)
{
    uint32_t n = 0;

    while (*list >= '0' && *list <= '9') {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;

        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        n += last >= first ? (uint32_t)(last - first + 1) : 0;
        list = *end == ',' ? end + 1 : end;
    }
    return n;
}
