/* Kernels of fused (fused_layer.cuh) for the defaults, and the kernel that packs weights. */
#include "fused_layer.cuh"
#include "fused_groups.h"
#include "fused_layer.h"
#include "fused_more.h"
#include "fused_picks.h"
#include "fused_profile.h"
#include "fused_rows64.h"
#include "fused_ways.h"

/* ---- weights ---- */

EPA_DEV void fused_pack_matrix(const char *from, char *to, uint32_t experts,
                               const struct gemm_packing &p)
{
    gemm_pack_pieces(to, from, p,
                     (uint64_t)experts * p.tiles * p.k_blocks * (2 * GEMM_BOX_BYTES / 16));
}

static __global__ void fused_pack(const __grid_constant__ struct fused_args a)
{
    bool pairs = a.swiglu != 0;

    fused_pack_matrix(a.up_from, a.up, a.c.local,
                      {a.up_steps, a.up_rows, pairs ? a.ffn : GEMM_BOX, a.up_tiles,
                       (uint32_t)(pairs ? GEMM_BOX : FUSED_COLUMNS), a.up_row_bytes});
    fused_pack_matrix(
        a.down_from, a.down, a.c.local,
        {a.down_steps, a.c.hidden, GEMM_BOX, a.down_tiles, FUSED_COLUMNS, a.down_row_bytes});
}

extern "C" const void *fused_pack_kernel(void)
{
    return (const void *)fused_pack;
}

/* ---- choice of the kernel ---- */

extern "C" const void *fused_kernel(struct fused_kernel_kind k)
{
    return k.rows64     ? fused_rows64_kernel(k)
           : k.groups64 ? fused_groups_kernel(k)
           : k.ways     ? fused_ways_kernel(k)
           : k.profile  ? fused_profile_kernel(k)
           : k.picks    ? fused_picks_kernel(k)
           : k.more     ? fused_more_kernel(k)
                        : of_kind<false>(&k);
}

extern "C" uint32_t fused_shared_bytes(struct fused_kernel_kind k, struct fused_args *a)
{
    uint32_t tables = FUSED_SCALARS + a->waves * a->c.experts + 2 * a->c.local + 1 + a->units + 1;
    size_t head = k.groups64 || k.rows64
                      ? sizeof(struct fused_shared<fused_shape<EPA_DEV_E4M3, false, true, 2>>)
                  : k.more ? sizeof(struct fused_shared<fused_more_shape<false>>)
                           : sizeof(struct fused_shared<fused_shape<EPA_DEV_E4M3, false, false>>);
    uint32_t bytes;

    tables += a->waves > 1 ? a->units + 1 : a->sorted ? a->c.experts : 0;
    if (a->few != 0)
        tables += k.picks ? a->c.local * fused_picks_words(a->few) + (a->few + 1) / 2
                          : a->few * a->c.topk + 2 * a->c.local + (a->few * a->c.topk + 1) / 2;
    tables += a->sorted ? 0 : FUSED_MATH_WARPS * a->scales;
    bytes = (uint32_t)head + device_up16(4 * tables);
    for (a->mover_bytes = k.picks ? 0 : FUSED_MOVER_BYTES;
         a->mover_bytes > FUSED_STAGE_BYTES &&
         bytes + a->mover_bytes * FUSED_TOKEN_WARPS > FUSED_SHARED_BYTES;)
        a->mover_bytes -= 16;
    a->stages = a->mover_bytes / FUSED_STAGE_BYTES;
    return bytes + a->mover_bytes * FUSED_TOKEN_WARPS;
}
