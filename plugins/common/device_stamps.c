/* Implements device_stamps.h. */
#include "device_stamps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the number of the last call that has an interval. */
static uint32_t find_last_call(const struct device_records *from, const char *record)
{
    uint32_t last = 0;

    for (uint64_t i = 0; i < from->n; i++, record += from->bytes) {
        uint64_t end;
        uint32_t call;

        memcpy(&end, record + from->end_at, sizeof(end));
        memcpy(&call, record + from->call_at, sizeof(call));
        if (end != 0 && call > last)
            last = call;
    }
    return last;
}

enum epa_status device_read_records(struct epa_backend *b, const struct device_records *from,
                                    struct device_reading *out)
{
    void *record = malloc(from->n * from->bytes);
    enum epa_status status = EPA_ERR_NOMEM;
    int64_t low = 0, high = 0;

    *out = (struct device_reading){.record = NULL};
    if (record != NULL)
        status = b->ops->read(b, record, from->at, from->n * from->bytes);
    if (status == EPA_OK)
        status = b->ops->clock(b, &low, &high);
    if (status != EPA_OK) {
        free(record);
        return status;
    }
    /* The difference of the clocks is the middle of its possible range. */
    *out = (struct device_reading){.record = record,
                                   .last_call = find_last_call(from, record),
                                   .ahead = (uint64_t)(low + (high - low) / 2),
                                   .error_ns = (uint64_t)(high - low + 1) / 2};
    return EPA_OK;
}

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

/* Adds slices of warps. */
static void add_slices(struct epa_trace *trace, const struct device_stamped *s,
                       const struct device_reading *reading)
{
    const struct device_stamp *stamp = reading->record;
    uint32_t each = s->stages * s->phases;

    for (uint32_t i = 0; i < s->warps * each; i++) {
        uint32_t warp = i / each;

        if (s->name[i % each] == NULL || stamp[i].end == 0)
            continue;
        epa_trace_add_beside(
            &trace->beside[EPA_TRACE_KERNELS],
            &(struct epa_trace_event){
                .begin_ns = stamp[i].end - stamp[i].took_ns - reading->ahead,
                .end_ns = stamp[i].end - reading->ahead,
                .bytes = reading->error_ns,
                .value = (uint64_t)(warp / s->block_warps) << 32 | warp % s->block_warps,
                .peer = EPA_TRACE_NOBODY,
                .signal = i,
                .name = epa_trace_name(trace, s->name[i % each]),
                .kind = EPA_TRACE_SLICE,
            });
    }
}

enum epa_status device_add_stamps(struct epa_backend *b, struct epa_trace *trace,
                                  const struct device_stamped *s)
{
    const struct device_records records = {.at = s->stamp,
                                           .n = (uint64_t)s->warps * s->stages * s->phases,
                                           .bytes = sizeof(*s->stamp),
                                           .end_at = offsetof(struct device_stamp, end),
                                           .call_at = offsetof(struct device_stamp, call)};
    struct device_reading reading;
    enum epa_status status = device_read_records(b, &records, &reading);

    if (status == EPA_OK) {
        keep_last_calls(s, reading.record);
        add_slices(trace, s, &reading);
    }
    free(reading.record);
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
