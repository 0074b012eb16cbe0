/* The phases of ll_v2 on GPUs, by name. */
#include "ll_v2_trace.h"

#include "device/stamps.h"

static const char *const phase_name[LL_PHASES] = {
    [LL_QUANT_AND_PUT] = "quant_and_put",
    [LL_COUNT_PUT] = "count_put",
    [LL_WAIT] = "wait",
    [LL_POSTPROCESS] = "postprocess",
    [LL_COPY_AND_PUT] = "copy_and_put",
    [LL_RECV_WAIT] = "recv_wait",
    [LL_TOPK_REDUCE] = "topk_reduce",
};

void ll_trace_write(const char *file, uint32_t rank, struct epa_backend *backend,
                    const struct ll_stamps *stamps, uint32_t warps)
{
    struct stamps s = {.who = "ll_v2",
                       .phase = phase_name,
                       .phases = LL_PHASES,
                       .warps = warps,
                       .block_warps = LL_WARPS,
                       .at = (const uint64_t *)stamps};

    stamps_write(&s, file, rank, backend);
}
