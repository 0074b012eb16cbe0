/* What a rank notes where somebody profiles: its names, and how its clock stands to that of
 * rank 0, before the first iteration and after the last. */
#include "session/rank.h"
#include "trace/record.h"

static const char *const core_name[RANK_SLICES] = {
    [SLICE_BARRIER] = "barrier",
    [SLICE_INPUTS] = "inputs",
    [SLICE_CHECK] = "check",
    [SLICE_SYNC] = "sync",
};

void rank_trace_begin(struct rank *r)
{
    struct record *record = session_trace(r->session, r->boot->world.rank);

    const struct operation *op = session_operation(r->session);

    if (record == NULL)
        return;
    recorder_init(&r->recorder, record, &r->session->trace);
    r->trace = &r->recorder.trace;
    record->near = record_is_near(&r->boot->world);
    for (uint32_t i = 0; i < RANK_SLICES; i++)
        if (core_name[i] != NULL)
            r->slice[i] = epa_trace_name(r->trace, core_name[i]);
    if (op->between != NULL)
        r->slice[SLICE_BETWEEN] = epa_trace_name(r->trace, op->between_name);
    r->units = epa_trace_name(r->trace, op->unit);
    record->n_core = record->names.n;
}

enum epa_status rank_trace_ready(struct rank *r)
{
    struct record *record = r->recorder.record;
    enum epa_status status;

    if (r->trace == NULL)
        return EPA_OK;
    for (uint32_t i = 0; i < r->n_stages; i++) {
        r->stage_slice[i] = epa_trace_name(r->trace, r->stage[i].name);
        record->stages |= 1ull << r->stage_slice[i];
    }
    status = record_compare_clocks(r->boot, &record->clock[RECORD_BEFORE]);
    if (status == EPA_OK)
        recorder_ready(&r->recorder);
    return status;
}

enum epa_status rank_trace_end(struct rank *r)
{
    if (r->trace == NULL)
        return EPA_OK;
    rank_trace_pause(r);
    return record_compare_clocks(r->boot, &r->recorder.record->clock[RECORD_AFTER]);
}

void rank_trace_pause(struct rank *r)
{
    if (r->trace != NULL)
        recorder_turn_none(&r->recorder);
}
