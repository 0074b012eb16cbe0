/* Lines that carry their own count (lines.cuh): how large they are, for kernels and layouts. */
#ifndef DEVICE_PACKETS_H
#define DEVICE_PACKETS_H

#include <stdint.h>

#include "device/both.h"

/* Bytes; words of 8 bytes that a line brings, beside the count. */
enum { DEV_PACKET = 128, DEV_PACKET_WORDS = 15 };

/* That a string of so many bytes takes. */
DEV_BOTH uint32_t dev_packets_of(uint32_t bytes)
{
    return ((bytes + 7) / 8 + DEV_PACKET_WORDS - 1) / DEV_PACKET_WORDS;
}

#endif
