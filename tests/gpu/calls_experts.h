/* The synthetic expert in calls.c: one channel of all rows, by the host or by a thread of a
 * kernel. Tokens are small whole numbers and factors powers of two, so that FP8 and bf16 hold
 * all of it exactly, and what must come out is known to the bit. */
#ifndef CALLS_EXPERTS_H
#define CALLS_EXPERTS_H

#include <math.h>
#include <string.h>

#include <epa2a/backend.h>
#include <epa2a/problem.h>

#ifdef __CUDACC__
#define CALLS_BOTH static __host__ __device__ __forceinline__
#else
#define CALLS_BOTH static inline
#endif

CALLS_BOTH float calls_float_of_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

CALLS_BOTH float calls_float(uint16_t bf16)
{
    return calls_float_of_bits((uint32_t)bf16 << 16);
}

/* To nearest even; of numbers only. */
CALLS_BOTH uint16_t calls_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

CALLS_BOTH float calls_float_of_e4m3(uint8_t q)
{
    uint32_t e = q >> 3 & 15u, m = q & 7u;
    float v = e == 0 ? (float)m / 512 : calls_float_of_bits((e + 120u) << 23 | m << 20);

    return (q & 0x80u) != 0 ? -v : v;
}

/* 1/4 to 8; another for neighbours, and for the same expert of neighbouring ranks. */
CALLS_BOTH float calls_factor(uint32_t expert)
{
    return (float)(1u << (expert * 5 + expert / 4) % 6) / 4;
}

CALLS_BOTH float calls_received(const struct epa_moe *m, uint64_t row, uint32_t channel)
{
    const char *at = (const char *)m->recv + row * m->recv_stride;
    const char *scales = (const char *)m->recv_scale;

    if (scales == NULL)
        return calls_float(((const uint16_t *)(const void *)at)[channel]);
    scales += row * m->scale_stride;
    return calls_float_of_e4m3((uint8_t)at[channel]) *
           ((const float *)(const void *)scales)[channel / m->fp8_group_size];
}

/* Layout rank: the answer so far of a row, and one more expert's. Rounded each time, which the
 * test does alike. */
CALLS_BOTH uint16_t calls_add(uint16_t sum, float weight, float output)
{
    return calls_bf16(fmaf(weight, output, calls_float(sum)));
}

CALLS_BOTH void calls_output(const struct epa_moe *m, uint32_t rank, uint32_t local,
                             uint32_t channel, uint16_t *y)
{
    for (uint64_t row = 0; row < m->recv_rows && m->recv_row != NULL; row++)
        y[row * m->hidden + channel] = 0;
    for (uint32_t e = 0; e < local; e++) {
        for (uint32_t n = 0; n < m->recv_count[e]; n++) {
            uint64_t i = m->recv_start[e] + n;
            uint64_t row = m->recv_row != NULL ? m->recv_row[i] : i;
            uint16_t *to = &y[row * m->hidden + channel];
            float v = calls_received(m, row, channel) * calls_factor(rank * local + e);

            *to = m->recv_row != NULL ? calls_add(*to, m->recv_weight[i], v) : calls_bf16(v);
        }
    }
}

#ifdef __cplusplus
extern "C" {
#endif
/* Queues the above for all channels. Returns a cudaError_t. */
int kernel_output(struct epa_backend *, const struct epa_moe *, uint32_t rank, uint32_t local,
                  uint16_t *y);
#ifdef __cplusplus
}
#endif

#endif
