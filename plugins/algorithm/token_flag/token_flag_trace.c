/* The phases of token_flag on GPUs, by name. */
#include "token_flag_trace.h"

#include "device/stamps.h"

static const char *const phase_name[TF_STAGES * TF_PHASES] = {
    [TF_DISPATCH_SEND * TF_PHASES + TF_COUNTING] = "dispatch_send, counts",
    [TF_DISPATCH_SEND * TF_PHASES + TF_SENDING] = "dispatch_send, send",
    [TF_DISPATCH_SEND * TF_PHASES + TF_AWAITING] = "dispatch_send, wait",
    [TF_DISPATCH_SEND * TF_PHASES + TF_RECEIVING] = "dispatch_send, receive",
    [TF_DISPATCH_RECV * TF_PHASES + TF_COUNTING] = "dispatch_recv, counts",
    [TF_DISPATCH_RECV * TF_PHASES + TF_SENDING] = "dispatch_recv, send",
    [TF_DISPATCH_RECV * TF_PHASES + TF_AWAITING] = "dispatch_recv, wait",
    [TF_DISPATCH_RECV * TF_PHASES + TF_RECEIVING] = "dispatch_recv, receive",
    [TF_COMBINE_SEND * TF_PHASES + TF_COUNTING] = "combine_send, counts",
    [TF_COMBINE_SEND * TF_PHASES + TF_SENDING] = "combine_send, send",
    [TF_COMBINE_SEND * TF_PHASES + TF_AWAITING] = "combine_send, wait",
    [TF_COMBINE_SEND * TF_PHASES + TF_RECEIVING] = "combine_send, receive",
    [TF_COMBINE_RECV * TF_PHASES + TF_COUNTING] = "combine_recv, counts",
    [TF_COMBINE_RECV * TF_PHASES + TF_SENDING] = "combine_recv, send",
    [TF_COMBINE_RECV * TF_PHASES + TF_AWAITING] = "combine_recv, wait",
    [TF_COMBINE_RECV * TF_PHASES + TF_RECEIVING] = "combine_recv, receive",
};

void tf_trace_write(const char *file, uint32_t rank, struct epa_backend *backend,
                    const struct tf_stamps *stamps, uint32_t warps)
{
    struct stamps s = {.who = "token_flag",
                       .phase = phase_name,
                       .phases = TF_STAGES * TF_PHASES,
                       .warps = warps,
                       .block_warps = TF_WARPS,
                       .at = (const uint64_t *)stamps};

    stamps_write(&s, file, rank, backend);
}
