/* Trace record of a rank: names, and the clock offset to rank 0 before the first iteration and after the
 * last one. */
#include "session/rank_trace.h"

#include "session/rank_status.h"

static const char *const core_name[RANK_SLICES] = {
    [SLICE_BARRIER] = "barrier",
    [SLICE_INPUTS] = "inputs",
    [SLICE_CHECK] = "check",
    [SLICE_SYNC] = "sync",
};

void rank_trace_begin(struct rank *r)
{
    struct record *record = session_trace(r->session, r->comm.boot->world.rank);

    const struct operation *op = session_operation(r->session);

    if (record == NULL)
        return;
    recorder_init(&r->recorder, record, &r->session->trace);
    r->trace = &r->recorder.trace;
    for (uint32_t i = 0; i < RANK_SLICES; i++)
        if (core_name[i] != NULL)
            r->slice[i] = epa_trace_name(r->trace, core_name[i]);
    if (op->between != NULL)
        r->slice[SLICE_BETWEEN] = epa_trace_name(r->trace, op->between_name);
    r->units = epa_trace_name(r->trace, op->unit);
    record->n_core = record->names.n;
}

void rank_trace_ready(struct rank *r)
{
    struct record *record = r->recorder.record;

    if (r->trace == NULL || !rank_good(r))
        return;
    for (uint32_t i = 0; i < r->n_stages; i++) {
        r->stage_slice[i] = epa_trace_name(r->trace, r->stage[i].name);
        record->stages |= 1ull << r->stage_slice[i];
    }
    if (rank_boot(
            r, record_compare_clocks(r->comm.boot, &record->near, &record->clock[RECORD_BEFORE])))
        recorder_ready(&r->recorder);
}

void rank_trace_end(struct rank *r)
{
    struct record *record = r->recorder.record;

    if (r->trace == NULL || !rank_good(r))
        return;
    rank_trace_pause(r);
    (void)rank_boot(
        r, record_compare_clocks(r->comm.boot, &record->near, &record->clock[RECORD_AFTER]));
}

void rank_trace_pause(struct rank *r)
{
    if (r->trace == NULL)
        return;
    if (rank_good(r) && r->ep.algorithm->trace_end != NULL)
        r->ep.algorithm->trace_end(r->ep.algorithm);
    recorder_turn_none(&r->recorder);
}
