/* Tensor maps of the made-up driver, refused where the documentation of the real one (cuda.h)
 * says so. What only the driver can do is CUDA_ERROR_NOT_SUPPORTED: interleaved layouts, strides
 * of elements, packed types, fills with NaN. */
#include "fake_tensor_map.h"

#include <string.h>

#include "fake_cuda.h"

enum { MAX_BOX = 256, UNIT = 16 };
#define MAX_DIMENSION ((uint64_t)1 << 32)
#define MAX_STRIDE ((uint64_t)1 << 40)

/* 0: a type that the emulator does not have. */
static uint32_t bytes_of(CUtensorMapDataType type)
{
    static const uint8_t bytes[] = {
        [CU_TENSOR_MAP_DATA_TYPE_UINT8] = 1,   [CU_TENSOR_MAP_DATA_TYPE_UINT16] = 2,
        [CU_TENSOR_MAP_DATA_TYPE_UINT32] = 4,  [CU_TENSOR_MAP_DATA_TYPE_INT32] = 4,
        [CU_TENSOR_MAP_DATA_TYPE_UINT64] = 8,  [CU_TENSOR_MAP_DATA_TYPE_INT64] = 8,
        [CU_TENSOR_MAP_DATA_TYPE_FLOAT16] = 2, [CU_TENSOR_MAP_DATA_TYPE_FLOAT32] = 4,
        [CU_TENSOR_MAP_DATA_TYPE_FLOAT64] = 8, [CU_TENSOR_MAP_DATA_TYPE_BFLOAT16] = 2,
    };

    return (size_t)type < sizeof(bytes) ? bytes[type] : 0;
}

CUresult CUDAAPI fake_tensor_map(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank,
                                 void *at, const cuuint64_t *dims, const cuuint64_t *strides,
                                 const cuuint32_t *box, const cuuint32_t *element_strides,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill)
{
    static const uint8_t spans[] = {[CU_TENSOR_MAP_SWIZZLE_32B] = 32,
                                    [CU_TENSOR_MAP_SWIZZLE_64B] = 64,
                                    [CU_TENSOR_MAP_SWIZZLE_128B] = 128};
    struct fake_tensor_map map = {.magic = FAKE_MAP_MAGIC, .at = at};

    _Static_assert(sizeof(map) <= sizeof(*out), "a map has room for it");
    if (fake_fails())
        return CUDA_ERROR_UNKNOWN;
    if ((uintptr_t)out % 64 != 0 || (uintptr_t)at % UNIT != 0 || rank == 0 ||
        rank > FAKE_MAP_RANK || l2 > CU_TENSOR_MAP_L2_PROMOTION_L2_256B)
        return CUDA_ERROR_INVALID_VALUE;
    map.rank = (uint8_t)rank;
    map.element_bytes = (uint8_t)bytes_of(type);
    if (map.element_bytes == 0 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
        (size_t)swizzle >= sizeof(spans) || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    map.swizzle_bytes = spans[swizzle];
    for (uint32_t i = 0; i < rank; i++) {
        if (dims[i] == 0 || dims[i] > MAX_DIMENSION || box[i] == 0 || box[i] > MAX_BOX ||
            element_strides[i] == 0 || element_strides[i] > 8)
            return CUDA_ERROR_INVALID_VALUE;
        if (i > 0 && (strides[i - 1] % UNIT != 0 || strides[i - 1] >= MAX_STRIDE))
            return CUDA_ERROR_INVALID_VALUE;
        if (i > 0 && element_strides[i] != 1)
            return CUDA_ERROR_NOT_SUPPORTED;
        map.box[i] = (uint16_t)box[i];
        map.last[i] = (uint32_t)(dims[i] - 1);
        map.stride[i] = i == 0 ? map.element_bytes : strides[i - 1];
    }
    if (box[0] * map.element_bytes % UNIT != 0 ||
        (map.swizzle_bytes != 0 && box[0] * map.element_bytes > map.swizzle_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, sizeof(*out));
    memcpy(out, &map, sizeof(map));
    return CUDA_SUCCESS;
}
