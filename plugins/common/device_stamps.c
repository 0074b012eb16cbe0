/* Implements device_stamps.h. */
#include "device_stamps.h"

#include <stdio.h>
#include <stdlib.h>

/* Clears the stamps of calls before the last call of their stage. */
static void keep_last_calls(const struct device_stamped *s, struct device_stamp *stamp)
{
    uint32_t each = s->stages * s->phases;

    for (uint32_t stage = 0; stage < s->stages; stage++) {
        uint32_t first = stage * s->phases, last = 0;

        for (uint32_t i = 0; i < s->warps * each; i++)
            if (i % each - first < s->phases && stamp[i].end != 0 && stamp[i].call > last)
                last = stamp[i].call;
        for (uint32_t i = 0; i < s->warps * each; i++)
            if (i % each - first < s->phases && stamp[i].call != last)
                stamp[i].end = 0;
    }
}

/* Adds slices of warps. The offset of the device clock is the middle of its possible range. */
static enum epa_status add_slices(struct epa_backend *b, struct epa_trace *trace,
                                  const struct device_stamped *s, const struct device_stamp *stamp)
{
    uint32_t each = s->stages * s->phases;
    int64_t low = 0, high = 0;
    enum epa_status status = b->ops->clock(b, &low, &high);
    uint64_t ahead = (uint64_t)(low + (high - low) / 2);

    for (uint32_t i = 0; i < s->warps * each && status == EPA_OK; i++) {
        uint32_t warp = i / each;

        if (s->name[i % each] == NULL || stamp[i].end == 0)
            continue;
        epa_trace_add_beside(
            &trace->beside[EPA_TRACE_KERNELS],
            &(struct epa_trace_event){
                .begin_ns = stamp[i].end - stamp[i].took_ns - ahead,
                .end_ns = stamp[i].end - ahead,
                .bytes = (uint64_t)(high - low + 1) / 2,
                .value = (uint64_t)(warp / s->block_warps) << 32 | warp % s->block_warps,
                .peer = EPA_TRACE_NOBODY,
                .signal = i,
                .name = epa_trace_name(trace, s->name[i % each]),
                .kind = EPA_TRACE_SLICE,
            });
    }
    return status;
}

enum epa_status device_add_stamps(struct epa_backend *b, struct epa_trace *trace,
                                  const struct device_stamped *s)
{
    size_t bytes = (size_t)s->warps * s->stages * s->phases * sizeof(*s->stamp);
    struct device_stamp *stamp = malloc(bytes);
    enum epa_status status = EPA_ERR_NOMEM;

    if (stamp != NULL)
        status = b->ops->read(b, stamp, s->stamp, bytes);
    if (status == EPA_OK) {
        keep_last_calls(s, stamp);
        status = add_slices(b, trace, s, stamp);
    }
    free(stamp);
    return status;
}

void device_report_stamps(const char *name, struct epa_backend *b, enum epa_status status)
{
    struct epa_error why = {EPA_OK, ""};

    if (status == EPA_OK)
        return;
    if (status != EPA_ERR_NOMEM)
        b->ops->explain(b, &why);
    fprintf(stderr, "%s: the trace lacks the kernels: %s\n", name,
            why.status != EPA_OK ? why.text : "no memory");
}
