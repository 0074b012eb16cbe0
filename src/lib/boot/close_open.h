/* Closing of optional descriptors. */
#ifndef CLOSE_OPEN_H
#define CLOSE_OPEN_H

#include <unistd.h>

/* Closes a descriptor unless it is -1. */
static inline void close_open(int fd)
{
    if (fd >= 0)
        close(fd);
}

#endif
