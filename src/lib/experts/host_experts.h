/* Real experts of a rank on hosts, between dispatch and combine. */
#ifndef EXPERTS_HOST_EXPERTS_H
#define EXPERTS_HOST_EXPERTS_H

#include <epa2a/backend.h>

#include "experts/mlp_weights.h"

struct host_experts;

struct host_experts_params {
    /* As for epa_backend_ops.experts_create, except that `source` provides the weights, and
     * `factor` is not used. */
    struct epa_experts_params experts;
    struct mlp_source source;
    bool onednn; /* multiply with oneDNN, not with the own kernels */
    /* Called by the rank's own thread after each of its tasks, for example to make progress of a
     * transport; NULL: none. */
    void (*after_task)(void *arg);
    void *arg; /* of after_task() */
};

/* Packs the weights and allocates all memory. */
enum epa_status host_experts_create(struct epa_backend *, const struct host_experts_params *,
                                    struct host_experts **out, struct epa_error *err);
void host_experts_destroy(struct host_experts *); /* accepts NULL */

/* Computes the outputs of the received entries of `moe` to y, in the format that epa_backend_ops
 * documents for experts. */
enum epa_status host_experts_run(struct host_experts *, const struct epa_moe *moe, void *y,
                                 struct epa_error *err);

/* Returns the library or instruction set that multiplies, for reports; valid until destroy. */
const char *host_experts_name(const struct host_experts *);

/* Returns the bytes that create() and run() allocate with this number of workers. */
uint64_t host_experts_bytes(const struct host_experts_params *, uint32_t workers);

#endif
