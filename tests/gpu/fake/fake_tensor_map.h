/* What cuTensorMapEncodeTiled() of the made-up driver puts into a CUtensorMap. */
#ifndef FAKE_TENSOR_MAP_H
#define FAKE_TENSOR_MAP_H

#include <cuda.h>
#include <stdint.h>

enum { FAKE_MAP_RANK = 5 };
#define FAKE_MAP_MAGIC 0x5449544dul

struct fake_tensor_map {
    uint32_t magic;
    uint8_t rank, element_bytes, swizzle_bytes; /* 0, or 32, 64, 128 */
    uint16_t box[FAKE_MAP_RANK];                /* elements */
    char *at;
    uint64_t stride[FAKE_MAP_RANK]; /* bytes */
    uint32_t last[FAKE_MAP_RANK];   /* dimension - 1 */
};

CUresult CUDAAPI fake_tensor_map(CUtensorMap *out, CUtensorMapDataType, cuuint32_t rank, void *at,
                                 const cuuint64_t *dims, const cuuint64_t *strides,
                                 const cuuint32_t *box, const cuuint32_t *element_strides,
                                 CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill);

#endif
