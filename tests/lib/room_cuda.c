/* Memory of a CUDA device, or of the emulator. */
#include "room.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "../gpu/fake/fake_cuda.h"

static void check(cudaError_t code, const char *what)
{
    if (code == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
    _exit(3);
}

static int count_devices(void)
{
    int n = 0;

    check(cudaGetDeviceCount(&n), "cudaGetDeviceCount");
    return n;
}

bool room_is_device(void)
{
    return true;
}

/* Does not call CUDA: the ranks may be processes that fork later. */
bool room_missing(void)
{
    if (getenv("LIB_EMULATOR") != NULL || access("/dev/nvidiactl", F_OK) == 0)
        return false;
    fprintf(stderr, "SKIP: this machine has no GPU of NVIDIA\n");
    return true;
}

int32_t room_device(uint32_t rank)
{
    return (int32_t)(rank % (uint32_t)count_devices());
}

const char *room_options(void)
{
    return ", backend.share=true";
}

int room_current_device(void)
{
    int device = 0;

    check(cudaGetDevice(&device), "cudaGetDevice");
    return device;
}

const char *room_experiment(void)
{
    return "backend: {name: cuda, share: true}, transport: nvlink";
}

void *room_alloc(size_t bytes)
{
    void *p = NULL;

    check(cudaMalloc(&p, bytes + 1), "cudaMalloc");
    return p;
}

/* Copies that the rank of this thread no longer needs. */
static _Thread_local struct dropped {
    void **list;
    size_t n, room;
} dropped;

static void free_dropped(void)
{
    for (size_t i = 0; i < dropped.n; i++)
        check(cudaFree(dropped.list[i]), "cudaFree");
    free(dropped.list);
    dropped = (struct dropped){.list = NULL};
}

void room_free(void *p)
{
    check(cudaFree(p), "cudaFree");
    free_dropped();
}

void *room_stream(uint32_t rank)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
    cudaStream_t stream;

    /* Other ranks of the process may capture a graph in the global mode. */
    check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
    check(cudaSetDevice(room_device(rank)), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return stream;
}

void room_stream_end(void *stream)
{
    check(cudaStreamDestroy(stream), "cudaStreamDestroy");
    free_dropped();
}

void room_copy(void *to, const void *from, size_t bytes, void *stream)
{
    if (bytes == 0)
        return;
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void *room_put(const void *host, size_t bytes, void *stream)
{
    void *p = host != NULL ? room_alloc(bytes) : NULL;

    room_copy(p, host, host != NULL ? bytes : 0, stream);
    return p;
}

/* cudaFree() waits for all kernels of the device. If ranks are threads and share a device, one of these
 * kernels may wait for the next call of this rank. */
void room_drop(void *p)
{
    if (dropped.n == dropped.room) {
        dropped.room = 2 * dropped.room + 64;
        dropped.list = realloc(dropped.list, dropped.room * sizeof(*dropped.list));
        if (dropped.list == NULL)
            abort();
    }
    dropped.list[dropped.n++] = p;
}

/* ---- the emulator ---- */

static uint64_t allocations_before;

/* NULL: a real device. */
static struct fake_cuda *find_emulator(void)
{
    return dlsym(RTLD_DEFAULT, FAKE_CUDA_SYMBOL);
}

void room_deny(uint64_t number)
{
    struct fake_cuda *cuda = find_emulator();

    if (cuda == NULL)
        return;
    allocations_before = __atomic_load_n(&cuda->allocations, __ATOMIC_RELAXED);
    __atomic_store_n(&cuda->deny_at, allocations_before + number + 1, __ATOMIC_RELAXED);
}

void room_allow(void)
{
    struct fake_cuda *cuda = find_emulator();

    if (cuda != NULL)
        __atomic_store_n(&cuda->deny_at, 0, __ATOMIC_RELAXED);
}

uint64_t room_allocations(void)
{
    const struct fake_cuda *cuda = find_emulator();

    return cuda != NULL ? __atomic_load_n(&cuda->allocations, __ATOMIC_RELAXED) - allocations_before
                        : 0;
}

int64_t room_resources(void)
{
    const struct fake_cuda *cuda = find_emulator();

    return cuda != NULL ? __atomic_load_n(&cuda->live, __ATOMIC_RELAXED) : 0;
}
