/* The shape of a moe problem. */
#include "op/moe/moe_shape.h"

#include "op/problem_params.h"
#include "op/moe/weights.h"

void op_moe_shape(const struct problem_params *x, uint32_t rank, struct epa_problem *out)
{
    (void)rank;
    const struct moe_options *m = &x->moe;

    *out = (struct epa_problem){
        .op = EPA_OP_MOE,
        .u.moe = {.max_tokens = m->max_tokens,
                  .hidden = m->hidden,
                  .experts = m->experts,
                  .topk = m->topk,
                  .fp8_group_size = m->fp8_group_size,
                  .dtype = m->dtype,
                  .x_dtype = m->input_dtype == MOE_INPUT_FP8 ? (int)EPA_FP8_E4M3 : m->dtype,
                  .mlp = weights_shape(x)},
    };
}
