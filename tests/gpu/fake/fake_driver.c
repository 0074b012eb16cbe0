/* Virtual memory of the driver, as strict as the real one: a mapping cannot be used before it is
 * made accessible. A handle is a descriptor, so that stale handles are detected. */
#include "fake_cuda.h"
#include "fake_tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Defines a function without further effect that may fail with `failure`; with CUDA_SUCCESS it
 * never fails. */
#define DRIVER(name, parameters, failure, ...) \
    static CUresult CUDAAPI name parameters \
    { \
        __VA_ARGS__; \
        return failure != CUDA_SUCCESS && fake_fails() ? failure : CUDA_SUCCESS; \
    }
DRIVER(error_string, (CUresult error, const char **out), CUDA_SUCCESS,
       *out = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "made up")
DRIVER(device_get, (CUdevice_v1 * out, int number), CUDA_ERROR_INVALID_DEVICE, *out = number)
DRIVER(device_uuid, (CUuuid * out, CUdevice_v1 device), CUDA_SUCCESS,
       memset(out, 'A' + device, sizeof(*out)))
/* FAKE_RDMA selects the RDMA attributes of GPU memory: "none", "memory", also "vmm", or all three
 * with "order". Unset: plain host memory. */
static int rdma_attribute(CUdevice_attribute attribute)
{
    const char *may = getenv("FAKE_RDMA");
    int so_far = may == NULL || strcmp(may, "none") == 0 ? 0
                 : strcmp(may, "memory") == 0            ? 1
                 : strcmp(may, "vmm") == 0               ? 2
                                                         : 3;

    if (attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)
        return so_far >= 1;
    if (attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)
        return so_far >= 2;
    return attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING && so_far >= 3
               ? CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
               : 0;
}

DRIVER(device_attribute, (int *out, CUdevice_attribute attribute, CUdevice_v1 device), CUDA_SUCCESS,
       *out = attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
                  ? !fake_cuda.no_descriptors
                  : rdma_attribute(attribute))
DRIVER(pointer_attribute, (void *out, CUpointer_attribute attribute, CUdeviceptr_v2 at),
       CUDA_SUCCESS,
       *(CUmemorytype *)out = getenv("FAKE_RDMA") != NULL ? CU_MEMORYTYPE_DEVICE
                                                          : CU_MEMORYTYPE_HOST)
DRIVER(granularity,
       (size_t * out, const CUmemAllocationProp_v1 *prop, CUmemAllocationGranularity_flags flags),
       CUDA_ERROR_UNKNOWN, *out = 2 << 20)

static CUresult CUDAAPI create(CUmemGenericAllocationHandle_v1 *out, size_t bytes,
                               const CUmemAllocationProp_v1 *prop, unsigned long long flags)
{
    int fd = fake_denies() ? -1 : fake_file(bytes);

    if (fd < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    fake_count(1);
    *out = (CUmemGenericAllocationHandle_v1)fd;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI release(CUmemGenericAllocationHandle_v1 handle)
{
    if (close((int)handle) != 0)
        abort();
    fake_count(-1);
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI export_handle(void *out, CUmemGenericAllocationHandle_v1 handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    int fd = fake_fails() ? -1 : dup((int)handle); /* without close-on-exec, as the real one */

    memcpy(out, &fd, sizeof(fd));
    return fd < 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

static CUresult CUDAAPI import_handle(CUmemGenericAllocationHandle_v1 *out, void *os_handle,
                                      CUmemAllocationHandleType type)
{
    int fd = fake_fails() ? -1 : fcntl((int)(uintptr_t)os_handle, F_DUPFD_CLOEXEC, 0);

    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    fake_count(1);
    *out = (CUmemGenericAllocationHandle_v1)fd;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI reserve(CUdeviceptr_v2 *out, size_t bytes, size_t alignment,
                                CUdeviceptr_v2 at, unsigned long long flags)
{
    void *room = fake_fails() ? MAP_FAILED
                              : mmap(NULL, bytes, PROT_NONE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (room == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    fake_count(1);
    *out = (CUdeviceptr_v2)(uintptr_t)room;
    return CUDA_SUCCESS;
}

DRIVER(address_free, (CUdeviceptr_v2 at, size_t bytes), CUDA_SUCCESS,
       munmap((void *)(uintptr_t)at, bytes);
       fake_count(-1))

static CUresult CUDAAPI map(CUdeviceptr_v2 at, size_t bytes, size_t offset,
                            CUmemGenericAllocationHandle_v1 handle, unsigned long long flags)
{
    if (fake_fails() || mmap((void *)(uintptr_t)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                             (int)handle, 0) == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    fake_count(1);
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI unmap(CUdeviceptr_v2 at, size_t bytes)
{
    if (mmap((void *)(uintptr_t)at, bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        abort();
    fake_count(-1);
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI set_access(CUdeviceptr_v2 at, size_t bytes, const CUmemAccessDesc_v1 *desc,
                                   size_t n)
{
    return fake_fails() || mprotect((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE) != 0
               ? CUDA_ERROR_INVALID_DEVICE
               : CUDA_SUCCESS;
}

enum { WAIT_NS = 20000 };

struct words {
    unsigned n;
    CUstreamBatchMemOpParams op[];
};

/* Waits without a time limit, as a GPU: the stream has no other work meanwhile. The comparison wraps
 * around. */
static void wait_for_word(const uint64_t *word, uint64_t wanted)
{
    /* Acquire: pairs with the release of a kernel. */
    while ((int64_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - wanted) < 0)
        nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL);
}

static void run_words(void *data)
{
    const struct words *w = data;

    for (unsigned i = 0; i < w->n; i++) {
        uint64_t *word = (uint64_t *)(uintptr_t)w->op[i].writeValue.address;

        if (w->op[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64)
            wait_for_word(word, w->op[i].waitValue.value64);
        else
            /* Release: pairs with the acquire load of the thread that polls the word. */
            __atomic_store_n(word, w->op[i].writeValue.value64, __ATOMIC_RELEASE);
    }
}

/* The structs of waits and of writes have the same layout. */
static bool is_word(const CUstreamBatchMemOpParams *op)
{
    return op->writeValue.address % sizeof(uint64_t) == 0 &&
           ((op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64 &&
             op->writeValue.flags == CU_STREAM_WRITE_VALUE_DEFAULT) ||
            (op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 &&
             op->waitValue.flags == CU_STREAM_WAIT_VALUE_GEQ));
}

/* Supports waits (>=) and writes of words only, at most 256, writes after a fence, as the real
 * function: its second version rejects CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER. */
static CUresult CUDAAPI batch_words(CUstream stream, unsigned n, CUstreamBatchMemOpParams *ops,
                                    unsigned flags)
{
    size_t bytes = sizeof(struct words) + n * sizeof(*ops);
    struct words *w = fake_fails() || n > 256 || flags != 0 ? NULL : malloc(bytes);
    bool ok = w != NULL;

    for (unsigned i = 0; i < n && ok; i++)
        ok = is_word(&ops[i]);
    if (ok) {
        w->n = n;
        memcpy(w->op, ops, n * sizeof(*ops));
        ok = fake_queue(stream, run_words, w, bytes) == cudaSuccess;
    }
    free(w);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#define ENTRY(name_, type_, function_) \
    if (strcmp(name, name_) == 0) { \
        type_ function = function_; \
        memcpy(out, &function, sizeof(function)); \
    }

static cudaError_t entry(const char *name, void **out, enum cudaDriverEntryPointQueryResult *result)
{
    *out = NULL;
    ENTRY("cuGetErrorString", PFN_cuGetErrorString_v6000, error_string)
    ENTRY("cuDeviceGet", PFN_cuDeviceGet_v2000, device_get)
    ENTRY("cuDeviceGetUuid", PFN_cuDeviceGetUuid_v11040, device_uuid)
    ENTRY("cuDeviceGetAttribute", PFN_cuDeviceGetAttribute_v2000, device_attribute)
    ENTRY("cuPointerGetAttribute", PFN_cuPointerGetAttribute_v4000, pointer_attribute)
    ENTRY("cuMemGetAllocationGranularity", PFN_cuMemGetAllocationGranularity_v10020, granularity)
    ENTRY("cuMemCreate", PFN_cuMemCreate_v10020, create)
    ENTRY("cuMemRelease", PFN_cuMemRelease_v10020, release)
    ENTRY("cuMemExportToShareableHandle", PFN_cuMemExportToShareableHandle_v10020, export_handle)
    ENTRY("cuMemImportFromShareableHandle", PFN_cuMemImportFromShareableHandle_v10020,
          import_handle)
    ENTRY("cuMemAddressReserve", PFN_cuMemAddressReserve_v10020, reserve)
    ENTRY("cuMemAddressFree", PFN_cuMemAddressFree_v10020, address_free)
    ENTRY("cuMemMap", PFN_cuMemMap_v10020, map)
    ENTRY("cuMemUnmap", PFN_cuMemUnmap_v10020, unmap)
    ENTRY("cuMemSetAccess", PFN_cuMemSetAccess_v10020, set_access)
    ENTRY("cuStreamBatchMemOp", PFN_cuStreamBatchMemOp_v11070, batch_words)
    ENTRY("cuTensorMapEncodeTiled", PFN_cuTensorMapEncodeTiled_v12000, fake_tensor_map)
    *result = *out != NULL && !fake_fails() ? cudaDriverEntryPointSuccess
                                            : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    return entry(name, out, result);
}
#else
cudaError_t cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result)
{
    return entry(name, out, result);
}
#endif
