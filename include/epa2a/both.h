/* Definitions that kernels and hosts share: the packet size (packets.cuh), which determines
 * layouts, and the quotient of quantisation (quant.cuh). A test compares the quotient with the
 * scalar reference. */
#ifndef EPA2A_BOTH_H
#define EPA2A_BOTH_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define EPA_BOTH static __host__ __device__ __forceinline__
#else
#define EPA_BOTH static inline
#endif

/* Bytes of a packet; 8-byte payload words of a packet, without the count. */
enum { EPA_PACKET = 128, EPA_PACKET_WORDS = 15 };

/* Returns the number of packets that carry a payload of `bytes` bytes. */
EPA_BOTH uint32_t epa_packets_of(uint32_t bytes)
{
    return ((bytes + 7) / 8 + EPA_PACKET_WORDS - 1) / EPA_PACKET_WORDS;
}

/* Range of scales of epa_quotient(): the reciprocal is normal and the remainder is exact. */
#define EPA_QUOTIENT_LEAST 0x1p-60f
#define EPA_QUOTIENT_MOST 0x1p60f

/* Returns x / scale, rounded to nearest. The scale is in the range above, x is between 0 and the
 * largest magnitude of its group, and inverse is 1 / scale, rounded. One Newton step from x *
 * inverse gives the correctly rounded quotient (Markstein). An x that is too small for this step
 * yields a value below 2^-60, which e4m3 rounds to 0 in any case. */
EPA_BOTH float epa_quotient(float x, float scale, float inverse)
{
    float q = x * inverse, rest = fmaf(-q, scale, x);

    return fmaf(rest, inverse, q);
}

#endif
