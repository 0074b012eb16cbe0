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

/* Adds the intervals from `first` to `end` - 1 of call `call`. */
static void add_notes(struct epa_trace *trace, const struct ag_gemm_args *a,
                      const struct ag_gemm_note *note, uint64_t first, uint64_t end, uint32_t call,
                      int64_t low, int64_t high)
{
    uint64_t ahead = (uint64_t)(low + (high - low) / 2), copies = ag_gemm_copy_note(a, 0, 0);
    uint16_t number[AG_GEMM_INTERVALS];

    for (int k = 0; k < AG_GEMM_INTERVALS; k++)
        number[k] = epa_trace_name(trace, names[k]);
    for (uint64_t i = first; i < end; i++) {
        const struct ag_gemm_note *n = &note[i];
        bool tile = i < copies;
        uint32_t of = (uint32_t)(tile ? i % AG_GEMM_TILE_NOTES
                                      : AG_GEMM_TILE_NOTES + (i - copies) % AG_GEMM_COPY_NOTES);

        if (n->end == 0 || n->call != call)
            continue;
        epa_trace_add_beside(
            &trace->beside[EPA_TRACE_KERNELS],
            &(struct epa_trace_event){
                .begin_ns = n->end - n->took_ns - ahead,
                .end_ns = n->end - ahead,
                .bytes = (uint64_t)(high - low + 1) / 2,
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
    struct ag_gemm_note *note = malloc(n * sizeof(*note));
    enum epa_status status = note != NULL ? EPA_OK : EPA_ERR_NOMEM;
    int64_t low = 0, high = 0;
    uint32_t call = 0;

    if (status == EPA_OK)
        status = b->ops->read(b, note, a->notes, n * sizeof(*note));
    if (status == EPA_OK)
        status = b->ops->clock(b, &low, &high);
    for (uint64_t i = 0; i < n && status == EPA_OK; i++)
        if (note[i].end != 0 && note[i].call > call)
            call = note[i].call;
    if (status == EPA_OK) { /* the trace keeps the latest events: tiles if there is little room */
        add_notes(trace, a, note, copies, n, call, low, high);
        add_notes(trace, a, note, 0, copies, call, low, high);
    }
    free(note);
    device_report_stamps(name, b, status);
}
