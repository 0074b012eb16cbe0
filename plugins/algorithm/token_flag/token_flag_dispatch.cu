/* Dispatch on GPUs, a kernel for each half. dispatch_send: blocks give each choice of their
 * tokens the next row of this rank's part of the receiver's buffer, and store it there; with
 * flag_granularity: token the first blocks count for the receivers meanwhile, with flag_granularity: rank the last
 * block that is done tells what was sent. dispatch_recv: warps copy what came to rows by
 * expert. With chunks some of the blocks of dispatch_send do so already. */
#include "token_flag_receive.cuh"

/* Of the block: tables by expert first, then a message, or a part of one for each warp. */
extern __shared__ __align__(16) uint32_t shared[];

static __device__ __forceinline__ char *payload_of(const struct tf_args &a)
{
    return reinterpret_cast<char *>(shared) + a.payload;
}

/* counter_reset: inline: the counters of the half before, which has ended. */
static __device__ __forceinline__ void clear_counters(const struct tf_args &a)
{
    uint32_t i = blockIdx.x * TF_THREADS + threadIdx.x;

    if (i == 0)
        a.counters->arrived = 0;
    if (i < a.v.size)
        a.counters->sent[i] = 0;
    for (; i < a.experts; i += gridDim.x * TF_THREADS)
        a.counters->chosen[i] = 0;
}

template <int IN, bool F16, bool PROFILE>
static __device__ __forceinline__ void send(const struct tf_args &a, uint64_t epoch)
{
    /* Who counts comes last to the tokens. */
    uint32_t block = (blockIdx.x + a.senders - a.publishers) % a.senders;

    if (blockIdx.x < a.publishers) {
        tf_stamp<PROFILE>(a, TF_COUNTING, false);
        tf_publish(a, epoch, shared);
        tf_stamp<PROFILE>(a, TF_COUNTING, true);
    }
    tf_stamp<PROFILE>(a, TF_SENDING, false);
    tf_send<IN, F16>(a, epoch, block, a.senders, shared, payload_of(a));
    if (!a.by_token)
        tf_signal_when_all_sent(a, epoch);
    tf_stamp<PROFILE>(a, TF_SENDING, true);
}

template <int IN, bool F16, bool PROFILE>
static __global__ void __launch_bounds__(TF_THREADS, 4)
    dispatch_send(const __grid_constant__ struct tf_args a)
{
    uint64_t epoch = tf_begin(a, false);
    bool alone = gridDim.x == a.senders; /* nobody else receives */

    tf_stamps_clear<PROFILE>(a);
    if (blockIdx.x < a.senders)
        send<IN, F16, PROFILE>(a, epoch);
    __syncthreads(); /* shared memory is used anew */
    if (a.chunks > 1 && (alone || blockIdx.x >= a.senders))
        tf_receive<PROFILE>(a, epoch, alone ? blockIdx.x : blockIdx.x - a.senders,
                            alone ? gridDim.x : gridDim.x - a.senders, shared,
                            payload_of(a));
}

template <bool PROFILE>
static __global__ void __launch_bounds__(TF_THREADS, 4)
    dispatch_recv(const __grid_constant__ struct tf_args a)
{
    uint64_t epoch = tf_begin(a, true);

    tf_stamps_clear<PROFILE>(a);
    tf_receive<PROFILE>(a, epoch, blockIdx.x, gridDim.x, shared, payload_of(a));
    tf_end(a, epoch);
    if (a.folded)
        clear_counters(a);
}

#define KERNELS(in, f16) \
    { \
        (const void *)dispatch_send<in, f16, false>, \
            (const void *)dispatch_send<in, f16, true> \
    }

const void *tf_dispatch_send_kernel(enum tf_input in, bool f16, bool profile)
{
    /* What is only copied is the same in either type. */
    static const void *const kernel[TF_INPUTS][2][2] = {
        {KERNELS(TF_IN_DTYPE, false), KERNELS(TF_IN_DTYPE, false)},
        {KERNELS(TF_IN_QUANTISE, false), KERNELS(TF_IN_QUANTISE, true)},
        {KERNELS(TF_IN_FP8, false), KERNELS(TF_IN_FP8, false)}};

    return kernel[in][f16][profile];
}

const void *tf_dispatch_recv_kernel(bool profile)
{
    return profile ? (const void *)dispatch_recv<true> : (const void *)dispatch_recv<false>;
}
