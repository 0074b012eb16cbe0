/* fused on GPUs: the GEMMs of a layer alone. The rows keep their place in the heap; intermediate
 * and outputs are packed, one expert after the other. */
#include "fused_halves.h"

#include "../../common/gemm_experts.h"

/* Products of the same shape, in the order of a layer. */
static void make_products(const struct fused_cuda_layout *l, const struct fused_args *a,
                          const char *received, const struct fused_count_args *rows,
                          struct gemm_args *up, struct gemm_args *down)
{
    uint32_t group = l->kind.rows64 ? GEMM_FP8_GROUP / 2 : GEMM_FP8_GROUP;
    uint32_t act_group = l->kind.groups64 ? GEMM_FP8_GROUP / 2 : GEMM_FP8_GROUP;

    *up = (struct gemm_args){
        .rows = a->rows,
        .packed = a->up,
        .experts = l->local,
        .k_blocks = l->up_steps,
        .weight_rows = l->up_rows,
        .weight_blocks = epa_mlp_blocks(l->ffn) * (l->swiglu ? 2 : 1),
        .second = l->swiglu ? l->ffn : GEMM_BOX,
        .tiles = l->up_tiles,
        .step = l->swiglu ? GEMM_BOX : FUSED_COLUMNS,
        .columns = l->ffn,
        .count = rows->count,
        .start = rows->start,
        .out_packed = true,
        .row_scale = l->kind.fp8 ? (const float *)(const void *)(received + l->scales_at) : NULL,
        .row_scale_stride = l->message_bytes / sizeof(float),
        .row_group = group,
        .row_groups = l->hidden / group,
        .weight_scale = a->up_scale,
        .out = a->act_rows,
        .out_stride = (size_t)l->ffn * l->element_bytes,
        .out_scale = a->act_row_scales,
        .out_group = act_group,
        .more = l->kind.more,
    };
    *down = (struct gemm_args){
        .rows = a->act,
        .packed = a->down,
        .experts = l->local,
        .k_blocks = l->down_steps,
        .weight_rows = l->hidden,
        .weight_blocks = epa_mlp_blocks(l->hidden),
        .second = GEMM_BOX,
        .tiles = l->down_tiles,
        .step = FUSED_COLUMNS,
        .columns = l->hidden,
        .count = rows->count,
        .start = rows->start,
        .in_packed = true,
        .out_packed = true,
        .row_scale = a->act_row_scales,
        .row_scale_stride = l->ffn / act_group,
        .row_group = act_group,
        .row_groups = l->ffn / act_group,
        .weight_scale = a->down_scale,
        .out = a->y,
        .out_stride = (size_t)l->hidden * 2,
        .out_group = GEMM_FP8_GROUP,
        .early = true,
        .more = l->kind.more,
    };
}

cudaError_t fused_queue_products(const struct fused_cuda_layout *l, const struct fused_args *a,
                                 const char *received, uint32_t blocks,
                                 const struct fused_count_args *rows, cudaStream_t stream)
{
    enum gemm_out_type plain = l->kind.f16 ? GEMM_OUT_F16 : GEMM_OUT_BF16;
    int dtype = l->kind.fp8 ? EPA_FP8_E4M3 : l->kind.f16 ? EPA_F16 : EPA_BF16;
    struct gemm_args up, down;
    cudaError_t code;

    make_products(l, a, received, rows, &up, &down);
    code = fused_count_rows(rows, stream);
    if (code == cudaSuccess)
        code =
            gemm_launch(&up, dtype, l->kind.fp8 ? GEMM_OUT_FP8 : plain, l->swiglu, blocks, stream);
    if (code == cudaSuccess)
        code = gemm_launch(&down, dtype, plain, false, blocks, stream);
    return code;
}
