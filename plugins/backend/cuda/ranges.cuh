/* For kernels that visit the rows of layout rank by their source ranks. */
#ifndef CUDA_RANGES_CUH
#define CUDA_RANGES_CUH

#include "entries.cuh"

/* Returns true if source `rank` has a row `i`, and the number of the row in the view. */
EPA_DEV bool row_of_source(const int64_t *ranges, uint32_t rank, uint32_t i, uint64_t *row)
{
    const uint64_t range = (uint64_t)__ldcg(reinterpret_cast<const long long *>(ranges) + rank);

    *row = (range >> 32) + i;
    return i < (uint32_t)range;
}

#endif
