/* ag_gemm_2d on GPUs: its options, for the code that ag_then_gemm shares. */
#include "ag_gemm_2d.h"

#include "../../common/ag_gemm_cuda.h"

_Static_assert((int)AG2_PUSH == (int)AG_GEMM_PUSH && (int)AG2_PULL == (int)AG_GEMM_PULL, "modes");
_Static_assert((int)AG2_AUTO == (int)AG_GEMM_AUTO && (int)AG2_SM == (int)AG_GEMM_SM, "movers");
_Static_assert((int)AG2_ARRIVAL == (int)AG_GEMM_ARRIVAL && (int)AG2_NONE == (int)AG_GEMM_NONE,
               "orders");

static enum epa_status config_of(const struct ag2_config *c, struct ag_gemm_config *out,
                                 struct epa_error *err)
{
    if (c->comm_worker)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ag_gemm_2d: algorithm.comm_worker is an option of hosts; on GPUs set "
                        "algorithm.comm_blocks");
    if (c->tile_rows != 0 && c->tile_rows != GEMM_ROWS)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ag_gemm_2d on GPUs needs algorithm.tile_rows of %d, not %u", GEMM_ROWS,
                        c->tile_rows);
    *out = (struct ag_gemm_config){
        .mode = c->mode,
        .mover = c->mover,
        .order = c->order,
        .two_level = c->gather == AG2_TWO_LEVEL,
        .across_ranks = c->across_ranks,
        .overlap = true,
        .chunks = c->chunks,
        .tile_cols = c->tile_cols,
        .panel = c->panel,
        .comm_blocks = c->comm_blocks,
        .blocks = c->blocks,
    };
    return EPA_OK;
}

enum epa_status ag2_cuda_plan(const struct epa_ag_gemm *g, const struct epa_world *world,
                              const struct ag2_config *config, struct epa_footprint *out,
                              struct epa_error *err)
{
    struct ag_gemm_config c;
    enum epa_status status = config_of(config, &c, err);

    return status == EPA_OK ? ag_gemm_cuda_plan("ag_gemm_2d", g, world, &c, out, err) : status;
}

enum epa_status ag2_cuda_create(const struct epa_algorithm_params *p, struct epa_algorithm **out,
                                struct epa_error *err)
{
    struct ag_gemm_config c;
    enum epa_status status = config_of(p->config, &c, err);

    return status == EPA_OK ? ag_gemm_cuda_create("ag_gemm_2d", p, &c, out, err) : status;
}
