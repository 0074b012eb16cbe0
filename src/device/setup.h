/* What algorithms on GPUs do alike when they are made: what they ask of the device, how many
 * blocks a kernel has at most, and the rank's own memory. */
#ifndef DEVICE_SETUP_H
#define DEVICE_SETUP_H

#include "device/call.h"

static inline uint32_t device_up16(uint64_t bytes)
{
    return (uint32_t)((bytes + 15) / 16 * 16);
}

/* Fills `out`, if device and transport will do for an algorithm that takes `heap_bytes` of
 * the heap. `early`: it asks for kernels to be set up early. */
enum epa_status device_init(const char *who, const struct epa_algorithm_params *,
                            uint64_t heap_bytes, bool early, struct device *out,
                            struct epa_error *);

/* Gives the memory back; a device that was never filled has none. */
void device_finish(struct device *);

/* Loads a kernel, which is to have so much shared memory. One that is loaded when it is first
 * launched may have to wait for others that wait for it. */
enum epa_status device_load(const struct device *, const void *kernel,
                            uint32_t shared_bytes, struct epa_error *);

struct device_kernel {
    const char *name; /* for what is said */
    const void *kernel;
    uint32_t threads, shared_bytes;
};

/* Loads it, too. As many blocks as are resident at once, since they wait for blocks of other
 * ranks, which wait for them; `most`, if it is not 0. */
enum epa_status device_count_blocks(const struct device *, struct device_kernel,
                                    uint32_t most, uint32_t *out, struct epa_error *);

/* The rank's own memory is taken part by part, in two rounds: the first, from NULL, only
 * counts what it comes to. */
void *device_take(char *memory, uint64_t *at, uint64_t bytes);

/* d->memory: so much, all 0. */
enum epa_status device_alloc(struct device *, uint64_t bytes, struct epa_error *);

/* When it returns the bytes are 0. */
enum epa_status device_clear(const struct device *, void *to, uint64_t bytes,
                             struct epa_error *);

#endif
