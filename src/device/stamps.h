/* What kernels noted of themselves, as a trace: one slice for each warp and phase of the last
 * calls. */
#ifndef DEVICE_STAMPS_H
#define DEVICE_STAMPS_H

#include <epa2a/backend.h>

/* When each warp began and ended each phase, by the device's nanosecond clock; 0: it did not
 * take part. */
struct stamps {
    const char *who;          /* the algorithm, for what is said on stderr */
    const char *const *phase; /* [phases] names; NULL: there is no such phase */
    uint32_t phases, warps, block_warps;
    const uint64_t *at; /* [warps][phases][2], memory of the device */
};

/* Reads them into FILE.RANK.json; a failure is told on stderr, as the run itself went well. */
void stamps_write(const struct stamps *, const char *file, uint32_t rank,
                  struct epa_backend *);

#endif
