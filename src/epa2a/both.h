/* What kernels share with hosts: how large packets are (packets.cuh), for layouts, and the
 * quotient that quantising rests on (quant.cuh), which a test holds to the scalar reference. */
#ifndef EPA2A_BOTH_H
#define EPA2A_BOTH_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define EPA_BOTH static __host__ __device__ __forceinline__
#else
#define EPA_BOTH static inline
#endif

/* Bytes of a packet; words of 8 bytes that it carries, beside the count. */
enum { EPA_PACKET = 128, EPA_PACKET_WORDS = 15 };

/* Packets that a payload of so many bytes takes. */
EPA_BOTH uint32_t epa_packets_of(uint32_t bytes)
{
    return ((bytes + 7) / 8 + EPA_PACKET_WORDS - 1) / EPA_PACKET_WORDS;
}

/* Scales whose reciprocal is normal, and quotients that lose nothing in their remainder. */
#define EPA_QUOTIENT_LEAST 0x1p-60f
#define EPA_QUOTIENT_MOST 0x1p60f

/* x / scale rounded to nearest, for a scale in that range and x from 0 to the largest
 * magnitude of its group, with inverse = 1 / scale rounded: one step of Newton from x *
 * inverse is exact enough to round right (Markstein). An x too small for that gives some
 * value under 2^-60, which is 0 in e4m3 either way. */
EPA_BOTH float epa_quotient(float x, float scale, float inverse)
{
    float q = x * inverse, rest = fmaf(-q, scale, x);

    return fmaf(rest, inverse, q);
}

#endif
