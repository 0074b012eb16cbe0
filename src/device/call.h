/* What algorithms on GPUs do alike when they are called: kernels that are launched, and what
 * went wrong, kept for who asks. */
#ifndef DEVICE_CALL_H
#define DEVICE_CALL_H

#include <stdbool.h>

#include <epa2a/algorithm.h>

/* An algorithm and the GPU of its rank; setup.h makes it. */
struct device {
    const char *who; /* the algorithm, for what is said */
    struct epa_transport *t;
    struct epa_backend *backend;
    uint64_t heap; /* the algorithm's part: offset from the start of any rank's heap */
    bool early;    /* a kernel may be set up while the one before runs */
    void *memory;  /* of this rank alone */
    struct epa_error last; /* of the host's making */
};

/* Offset of one of a region's buffers, from the start of any rank's heap; `at`: from the
 * start of the algorithm's part. */
static inline uint64_t device_region(const struct device *d, uint64_t at, uint64_t bytes,
                                     uint32_t which)
{
    return d->heap + at + bytes * which;
}

static inline char *device_own(const struct device *d, uint64_t offset)
{
    return d->t->peer_heap[d->t->rank] + offset;
}

/* Blocks for that many units of work: on as many multiprocessors as there are before two
 * share one. */
static inline uint32_t device_blocks_for(uint32_t room, uint64_t units)
{
    return units < room ? (uint32_t)(units == 0 ? 1 : units) : room;
}

/* Buffer sets, two or one: dispatches take them in turn, on all ranks alike, and combines give
 * them back in the same order. */
struct device_sets {
    uint32_t n;
    uint64_t epoch, combined; /* of the last dispatch, and of the last that was combined */
    struct {
        bool open;
        uint64_t epoch;
    } set[2];
};

/* The set of the dispatch that is combined: the oldest open one, or once more the last that
 * was combined, with no dispatch since. */
enum epa_status device_find_set(struct device *, const struct device_sets *, uint64_t epoch,
                                uint32_t *out);

/* What is said behind the number that was found, of what comes in several lines: the end of
 * them is looked at. */
static inline const char *device_missing(const struct epa_fault *f)
{
    return f->seen >= f->wanted ? " at its end: not all of it has come" : "";
}

struct device_grid {
    uint32_t blocks, threads, shared_bytes;
    bool waits; /* is not set up early: it follows what is no kernel */
};

/* `args`: the struct that the kernel takes. */
enum epa_status device_launch(struct device *, const void *kernel, void *args,
                              struct device_grid);

/* Queues a copy within the device; `what`: for the sentence, "copying expert outputs". */
enum epa_status device_copy(struct device *, const char *what, void *to, const void *from,
                            uint64_t bytes);

/* Keep a sentence for device_explain(); `code`: a cudaError_t. They return the status. */
EPA_PRINTF(3, 4)
enum epa_status device_fail(struct device *, enum epa_status, const char *fmt, ...);
enum epa_status device_call_failed(struct device *, const char *what, int code);
void device_explain(const struct device *, struct epa_error *);

#endif
