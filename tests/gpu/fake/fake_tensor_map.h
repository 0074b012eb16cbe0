/* Contents of a CUtensorMap from cuTensorMapEncodeTiled() of the simulated driver: two dimensions,
 * boxes with rows of 128 bytes, swizzled. */
#ifndef FAKE_TENSOR_MAP_H
#define FAKE_TENSOR_MAP_H

#include <cuda.h>
#include <stdint.h>

#define FAKE_MAP_MAGIC 0x5449544dul

struct fake_tensor_map {
    uint32_t magic, element_bytes;
    uint32_t box[2]; /* elements */
    char *at;
    uint64_t stride;  /* bytes between rows */
    uint32_t last[2]; /* dimension - 1 */
};

CUresult CUDAAPI fake_tensor_map(CUtensorMap *out, CUtensorMapDataType, cuuint32_t rank, void *at,
                                 const cuuint64_t *dims, const cuuint64_t *strides,
                                 const cuuint32_t *box, const cuuint32_t *element_strides,
                                 CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill);

#endif
