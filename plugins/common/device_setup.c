/* Implements device_setup.h. */
#include "device_setup.h"

#include <cuda_runtime_api.h>

enum epa_status device_check(const char *name, const struct epa_algorithm_params *p,
                             uint64_t heap_bytes, bool hopper, struct epa_error *err)
{
    int device = p->backend->device, major = 0;
    cudaError_t code = cudaSetDevice(device);

    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (code != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s: GPU %d: %s", name, device,
                        cudaGetErrorString(code));
    if (major < 9 || (hopper && major != 9))
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s: GPU %d has compute capability %d.x; its kernels %s 9.0", name, device,
                        major, hopper ? "are for" : "need");
    if (p->transport->view == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s: the transport does not connect kernels to other ranks", name);
    if (p->heap + heap_bytes > p->transport->heap_bytes)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: the heap of %llu bytes is too small", name,
                        (unsigned long long)p->transport->heap_bytes);
    return EPA_OK;
}

bool device_is_whole(const struct epa_backend *backend)
{
    int all = 0;

    (void)cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, backend->device);
    return backend->multiprocessors == (uint32_t)all;
}

enum epa_status device_load_kernel(const char *name, const struct epa_backend *backend,
                                   const struct device_code *k, uint32_t *blocks,
                                   struct epa_error *err)
{
    struct cudaFuncAttributes attributes;
    int n = 0;
    cudaError_t code = cudaFuncGetAttributes(&attributes, k->kernel);

    /* All objects of a process share the limit of a kernel, so it only rises. */
    if (code == cudaSuccess && (int)k->shared_bytes > attributes.maxDynamicSharedSizeBytes)
        code = cudaFuncSetAttribute(k->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)k->shared_bytes);
    if (code == cudaSuccess)
        code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, k->kernel, (int)k->threads,
                                                             k->shared_bytes);
    if (code != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s: loading its kernels on GPU %d: %s", name,
                        backend->device, cudaGetErrorString(code));
    if (n == 0)
        return epa_fail(err, EPA_ERR_SYSTEM,
                        "%s: no multiprocessor of GPU %d has room for a block of %s: %u threads "
                        "and %u bytes of shared memory",
                        name, backend->device, k->name, k->threads, k->shared_bytes);
    *blocks = (uint32_t)n;
    return EPA_OK;
}

uint32_t device_waiting_blocks(const struct epa_backend *backend, uint32_t per)
{
    return backend->multiprocessors * (per < 2 || !device_is_whole(backend) ? 1 : 2);
}

void *device_take(char *memory, uint64_t *at, uint64_t bytes)
{
    void *p = memory != NULL ? memory + *at : NULL;

    *at += (bytes + 255) / 256 * 256;
    return p;
}

enum epa_status device_explain_setup(const char *name, struct epa_backend *backend,
                                     enum epa_status status, struct epa_error *err)
{
    struct epa_error why = {EPA_OK, ""};

    if (status == EPA_OK)
        return EPA_OK;
    backend->ops->explain(backend, &why);
    return epa_fail(err, status, "%s: setting up on GPU %d: %s", name, backend->device, why.text);
}

enum epa_status device_alloc_cleared(const char *name, struct epa_backend *backend, uint64_t bytes,
                                     void **out, struct epa_error *err)
{
    enum epa_status status = backend->ops->alloc(backend, bytes, out);

    if (status == EPA_OK)
        status = backend->ops->fill(backend, *out, 0, bytes);
    if (status == EPA_OK)
        status = backend->ops->sync(backend);
    return device_explain_setup(name, backend, status, err);
}

enum epa_status device_check_call(struct epa_error *last, const struct epa_backend *backend,
                                  int code, const char *what)
{
    if (code == cudaSuccess)
        return EPA_OK;
    return epa_fail(last, EPA_ERR_SYSTEM, "%s on GPU %d: %s", what, backend->device,
                    cudaGetErrorString((cudaError_t)code));
}
