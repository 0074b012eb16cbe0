/* Kernels around the products of real experts (experts.c). They gather, quantise or dequantise rows
 * that the products cannot read directly, and add up a row's outputs. */
#ifndef CUDA_EXPERTS_ROWS_H
#define CUDA_EXPERTS_ROWS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Received entries in the layout of dispatch (struct epa_moe), and the same entries "packed": one
 * expert after the other. */
struct rows_args {
    uint32_t experts, hidden;
    uint32_t entries;         /* maximum of packed entries */
    uint64_t recv_entries;    /* capacity of the received lists */
    const uint32_t *count;    /* [experts] */
    const uint64_t *start;    /* [experts] */
    const uint32_t *recv_row; /* [entries] or NULL */
    const char *recv;
    size_t recv_stride;
    const char *recv_scale; /* FP8 */
    size_t scale_stride;
    uint32_t group; /* FP8: channels per scale, received or packed; packed rows: 64 or 128 */
    bool f16, in_fp8, out_fp8;
    const float *factor; /* [experts]: factors of synthetic experts */
    char *packed;        /* [entries][hidden] */
    float *packed_scale;
    /* Layout rank. */
    const float *recv_weight; /* [entries] */
    char *outputs;            /* [entries][hidden]: packed outputs of 16 bits per channel */
    uint32_t *row_entries;    /* [rows]: number of entries of the row */
    uint32_t *row_entry;      /* [rows][most]: packed indices, in any order */
    float *row_weight;        /* [rows][most]: their weights */
    uint32_t most, rows;
    char *y; /* [rows][hidden] */
};

/* Queues kernels of at most `blocks` blocks. */
cudaError_t rows_pack(const struct rows_args *, uint32_t blocks, cudaStream_t);
/* Multiplies rows by the factors of their experts; writes to y or, with recv_row, packed rows to
 * `outputs`. */
cudaError_t rows_multiply(const struct rows_args *, uint32_t blocks, cudaStream_t);
/* Adds up the weighted outputs of each row's entries, by ascending expert, in y. */
cudaError_t rows_add_up(const struct rows_args *, uint32_t blocks, cudaStream_t);

#ifdef __cplusplus
}
#endif

#endif
