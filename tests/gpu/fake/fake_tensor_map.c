/* Tensor maps of the simulated driver. They are refused as the documentation of the real driver
 * (cuda.h) states. Features that no kernel uses return CUDA_ERROR_NOT_SUPPORTED. */
#include "fake_tensor_map.h"

#include <string.h>

#include "fake_cuda.h"

enum { MAX_BOX = 256, UNIT = 16, ROW = 128 };
#define MAX_DIMENSION ((uint64_t)1 << 32)
#define MAX_STRIDE ((uint64_t)1 << 40)

CUresult CUDAAPI fake_tensor_map(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank,
                                 void *at, const cuuint64_t *dims, const cuuint64_t *strides,
                                 const cuuint32_t *box, const cuuint32_t *element_strides,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill)
{
    struct fake_tensor_map map = {.magic = FAKE_MAP_MAGIC,
                                  .element_bytes = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : 2,
                                  .at = at,
                                  .stride = strides[0]};

    _Static_assert(sizeof(map) <= sizeof(*out), "a map has room for it");
    if (fake_fails())
        return CUDA_ERROR_UNKNOWN;
    if (rank != 2 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
        (type != CU_TENSOR_MAP_DATA_TYPE_UINT8 && type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16 &&
         type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16) ||
        swizzle != CU_TENSOR_MAP_SWIZZLE_128B || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ||
        box[0] * map.element_bytes < ROW)
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((uintptr_t)out % 64 != 0 || (uintptr_t)at % UNIT != 0 ||
        l2 > CU_TENSOR_MAP_L2_PROMOTION_L2_256B || strides[0] % UNIT != 0 ||
        strides[0] >= MAX_STRIDE || box[0] * map.element_bytes > ROW)
        return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < 2; i++) {
        if (dims[i] == 0 || dims[i] > MAX_DIMENSION || box[i] == 0 || box[i] > MAX_BOX ||
            element_strides[i] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        map.box[i] = box[i];
        map.last[i] = (uint32_t)(dims[i] - 1);
    }
    memset(out, 0, sizeof(*out));
    memcpy(out, &map, sizeof(map));
    return CUDA_SUCCESS;
}
