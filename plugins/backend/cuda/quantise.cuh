/* For kernels: a warp quantises a group of channels of any multiple of 4. epa2a/quant.cuh has the faster
 * functions for groups of the algorithms. The results equal moe_form_quantise() of the library. */
#ifndef CUDA_QUANTISE_CUH
#define CUDA_QUANTISE_CUH

#include <epa2a/quant.cuh>

enum { QUANTISED_AT_ONCE = 4 * EPA_DEV_WARP }; /* channels of a warp */

/* Returns the larger magnitude of a pair, without infinity and NaN. */
template <bool F16> EPA_DEV uint32_t largest_of_pair(uint32_t pair)
{
    const uint32_t limit = epa_dev_not_finite<F16>();
    uint32_t low = pair & 0x7fff, high = pair >> 16 & 0x7fff;

    return max(low < limit ? low : 0, high < limit ? high : 0);
}

/* Returns the least power of two, but at least 2^-126, that is not below a positive scale. */
EPA_DEV float round_to_power(float scale)
{
    const uint32_t least = 1u << 23, mantissa = least - 1;
    uint32_t bits = __float_as_uint(scale);

    return __uint_as_float(bits < least ? least : (bits + mantissa) & ~mantissa);
}

/* Writes the codes of a group to `to`, or nothing with NULL, and returns the scale. All lanes of the
 * warp call. */
template <bool F16>
EPA_DEV float quantise_group(const char *from, uint32_t channels, bool pow2, char *to)
{
    uint32_t most = 0;
    float scale;

    for (uint32_t at = 4 * epa_dev_lane(); at < channels; at += QUANTISED_AT_ONCE) {
        uint2 four = __ldcg(reinterpret_cast<const uint2 *>(from + 2 * at));

        most = max(most, max(largest_of_pair<F16>(four.x), largest_of_pair<F16>(four.y)));
    }
    for (uint32_t step = EPA_DEV_WARP / 2; step > 0; step /= 2)
        most = max(most, __shfl_xor_sync(EPA_DEV_ALL, most, step));
    scale = most != 0 ? __fmul_rn(epa_dev_low<F16>(most), 1.0f / 448.0f) : 1.0f;
    if (pow2)
        scale = round_to_power(scale);
    for (uint32_t at = 4 * epa_dev_lane(); to != NULL && at < channels; at += QUANTISED_AT_ONCE) {
        uint2 four = __ldcg(reinterpret_cast<const uint2 *>(from + 2 * at));
        const float size[4] = {__fdiv_rn(epa_dev_low<F16>(four.x & EPA_DEV_NO_SIGN), scale),
                               __fdiv_rn(epa_dev_high<F16>(four.x & EPA_DEV_NO_SIGN), scale),
                               __fdiv_rn(epa_dev_low<F16>(four.y & EPA_DEV_NO_SIGN), scale),
                               __fdiv_rn(epa_dev_high<F16>(four.y & EPA_DEV_NO_SIGN), scale)};

        *reinterpret_cast<uint32_t *>(to + at) = epa_dev_pack_fp8(size, four.x, four.y);
    }
    return scale;
}

#endif
