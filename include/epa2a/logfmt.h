/* LogFMT-10: logarithms of 10 bits, the format of expert outputs in DeepEP's low-latency combine.
 *
 * A value has a sign and a code of 9 bits. Code 0 is 0. The codes 1 to 511 are equal steps of the
 * logarithm, from the least to the largest magnitude of a group of 128 channels, at most 32 octaves.
 * A row has parts of 1024 channels, or of 512 if hidden is no multiple of 1024. A part keeps its
 * values unless the largest magnitude of each of its groups is below 1, at least 2^-90, and larger
 * than the least magnitude.
 *
 * A magnitude becomes the nearest of the codes 1 to 511, or 0 if it is nearer to the place of code 0, a
 * step below code 1. The value is then rounded to bf16, nearest even. Near the middle of two codes the
 * result is one of the two: a logarithm has an error below 2^-18 plus its rounding, a value a relative
 * error below 2^-18 before the rounding to bf16. All operations are rounded to float32 in a fixed order,
 * so hosts and GPUs compute the same bits.
 */
#ifndef EPA2A_LOGFMT_H
#define EPA2A_LOGFMT_H

#include <stdbool.h>
#include <string.h>

#include <epa2a/both.h>

enum {
    EPA_LOGFMT_GROUP = 128,
    EPA_LOGFMT_PART = 1024, /* channels */
    EPA_LOGFMT_SHORT_PART = 512,
    EPA_LOGFMT_CODES = 512, /* without the sign */
    EPA_LOGFMT_OCTAVES = 32,
    /* magnitudes in bf16: 2^-90 and 1 */
    EPA_LOGFMT_LEAST = (127 - 90) << 7,
    EPA_LOGFMT_MOST = 127 << 7,
};

/* Codes of a group: the logarithms of code 1 and, without its special value, of code 0; a step and its
 * reciprocal; the code of the logarithm `low` before the rounding to a whole code. */
struct epa_logfmt {
    float low, below, step, inverse, first;
};

/* Returns the channels of a part; 0: the format has no parts for `hidden`. */
EPA_BOTH uint32_t epa_logfmt_part(uint32_t hidden)
{
    if (hidden % EPA_LOGFMT_PART == 0)
        return EPA_LOGFMT_PART;
    return hidden % EPA_LOGFMT_SHORT_PART == 0 ? EPA_LOGFMT_SHORT_PART : 0;
}

/* Returns true if a group with these magnitudes in bf16 has codes. NaN and infinity have none. */
EPA_BOTH bool epa_logfmt_has_codes(uint32_t least, uint32_t most)
{
    return most < EPA_LOGFMT_MOST && most >= EPA_LOGFMT_LEAST && least < most;
}

EPA_BOTH float epa_logfmt_float(uint32_t bits)
{
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
#endif
}

EPA_BOTH uint32_t epa_logfmt_bits(float value)
{
#ifdef __CUDA_ARCH__
    return __float_as_uint(value);
#else
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
#endif
}

/* Sum with a small number in float32: the low bits of the result are the nearest whole number. */
#define EPA_LOGFMT_WHOLE 0x1.8p23f

/* Returns the logarithm to base 2 of a magnitude in bf16; 0: -127. The bits of a magnitude are 128 times
 * a logarithm that is linear within an octave. Minimax polynomial of (log2(1 + t) - t) / (t - t^2). */
EPA_BOTH float epa_logfmt_log2(uint32_t size)
{
    const uint32_t whole = 0x4b000000; /* 2^23: the low bits are a whole number */
    float linear = fmaf(epa_logfmt_float(whole | size), 0x1p-7f, -(0x1p16f + 127));
    float t = epa_logfmt_float(0x3f800000 | (size << 16 & 0x7f0000)) - 1.0f;
    float p = fmaf(0x1.a762e2p-6f, t, -0x1.8909a2p-4f);

    p = fmaf(p, t, 0x1.74a19ep-3f);
    p = fmaf(p, t, -0x1.1a36f8p-2f);
    p = fmaf(p, t, 0x1.c52a8p-2f);
    return fmaf(p, fmaf(-t, t, t), linear);
}

/* Returns 2 to the power of x, for -125 <= x <= 0. Minimax polynomial of 2^t for |t| <= 1 / 2. */
EPA_BOTH float epa_logfmt_exp2(float x)
{
    float sum = x + EPA_LOGFMT_WHOLE, t = x - (sum - EPA_LOGFMT_WHOLE);
    float p = fmaf(0x1.3997d4p-7f, t, 0x1.ca144p-5f);

    p = fmaf(p, t, 0x1.ec06dap-3f);
    p = fmaf(p, t, 0x1.62e0dcp-1f);
    p = fmaf(p, t, 0x1.ffffe8p-1f);
    return epa_logfmt_float(epa_logfmt_bits(p) + (epa_logfmt_bits(sum) << 23));
}

/* Returns the codes of a group with these magnitudes in bf16, for which epa_logfmt_has_codes(). The
 * border of two codes is the middle of their values, not of their logarithms: (1 + 2^step) / 2 is
 * 2^(step / 2 + step^2 ln(2) / 8), with an error below 2^-19 of a step. */
EPA_BOTH struct epa_logfmt epa_logfmt_of(uint32_t least, uint32_t most)
{
    struct epa_logfmt f;
    float top = epa_logfmt_log2(most);
    float bottom = epa_logfmt_log2(least);

    f.low = bottom > top - EPA_LOGFMT_OCTAVES ? bottom : top - EPA_LOGFMT_OCTAVES;
    f.inverse = (EPA_LOGFMT_CODES - 2) / (top - f.low);
    f.step = (top - f.low) * (1.0f / (EPA_LOGFMT_CODES - 2));
    f.below = fmaf(top - f.low, -1.0f / (EPA_LOGFMT_CODES - 2), f.low);
    f.first = fmaf(f.step, -0x1.62e43p-4f, 1.0f); /* ln(2) / 8 */
    return f;
}

/* Returns a magnitude of the group, in bf16, as the value of its code, not yet rounded to bf16. */
EPA_BOTH float epa_logfmt_round(struct epa_logfmt f, uint32_t size)
{
    float sum = fmaf(epa_logfmt_log2(size) - f.low, f.inverse, f.first) + EPA_LOGFMT_WHOLE;
    float value = epa_logfmt_exp2(fmaf(sum - EPA_LOGFMT_WHOLE, f.step, f.below));
    int32_t above = (int32_t)(epa_logfmt_bits(sum) - epa_logfmt_bits(EPA_LOGFMT_WHOLE)) - 1;

    return epa_logfmt_float(epa_logfmt_bits(value) & ~(uint32_t)(above >> 31)); /* code <= 0: 0 */
}

#endif
