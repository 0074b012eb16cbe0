/* The kernels of fused (fused_layer.cuh) with the defaults, and the one that packs weights. */
#include "fused_layer.cuh"

/* ---- weights ---- */

/* One matrix, of `groups` of 128 rows for each expert, into tiles of two groups: the pairs of gate
 * and up, or neighbours; the second half of the last tile may be empty. */
EPA_DEV void fused_pack_matrix(const char *from, char *to, uint32_t experts, uint32_t groups,
                               uint32_t tiles, uint32_t steps, bool pairs)
{
    uint64_t pieces = (uint64_t)experts * tiles * steps * (FUSED_WEIGHT_BYTES / 16);

    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < pieces;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t piece = i % 8, row = i / 8 % FUSED_HALF, half = i / (8 * FUSED_HALF) % 2;
        uint64_t stage = i / (16 * FUSED_HALF), tile = stage / steps;
        uint32_t step = stage % steps;
        uint32_t group = pairs ? tile % tiles + half * (groups / 2) : tile % tiles * 2 + half;
        uint4 v = make_uint4(0, 0, 0, 0);

        if (group < groups)
            v = *reinterpret_cast<const uint4 *>(
                from +
                (((tile / tiles * groups + group) * FUSED_HALF + row) * steps + step) *
                    FUSED_K_BYTES +
                piece * 16);
        *reinterpret_cast<uint4 *>(to + stage * FUSED_WEIGHT_BYTES +
                                   (half * FUSED_HALF + row) * FUSED_K_BYTES +
                                   (piece ^ row % 8) * 16) = v;
    }
}

static __global__ void fused_pack(const __grid_constant__ struct fused_args a)
{
    fused_pack_matrix(a.up_from, a.up, a.c.local, a.up_rows / FUSED_HALF, a.up_tiles, a.up_steps,
                      a.swiglu != 0);
    fused_pack_matrix(a.down_from, a.down, a.c.local, a.c.hidden / FUSED_HALF, a.down_tiles,
                      a.down_steps, false);
}

extern "C" const void *fused_pack_kernel(void)
{
    return (const void *)fused_pack;
}

/* ---- which ---- */

extern "C" const void *fused_kernel(struct fused_kernel_kind k)
{
    return k.groups64 ? fused_groups_kernel(k) : k.ways ? fused_ways_kernel(k) : of_kind<false>(&k);
}

extern "C" uint32_t fused_shared_bytes(struct fused_kernel_kind k, uint32_t experts, uint32_t local)
{
    uint32_t tables = 4 * (FUSED_SCALARS + 2 * experts + 2 * local + 1 + FUSED_MOST_UNITS + 1);
    uint32_t wide = fused_shape<EPA_DEV_E4M3, FUSED_ROWS_128, false, false, 2>::PIPE_BYTES;
    uint32_t narrow = fused_shape<EPA_DEV_E4M3, FUSED_ROWS_64, false, false, 2>::PIPE_BYTES;

    if (!k.groups64) {
        wide = fused_shape<EPA_DEV_E4M3, FUSED_ROWS_128, false, false>::PIPE_BYTES;
        narrow = fused_shape<EPA_DEV_E4M3, FUSED_ROWS_64, false, false>::PIPE_BYTES;
    }
    return (k.rows == FUSED_ROWS_64 ? narrow : wide) + (uint32_t)sizeof(struct fused_pipe) +
           device_up16(tables);
}
