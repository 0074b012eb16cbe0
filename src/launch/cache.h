/* The caches of this host. */
#ifndef CACHE_H
#define CACHE_H

#include <stdint.h>

/* Bytes of the largest L2 here; where nobody says, as much as those of most machines have. */
uint64_t cache_l2_bytes(void);

/* Bytes that a core writes to have its own caches hold nothing else: twice its L2, in lines. */
uint64_t cache_flush_bytes(void);

#endif
