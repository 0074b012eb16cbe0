/* A CUDA stream beside the main stream of a call: its work begins with the call, and the main stream
 * waits for its end. All functions may be part of a graph. */
#ifndef SIDE_STREAM_H
#define SIDE_STREAM_H

#include <stdint.h>

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

struct side_stream {
    cudaStream_t stream; /* NULL: none; the functions below then do nothing */
    cudaEvent_t begun, ended;
    PFN_cuStreamBatchMemOp_v11070 batch_words; /* NULL: the stream does not wait for words */
};

/* Streams of one priority may share a hardware queue, in which work waits for the work before it, of
 * another stream, too. Streams whose work waits for each other have different levels. Proxies of
 * transports have the highest priority. */
enum side_stream_level {
    SIDE_STREAM_PLAIN, /* priority of the main stream */
    SIDE_STREAM_TAKES, /* the stream waits for words of kernels, by side_stream_take() */
    SIDE_STREAM_PUTS   /* kernels of the main stream, of other ranks, too, wait for its kernels */
};

cudaError_t side_stream_open(enum side_stream_level, struct side_stream *out);
/* Accepts a partly opened stream. */
void side_stream_close(struct side_stream *);

/* Work queued later follows the work that the main stream has now. */
cudaError_t side_stream_begin(const struct side_stream *, cudaStream_t main);
cudaError_t side_stream_end(const struct side_stream *);
/* The main stream waits for the work before side_stream_end(). */
cudaError_t side_stream_join(const struct side_stream *, cudaStream_t main);

/* Queues a wait until *word is 1, then sets it to 0, without a multiprocessor. The wait has no time
 * limit: a kernel of the same call sets the word in any case, also after a failure. */
cudaError_t side_stream_take(const struct side_stream *, uint64_t *word);

#endif
