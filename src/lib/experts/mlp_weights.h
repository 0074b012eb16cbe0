/* Weights of the experts of a rank in host memory, in the format of struct epa_mlp or packed. */
#ifndef EXPERTS_MLP_WEIGHTS_H
#define EXPERTS_MLP_WEIGHTS_H

#include <epa2a/backend.h>
#include <epa2a/gemm.h>

#include "experts/mlp_shape.h"

struct onednn;

/* Origin of the weights. block() writes the rows of a block of a local expert, and with FP8 or INT8
 * weights the scales of the block. Several threads call block(). */
struct mlp_source {
    void (*block)(const void *arg, uint32_t expert, enum mlp_matrix, uint32_t block, void *rows,
                  float *scale);
    const void *arg;
};

/* Returns a source that copies from the pointers of shape->mlp. The shape must outlive the
 * source. */
struct mlp_source mlp_source_of_memory(const struct mlp_shape *shape);

/* Destination of the weights of all local experts. Format: packed for `library`; packed for `gemm`
 * if `library` is NULL; the format of struct epa_mlp if both are NULL. */
struct mlp_weights {
    const struct epa_gemm *gemm;
    /* If set, gemm is set, too, and each block of MLP_BLOCK rows is packed separately, with zeros
     * for missing rows. */
    struct onednn *library;
    void *up, *down;
    float *up_scale, *down_scale;
};

/* Writes the weights of `experts` local experts to `to`. The workers of the host backend share the
 * work. */
enum epa_status mlp_weights_make(struct epa_backend *, const struct mlp_shape *, uint32_t experts,
                                 const struct mlp_source *, const struct mlp_weights *to,
                                 struct epa_error *err);

#endif
