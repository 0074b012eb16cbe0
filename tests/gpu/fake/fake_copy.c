/* Copies and fills of the made-up CUDA: queued as all else, done by the thread of the stream. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <string.h>

#include "fake_cuda.h"

struct copy {
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, bytes, rows;
};

/* A word is copied as one, as a GPU would: somebody else polls it or writes it. */
static void run_copy(void *data)
{
    const struct copy *c = data;

    for (size_t row = 0; row < c->rows; row++) {
        char *to = c->to + row * c->to_pitch;
        const char *from = c->from + row * c->from_pitch;

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
    struct copy c = {.to = to, .from = from, .bytes = bytes, .rows = 1};

    return fake_fails() ? cudaErrorUnknown : fake_queue(stream, run_copy, &c, sizeof(c));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t bytes, size_t rows, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    struct copy c = {to, from, to_pitch, from_pitch, bytes, rows};

    return fake_fails() ? cudaErrorUnknown : fake_queue(stream, run_copy, &c, sizeof(c));
}

/* Of the stream that is none: at once. */
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
