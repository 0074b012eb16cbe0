/* The driver's own functions. Found at run time through the runtime, so that the plugin
 * links to no libcuda and can be listed on a machine that has none. */
#include "memory.h"

#include <string.h>

/* All of them are older than the CUDA that nvcc must be. */
enum { VERSION = 12000 };

#define FUNCTION(field_, name_) \
    { \
        .name = name_, .at = offsetof(struct driver, field_) \
    }

static const struct {
    const char *name;
    size_t at;
} functions[] = {
    FUNCTION(error_string, "cuGetErrorString"),
    FUNCTION(device_get, "cuDeviceGet"),
    FUNCTION(device_uuid, "cuDeviceGetUuid"),
    FUNCTION(device_attribute, "cuDeviceGetAttribute"),
    FUNCTION(granularity, "cuMemGetAllocationGranularity"),
    FUNCTION(create, "cuMemCreate"),
    FUNCTION(release, "cuMemRelease"),
    FUNCTION(export_handle, "cuMemExportToShareableHandle"),
    FUNCTION(import_handle, "cuMemImportFromShareableHandle"),
    FUNCTION(reserve, "cuMemAddressReserve"),
    FUNCTION(address_free, "cuMemAddressFree"),
    FUNCTION(map, "cuMemMap"),
    FUNCTION(unmap, "cuMemUnmap"),
    FUNCTION(set_access, "cuMemSetAccess"),
};

#if CUDART_VERSION >= 12050
static cudaError_t look_up(const char *name, void **out,
                           enum cudaDriverEntryPointQueryResult *result)
{
    return cudaGetDriverEntryPointByVersion(name, out, VERSION, cudaEnableDefault, result);
}
#else
static cudaError_t look_up(const char *name, void **out,
                           enum cudaDriverEntryPointQueryResult *result)
{
    return cudaGetDriverEntryPoint(name, out, cudaEnableDefault, result);
}
#endif

enum epa_status driver_init(struct driver *out, struct epa_error *err)
{
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
        void *function = NULL;
        cudaError_t error = look_up(functions[i].name, &function, &result);

        if (error != cudaSuccess || result != cudaDriverEntryPointSuccess ||
            function == NULL)
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "nvlink: the driver has no %s: %s; it is too old for CUDA 12",
                            functions[i].name, cudaGetErrorString(error));
        memcpy((char *)out + functions[i].at, &function, sizeof(function));
    }
    return EPA_OK;
}
