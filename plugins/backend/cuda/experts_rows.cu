/* Kernels before and after the products of real experts, and the kernels of synthetic experts
 * (cuda.h). A warp processes a row. */
#include <epa2a/quant.cuh>

#include "state.h"
#include "entries.cuh"
#include "experts_rows.h"

namespace
{

enum { LANE = 16 /* channels */ };

EPA_DEV uint64_t entry_at(const struct rows_args &a, const uint32_t *before, uint32_t at)
{
    uint32_t e = expert_at(before, a.experts, at);

    return __ldcg(a.start + e) + (at - before[e]);
}

EPA_DEV uint64_t row_of(const struct rows_args &a, uint64_t entry)
{
    return a.recv_row == NULL ? entry : __ldcg(a.recv_row + entry);
}

/* Loads 16 bytes from an address of any alignment. */
EPA_DEV uint4 load_bytes(const char *from)
{
    uint32_t word[4] = {0, 0, 0, 0};

    if (reinterpret_cast<uintptr_t>(from) % 16 == 0)
        return epa_dev_load16(from);
#pragma unroll
    for (int i = 0; i < 16; i++)
        word[i / 4] |= (uint32_t)__ldcg(reinterpret_cast<const unsigned char *>(from) + i)
                       << i % 4 * 8;
    return make_uint4(word[0], word[1], word[2], word[3]);
}

/* Dequantises sixteen codes to 16 bits each. */
template <bool F16>
EPA_DEV void dequantise(const struct rows_args &a, uint4 codes, const float *scale,
                        uint32_t channel, char *to)
{
    const uint32_t word[4] = {codes.x, codes.y, codes.z, codes.w};
    float value[LANE];

#pragma unroll
    for (int i = 0; i < 4; i++)
        epa_dev_unpack_fp8(word[i], __ldcg(scale + (channel + 4 * i) / a.group), value + 4 * i);
    epa_dev_store16(to, epa_dev_pack<F16>(value));
    epa_dev_store16(to + 16, epa_dev_pack<F16>(value + 8));
}

template <bool F16> __global__ void __launch_bounds__(THREADS) pack(struct rows_args a)
{
    extern __shared__ __align__(16) char shared[];
    uint32_t *before = reinterpret_cast<uint32_t *>(shared);

    count_entries(a.count, a.experts, before);
    for (uint32_t at = blockIdx.x * WARPS + threadIdx.x / EPA_DEV_WARP; at < before[a.experts];
         at += gridDim.x * WARPS) {
        uint64_t row = row_of(a, entry_at(a, before, at));
        const char *from = a.recv + row * a.recv_stride;
        const float *scale = reinterpret_cast<const float *>(a.recv_scale + row * a.scale_stride);
        char *to = a.packed + (size_t)at * a.hidden * (a.out_fp8 ? 1 : 2);
        float *to_scale = a.packed_scale + (size_t)at * (a.out_fp8 ? a.hidden / a.group : 0);

        for (uint32_t first = 0; first < a.hidden; first += EPA_DEV_WARP * LANE) {
            uint32_t channel = first + epa_dev_lane() * LANE;
            bool has = channel < a.hidden;
            uint4 raw[2] = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};

            if (has)
                raw[0] = load_bytes(from + (size_t)channel * (a.in_fp8 ? 1 : 2));
            if (has && !a.in_fp8)
                raw[1] = load_bytes(from + (size_t)channel * 2 + 16);
            if (a.in_fp8 && a.out_fp8) {
                if (has)
                    epa_dev_store16(to + channel, raw[0]);
                if (has && channel % a.group == 0)
                    to_scale[channel / a.group] = __ldcg(scale + channel / a.group);
            } else if (a.out_fp8) {
                float by;
                uint4 codes = epa_dev_quantise16<F16>(raw[0], raw[1], a.group / LANE, &by);

                if (has)
                    epa_dev_store16(to + channel, codes);
                if (has && channel % a.group == 0)
                    to_scale[channel / a.group] = by;
            } else if (a.in_fp8) {
                if (has)
                    dequantise<F16>(a, raw[0], scale, channel, to + (size_t)channel * 2);
            } else if (has) {
                epa_dev_store16(to + (size_t)channel * 2, raw[0]);
                epa_dev_store16(to + (size_t)channel * 2 + 16, raw[1]);
            }
        }
    }
}

/* A lane processes sixteen channels. */
template <bool F16> __global__ void __launch_bounds__(THREADS) multiply(struct rows_args a)
{
    extern __shared__ __align__(16) char shared[];
    uint32_t *before = reinterpret_cast<uint32_t *>(shared);

    count_entries(a.count, a.experts, before);
    for (uint32_t at = blockIdx.x * WARPS + threadIdx.x / EPA_DEV_WARP;
         at < min(before[a.experts], a.entries); at += gridDim.x * WARPS) {
        uint32_t e = expert_at(before, a.experts, at);
        uint64_t entry = __ldcg(a.start + e) + (at - before[e]);

        if (entry >= a.recv_entries) /* invalid list; the checks of verify report it */
            continue;
        uint64_t row = row_of(a, entry);
        const char *from = a.recv + row * a.recv_stride;
        const float *scale = reinterpret_cast<const float *>(a.recv_scale + row * a.scale_stride);
        char *to = a.recv_row != NULL ? a.outputs + (size_t)at * a.hidden * 2
                                      : a.y + (size_t)entry * a.hidden * 2;
        float factor = __ldg(a.factor + e);

        if (row >= a.rows)
            continue;
        for (uint32_t channel = epa_dev_lane() * LANE; channel < a.hidden;
             channel += EPA_DEV_WARP * LANE) {
            uint4 raw = load_bytes(from + (size_t)channel * (a.in_fp8 ? 1 : 2));
            const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
            float value[LANE];

            if (a.in_fp8) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    epa_dev_unpack_fp8(word[i], __ldcg(scale + (channel + 4 * i) / a.group),
                                       value + 4 * i);
            } else {
                epa_dev_unpack<F16>(raw, value);
                epa_dev_unpack<F16>(load_bytes(from + (size_t)channel * 2 + 16), value + 8);
            }
#pragma unroll
            for (int i = 0; i < LANE; i++)
                value[i] = __fmul_rn(value[i], factor);
            epa_dev_store16(to + (size_t)channel * 2, epa_dev_pack<F16>(value));
            epa_dev_store16(to + (size_t)channel * 2 + 16, epa_dev_pack<F16>(value + 8));
        }
    }
}

/* A thread per entry appends it to the list of its row. The lists start empty. */
__global__ void __launch_bounds__(THREADS) list_entries(struct rows_args a)
{
    extern __shared__ __align__(16) char shared[];
    uint32_t *before = reinterpret_cast<uint32_t *>(shared);

    count_entries(a.count, a.experts, before);
    for (uint32_t at = blockIdx.x * THREADS + threadIdx.x; at < before[a.experts];
         at += gridDim.x * THREADS) {
        uint64_t entry = entry_at(a, before, at), row = row_of(a, entry);
        uint32_t slot = atomicAdd(&a.row_entries[row], 1u);

        a.row_entry[row * a.most + slot] = at;
        a.row_weight[row * a.most + slot] = __ldcg(a.recv_weight + entry);
    }
}

/* Adds by ascending expert: packed entries are in the order of experts, so the smallest index of a
 * row is first. */
template <bool F16> __global__ void __launch_bounds__(THREADS) add_up(struct rows_args a)
{
    const uint32_t lane = epa_dev_lane();

    for (uint32_t row = blockIdx.x * WARPS + threadIdx.x / EPA_DEV_WARP; row < a.rows;
         row += gridDim.x * WARPS) {
        uint32_t n = __ldcg(a.row_entries + row), mine = ~0u, place = 0;
        float weight = 0.0f;

        if (n == 0)
            continue;
        if (lane < n) {
            mine = __ldcg(a.row_entry + (size_t)row * a.most + lane);
            weight = __ldcg(a.row_weight + (size_t)row * a.most + lane);
        }
        for (uint32_t i = 0; i < n; i++)
            place += __shfl_sync(EPA_DEV_ALL, mine, i) < mine;
        for (uint32_t first = 0; first < a.hidden; first += EPA_DEV_WARP * 8) {
            uint32_t channel = first + lane * 8;
            float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};

            for (uint32_t i = 0; i < n; i++) {
                uint32_t who =
                    (uint32_t)__ffs((int)__ballot_sync(EPA_DEV_ALL, lane < n && place == i)) - 1;
                uint32_t at = __shfl_sync(EPA_DEV_ALL, mine, who);
                float by = __shfl_sync(EPA_DEV_ALL, weight, who), value[8];

                if (channel >= a.hidden)
                    continue;
                epa_dev_unpack<F16>(
                    epa_dev_load16(a.outputs + ((size_t)at * a.hidden + channel) * 2), value);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    sum[j] = __fmaf_rn(by, value[j], sum[j]);
            }
            if (channel < a.hidden)
                epa_dev_store16(a.y + ((size_t)row * a.hidden + channel) * 2,
                                epa_dev_pack<F16>(sum));
        }
    }
}

size_t shared_bytes(const struct rows_args *a)
{
    return (a->experts + 1) * sizeof(uint32_t);
}

} // namespace

cudaError_t rows_pack(const struct rows_args *a, uint32_t blocks, cudaStream_t stream)
{
    void (*kernel)(struct rows_args) = a->f16 ? pack<true> : pack<false>;

    kernel<<<blocks, THREADS, shared_bytes(a), stream>>>(*a);
    return cudaGetLastError();
}

cudaError_t rows_multiply(const struct rows_args *a, uint32_t blocks, cudaStream_t stream)
{
    void (*kernel)(struct rows_args) = a->f16 ? multiply<true> : multiply<false>;

    kernel<<<blocks, THREADS, shared_bytes(a), stream>>>(*a);
    return cudaGetLastError();
}

cudaError_t rows_add_up(const struct rows_args *a, uint32_t blocks, cudaStream_t stream)
{
    void (*kernel)(struct rows_args) = a->f16 ? add_up<true> : add_up<false>;
    cudaError_t error =
        cudaMemsetAsync(a->row_entries, 0, (size_t)a->rows * sizeof(uint32_t), stream);

    if (error != cudaSuccess)
        return error;
    list_entries<<<blocks, THREADS, shared_bytes(a), stream>>>(*a);
    kernel<<<blocks, THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}
