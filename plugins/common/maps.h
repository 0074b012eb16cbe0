/* What this process has mapped: to check an address that somebody else named before it is used. */
#ifndef MAPS_H
#define MAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether all of [at, at + bytes) is one or several neighbouring shared mappings that may be read
 * and written, of one file. `ino` 0: of any file, else of that one on device `dev` (st_dev).
 * False, too, where there is no /proc. */
bool maps_hold(const void *at, uint64_t bytes, uint64_t dev, uint64_t ino);

#endif
