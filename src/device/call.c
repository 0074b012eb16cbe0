/* What a stage asks of the CUDA runtime, and of the calls before it. */
#include "device/call.h"

#include <cuda_runtime_api.h>

enum epa_status device_fail(struct device *d, enum epa_status status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(d->last.text, sizeof(d->last.text), fmt, args);
    va_end(args);
    d->last.status = status;
    return status;
}

enum epa_status device_call_failed(struct device *d, const char *what, int code)
{
    return device_fail(d, EPA_ERR_SYSTEM, "%s on GPU %d: %s", what, d->backend->device,
                       cudaGetErrorString((cudaError_t)code));
}

void device_explain(const struct device *d, struct epa_error *err)
{
    if (d->last.status != EPA_OK)
        (void)epa_fail(err, d->last.status, "%s", d->last.text);
}

enum epa_status device_find_set(struct device *d, const struct device_sets *s,
                                uint64_t epoch, uint32_t *out)
{
    uint32_t set = (uint32_t)((epoch - 1) % s->n), other = s->n - 1 - set;
    bool again = epoch == s->combined && epoch == s->epoch;

    if (epoch == 0 || s->set[set].epoch != epoch || (!s->set[set].open && !again))
        return device_fail(d, EPA_ERR_CONFIG,
                           "combine: dispatch %llu is not open, or never was",
                           (unsigned long long)epoch);
    if (s->set[other].open && s->set[other].epoch < epoch)
        return device_fail(
            d, EPA_ERR_CONFIG,
            "combine: dispatch %llu is to be combined before %llu: they go in order",
            (unsigned long long)s->set[other].epoch, (unsigned long long)epoch);
    *out = set;
    return EPA_OK;
}

enum epa_status device_launch(struct device *d, const void *kernel, void *args,
                              struct device_grid grid)
{
    cudaLaunchAttribute early = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                 .val.programmaticStreamSerializationAllowed = 1};
    cudaLaunchConfig_t config = {.gridDim = {grid.blocks, 1, 1},
                                 .blockDim = {grid.threads, 1, 1},
                                 .dynamicSmemBytes = grid.shared_bytes,
                                 .stream = d->backend->stream,
                                 .attrs = &early,
                                 .numAttrs = d->early && !grid.waits ? 1 : 0};
    cudaError_t code = cudaSetDevice(d->backend->device);

    if (code == cudaSuccess)
        code = cudaLaunchKernelExC(&config, kernel, &args);
    return code == cudaSuccess ? EPA_OK : device_call_failed(d, "launching a kernel", code);
}

enum epa_status device_copy(struct device *d, const char *what, void *to, const void *from,
                            uint64_t bytes)
{
    cudaError_t code = cudaSetDevice(d->backend->device);

    if (code == cudaSuccess)
        code =
            cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, d->backend->stream);
    return code == cudaSuccess ? EPA_OK : device_call_failed(d, what, code);
}
