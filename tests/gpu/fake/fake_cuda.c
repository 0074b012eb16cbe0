/* The CUDA runtime as the nvlink transport uses it, in host memory: GPUs whose memory is
 * memfds, streams that have done everything when a call returns. What is freed twice ends
 * the test. */
#include "fake_cuda.h"

#include <cuda_runtime_api.h>
#include <epa2a/plugin.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GPUS = 4, MOST = 256 };

EPA_PLUGIN_EXPORT struct fake_cuda fake_cuda = {.unreachable = -1};

/* What cudaMalloc and cudaIpcOpenMemHandle gave. */
struct block {
    void *at;
    size_t bytes;
    int fd;
};

static struct {
    pthread_mutex_t lock;
    struct block block[MOST];
} blocks = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool fake_fails(void)
{
    uint64_t call = __atomic_add_fetch(&fake_cuda.calls, 1, __ATOMIC_RELAXED);

    return call == __atomic_load_n(&fake_cuda.fail_at, __ATOMIC_RELAXED);
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

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return fake_fails() || device >= GPUS ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *out)
{
    *out = GPUS;
    return fake_fails() ? cudaErrorInitializationError : cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int device)
{
    snprintf(out, (size_t)bytes, "0000:%02x:00.0", 0x10 + device);
    return fake_fails() ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *out, int device, int peer)
{
    *out = device != fake_cuda.unreachable && peer != fake_cuda.unreachable;
    return fake_fails() ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t cudaDeviceGetP2PAttribute(int *out, enum cudaDeviceP2PAttr attribute,
                                      int device, int peer)
{
    (void)device;
    (void)peer;
    *out = attribute == cudaDevP2PAttrNativeAtomicSupported;
    return fake_fails() ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)peer;
    (void)flags;
    return fake_fails() ? cudaErrorInvalidDevice : cudaErrorPeerAccessAlreadyEnabled;
}

static cudaError_t make_thing(void **out)
{
    if (fake_fails())
        return cudaErrorUnknown;
    *out = malloc(1);
    fake_count(1);
    return cudaSuccess;
}

static cudaError_t drop_thing(void *thing)
{
    free(thing);
    fake_count(-1);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    return make_thing((void **)out);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return drop_thing(stream);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    (void)stream;
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return make_thing((void **)out);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return drop_thing(event);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    (void)event;
    (void)stream;
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    (void)from;
    (void)to;
    *ms = 1;
    return fake_fails() ? cudaErrorUnknown : cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    if (fake_fails())
        return cudaErrorMemoryAllocation;
    *out = malloc(bytes);
    fake_count(1);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    return drop_thing(memory);
}

/* A word is copied as one, as a GPU would: somebody else polls it or writes it. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    (void)stream;
    if (fake_fails())
        return cudaErrorUnknown;
    if (bytes == 8 && (uintptr_t)to % 8 == 0 && (uintptr_t)from % 8 == 0)
        __atomic_store_n((uint64_t *)to,
                         __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE),
                         __ATOMIC_RELEASE);
    else
        memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    (void)stream;
    if (fake_fails())
        return cudaErrorUnknown;
    memset(to, byte, bytes);
    return cudaSuccess;
}

/* ---- cudaMalloc and IPC ---- */

static void *map_block(int fd, size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (at == MAP_FAILED) {
        close(fd);
        return NULL;
    }
    pthread_mutex_lock(&blocks.lock);
    for (int i = 0; i < MOST; i++) {
        if (blocks.block[i].at != NULL)
            continue;
        blocks.block[i] = (struct block){at, bytes, fd};
        break;
    }
    pthread_mutex_unlock(&blocks.lock);
    fake_count(1);
    return at;
}

static struct block take_block(const void *at)
{
    struct block found = {NULL, 0, -1};

    pthread_mutex_lock(&blocks.lock);
    for (int i = 0; i < MOST && found.at == NULL; i++) {
        if (blocks.block[i].at != at)
            continue;
        found = blocks.block[i];
        blocks.block[i].at = NULL;
    }
    pthread_mutex_unlock(&blocks.lock);
    return found;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    int fd = fake_fails() ? -1 : fake_file(bytes);

    *out = fd < 0 ? NULL : map_block(fd, bytes);
    return *out == NULL ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFree(void *at)
{
    struct block block = take_block(at);

    if (block.at == NULL)
        abort(); /* twice, or what nobody allocated */
    munmap(block.at, block.bytes);
    close(block.fd);
    fake_count(-1);
    return cudaSuccess;
}

struct ipc {
    int pid, fd;
    size_t bytes;
};

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *at)
{
    struct ipc ipc = {.pid = getpid(), .fd = -1};

    pthread_mutex_lock(&blocks.lock);
    for (int i = 0; i < MOST; i++) {
        if (blocks.block[i].at == at) {
            ipc.fd = blocks.block[i].fd;
            ipc.bytes = blocks.block[i].bytes;
        }
    }
    pthread_mutex_unlock(&blocks.lock);
    memset(out, 0, sizeof(*out));
    memcpy(out, &ipc, sizeof(ipc));
    return fake_fails() || ipc.fd < 0 ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags)
{
    struct ipc ipc;
    char path[64];
    int fd;

    (void)flags;
    memcpy(&ipc, &handle, sizeof(ipc));
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", ipc.pid, ipc.fd);
    if (ipc.pid == getpid()) /* as the real one */
        return cudaErrorDeviceUninitialized;
    fd = fake_fails() ? -1 : open(path, O_RDWR | O_CLOEXEC);
    *out = fd < 0 ? NULL : map_block(fd, ipc.bytes);
    return *out == NULL ? cudaErrorMapBufferObjectFailed : cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *at)
{
    return cudaFree(at);
}
