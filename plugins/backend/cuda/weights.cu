/* Weights that combine returns: bytes of weights as elements of expert outputs, see epa_weight_bytes. */
#include "places.cuh"
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
    struct deliver_args d;
    struct epa_weight_bytes bytes;
    const float *weight;
    uint16_t *y;
};

/* Sets the elements of all rows to 0. A warp takes a row. */
__global__ void clear_elements(const __grid_constant__ struct encode_args a)
{
    const uint32_t warp = (blockIdx.x * THREADS + threadIdx.x) / EPA_DEV_WARP;
    const struct epa_places &p = a.d.places;

    for (uint32_t i = warp; i < p.ranks * p.max_tokens; i += gridDim.x * WARPS) {
        uint32_t rank = i / p.max_tokens, token = i % p.max_tokens, place;
        size_t row;

        if (!find_place(p, rank, token, &place))
            continue;
        row = __ldcg(p.in_view + rank * words_of(p) * 32 + token);
        for (uint32_t n = epa_dev_lane(); n < a.bytes.n; n += EPA_DEV_WARP)
            a.y[row * a.bytes.hidden + n] = 0;
    }
}

/* Writes the weights of the choices of this rank. A thread takes an entry. */
__global__ void encode_weights(const __grid_constant__ struct encode_args a)
{
    extern __shared__ __align__(16) uint32_t shared[];

    count_entries(a.d.count, a.bytes.experts, shared);
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < shared[a.bytes.experts];
         i += gridDim.x * THREADS) {
        uint32_t e = expert_at(shared, a.bytes.experts, i);
        struct entry entry = find_entry(a.d, e, i - shared[e]);
        size_t k = (size_t)entry.place * a.bytes.topk + entry.choice;
        uint32_t bits = __float_as_uint(__ldcg(a.weight + k));
        uint16_t *row = a.y + (size_t)entry.row * a.bytes.hidden;

        for (uint32_t b = 0; b < BYTES; b++) {
            uint32_t at = entry.choice * BYTES + b - a.bytes.first; /* wraps below `first` */

            if (at < a.bytes.n)
                row[at] = word_of_byte(a.bytes.dtype, bits >> 8 * b);
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

cudaError_t weights_encode_queue(const struct epa_moe *m, const struct epa_places *places,
                                 const struct epa_weight_bytes *bytes, const float *weight, void *y,
                                 uint32_t blocks, cudaStream_t stream)
{
    const size_t shared = (bytes->experts + 1) * sizeof(uint32_t);
    struct epa_delivery to = {};
    struct encode_args args = {};

    to.experts = bytes->experts;
    to.places = places;
    args.d = deliver_args_of(m, &to);
    args.bytes = *bytes;
    args.weight = weight;
    args.y = static_cast<uint16_t *>(y);
    clear_elements<<<blocks, THREADS, 0, stream>>>(args);
    encode_weights<<<blocks, THREADS, shared, stream>>>(args);
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
