/* The phases of ll_v1 on GPUs, by name. */
#include "ll_v1_trace.h"

#include "device/stamps.h"

static const char *const phase_name[V1_PHASES] = {
    [V1_SORT] = "sort",
    [V1_QUANTISE_AND_SEND] = "quantise_and_send",
    [V1_WAIT] = "wait",
    [V1_POSTPROCESS] = "postprocess",
    [V1_SEND_OUTPUTS] = "send_answers",
    [V1_WAIT_OUTPUTS] = "wait_answers",
    [V1_REDUCE] = "reduce",
};

void v1_trace_write(const char *file, uint32_t rank, struct epa_backend *backend,
                    const struct v1_stamps *stamps, uint32_t warps)
{
    struct stamps s = {.who = "ll_v1",
                       .phase = phase_name,
                       .phases = V1_PHASES,
                       .warps = warps,
                       .block_warps = V1_WARPS,
                       .at = (const uint64_t *)stamps};

    stamps_write(&s, file, rank, backend);
}
