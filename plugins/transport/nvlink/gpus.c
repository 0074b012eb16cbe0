/* Identity and reach of each rank's GPU. The UUID identifies a GPU, since device numbers differ
 * between processes. The plugin finds the driver's functions at run time through the CUDA runtime: it
 * does not link to libcuda, and machines without libcuda can list it. */
#include "gpus.h"

#include "memory.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

/* Driver API version of the functions; the required nvcc is newer. */
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
    FUNCTION(pointer_attribute, "cuPointerGetAttribute"),
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
    FUNCTION(batch_words, "cuStreamBatchMemOp"),
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

        if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || function == NULL)
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "nvlink: the driver has no %s: %s; it is too old for CUDA 12",
                            functions[i].name, cudaGetErrorString(error));
        memcpy((char *)out + functions[i].at, &function, sizeof(function));
    }
    return EPA_OK;
}

/* ---- GPUs ---- */

static enum epa_status fail(cudaError_t error, const char *what, struct epa_error *err)
{
    (void)cudaGetLastError();
    return epa_fail_key(err, nvlink_status(error), EPA_LIMIT_NAMED, "nvlink: %s: %s", what,
                        cudaGetErrorString(error));
}

static bool identify(const struct driver *d, int number, struct gpu *out)
{
    CUuuid uuid;
    CUdevice device;
    int passes = 0;

    *out = (struct gpu){.number = number};
    if (d->device_get(&device, number) != CUDA_SUCCESS ||
        d->device_uuid(&uuid, device) != CUDA_SUCCESS ||
        d->device_attribute(&passes,
                            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                            device) != CUDA_SUCCESS ||
        cudaDeviceGetPCIBusId(out->bus, sizeof(out->bus), number) != cudaSuccess)
        return false;
    memcpy(out->uuid, uuid.bytes, sizeof(out->uuid));
    out->passes_memory = passes != 0;
    return true;
}

static enum epa_status look_at(int device, const struct gpu *mine, const struct gpu *seen, int n,
                               const struct gpu *other, unsigned char *out, struct epa_error *err)
{
    int number = pairs_find(seen, n, other), can = 0, atomics = 0;
    cudaError_t error;

    if (memcmp(mine->uuid, other->uuid, sizeof(mine->uuid)) == 0) {
        *out = REACH_SELF;
        return EPA_OK;
    }
    if (number < 0) {
        *out = REACH_UNSEEN;
        return EPA_OK;
    }
    error = cudaDeviceCanAccessPeer(&can, device, number);
    if (error == cudaSuccess && can != 0)
        error = cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device,
                                          number);
    if (error != cudaSuccess)
        return fail(error, "asking whether one GPU can access another", err);
    *out = can == 0 ? REACH_NONE : atomics == 0 ? REACH_NO_ATOMICS : REACH_DIRECT;
    return EPA_OK;
}

/* Lists the GPUs that this process sees, with their UUIDs and bus addresses. */
static enum epa_status list(const struct driver *d, struct gpu **out, int *n_out,
                            struct epa_error *err)
{
    struct gpu *seen;
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);

    if (error != cudaSuccess)
        return fail(error, "counting GPUs", err);
    seen = calloc((size_t)n, sizeof(*seen));
    if (seen == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "nvlink: no memory for %d GPUs", n);
    for (int i = 0; i < n; i++) {
        if (identify(d, i, &seen[i]))
            continue;
        free(seen);
        return epa_fail(err, EPA_ERR_SYSTEM, "nvlink: the driver does not say who GPU %d is", i);
    }
    *out = seen;
    *n_out = n;
    return EPA_OK;
}

enum epa_status gpus_meet(struct epa_bootstrap *boot, const bool *near, const struct driver *d,
                          int device, struct gpu *out, struct epa_error *err)
{
    uint32_t size = boot->world.size;
    unsigned char row[EPA_DEVICE_RANKS] = {0}, rows[EPA_DEVICE_RANKS][EPA_DEVICE_RANKS];
    unsigned char reach[EPA_DEVICE_RANKS * EPA_DEVICE_RANKS];
    struct gpu *seen = NULL;
    int n = 0;
    enum epa_status status = list(d, &seen, &n, err);

    if (status != EPA_OK)
        return status;
    if (device < 0 || device >= n) {
        free(seen);
        return epa_fail(err, EPA_ERR_CONFIG, "nvlink: the backend has GPU %d of %d", device, n);
    }
    status = boot->allgather(boot, &seen[device], sizeof(*out), out);
    for (uint32_t r = 0; r < size && status == EPA_OK; r++) {
        row[r] = REACH_DIRECT;
        if (near[r])
            status = look_at(device, &seen[device], seen, n, &out[r], &row[r], err);
    }
    free(seen);
    if (status == EPA_OK)
        status = boot->allgather(boot, row, sizeof(row), rows);
    if (status != EPA_OK) {
        boot->explain(boot, err);
        return status;
    }
    for (uint32_t r = 0; r < size; r++)
        memcpy(reach + (size_t)r * size, rows[r], size);
    return pairs_check(out, reach, size, err);
}
