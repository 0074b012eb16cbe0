/* For kernels that read or copy the received rows of a dispatch. */
#ifndef CUDA_DELIVER_CUH
#define CUDA_DELIVER_CUH

#include <epa2a/quant.cuh>

#include "deliver.h"
#include "entries.cuh"
#include "quantise.cuh"

struct deliver_args {
    struct epa_delivery to;
    const uint32_t *count;
    const uint64_t *start;
    const char *recv, *recv_scale, *origin;
    size_t recv_stride, scale_stride, origin_stride;
    /* layout rank */
    const uint32_t *recv_row;
    const int32_t *recv_local;
    const float *recv_local_weight;
    const int64_t *recv_range;
};

static inline struct deliver_args deliver_args_of(const struct epa_moe *m,
                                                  const struct epa_delivery *to)
{
    struct deliver_args args = {};

    args.to = *to;
    args.count = m->recv_count;
    args.start = m->recv_start;
    args.recv = static_cast<const char *>(m->recv);
    args.recv_scale = reinterpret_cast<const char *>(m->recv_scale);
    args.origin = reinterpret_cast<const char *>(m->origin);
    args.recv_stride = m->recv_stride;
    args.scale_stride = m->scale_stride;
    args.origin_stride = m->origin_stride;
    args.recv_row = m->recv_row;
    args.recv_local = m->recv_local;
    args.recv_local_weight = m->recv_local_weight;
    args.recv_range = m->recv_range;
    return args;
}

/* Returns rank and token of a row of the view. */
EPA_DEV const uint32_t *origin_at(const struct deliver_args &a, uint64_t row)
{
    return reinterpret_cast<const uint32_t *>(a.origin + row * a.origin_stride);
}

/* Returns the number of scales in a word. */
EPA_DEV uint32_t scales_of_word(const struct deliver_args &a)
{
    return a.to.exponents ? 4 : 1;
}

/* Returns the part of a word that a scale fills. */
EPA_DEV uint32_t part_of_word(const struct deliver_args &a, uint32_t group, uint32_t scale)
{
    return a.to.exponents ? (scale >> 23 & 255) << group % 4 * 8 : scale;
}

/* Writes word w of the scales of a row. */
EPA_DEV void store_scales(const struct deliver_args &a, uint64_t row, uint32_t w, uint32_t word)
{
    const uint32_t words = (a.to.groups + scales_of_word(a) - 1) / scales_of_word(a);
    const uint64_t rows = a.to.scale_rows;
    const uint64_t at = rows != 0 ? (row / rows * words + w) * rows + row % rows : row * words + w;

    static_cast<uint32_t *>(a.to.x_scale)[at] = word;
}

/* Copies the scales of a row of the view, a word per lane. */
EPA_DEV void copy_scales(const struct deliver_args &a, const uint32_t *scale, uint64_t to)
{
    const uint32_t each = scales_of_word(a);

    for (uint32_t w = epa_dev_lane(); w * each < a.to.groups; w += EPA_DEV_WARP) {
        uint32_t word = 0;

        for (uint32_t g = w * each; g < min((w + 1) * each, a.to.groups); g++)
            word |= part_of_word(a, g, __ldcg(scale + g));
        store_scales(a, to, w, word);
    }
}

/* Quantises a row of the view, one group after the other. */
template <bool F16>
EPA_DEV void quantise_row(const struct deliver_args &a, const char *row, uint64_t to)
{
    const uint32_t group = a.to.quantised_group, each = scales_of_word(a);
    char *x = a.to.x != NULL ? static_cast<char *>(a.to.x) + to * a.to.row_bytes : NULL;
    uint32_t word = 0;

    for (uint32_t g = 0; g < a.to.groups; g++) {
        float scale = quantise_group<F16>(row + 2 * (size_t)g * group, group, a.to.pow2,
                                          x != NULL ? x + (size_t)g * group : NULL);

        word |= part_of_word(a, g, __float_as_uint(scale));
        if ((g + 1) % each != 0 && g + 1 != a.to.groups)
            continue;
        if (a.to.x_scale != NULL && epa_dev_lane() == 0)
            store_scales(a, to, g / each, word);
        word = 0;
    }
}

/* Bytes of a row that a warp copies with all loads in flight. */
enum { LOADS = 4, PART_BYTES = LOADS * EPA_DEV_WARP * 16 };

/* Returns the number of warps that share a row. Each group of a quantised row needs its warp. */
EPA_DEV uint32_t parts_of_row(const struct deliver_args &a)
{
    if (a.to.x == NULL || a.to.quantised_group != 0)
        return 1;
    return (a.to.row_bytes + PART_BYTES - 1) / PART_BYTES;
}

/* Copies PART_BYTES of a row from `at` on, or its remainder. */
EPA_DEV void copy_part(const struct deliver_args &a, const char *row, char *to, uint32_t at)
{
    uint4 chunk[LOADS];

    at += epa_dev_lane() * 16;
#pragma unroll
    for (uint32_t i = 0; i < LOADS; i++)
        if (at + i * EPA_DEV_WARP * 16 < a.to.row_bytes)
            chunk[i] = epa_dev_load16(row + at + i * EPA_DEV_WARP * 16);
#pragma unroll
    for (uint32_t i = 0; i < LOADS; i++)
        if (at + i * EPA_DEV_WARP * 16 < a.to.row_bytes)
            epa_dev_store16(to + at + i * EPA_DEV_WARP * 16, chunk[i]);
}

/* Copies or quantises a part of a row of the view. Called by one warp for each part; the last part
 * includes the scales and the source. */
EPA_DEV void deliver_row(const struct deliver_args &a, uint64_t from, uint64_t to, uint32_t part,
                         uint32_t parts)
{
    const char *row = a.recv + from * a.recv_stride, *scale = a.recv_scale + from * a.scale_stride;

    if (a.to.quantised_group == 0 && a.to.x != NULL)
        for (uint32_t at = part * PART_BYTES; at < a.to.row_bytes; at += parts * PART_BYTES)
            copy_part(a, row, static_cast<char *>(a.to.x) + to * a.to.row_bytes, at);
    if (part != parts - 1)
        return;
    if (a.to.quantised_group != 0) {
        if (a.to.dtype == EPA_F16)
            quantise_row<true>(a, row, to);
        else
            quantise_row<false>(a, row, to);
    } else if (a.to.x_scale != NULL) {
        copy_scales(a, reinterpret_cast<const uint32_t *>(scale), to);
    }
    if (a.to.source_token != NULL && epa_dev_lane() == 0)
        a.to.source_token[to] = (int32_t)__ldcg(origin_at(a, from) + 1);
}

/* Writes the lists of the experts, by all threads of the grid. */
EPA_DEV void write_counts(const struct deliver_args &a, const uint32_t *before)
{
    const uint32_t thread = blockIdx.x * THREADS + threadIdx.x, threads = gridDim.x * THREADS;

    for (uint32_t e = thread; e < a.to.experts; e += threads) {
        uint32_t n = before[e + 1] - before[e];

        if (a.to.count != NULL)
            a.to.count[e] = n;
        if (a.to.start != NULL)
            a.to.start[e] = a.to.stride != 0 ? e * a.to.stride : before[e];
        if (a.to.seen != NULL)
            a.to.seen[e] += (int32_t)n;
    }
}

#endif
