/* Weights that combine returns: bytes of weights as elements of expert outputs, see epa_weight_bytes. */
#include "ranges.cuh"
#include "weights.h"

namespace
{

enum { BYTES = sizeof(float) };

EPA_DEV uint16_t word_of_byte(enum epa_dtype dtype, uint32_t byte)
{
    const float value = (float)(byte & 255);

    return (uint16_t)(dtype == EPA_F16 ? epa_dev_pack2<true>(value, 0.0f)
                                       : epa_dev_pack2<false>(value, 0.0f));
}

EPA_DEV uint32_t byte_of_word(enum epa_dtype dtype, uint16_t word)
{
    return (uint32_t)(dtype == EPA_F16 ? epa_dev_low<true>(word) : epa_dev_low<false>(word));
}

struct encode_args {
    struct epa_weight_bytes bytes;
    const int64_t *range;
    const int32_t *local;
    const float *weight;
    uint16_t *y;
};

/* Writes the bytes of the weights of a row, 0 for choices of other ranks. A warp takes a row. */
__global__ void encode_weights(const __grid_constant__ struct encode_args a)
{
    const uint32_t warp = (blockIdx.x * THREADS + threadIdx.x) / EPA_DEV_WARP;

    for (uint32_t i = warp; i < a.bytes.ranks * a.bytes.max_tokens; i += gridDim.x * WARPS) {
        uint64_t row;

        if (!row_of_source(a.range, i / a.bytes.max_tokens, i % a.bytes.max_tokens, &row))
            continue;
        for (uint32_t n = epa_dev_lane(); n < a.bytes.n; n += EPA_DEV_WARP) {
            uint32_t at = a.bytes.first + n;
            uint64_t k = row * a.bytes.topk + at / BYTES;
            uint32_t bits = __ldcg(a.local + k) >= 0 ? __float_as_uint(__ldcg(a.weight + k)) : 0;

            a.y[row * a.bytes.hidden + n] = word_of_byte(a.bytes.dtype, bits >> 8 * (at % BYTES));
        }
    }
}

struct decode_args {
    struct epa_weight_bytes bytes;
    uint32_t tokens;
    const uint16_t *sum;
    unsigned char *weight;
};

/* A thread takes a byte. */
__global__ void decode_weights(const __grid_constant__ struct decode_args a)
{
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
         i < (uint64_t)a.tokens * a.bytes.n; i += (uint64_t)gridDim.x * THREADS) {
        uint64_t token = i / a.bytes.n, n = i % a.bytes.n;

        a.weight[token * a.bytes.topk * BYTES + a.bytes.first + n] =
            (unsigned char)byte_of_word(a.bytes.dtype, __ldcg(a.sum + token * a.bytes.hidden + n));
    }
}

} // namespace

cudaError_t weights_encode_queue(const struct epa_moe *m, const struct epa_weight_bytes *bytes,
                                 const float *weight, void *y, uint32_t blocks, cudaStream_t stream)
{
    const struct encode_args args = {*bytes, m->recv_range, m->recv_local, weight,
                                     static_cast<uint16_t *>(y)};

    encode_weights<<<blocks, THREADS, 0, stream>>>(args);
    return cudaGetLastError();
}

cudaError_t weights_decode_queue(const struct epa_weight_bytes *bytes, uint32_t tokens,
                                 const void *sum, float *weight, uint32_t blocks,
                                 cudaStream_t stream)
{
    const struct decode_args args = {*bytes, tokens, static_cast<const uint16_t *>(sum),
                                     reinterpret_cast<unsigned char *>(weight)};
    uint64_t most = ((uint64_t)tokens * bytes->n + THREADS - 1) / THREADS;
    uint32_t grid = most < blocks ? (uint32_t)most : blocks;

    if (grid == 0)
        return cudaSuccess;
    decode_weights<<<grid, THREADS, 0, stream>>>(args);
    return cudaGetLastError();
}
