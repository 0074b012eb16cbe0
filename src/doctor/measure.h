/* What memory and cores do on their own, without ranks: copy, read and write rates, and how
 * long a flag takes from core to core. */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include <epa2a/status.h>

/* Bytes a nanosecond; copied bytes count once. */
struct measure_rates {
    double read, write, copy;
};

struct measure_memory {
    uint64_t bytes; /* that each core reads, writes, or copies half of */
    uint32_t cores;
    struct measure_rates one, all; /* of one core alone; of all of them together */
};

/* One way of a cache line between two cores, ns. */
struct measure_flags {
    uint32_t pairs;  /* that were measured */
    uint32_t missed; /* that did not come to an end in time: something else runs there */
    double least, median, most;
    int32_t least_core[2], most_core[2];
};

/* How much a core works on, so that it does not come from caches: `quick` settles for less
 * than that. `available`: memory that may be taken. */
uint64_t measure_bytes(uint64_t l3_bytes, uint64_t available, uint32_t cores, bool quick);

/* On these cores, one thread pinned to each. */
enum epa_status measure_memory(const int32_t *core, uint32_t cores, uint64_t bytes, bool quick,
                               struct measure_memory *out, struct epa_error *);

/* All pairs of up to 16 of the cores, which are taken evenly from the list. */
enum epa_status measure_flags(const int32_t *core, uint32_t cores, bool quick,
                              struct measure_flags *out, struct epa_error *);

#endif
