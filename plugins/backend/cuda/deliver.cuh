/* For kernels that read or copy the received rows of a dispatch. */
#ifndef CUDA_DELIVER_CUH
#define CUDA_DELIVER_CUH

#include <epa2a/quant.cuh>

#include "deliver.h"
#include "entries.cuh"

struct deliver_args {
    struct epa_delivery to;
    struct epa_places places; /* layout rank */
    const uint32_t *count;
    const uint64_t *start;
    const char *recv, *recv_scale, *origin;
    size_t recv_stride, scale_stride, origin_stride;
    /* layout rank */
    const uint32_t *recv_row;
    const float *recv_weight;
    const uint8_t *recv_k;
};

static inline struct deliver_args deliver_args_of(const struct epa_moe *m, const struct epa_delivery *to)
{
    struct deliver_args args = {};

    args.to = *to;
    if (to->places != NULL)
        args.places = *to->places;
    args.count = m->recv_count;
    args.start = m->recv_start;
    args.recv = static_cast<const char *>(m->recv);
    args.recv_scale = reinterpret_cast<const char *>(m->recv_scale);
    args.origin = reinterpret_cast<const char *>(m->origin);
    args.recv_stride = m->recv_stride;
    args.scale_stride = m->scale_stride;
    args.origin_stride = m->origin_stride;
    args.recv_row = m->recv_row;
    args.recv_weight = m->recv_weight;
    args.recv_k = m->recv_k;
    return args;
}

/* Returns rank and token of a row of the view. */
EPA_DEV const uint32_t *origin_at(const struct deliver_args &a, uint64_t row)
{
    return reinterpret_cast<const uint32_t *>(a.origin + row * a.origin_stride);
}

/* Copies a row of the view. Called by one warp. */
EPA_DEV void copy_row(const struct deliver_args &a, uint64_t from, uint64_t to)
{
    const uint32_t lane = epa_dev_lane();
    const char *row = a.recv + from * a.recv_stride, *scale = a.recv_scale + from * a.scale_stride;

    for (uint32_t at = lane * 16; a.to.x != NULL && at < a.to.row_bytes; at += EPA_DEV_WARP * 16)
        epa_dev_store16(static_cast<char *>(a.to.x) + to * a.to.row_bytes + at,
                        epa_dev_load16(row + at));
    for (uint32_t g = lane; a.to.x_scale != NULL && g < a.to.groups; g += EPA_DEV_WARP)
        a.to.x_scale[to * a.to.groups + g] = __ldcg(reinterpret_cast<const float *>(scale) + g);
    if (a.to.source_token != NULL && lane == 0)
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
