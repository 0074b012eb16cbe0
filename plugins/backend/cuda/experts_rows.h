/* What surrounds the products of real experts (experts.c) where rows are not as those read them:
 * kernels that gather, quantise or dequantise rows before, and add up a row's outputs after. */
#ifndef EPA2A_BACKEND_CUDA_EXPERTS_ROWS_H
#define EPA2A_BACKEND_CUDA_EXPERTS_ROWS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Entries as dispatch left them (struct epa_moe), and where they are one expert after the other,
 * "packed". */
struct rows_args {
    uint32_t experts, hidden;
    const uint32_t *count;    /* [experts] */
    const uint64_t *start;    /* [experts] */
    const uint32_t *recv_row; /* [entries] or NULL */
    const char *recv;
    size_t recv_stride;
    const char *recv_scale; /* FP8 */
    size_t scale_stride;
    uint32_t group; /* FP8: values of a scale of what is received; 128 of what is quantised here */
    bool f16, in_fp8, out_fp8;
    char *packed; /* [entries][hidden] */
    float *packed_scale;
    /* Layout rank. */
    const float *recv_weight; /* [entries] */
    const char *outputs;      /* [entries][hidden] packed, in 16 bits */
    uint32_t *row_entries;    /* [rows] how many */
    uint32_t *row_entry;      /* [rows][most]: packed, in any order */
    float *row_weight;        /* same */
    uint32_t most, rows;
    char *y; /* [rows][hidden] */
};

/* Queued; `blocks`: how many of a kernel at most. */
cudaError_t rows_pack(const struct rows_args *, uint32_t blocks, cudaStream_t);
/* The outputs of each row's entries times their weights, experts ascending, to y. */
cudaError_t rows_add_up(const struct rows_args *, uint32_t blocks, cudaStream_t);

#ifdef __cplusplus
}
#endif
#endif
