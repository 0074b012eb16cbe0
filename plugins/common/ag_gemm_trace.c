/* Implements ag_gemm_trace.h. */
#include "ag_gemm_trace.h"

#include <epa2a/trace_kernel.h>

#include <stdlib.h>

#include "device_stamps.h"

static const char *const names[AG_GEMM_INTERVALS] = {
    [AG_GEMM_CHOOSE] = "panel, wait",     [AG_GEMM_AWAIT] = "tile, wait", [AG_GEMM_TILE] = "tile",
    [AG_GEMM_AWAIT_CHUNK] = "copy, wait", [AG_GEMM_COPY] = "copy",
};

uint64_t ag_gemm_trace_notes(const struct ag_gemm_args *a, uint32_t blocks)
{
    uint32_t movers = a->comm_blocks != 0 ? a->comm_blocks * AG_GEMM_MOVERS : blocks;

    return ag_gemm_copy_note(a, movers, 0);
}

/* Adds the intervals from `first` to `end` - 1 of the last call. */
static void add_notes(struct epa_trace *trace, const struct ag_gemm_args *a,
                      const struct device_reading *reading, uint64_t first, uint64_t end)
{
    const struct ag_gemm_note *note = reading->record;
    uint64_t copies = ag_gemm_copy_note(a, 0, 0);
    uint16_t number[AG_GEMM_INTERVALS];

    for (int k = 0; k < AG_GEMM_INTERVALS; k++)
        number[k] = epa_trace_name(trace, names[k]);
    for (uint64_t i = first; i < end; i++) {
        const struct ag_gemm_note *n = &note[i];
        bool tile = i < copies;
        uint32_t of = (uint32_t)(tile ? i % AG_GEMM_TILE_NOTES
                                      : AG_GEMM_TILE_NOTES + (i - copies) % AG_GEMM_COPY_NOTES);

        if (n->end == 0 || n->call != reading->last_call)
            continue;
        epa_trace_add_beside(
            &trace->beside[EPA_TRACE_KERNELS],
            &(struct epa_trace_event){
                .begin_ns = n->end - n->took_ns - reading->ahead,
                .end_ns = n->end - reading->ahead,
                .bytes = reading->error_ns,
                .value = epa_trace_place(n->warp / AG_GEMM_WARPS, n->warp % AG_GEMM_WARPS,
                                         tile ? EPA_TRACE_COLUMN + n->column : EPA_TRACE_ROW),
                .tokens = n->row + 1,
                .peer = n->peer,
                .signal = n->warp * AG_GEMM_INTERVALS + of,
                .name = number[of],
                .kind = EPA_TRACE_SLICE,
            });
    }
}

void ag_gemm_trace_write(const char *name, struct epa_backend *b, struct epa_trace *trace,
                         const struct ag_gemm_args *a, uint32_t blocks)
{
    uint64_t n = ag_gemm_trace_notes(a, blocks), copies = ag_gemm_copy_note(a, 0, 0);
    const struct device_records records = {.at = a->notes,
                                           .n = n,
                                           .bytes = sizeof(*a->notes),
                                           .end_at = offsetof(struct ag_gemm_note, end),
                                           .call_at = offsetof(struct ag_gemm_note, call)};
    struct device_reading reading;
    enum epa_status status = device_read_records(b, &records, &reading);

    if (status == EPA_OK) { /* the trace keeps the latest events: tiles if there is little room */
        add_notes(trace, a, &reading, copies, n);
        add_notes(trace, a, &reading, 0, copies);
    }
    free(reading.record);
    device_report_stamps(name, b, status);
}
