/* What becomes of the sums of a tile (gemm_cuda.cuh): SwiGLU, and rows in 16 bits, in float32 or in
 * FP8 with scales, where they go. All threads that multiply call these, with sums as
 * gemm_multiply() left them, or gemm_multiply_small() those of a swapped tile: the functions whose
 * names end in `small`. */
#ifndef GEMM_EPILOGUE_CUH
#define GEMM_EPILOGUE_CUH

#include <epa2a/quant.cuh>

#include "gemm_cuda.cuh"

/* g / (1 + exp(-g)) * u */
EPA_DEV float gemm_swiglu(float g, float u)
{
    return __fdividef(g, 1.0f + __expf(-g)) * u;
}

/* Lane q of four has word[s] of what lane s had in word[q]. */
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

/* Where results go: row r, column c is at row + r * stride + c values. */
struct gemm_out {
    char *row;     /* of the tile's first row and first column of a box */
    size_t stride; /* bytes */
    uint32_t rows; /* of the tile, that exist */
    uint64_t skip; /* of a swapped tile: rows that are not stored, a bit each */
    /* Columns at the end of the box that are not stored, a multiple of 32, or in FP8 of the group.
     * Functions for swapped tiles ignore it: gemm_small_beyond(). */
    uint32_t beyond;
};

/* Of rows from `first` on this thread has the `own`-th. (In two steps: a bit for each row would be
 * held in registers, of which there are not enough.) */
EPA_DEV bool gemm_stores(const struct gemm_out &to, uint32_t first, uint32_t own)
{
    return first + own < to.rows && (to.skip >> first >> own & 1) == 0;
}

/* The 128 columns of a box in 16 bits, or in float32 where FLOAT. */
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

/* Of a warp's 16 columns of a swapped tile a lane has two of the first eight and two of the others.
 * With what its neighbour has it stores four that follow each other, from here on: of the others if
 * it is the right one of the two. */
EPA_DEV uint32_t gemm_small_four(bool right)
{
    return epa_dev_lane() % 4 / 2 * 4 + (right ? 8 : 0);
}

/* Whether the warp's 16 columns of a swapped tile are beyond C: the caller sets to.rows to 0. */
EPA_DEV bool gemm_small_beyond(const struct gemm_out &to)
{
    return gemm_small_column(0) - epa_dev_lane() / 4 + to.beyond >= GEMM_BOX;
}

/* Of a swapped tile. */
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

/* ---- quantising, as epa2a/problem.h defines it ---- */

EPA_DEV bool gemm_finite(float v)
{
    return fabsf(v) <= 3.402823466e+38f;
}

/* What makes quotients by `scale` exact where it is out of the range of epa_quotient(). */
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

/* The 128 columns of a box as FP8; the scales of row r go to scale_to[r * scale_stride] on. */
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
        scale = scale > 0.0f ? scale : 1.0f; /* also where the product underflows */
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
            /* Each word has two columns of an even group of 8 and two of the next. */
            if (exists)
                epa_dev_store16(to.row + row * to.stride + group * GROUP + 8 * c + 16 * q,
                                make_uint4(__byte_perm(word[0], word[1], 0x5410),
                                           __byte_perm(word[2], word[3], 0x5410),
                                           __byte_perm(word[0], word[1], 0x7632),
                                           __byte_perm(word[2], word[3], 0x7632)));
        }
    }
}

/* Of LEFT values for rows, the largest of the lanes that differ in STEP, ..., 8, 4: each of them is
 * left with those of a part of the rows, from value *first on. */
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

/* Of a swapped tile, whose 128 columns are spread over both warpgroups: they meet. `turn`: 0, 1, 2,
 * 0, ... from call to call, so that nobody clears maxima that others still read or raise. */
template <int GROUP, int N, class S>
EPA_DEV void gemm_quantise_small(S &s, uint32_t turn, const struct gemm_out &to, float *scale_to,
                                 size_t scale_stride, float (&v)[N / 2])
{
    enum { EACH = (N + EPA_DEV_WARP - 1) / EPA_DEV_WARP }; /* rows of which a lane has a scale */
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
        scale[e] = scale[e] > 0.0f ? scale[e] : 1.0f; /* also where the product underflows */
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
        /* Rows and columns change places; a half word has columns j and j + 8. */
        word = __byte_perm(epa_dev_transpose(word), 0, 0x3120);
        other = __shfl_xor_sync(EPA_DEV_ALL, right ? word : word >> 16, 1);
        if (gemm_stores(to, 8 * c, lane / 4))
            *reinterpret_cast<uint32_t *>(to.row + (8 * c + lane / 4) * to.stride + column +
                                          gemm_small_four(right)) =
                right ? __byte_perm(other, word, 0x7610) : __byte_perm(word, other, 0x5410);
    }
}

#endif
