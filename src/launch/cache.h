/* The caches of this host. */
#ifndef CACHE_H
#define CACHE_H

#include <stdint.h>

/* Bytes of the largest L2 here; where nobody says, as much as those of most machines have. */
uint64_t cache_l2_bytes(void);

#endif
