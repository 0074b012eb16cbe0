/* Slices of kernels in the trace (EPA_TRACE_KERNELS): numbers within a call.
 *
 * `tokens` of such a slice is 0, or the number of a token or row + 1. `value` is the place from
 * epa_trace_place(). */
#ifndef EPA2A_TRACE_KERNEL_H
#define EPA2A_TRACE_KERNEL_H

#include <stdint.h>

/* Meaning of `tokens`: a token; a row; for larger values a row, and this value plus a column. */
#define EPA_TRACE_TOKEN 0u
#define EPA_TRACE_ROW 1u
#define EPA_TRACE_COLUMN 2u
/* For this value and larger values: a row of an expert of this rank, and this value plus a column.
 * `bytes` is the value of epa_trace_tile(). */
#define EPA_TRACE_EXPERT (1u << 23)

/* warp: warp of the block, below 256. what: a value above, below 2^24. */
static inline uint64_t epa_trace_place(uint32_t block, uint32_t warp, uint32_t what)
{
    return (uint64_t)block << 32 | (what & 0xffffff) << 8 | warp;
}

static inline uint32_t epa_trace_block(uint64_t place)
{
    return (uint32_t)(place >> 32);
}

static inline uint32_t epa_trace_warp(uint64_t place)
{
    return (uint32_t)place & 0xff;
}

static inline uint32_t epa_trace_what(uint64_t place)
{
    return (uint32_t)place >> 8;
}

/* Tile of `rows` rows of an expert. error_ns: uncertainty of the times, in 32 bits. */
static inline uint64_t epa_trace_tile(uint64_t error_ns, uint16_t expert, uint16_t rows)
{
    return (uint64_t)rows << 48 | (uint64_t)expert << 32 |
           (error_ns < UINT32_MAX ? error_ns : UINT32_MAX);
}

static inline uint32_t epa_trace_error_ns(uint64_t tile)
{
    return (uint32_t)tile;
}

static inline uint32_t epa_trace_expert(uint64_t tile)
{
    return (uint32_t)(tile >> 32) & 0xffff;
}

static inline uint32_t epa_trace_rows(uint64_t tile)
{
    return (uint32_t)(tile >> 48);
}

#endif
