/* Implements side_stream.h. */
#include "side_stream.h"

#include <string.h>

/* Version of the driver's interface. */
enum { VERSION = 12000 };

static cudaError_t find_batch_words(struct side_stream *out)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *entry = NULL;
    cudaError_t code = cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &entry, VERSION,
                                                        cudaEnableDefault, &found);

    if (code == cudaSuccess && (found != cudaDriverEntryPointSuccess || entry == NULL))
        code = cudaErrorNotSupported;
    if (code == cudaSuccess)
        memcpy(&out->batch_words, &entry, sizeof(entry));
    return code;
}

cudaError_t side_stream_open(enum side_stream_level level, struct side_stream *out)
{
    int least = 0, greatest = 0, priority;
    cudaError_t code = cudaDeviceGetStreamPriorityRange(&least, &greatest);

    /* A lower number is a higher priority. A device with few priorities limits it. */
    priority = least - (int)level > greatest ? least - (int)level : greatest;
    if (code == cudaSuccess)
        code = cudaStreamCreateWithPriority(&out->stream, cudaStreamNonBlocking, priority);
    if (code == cudaSuccess)
        code = cudaEventCreateWithFlags(&out->begun, cudaEventDisableTiming);
    if (code == cudaSuccess)
        code = cudaEventCreateWithFlags(&out->ended, cudaEventDisableTiming);
    return code == cudaSuccess && level == SIDE_STREAM_TAKES ? find_batch_words(out) : code;
}

void side_stream_close(struct side_stream *s)
{
    if (s->begun != NULL)
        (void)cudaEventDestroy(s->begun);
    if (s->ended != NULL)
        (void)cudaEventDestroy(s->ended);
    if (s->stream != NULL)
        (void)cudaStreamDestroy(s->stream);
    *s = (struct side_stream){.stream = NULL};
}

cudaError_t side_stream_begin(const struct side_stream *s, cudaStream_t main)
{
    cudaError_t code = s->stream != NULL ? cudaEventRecord(s->begun, main) : cudaSuccess;

    return code == cudaSuccess && s->stream != NULL ? cudaStreamWaitEvent(s->stream, s->begun, 0)
                                                    : code;
}

cudaError_t side_stream_end(const struct side_stream *s)
{
    return s->stream != NULL ? cudaEventRecord(s->ended, s->stream) : cudaSuccess;
}

cudaError_t side_stream_join(const struct side_stream *s, cudaStream_t main)
{
    return s->stream != NULL ? cudaStreamWaitEvent(main, s->ended, 0) : cudaSuccess;
}

cudaError_t side_stream_take(const struct side_stream *s, uint64_t *word)
{
    CUstreamBatchMemOpParams op[2];

    memset(op, 0, sizeof(op));
    op[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    op[0].waitValue.address = (CUdeviceptr)(uintptr_t)word;
    op[0].waitValue.value64 = 1;
    op[0].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    op[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    op[1].writeValue.address = (CUdeviceptr)(uintptr_t)word;
    op[1].writeValue.value64 = 0;
    op[1].writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    /* Codes of the driver have the same numbers in the runtime. */
    return (cudaError_t)s->batch_words(s->stream, 2, op, 0);
}
