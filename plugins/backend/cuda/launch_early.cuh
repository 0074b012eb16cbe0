/* Launch of a kernel that is set up while the previous kernel of the stream runs. */
#ifndef CUDA_LAUNCH_EARLY_CUH
#define CUDA_LAUNCH_EARLY_CUH

#include <cuda_runtime_api.h>

/* Launches a kernel. early: the set-up does not wait for the previous kernel, so the kernel must begin
 * with epa_dev_after_kernel(), before all accesses to memory. */
template <class A>
static cudaError_t launch_early(bool early, void (*kernel)(A), uint32_t blocks, uint32_t threads,
                                size_t bytes, cudaStream_t stream, const A &args)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {dim3(blocks), dim3(threads), bytes,
                                 stream,       &attribute,    early ? 1u : 0u};

    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    return cudaLaunchKernelEx(&config, kernel, args);
}

#endif
