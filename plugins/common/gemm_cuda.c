/* Tensor maps for the tensor memory accelerator (gemm_cuda.h). */
#include "gemm_cuda.h"

#include <cuda_runtime_api.h>

#include <string.h>

typedef CUresult encode_tiled(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_tiled *find_encode(void)
{
    enum cudaDriverEntryPointQueryResult found;
    encode_tiled *call = NULL;
    void *entry = NULL;

    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return NULL;
    memcpy(&call, &entry, sizeof(call));
    return call;
}

/* Encodes a map with boxes of `height` rows and GEMM_BLOCK bytes. */
static bool encode_map(encode_tiled *call, CUtensorMap *out, int dtype, const void *address,
                       uint64_t rows, uint32_t k, size_t stride, uint32_t height)
{
    const cuuint32_t bytes = dtype == EPA_FP8_E4M3 ? 1 : 2;
    const cuuint64_t dims[2] = {k, rows == 0 ? 1 : rows}, strides[1] = {stride};
    const cuuint32_t box[2] = {GEMM_BLOCK / bytes, height}, steps[2] = {1, 1};
    CUtensorMapDataType type = dtype == EPA_FP8_E4M3 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                               : dtype == EPA_F16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                     : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

    return call(out, type, 2, (void *)(uintptr_t)address, dims, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool gemm_map_rows(struct gemm_rows_map *out, int dtype, const void *address, uint64_t rows,
                   uint32_t k, size_t stride)
{
    encode_tiled *call = find_encode();
    bool ok = call != NULL;

    for (uint32_t i = 0; ok && i < GEMM_HEIGHTS; i++)
        ok = encode_map(call, &out->height[i], dtype, address, rows, k, stride, 8u << i);
    return ok;
}

bool gemm_map_weights(CUtensorMap *out, int dtype, const void *address, uint64_t rows, uint32_t k,
                      uint32_t box)
{
    encode_tiled *call = find_encode();

    return call != NULL && encode_map(call, out, dtype, address, rows, k,
                                      (size_t)k * (dtype == EPA_FP8_E4M3 ? 1 : 2), box);
}
