/* Cores of this host, assignment of cores to the threads of ranks, and caches. */
#ifndef PIN_H
#define PIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/plugin.h>
#include <epa2a/world.h>

enum pin { PIN_CORE, PIN_NONE };

extern const struct epa_choice pin_choices[]; /* for the option `pin` of launchers */

/* Cores that this process may use, in the order of assignment to ranks: one thread of each physical
 * core first, its SMT siblings last. */
struct pin_plan {
    int32_t *order; /* owned */
    uint32_t cores;
    enum pin pin;
    uint32_t ranks, threads; /* threads: per rank */
};

enum epa_status pin_plan_init(struct pin_plan *out, enum pin, uint32_t ranks, uint32_t threads,
                              struct epa_error *);
void pin_plan_finish(struct pin_plan *);

/* Returns the number n of cores of a rank; worker w runs on core[w % n]. A rank has `threads` exclusive
 * cores, fewer if cores are scarce, and one shared core with more ranks than cores. 0: no pinning. */
uint32_t pin_plan_rank(const struct pin_plan *, uint32_t rank, const int32_t **core);

/* Copies the affinity mask of the calling thread to `out` of 8 KiB. Returns the number of bytes up to
 * the last non-zero one. */
size_t pin_mask(unsigned char *out, size_t room);

/* Pins the calling thread to the first core of the world; sets world->cores to 0 after a failure. */
void pin_rank(struct epa_world *);

/* Sets the affinity of the calling thread to these cores. Returns false if the kernel rejects it; the
 * affinity is then unchanged. */
bool pin_self(const int32_t *core, uint32_t n);

/* Number of bytes that a core must write to replace the contents of its own caches: twice its L2,
 * rounded to lines. */
uint64_t cache_flush_bytes(void);

#endif
