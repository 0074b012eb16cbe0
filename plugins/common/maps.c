/* See maps.h. A line of /proc/self/maps: "7f00-7f80 rw-s 00001000 00:01 4711  /memfd:x
 * (deleted)". */
#include "maps.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/sysmacros.h>

bool maps_hold(const void *at, uint64_t bytes, uint64_t dev, uint64_t ino)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    uint64_t next = (uintptr_t)at, end = next + bytes;
    bool any = ino == 0;
    char line[512];

    if (maps == NULL || end < next)
        bytes = end = next = UINT64_MAX; /* nothing is looked for, nothing is found */
    while (maps != NULL && next < end && fgets(line, sizeof(line), maps) != NULL) {
        uint64_t from, to, offset, inode;
        unsigned major, minor;
        char may[5];

        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64, &from, &to, may,
                   &offset, &major, &minor, &inode) != 7 ||
            to <= next)
            continue;
        if (from > next || may[0] != 'r' || may[1] != 'w' || may[3] != 's' ||
            (!any && (inode != ino || makedev(major, minor) != dev)))
            break;
        any = false;
        ino = inode;
        dev = makedev(major, minor);
        next = to;
    }
    if (maps != NULL)
        fclose(maps);
    return next != UINT64_MAX && next >= end;
}
