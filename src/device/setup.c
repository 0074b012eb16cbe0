/* The device and its memory, asked for once. */
#include "device/setup.h"

#include <cuda_runtime_api.h>

static enum epa_status check_device(const struct device *d, struct epa_error *err)
{
    int device = d->backend->device, major = 0;
    cudaError_t code = cudaSetDevice(device);

    if (code == cudaSuccess)
        code = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (code != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s: GPU %d: %s", d->who, device,
                        cudaGetErrorString(code));
    if (major < 9)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s: GPU %d has compute capability %d.x; its kernels need 9.0",
                        d->who, device, major);
    return EPA_OK;
}

static enum epa_status check_transport(const struct device *d, uint64_t heap_bytes,
                                       struct epa_error *err)
{
    if (d->t->view == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s: the transport gives kernels no way to other ranks", d->who);
    if (d->heap + heap_bytes > d->t->heap_bytes)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: the heap of %llu bytes is too small",
                        d->who, (unsigned long long)d->t->heap_bytes);
    return EPA_OK;
}

/* Where ranks share a device, a kernel set up early would take the room of their kernels. */
static bool is_whole(const struct epa_backend *backend)
{
    int all = 0;

    (void)cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, backend->device);
    return backend->multiprocessors == (uint32_t)all;
}

enum epa_status device_init(const char *who, const struct epa_algorithm_params *p,
                            uint64_t heap_bytes, bool early, struct device *out,
                            struct epa_error *err)
{
    struct device d = {
        .who = who, .t = p->transport, .backend = p->backend, .heap = p->heap};
    enum epa_status status = check_device(&d, err);

    if (status == EPA_OK)
        status = check_transport(&d, heap_bytes, err);
    if (status != EPA_OK)
        return status;
    d.early = early && is_whole(p->backend);
    *out = d;
    return EPA_OK;
}

void device_finish(struct device *d)
{
    if (d->memory != NULL)
        d->backend->ops->free(d->backend, d->memory);
    d->memory = NULL;
}

static enum epa_status load_failed(const struct device *d, cudaError_t code,
                                   struct epa_error *err)
{
    return epa_fail(err, EPA_ERR_SYSTEM, "%s: loading its kernels on GPU %d: %s", d->who,
                    d->backend->device, cudaGetErrorString(code));
}

enum epa_status device_load(const struct device *d, const void *kernel,
                            uint32_t shared_bytes, struct epa_error *err)
{
    struct cudaFuncAttributes attributes;
    cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);

    if (code == cudaSuccess)
        code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)shared_bytes);
    return code == cudaSuccess ? EPA_OK : load_failed(d, code, err);
}

enum epa_status device_count_blocks(const struct device *d, struct device_kernel k,
                                    uint32_t most, uint32_t *out, struct epa_error *err)
{
    uint32_t blocks;
    int n = 0;
    cudaError_t code;
    enum epa_status status = device_load(d, k.kernel, k.shared_bytes, err);

    if (status != EPA_OK)
        return status;
    code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, k.kernel, (int)k.threads,
                                                         k.shared_bytes);
    if (code != cudaSuccess)
        return load_failed(d, code, err);
    if (n == 0)
        return epa_fail(err, EPA_ERR_SYSTEM,
                        "%s: no multiprocessor of GPU %d has room for a block of %s: %u "
                        "threads and %u bytes of shared memory",
                        d->who, d->backend->device, k.name, k.threads, k.shared_bytes);
    /* Two for each multiprocessor keep the links busy; more would only wait. */
    blocks = d->backend->multiprocessors * (uint32_t)(n < 2 ? n : 2);
    *out = most != 0 && most < blocks ? most : blocks;
    return EPA_OK;
}

void *device_take(char *memory, uint64_t *at, uint64_t bytes)
{
    void *p = memory != NULL ? memory + *at : NULL;

    *at += (bytes + 255) / 256 * 256;
    return p;
}

static enum epa_status explained(const struct device *d, enum epa_status status,
                                 struct epa_error *err)
{
    struct epa_error why = {EPA_OK, ""};

    if (status == EPA_OK)
        return EPA_OK;
    d->backend->ops->explain(d->backend, &why);
    return epa_fail(err, status, "%s: setting up on GPU %d: %s", d->who, d->backend->device,
                    why.text);
}

enum epa_status device_clear(const struct device *d, void *to, uint64_t bytes,
                             struct epa_error *err)
{
    enum epa_status status = d->backend->ops->fill(d->backend, to, 0, bytes);

    if (status == EPA_OK)
        status = d->backend->ops->sync(d->backend);
    return explained(d, status, err);
}

enum epa_status device_alloc(struct device *d, uint64_t bytes, struct epa_error *err)
{
    enum epa_status status = d->backend->ops->alloc(d->backend, bytes, &d->memory);

    return status == EPA_OK ? device_clear(d, d->memory, bytes, err)
                            : explained(d, status, err);
}
