/* ag_then_gemm on GPUs: the kernels of ag_gemm_2d, one that gathers, then one that multiplies. */
#include "ag_then_gemm_cuda.h"

#include "../../common/ag_gemm_cuda.h"

static const struct ag_gemm_config config = {
    .mode = AG_GEMM_PUSH,
    .mover = AG_GEMM_AUTO,
    .order = AG_GEMM_NONE,
    .across_ranks = true,
    .chunks = 1,
    .tile_cols = 2 * GEMM_BOX,
    .panel = 16,
};

enum epa_status then_cuda_plan(const struct epa_ag_gemm *g, const struct epa_world *world,
                               struct epa_footprint *out, struct epa_error *err)
{
    return ag_gemm_cuda_plan("ag_then_gemm", g, world, &config, out, err);
}

enum epa_status then_cuda_create(const struct epa_algorithm_params *p, struct epa_algorithm **out,
                                 struct epa_error *err)
{
    return ag_gemm_cuda_create("ag_then_gemm", p, &config, out, err);
}
