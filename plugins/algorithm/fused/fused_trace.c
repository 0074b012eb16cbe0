/* Implements fused_trace.h. */
#include "fused_trace.h"

#include <epa2a/trace_kernel.h>

#include <stdbool.h>
#include <stdlib.h>

#include "../../common/device_stamps.h"

static const char *const names[][FUSED_INTERVALS] = {
    {[FUSED_NOTE_WAIT] = "up, wait", [FUSED_NOTE_TILE] = "up"},
    {[FUSED_NOTE_WAIT] = "down, wait", [FUSED_NOTE_TILE] = "down"},
};

/* Phases of a warp have the first DEVICE_PHASES of its lanes. */
enum { WARP_LANES = DEVICE_STAGES * DEVICE_PHASES };

/* Adds interval `i`. */
static void add_interval(struct epa_trace *trace, const struct fused_args *a,
                         const struct fused_note *n, uint64_t i,
                         const struct device_reading *reading, uint32_t block_warps)
{
    uint32_t tile = (uint32_t)(i / FUSED_INTERVALS % (a->up_tiles + a->down_tiles));
    uint32_t of = (uint32_t)(i % FUSED_INTERVALS), down = tile >= a->up_tiles;
    uint32_t columns = !down && a->swiglu ? GEMM_BOX : FUSED_COLUMNS;
    uint32_t column = (down ? tile - a->up_tiles : tile) * columns;

    epa_trace_add_beside(
        &trace->beside[EPA_TRACE_KERNELS],
        &(struct epa_trace_event){
            .begin_ns = n->begin - reading->ahead,
            .end_ns = n->end - reading->ahead,
            .bytes = epa_trace_tile(reading->error_ns, n->expert, n->rows),
            .value = epa_trace_place(n->warp / block_warps, n->warp % block_warps,
                                     EPA_TRACE_EXPERT + column),
            .tokens = n->row + 1,
            .peer = EPA_TRACE_NOBODY,
            .signal = n->warp * WARP_LANES + DEVICE_PHASES + down * FUSED_INTERVALS + of,
            .name = epa_trace_name(trace, names[down][of]),
            .kind = EPA_TRACE_SLICE,
        });
}

enum epa_status fused_trace_tiles(struct epa_backend *b, struct epa_trace *trace,
                                  const struct fused_args *a, uint32_t block_warps)
{
    uint64_t n = fused_intervals(a->blocks, a->up_tiles, a->down_tiles);
    const struct device_records records = {.at = a->notes,
                                           .n = n,
                                           .bytes = sizeof(*a->notes),
                                           .end_at = offsetof(struct fused_note, end),
                                           .call_at = offsetof(struct fused_note, call)};
    struct device_reading reading;
    enum epa_status status = device_read_records(b, &records, &reading);
    const struct fused_note *note = reading.record;

    for (uint64_t i = 0; i < n && status == EPA_OK; i++)
        if (note[i].end != 0 && note[i].call == reading.last_call)
            add_interval(trace, a, &note[i], i, &reading, block_warps);
    free(reading.record);
    return status;
}
