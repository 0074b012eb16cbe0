/* The CUDA runtime for our plugins, in host memory: the memory of a GPU is a memfd. A double free
 * ends the test. fake_stream.c contains streams, ../simt kernels. */
#include "fake_cuda.h"
#include "fake_traffic.h"

#include <epa2a/plugin.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../simt/asan.h"

enum {
    GPUS = 4,    /* or FAKE_GPUS of the environment, if smaller */
    MOST = 1024, /* maximum of memory blocks */
    L2_BYTES = 64 << 10,
    GARBAGE = 0xa5, /* initial contents of memory */
    PAGE = 4096,
    GUARD = 256
};

/* current device of the thread, as in CUDA */
static _Thread_local int here;
static _Thread_local bool chosen;
static _Thread_local cudaError_t last_error;

EPA_PLUGIN_EXPORT struct fake_cuda fake_cuda = {.unreachable = -1};

/* An allocation; allocations do not overlap. */
struct block {
    char *at; /* NULL: unused */
    size_t bytes;
    int fd;
};
struct table {
    pthread_mutex_t lock;
    struct block block[MOST];
};
/* memory from cudaMalloc and IPC */
static struct table blocks = {.lock = PTHREAD_MUTEX_INITIALIZER};
static struct table pinned = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool table_add(struct table *t, struct block b)
{
    struct block *empty = NULL;
    bool apart = true;

    pthread_mutex_lock(&t->lock);
    for (struct block *p = t->block; p < t->block + MOST; p++) {
        if (p->at == NULL)
            empty = p;
        else
            apart = apart && (b.at >= p->at + p->bytes || p->at >= b.at + b.bytes);
    }
    if (apart && empty != NULL)
        *empty = b;
    pthread_mutex_unlock(&t->lock);
    fake_count(apart && empty != NULL);
    return apart && empty != NULL;
}

/* Finds the block at `at`, and removes it from the table if `take` is set. */
static struct block table_find(struct table *t, const void *at, bool take)
{
    struct block found = {NULL, 0, -1};

    pthread_mutex_lock(&t->lock);
    for (struct block *p = t->block; p < t->block + MOST; p++) {
        if (at == NULL || p->at != at)
            continue;
        found = *p;
        p->at = take ? NULL : p->at;
    }
    pthread_mutex_unlock(&t->lock);
    fake_count(take && found.at != NULL ? -1 : 0);
    return found;
}

bool fake_fails(void)
{
    uint64_t call = __atomic_add_fetch(&fake_cuda.calls, 1, __ATOMIC_RELAXED);

    return call == __atomic_load_n(&fake_cuda.fail_at, __ATOMIC_RELAXED);
}

bool fake_denies(void)
{
    uint64_t allocation = __atomic_add_fetch(&fake_cuda.allocations, 1, __ATOMIC_RELAXED);
    bool fails = fake_fails();

    return fails || allocation == __atomic_load_n(&fake_cuda.deny_at, __ATOMIC_RELAXED);
}

void fake_count(int by)
{
    __atomic_add_fetch(&fake_cuda.live, by, __ATOMIC_RELAXED);
}

int fake_file(size_t bytes)
{
    int fd = memfd_create("fake-gpu", MFD_CLOEXEC);

    if (fd >= 0 && bytes <= (size_t)1 << 40 && ftruncate(fd, (off_t)bytes) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory" : "made up";
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorUnknown";
}

/* A launch by <<<>>> reports failures only through cudaGetLastError(). */
void fake_last_error(cudaError_t error)
{
    last_error = error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaSetDevice(int number)
{
    if (chosen && number == here)
        return cudaSuccess; /* cannot fail */
    if (fake_fails() || number >= GPUS)
        return cudaErrorInvalidDevice;
    here = number;
    chosen = true;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr which, int number)
{
    const int value[] = {
        [cudaDevAttrMultiProcessorCount] = (int)fake_multiprocessors(),
        [cudaDevAttrL2CacheSize] = L2_BYTES,
        [cudaDevAttrComputeCapabilityMajor] = 9,
        [cudaDevAttrComputeMode] = cudaComputeModeDefault,
        [cudaDevAttrMaxSharedMemoryPerBlockOptin] = FAKE_SHARED_BYTES,
        [cudaDevAttrMaxSharedMemoryPerMultiprocessor] = FAKE_SHARED_OF_ALL,
        [cudaDevAttrMaxThreadsPerMultiProcessor] = FAKE_THREADS,
        [cudaDevAttrClockRate] = 1000000,
    };

    *out = (size_t)which < sizeof(value) / sizeof(value[0]) ? value[which] : 0;
    return fake_fails() || number >= GPUS ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int number)
{
    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "made-up GPU");
    out->major = 9;
    out->multiProcessorCount = (int)fake_multiprocessors();
    out->totalGlobalMem = (size_t)1 << 30;
    out->l2CacheSize = L2_BYTES;
    return fake_fails() || number >= GPUS ? cudaErrorInvalidDevice : cudaSuccess;
}

FAKE_SAFE(cudaGetDevice, (int *out), *out = here)
FAKE_SAFE(cudaDriverGetVersion, (int *out), *out = CUDART_VERSION)
FAKE_SAFE(cudaRuntimeGetVersion, (int *out), *out = CUDART_VERSION)
FAKE_SAFE(cudaMemGetInfo, (size_t * available, size_t *all), *available = *all = (size_t)1 << 30)
FAKE(cudaGetDeviceCount, (int *out), cudaErrorInitializationError,
     const char *fewer = getenv("FAKE_GPUS");
     *out = fewer != NULL ? atoi(fewer) : GPUS)
FAKE(cudaDeviceGetPCIBusId, (char *out, int bytes, int device), cudaErrorInvalidDevice,
     snprintf(out, (size_t)bytes, "0000:%02x:00.0", 0x10 + device))
FAKE(cudaDeviceCanAccessPeer, (int *out, int device, int peer), cudaErrorInvalidDevice,
     *out = device != fake_cuda.unreachable && peer != fake_cuda.unreachable)
FAKE(cudaDeviceGetP2PAttribute, (int *out, enum cudaDeviceP2PAttr attribute, int device, int peer),
     cudaErrorInvalidDevice, *out = attribute == cudaDevP2PAttrNativeAtomicSupported)
FAKE(cudaHostGetDevicePointer, (void **out, void *memory, unsigned flags), cudaErrorInvalidValue,
     *out = memory)

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    return fake_fails() ? cudaErrorInvalidDevice : cudaErrorPeerAccessAlreadyEnabled;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    if (fake_denies())
        return cudaErrorMemoryAllocation;
    *out = malloc(bytes);
    fake_count(1);
    return cudaSuccess;
}

FAKE_SAFE(cudaFreeHost, (void *memory), fake_count(memory != NULL ? -1 : 0); free(memory))

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    if (fake_fails())
        return cudaErrorMemoryAllocation;
    return table_add(&pinned, (struct block){memory, bytes, -1})
               ? cudaSuccess
               : cudaErrorHostMemoryAlreadyRegistered;
}

cudaError_t cudaHostUnregister(void *memory)
{
    return table_find(&pinned, memory, true).at != NULL ? cudaSuccess
                                                        : cudaErrorHostMemoryNotRegistered;
}

/* ---- cudaMalloc and IPC ---- */

/* Each mapping has a guard area behind its last byte, which AddressSanitizer poisons. */
static size_t mapped_bytes(size_t bytes)
{
    return (bytes + GUARD + PAGE - 1) / PAGE * PAGE;
}

static void *map_block(int fd, size_t bytes)
{
    void *at = mmap(NULL, mapped_bytes(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED) {
        close(fd);
        return NULL;
    }
    SIMT_POISON((char *)at + bytes, mapped_bytes(bytes) - bytes);
    if (!table_add(&blocks, (struct block){at, bytes, fd}))
        abort();
    return at;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    int fd = -1;

    *out = NULL;
    if (fake_recording_forbids())
        return cudaErrorStreamCaptureUnsupported;
    fd = fake_denies() ? -1 : fake_file(mapped_bytes(bytes));

    *out = fd < 0 ? NULL : map_block(fd, bytes);
    if (*out == NULL)
        return cudaErrorMemoryAllocation;
    memset(*out, GARBAGE, bytes);
    return cudaSuccess;
}

/* Waits for running kernels of the device first, as CUDA does. */
cudaError_t cudaFree(void *at)
{
    struct block block;

    if (at == NULL)
        return fake_fails() ? cudaErrorUnknown : cudaSuccess;
    (void)cudaDeviceSynchronize();
    block = table_find(&blocks, at, true);
    if (block.at == NULL)
        abort(); /* double free or unknown pointer */
    SIMT_UNPOISON(block.at, mapped_bytes(block.bytes));
    munmap(block.at, mapped_bytes(block.bytes));
    close(block.fd);
    return cudaSuccess;
}

/* All memory has the current device of the thread, since the table does not record devices. */
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *at)
{
    bool known = table_find(&blocks, at, false).at != NULL;

    *out = (struct cudaPointerAttributes){.type = known ? cudaMemoryTypeDevice
                                                        : cudaMemoryTypeUnregistered,
                                          .device = known ? here : -2};
    return fake_fails() ? cudaErrorInvalidValue : cudaSuccess;
}

struct ipc {
    int pid, fd;
    size_t bytes;
};

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *at)
{
    struct block block = table_find(&blocks, at, false);
    struct ipc ipc = {getpid(), block.fd, block.bytes};

    memset(out, 0, sizeof(*out));
    memcpy(out, &ipc, sizeof(ipc));
    return fake_fails() || ipc.fd < 0 ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags)
{
    struct ipc ipc;
    char path[64];
    int fd;

    memcpy(&ipc, &handle, sizeof(ipc));
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", ipc.pid, ipc.fd);
    if (ipc.pid == getpid()) /* as the real driver */
        return cudaErrorDeviceUninitialized;
    fd = fake_fails() ? -1 : open(path, O_RDWR | O_CLOEXEC);
    *out = fd < 0 ? NULL : map_block(fd, ipc.bytes);
    return *out == NULL ? cudaErrorMapBufferObjectFailed : cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *at)
{
    return cudaFree(at);
}

/* ---- copies and fills: queued like other work, executed by the thread of the stream ---- */

struct copy {
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, bytes, rows;
    struct kernel_traffic *traffic;
};

/* An aligned word is copied at once, as on a GPU: other threads poll or write it. */
static void run_copy(void *data)
{
    const struct copy *c = data;

    for (size_t row = 0; row < c->rows; row++) {
        char *to = c->to + row * c->to_pitch;
        const char *from = c->from + row * c->from_pitch;

        fake_traffic_add(c->traffic, to, c->bytes, FAKE_COPY);
        fake_traffic_add(c->traffic, from, c->bytes, FAKE_LOAD);
        if (c->bytes == 8 && (uintptr_t)to % 8 == 0 && (uintptr_t)from % 8 == 0)
            __atomic_store_n(
                (uint64_t *)(void *)to,
                __atomic_load_n((const uint64_t *)(const void *)from, __ATOMIC_ACQUIRE),
                __ATOMIC_RELEASE);
        else
            memcpy(to, from, c->bytes);
    }
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    struct copy c = {.to = to,
                     .from = from,
                     .bytes = bytes,
                     .rows = 1,
                     .traffic = fake_traffic_of_stream(stream)};

    return fake_fails() ? cudaErrorUnknown : fake_queue(stream, run_copy, &c, sizeof(c));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t bytes, size_t rows, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    struct copy c = {to, from, to_pitch, from_pitch, bytes, rows, fake_traffic_of_stream(stream)};

    return fake_fails() ? cudaErrorUnknown : fake_queue(stream, run_copy, &c, sizeof(c));
}

/* Without a stream the copy is immediate. */
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}

struct fill {
    void *to;
    int byte;
    size_t bytes;
};

static void run_fill(void *data)
{
    const struct fill *f = data;

    memset(f->to, f->byte, f->bytes);
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    struct fill f = {to, byte, bytes};

    return fake_fails() ? cudaErrorUnknown : fake_queue(stream, run_fill, &f, sizeof(f));
}

cudaError_t cudaMemset(void *to, int byte, size_t bytes)
{
    return cudaMemsetAsync(to, byte, bytes, NULL);
}
