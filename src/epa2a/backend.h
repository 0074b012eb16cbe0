/* Where memory lives and where code runs: host, or one CUDA device for each rank. With
 * this, nothing in the program's own sources knows about CUDA. */
#ifndef EPA2A_BACKEND_H
#define EPA2A_BACKEND_H

#include <epa2a/world.h>

enum epa_memory {
    EPA_MEMORY_HOST = 1u << 0,
    EPA_MEMORY_CUDA = 1u << 1,
};

struct epa_backend {
    const struct epa_backend_ops *ops;
    enum epa_memory memory;
    int device;   /* -1 on host */
    void *stream; /* cudaStream_t, NULL on host: work is queued here, in order */
};

struct epa_backend_ops {
    enum epa_status (*alloc)(struct epa_backend *, size_t bytes, void **out);
    void (*free)(struct epa_backend *, void *);
    enum epa_status (*write)(struct epa_backend *, void *to, const void *host, size_t);
    enum epa_status (*read)(struct epa_backend *, void *host, const void *from, size_t);
    enum epa_status (*fill)(struct epa_backend *, void *to, int byte, size_t);
    enum epa_status (*sync)(struct epa_backend *);
    /* Host only: runs fn(arg, worker, workers) on each of the rank's worker threads and
     * returns when all are done. Threads are made once, pinned, and wait without sleeping
     * while an iteration runs. CUDA: EPA_ERR_UNSUPPORTED; kernels are its workers. */
    enum epa_status (*parallel)(struct epa_backend *,
                                void (*fn)(void *arg, uint32_t worker, uint32_t workers),
                                void *arg);
    /* Time: mark i, run something, mark j, sync, elapsed(i, j). Host reads a clock at a
     * mark; CUDA records an event. */
    enum epa_status (*mark)(struct epa_backend *, uint32_t i);
    enum epa_status (*elapsed)(struct epa_backend *, uint32_t i, uint32_t j, double *ns);
    void (*explain)(struct epa_backend *, struct epa_error *); /* the last failure */
    void (*close)(struct epa_backend *);
};

struct epa_backend_plugin {
    struct epa_plugin plugin;
    enum epa_memory memory;
    uint32_t (*threads)(const void *config); /* that a rank will run, itself included */
    enum epa_status (*open)(const void *config, const struct epa_world *,
                            struct epa_backend **out, struct epa_error *);
};

#endif
