/* See lanes.h. Of UCX 1.13 to 1.18, where the numbers are of lanes:
 *     #   lane[0]:  1:posix/memory.0 md[1]   -> md[1]/posix/sysdev[255] amo#0 am am_bw#0
 *     #   lane[1]:  2:tcp/eth0.0 md[2]       -> md[2]/tcp/sysdev[255] am_bw#1 wireup
 *     #        put[0]: 0..<short>..4294967296..<bcopy>..(inf)
 * A lane has a line put[] where its transport writes into the memory of peers by itself. */
#include "lanes.h"

#include <stdio.h>
#include <string.h>

enum { LANES = 64, NAME = 48 };

struct lane {
    char name[NAME];
    bool there, puts, additions, messages;
};

static void read_lane(const char *line, struct lane *lanes)
{
    const char *at = strstr(line, "lane[");
    char name[NAME], *path;
    unsigned lane;

    if (at == NULL || sscanf(at, "lane[%u]: %*u:%47s", &lane, name) != 2 || lane >= LANES)
        return;
    path = strrchr(name, '.'); /* of several over one device; a VLAN has a dot, too */
    if (path != NULL)
        *path = '\0';
    memcpy(lanes[lane].name, name, NAME);
    lanes[lane].there = true;
    at = strstr(at, "->");
    if (at == NULL)
        return;
    lanes[lane].additions = strstr(at, " amo#") != NULL;
    for (at = strstr(at, " am"); at != NULL; at = strstr(at + 1, " am")) {
        if (at[3] == '\0' || at[3] == ' ')
            lanes[lane].messages = true;
    }
}

static void read_put(const char *line, struct lane *lanes)
{
    const char *at = strstr(line, " put[");
    unsigned lane;

    if (at != NULL && sscanf(at, " put[%u]:", &lane) == 1 && lane < LANES)
        lanes[lane].puts = true;
}

static void add_name(char *names, const char *name)
{
    size_t n = strlen(names);

    if (strstr(names, name) == NULL)
        snprintf(names + n, LANES_NAMES - n, "%s%s", n > 0 ? ", " : "", name);
}

struct lanes lanes_read(const char *text)
{
    struct lane lanes[LANES] = {{.there = false}};
    struct lanes out = {.puts = false};

    while (*text != '\0') {
        size_t n = strcspn(text, "\n");
        char line[256];

        snprintf(line, sizeof(line), "%.*s", (int)(n < 255 ? n : 255), text);
        read_lane(line, lanes);
        read_put(line, lanes);
        text += n + (text[n] != '\0');
    }
    for (unsigned i = 0; i < LANES; i++) {
        out.puts |= lanes[i].there && lanes[i].puts;
        out.additions |= lanes[i].additions;
    }
    for (unsigned i = 0; i < LANES; i++) {
        if (lanes[i].there && (out.puts ? lanes[i].puts : lanes[i].messages))
            add_name(out.names, lanes[i].name);
    }
    if (out.names[0] == '\0')
        snprintf(out.names, sizeof(out.names), "what this UCX does not tell");
    return out;
}

/* "#      resource 2  :  md 1  dev 2  flags -- tcp/eth0" */
void lanes_choices(const char *text, char *out, size_t room)
{
    size_t bytes = 0;

    out[0] = '\0';
    for (const char *at = strstr(text, "resource "); at != NULL; at = strstr(at, "resource ")) {
        size_t n = strcspn(at, "\n"), end = n;

        while (end > 0 && at[end - 1] == ' ')
            end--;
        n = end;
        while (end > 0 && at[end - 1] != ' ')
            end--;
        n -= end;
        if (n + 2 < room - bytes)
            bytes += (size_t)snprintf(out + bytes, room - bytes, "%s%.*s", bytes > 0 ? ", " : "",
                                      (int)n, at + end);
        at += strcspn(at, "\n");
    }
}
