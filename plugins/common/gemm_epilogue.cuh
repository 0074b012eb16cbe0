/* Epilogues for the sums of a tile (gemm_cuda.cuh): SwiGLU, and stores of rows of 16-bit values, of
 * float32, or of FP8 with scales. All multiplying threads call these functions with the sums of
 * gemm_multiply(). Functions whose names end in `small` take the sums of gemm_multiply_small(), of
 * a swapped tile. */
#ifndef GEMM_EPILOGUE_CUH
#define GEMM_EPILOGUE_CUH

#include <epa2a/quant.cuh>

#include "gemm_cuda.cuh"

/* g / (1 + exp(-g)) * u */
EPA_DEV float gemm_swiglu(float g, float u)
{
    return __fdividef(g, 1.0f + __expf(-g)) * u;
}

/* Transposes words among four lanes: word[s] of lane q becomes word[q] of lane s. */
EPA_DEV void gemm_quad_transpose(uint32_t (&word)[4])
{
    const bool odd = epa_dev_lane() & 1, high = epa_dev_lane() & 2;
    uint32_t a, b;

    a = __shfl_xor_sync(EPA_DEV_ALL, odd ? word[0] : word[1], 1);
    b = __shfl_xor_sync(EPA_DEV_ALL, odd ? word[2] : word[3], 1);
    if (odd)
        word[0] = a, word[2] = b;
    else
        word[1] = a, word[3] = b;
    a = __shfl_xor_sync(EPA_DEV_ALL, high ? word[0] : word[2], 2);
    b = __shfl_xor_sync(EPA_DEV_ALL, high ? word[1] : word[3], 2);
    if (high)
        word[0] = a, word[1] = b;
    else
        word[2] = a, word[3] = b;
}

/* Destination of the results: row r, column c is at row + r * stride + c values. */
struct gemm_out {
    char *row;     /* address of the tile's first row and of a box's first column */
    size_t stride; /* bytes */
    uint32_t rows; /* number of rows of the tile that exist */
    uint64_t skip; /* swapped tiles: mask of the rows that are not stored */
    /* Number of columns at the end of the box that are not stored: a multiple of 32, or in FP8 of
     * the group. Functions for swapped tiles ignore it: see gemm_small_beyond(). */
    uint32_t beyond;
};

/* Returns true if row `first` + `own`, which this thread has, is stored. Two shifts, since a mask
 * per row would need more registers than available. */
EPA_DEV bool gemm_stores(const struct gemm_out &to, uint32_t first, uint32_t own)
{
    return first + own < to.rows && (to.skip >> first >> own & 1) == 0;
}

/* Stores the 128 columns of a box in 16 bits, or with FLOAT in float32. */
template <bool F16, bool FLOAT>
EPA_DEV void gemm_store(const struct gemm_out &to, const float (&v)[64])
{
    const uint32_t q = epa_dev_lane() % 4;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t row = gemm_row(2 * half);
        char *at = to.row + row * to.stride;
        uint32_t word[4][4];

        if constexpr (!FLOAT) {
#pragma unroll
            for (int c = 0; c < 16; c++)
                word[c / 4][c % 4] =
                    epa_dev_pack2<F16>(v[4 * c + 2 * half], v[4 * c + 2 * half + 1]);
#pragma unroll
            for (int c = 0; c < 4; c++)
                gemm_quad_transpose(word[c]);
        }
        if (row >= to.rows)
            continue;
        if constexpr (FLOAT) {
#pragma unroll
            for (int c = 0; c < 16; c++)
                if (8 * c + to.beyond < GEMM_BOX)
                    *reinterpret_cast<float2 *>(at + (8 * c + 2 * q) * 4) =
                        make_float2(v[4 * c + 2 * half], v[4 * c + 2 * half + 1]);
        } else {
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (32 * c + to.beyond < GEMM_BOX)
                    epa_dev_store16(at + (32 * c + 8 * q) * 2,
                                    make_uint4(word[c][0], word[c][1], word[c][2], word[c][3]));
        }
    }
}

/* Returns the first of four contiguous columns that a lane stores. Of a warp's 16 columns of a
 * swapped tile, a lane has two of the first eight and two of the others. After an exchange with its
 * neighbour it stores four contiguous columns; the right lane of the pair stores the upper ones. */
EPA_DEV uint32_t gemm_small_four(bool right)
{
    return epa_dev_lane() % 4 / 2 * 4 + (right ? 8 : 0);
}

/* Returns true if the warp's 16 columns of a swapped tile are beyond C: the caller then sets
 * to.rows to 0. */
EPA_DEV bool gemm_small_beyond(const struct gemm_out &to)
{
    return gemm_small_column(0) - epa_dev_lane() / 4 + to.beyond >= GEMM_BOX;
}

/* Stores a box of a swapped tile. */
template <bool F16, bool FLOAT, int N>
EPA_DEV void gemm_store_small(const struct gemm_out &to, const float (&v)[N / 2])
{
    const uint32_t lane = epa_dev_lane(), column = gemm_small_column(0) - lane / 4;
    const bool right = lane & 1;

#pragma unroll
    for (int c = 0; c < N / 8; c++) {
        if constexpr (FLOAT) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t row = gemm_small_row(4 * c + i);
                float *at = reinterpret_cast<float *>(to.row + row * to.stride) + column + lane / 4;

                if (gemm_stores(to, 8 * c, gemm_small_row(i))) {
                    at[0] = v[4 * c + i];
                    at[8] = v[4 * c + 2 + i];
                }
            }
        } else {
            uint32_t row = 8 * c + lane / 4;
            uint32_t low = epa_dev_transpose(epa_dev_pack2<F16>(v[4 * c], v[4 * c + 1]));
            uint32_t high = epa_dev_transpose(epa_dev_pack2<F16>(v[4 * c + 2], v[4 * c + 3]));
            uint32_t other = __shfl_xor_sync(EPA_DEV_ALL, right ? low : high, 1);

            if (gemm_stores(to, 8 * c, lane / 4))
                *reinterpret_cast<uint2 *>(to.row + row * to.stride +
                                           (column + gemm_small_four(right)) * 2) =
                    right ? make_uint2(other, high) : make_uint2(low, other);
        }
    }
}

/* ---- quantising, as defined in epa2a/problem.h ---- */

EPA_DEV bool gemm_finite(float v)
{
    return fabsf(v) <= 3.402823466e+38f;
}

/* Returns a factor that brings `scale` into the range in which quotients by epa_quotient() are
 * exact. */
EPA_DEV float gemm_quotient_factor(float scale)
{
    return scale < EPA_QUOTIENT_LEAST ? 0x1p100f : scale > EPA_QUOTIENT_MOST ? 0x1p-64f : 1.0f;
}

EPA_DEV uint32_t gemm_fp8x2(float low, float high, float scale, float inverse)
{
    return __nv_cvt_float2_to_fp8x2(
        make_float2(epa_quotient(low, scale, inverse), epa_quotient(high, scale, inverse)),
        __NV_SATFINITE, __NV_E4M3);
}

/* Stores the 128 columns of a box as FP8; the scales of row r begin at scale_to[r *
 * scale_stride]. */
template <int GROUP>
EPA_DEV void gemm_quantise(const struct gemm_out &to, float *scale_to, size_t scale_stride,
                           float (&v)[64])
{
    enum { PER = GEMM_FP8_GROUP / GROUP, EACH = 32 / PER }; /* a thread's values of a row */
    const uint32_t q = epa_dev_lane() % 4;

#pragma unroll
    for (int part = 0; part < 2 * PER; part++) {
        const int half = part % 2, group = part / 2, first = group * EACH * 2 + 2 * half;
        uint32_t row = gemm_row(2 * half);
        float amax = 0.0f, odd = 0.0f, scale, inverse, by;
        bool exists = row < to.rows && (PER == 1 || group * GROUP + to.beyond < GEMM_BOX);

#pragma unroll
        for (int i = 0; i < EACH; i++) {
            float x = v[first + i / 2 * 4 + i % 2];

            amax = fmaxf(amax, fabsf(x));
            odd = __fmaf_rn(x, 0.0f, odd); /* NaN after an infinity or NaN */
        }
        if (__any_sync(EPA_DEV_ALL, odd != 0.0f)) {
            amax = 0.0f;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                float x = v[first + i / 2 * 4 + i % 2];

                amax = gemm_finite(x) ? fmaxf(amax, fabsf(x)) : amax;
            }
        }
        amax = fmaxf(amax, __shfl_xor_sync(EPA_DEV_ALL, amax, 1));
        amax = fmaxf(amax, __shfl_xor_sync(EPA_DEV_ALL, amax, 2));
        scale = amax * (1.0f / 448.0f);
        scale = scale > 0.0f ? scale : 1.0f; /* also if the product underflows */
        if (q == 0 && exists)
            scale_to[row * scale_stride + group] = scale;
        by = gemm_quotient_factor(scale);
        scale *= by;
        if (__any_sync(EPA_DEV_ALL, odd != 0.0f || by != 1.0f)) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                float &x = v[first + i / 2 * 4 + i % 2];

                x = isinf(x) ? copysignf(448.0f * scale, x) : x * by;
            }
        }
        inverse = __frcp_rn(scale);
#pragma unroll
        for (int c = 0; c < EACH / 2; c += 8) {
            uint32_t word[4];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = first + 4 * (c + 2 * i);

                word[i] = gemm_fp8x2(v[at], v[at + 1], scale, inverse) |
                          gemm_fp8x2(v[at + 4], v[at + 5], scale, inverse) << 16;
            }
            gemm_quad_transpose(word);
            /* Each word holds two columns of an even group of 8 and two of the next group. */
            if (exists)
                epa_dev_store16(to.row + row * to.stride + group * GROUP + 8 * c + 16 * q,
                                make_uint4(__byte_perm(word[0], word[1], 0x5410),
                                           __byte_perm(word[2], word[3], 0x5410),
                                           __byte_perm(word[0], word[1], 0x7632),
                                           __byte_perm(word[2], word[3], 0x7632)));
        }
    }
}

/* Computes the maxima of LEFT values of rows over the lanes that differ in STEP, ..., 8, 4. Each
 * lane keeps the maxima of a part of the rows, from value *first on. */
template <int STEP, int LEFT, int N>
EPA_DEV void gemm_most_of_lanes(float (&most)[N], uint32_t *first)
{
    enum { HALF = LEFT > 1 ? LEFT / 2 : 1 };
    const bool upper = LEFT > 1 && (epa_dev_lane() & STEP);

#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float mine = upper ? most[LEFT - HALF + i] : most[i];
        float other = upper ? most[i] : most[LEFT - HALF + i];

        most[i] = fmaxf(mine, __shfl_xor_sync(EPA_DEV_ALL, other, STEP));
    }
    *first += upper ? HALF : 0;
    if constexpr (STEP > 4)
        gemm_most_of_lanes<STEP / 2, HALF>(most, first);
}

/* Quantises a swapped tile, whose 128 columns are spread over both warpgroups, which synchronize
 * here. `turn`: 0, 1, 2, 0, ... in successive calls, so that a call clears only maxima that no
 * other thread still reads or raises. */
template <int GROUP, int N, class S>
EPA_DEV void gemm_quantise_small(S &s, uint32_t turn, const struct gemm_out &to, float *scale_to,
                                 size_t scale_stride, float (&v)[N / 2])
{
    enum {
        EACH = (N + EPA_DEV_WARP - 1) / EPA_DEV_WARP
    }; /* rows per lane whose scale the lane
                                                            * holds */
    const uint32_t lane = epa_dev_lane(), column = gemm_small_column(0) - lane / 4;
    const uint32_t group = column / GROUP, thread = threadIdx.x - 128;
    const bool right = lane & 1;
    uint32_t *most_of = s.amax[turn][group], first = 0;
    float most[N / 4], scale[EACH], by[EACH], inverse[EACH], odd = 0.0f;

#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        float low = v[i / 2 * 4 + i % 2], high = v[i / 2 * 4 + 2 + i % 2];

        odd = __fmaf_rn(low, 0.0f, __fmaf_rn(high, 0.0f, odd)); /* NaN after an infinity or NaN */
        most[i] =
            fmaxf(gemm_finite(low) ? fabsf(low) : 0.0f, gemm_finite(high) ? fabsf(high) : 0.0f);
    }
    gemm_most_of_lanes<16, N / 4>(most, &first);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        uint32_t value = first + i;

        atomicMax(&most_of[gemm_small_row(value / 2 * 4 + value % 2)], __float_as_uint(most[i]));
    }
    if (thread < sizeof(s.amax[0]) / sizeof(uint32_t))
        s.amax[turn == 2 ? 0 : turn + 1][thread / GEMM_SMALL_ROWS][thread % GEMM_SMALL_ROWS] = 0;
    epa_dev_named_sync(GEMM_NAMED_MATH, GEMM_MATH_WARPS * EPA_DEV_WARP);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        uint32_t row = min(e * EPA_DEV_WARP + lane, (uint32_t)N - 1);
        scale[e] = __uint_as_float(most_of[row]) * (1.0f / 448.0f);
        scale[e] = scale[e] > 0.0f ? scale[e] : 1.0f; /* also if the product underflows */
        if (column % GROUP == 0 && gemm_stores(to, 0, row))
            scale_to[row * scale_stride + group] = scale[e];
        by[e] = gemm_quotient_factor(scale[e]);
        scale[e] *= by[e];
        inverse[e] = __frcp_rn(scale[e]);
        odd = by[e] != 1.0f ? 1.0f : odd;
    }
    const bool plain = !__any_sync(EPA_DEV_ALL, odd != 0.0f);
#pragma unroll
    for (int c = 0; c < N / 8; c++) {
        uint32_t word = 0, other;

#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int e = 8 * c / EPA_DEV_WARP;
            uint32_t from = gemm_small_row(4 * c + i) % EPA_DEV_WARP;
            float low = v[4 * c + i], high = v[4 * c + 2 + i];
            float divisor = __shfl_sync(EPA_DEV_ALL, scale[e], from);

            if (!plain) {
                float factor = __shfl_sync(EPA_DEV_ALL, by[e], from);

                low = isinf(low) ? copysignf(448.0f * divisor, low) : low * factor;
                high = isinf(high) ? copysignf(448.0f * divisor, high) : high * factor;
            }
            word |= gemm_fp8x2(low, high, divisor, __shfl_sync(EPA_DEV_ALL, inverse[e], from))
                    << 16 * i;
        }
        /* Transposes rows and columns; a half word holds columns j and j + 8. */
        word = __byte_perm(epa_dev_transpose(word), 0, 0x3120);
        other = __shfl_xor_sync(EPA_DEV_ALL, right ? word : word >> 16, 1);
        if (gemm_stores(to, 8 * c, lane / 4))
            *reinterpret_cast<uint32_t *>(to.row + (8 * c + lane / 4) * to.stride + column +
                                          gemm_small_four(right)) =
                right ? __byte_perm(other, word, 0x7610) : __byte_perm(word, other, 0x5410);
    }
}

#endif
