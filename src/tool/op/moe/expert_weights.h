/* This rank's weights of real experts. */
#ifndef OP_MOE_EXPERT_WEIGHTS_H
#define OP_MOE_EXPERT_WEIGHTS_H

#include <stdint.h>

#include "op/moe/moe_state.h"

/* Destination of the weights of all local experts. Format: packed for `library`; packed for `gemm` if
 * `library` is NULL; the format of struct epa_mlp if both are NULL. */
struct mlp_weights {
    const struct epa_gemm *gemm;
    /* If set, gemm is set, too, and each block of WEIGHTS_BLOCK rows is packed separately, with zeros for
     * missing rows. */
    struct onednn *library;
    void *up, *down;
    float *up_scale, *down_scale;
};

/* Makes the weights in host memory with the rank's workers. */
enum epa_status op_moe_weights_make(struct op_moe *, const struct mlp_weights *,
                                    struct epa_error *);
/* Makes the weights in backend memory and sets op->mlp. */
enum epa_status op_moe_weights_place(struct op_moe *, struct epa_error *);
/* Host memory of op_moe_weights_place() with a device backend. */
uint64_t op_moe_weights_stage_bytes(const struct weights *);

#endif
