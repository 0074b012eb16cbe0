/* Loaded into ranks before libibverbs, and in place of libcuda.so.1. Simulates a hardware NIC and a
 * GPU driver that exports GPU memory to it, over soft-RoCE and the memory of the process. FAKE_NIC
 * selects a missing feature: "driver" (the device lacks dma-buf) or "export" (the GPU lacks it).
 *
 * GPU memory is any mapping of a file, as in fake/, and each mapping is an allocation. The
 * descriptor of an exported range identifies it. */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANGES = 4096, PAGE = 4096, MELLANOX = 0x2c9 };

static struct range {
    uint64_t start, bytes, id;
} range[RANGES];
static uint64_t ids;
static int contexts;
static _Thread_local CUcontext current;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool lacks(const char *what)
{
    const char *lie = getenv("FAKE_NIC");

    return lie != NULL && strcmp(lie, what) == 0;
}

static void *real(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* ---- memory of GPUs ---- */

static void forget(uint64_t start, uint64_t bytes)
{
    for (int i = 0; i < RANGES; i++)
        if (range[i].bytes > 0 && range[i].start < start + bytes &&
            start < range[i].start + range[i].bytes)
            range[i].bytes = 0;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    void *(*next)(void *, size_t, int, int, int, off_t), *got;
    int i = 0;

    *(void **)&next = real("mmap");
    got = next(at, bytes, protection, flags, fd, offset);
    if (got == MAP_FAILED || (fd < 0 && (flags & MAP_FIXED) == 0))
        return got;
    pthread_mutex_lock(&lock);
    forget((uintptr_t)got, bytes);
    while (fd >= 0 && range[i].bytes > 0)
        if (++i == RANGES)
            abort();
    if (fd >= 0 && (flags & MAP_SHARED) != 0)
        range[i] = (struct range){.start = (uintptr_t)got, .bytes = bytes, .id = ++ids};
    pthread_mutex_unlock(&lock);
    return got;
}

int munmap(void *at, size_t bytes)
{
    int (*next)(void *, size_t);

    *(void **)&next = real("munmap");
    pthread_mutex_lock(&lock);
    forget((uintptr_t)at, bytes);
    pthread_mutex_unlock(&lock);
    return next(at, bytes);
}

static struct range range_of(uint64_t at)
{
    struct range found = {.id = 0};

    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES; i++)
        if (range[i].bytes > 0 && range[i].start <= at && at - range[i].start < range[i].bytes)
            found = range[i];
    pthread_mutex_unlock(&lock);
    return found;
}

/* ---- the driver of GPUs ---- */

CUresult cuInit(unsigned flags)
{
    return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **out)
{
    *out = error == CUDA_ERROR_INVALID_CONTEXT ? "no context" : "made up";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *out)
{
    *out = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute attribute, CUdevice device)
{
    *out = device == 0 && attribute == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED && !lacks("export");
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    *context = (CUcontext)&contexts;
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    current = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    *context = current;
    current = NULL;
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *attribute, void **value,
                                CUdeviceptr at)
{
    struct range r = range_of(at);

    for (unsigned i = 0; i < n; i++) {
        if (attribute[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
            *(unsigned *)value[i] = r.id != 0 ? CU_MEMORYTYPE_DEVICE : 0;
        else if (attribute[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)value[i] = 0;
        else if (attribute[i] == CU_POINTER_ATTRIBUTE_BUFFER_ID)
            *(uint64_t *)value[i] = r.id;
        else if (attribute[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
            *(uint64_t *)value[i] = r.start;
        else if (attribute[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
            *(uint64_t *)value[i] = r.bytes;
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* The descriptor contains the exported range. */
CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr at, size_t bytes,
                                       CUmemRangeHandleType kind, unsigned long long flags)
{
    struct range r = range_of(at), of = {.start = at, .bytes = bytes, .id = r.id};
    int fd;

    if (current == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (kind != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0 || at % PAGE != 0 ||
        bytes % PAGE != 0 || r.id == 0 || at + bytes > r.start + (r.bytes + PAGE - 1) / PAGE * PAGE)
        return CUDA_ERROR_INVALID_VALUE;
    fd = memfd_create("dma-buf", MFD_CLOEXEC);
    if (fd < 0 || write(fd, &of, sizeof(of)) != sizeof(of))
        abort();
    memcpy(out, &fd, sizeof(fd));
    return CUDA_SUCCESS;
}

/* ---- the NIC ---- */

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *out)
{
    int (*next)(struct ibv_context *, struct ibv_device_attr *), error;

    *(void **)&next = real("ibv_query_device");
    error = next(context, out);
    out->vendor_id = MELLANOX;
    return error;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t iova,
                                 int fd, int access)
{
    struct range of;

    if (lacks("driver") || pread(fd, &of, sizeof(of), 0) != sizeof(of)) {
        errno = lacks("driver") ? EOPNOTSUPP : EBADF;
        return NULL;
    }
    if (iova != of.start + offset || offset + bytes > of.bytes || range_of(of.start).id != of.id) {
        errno = EINVAL;
        return NULL;
    }
    return ibv_reg_mr(pd, (void *)(uintptr_t)iova, bytes, (unsigned)access);
}
