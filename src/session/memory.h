/* How much memory a run may take. */
#ifndef MEMORY_H
#define MEMORY_H

#include <stdint.h>

/* What all ranks together may still take: the least of MemAvailable and what the limits of
 * the cgroup and those above it leave. `which` gets the name of that limit; UINT64_MAX:
 * nothing could be read. */
uint64_t memory_available(const char *root, char *which, uint32_t room);

/* Room that RLIMIT_AS leaves to this process and to each that it forks; UINT64_MAX:
 * there is no limit. */
uint64_t memory_address_space(const char *root);

#endif
