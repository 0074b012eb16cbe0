/* Stages of one rank, run, waited for and timed; and what is seen of them from outside: where the
 * rank is, what it waits for, and what it notes where somebody profiles. On a device a stage is
 * only queued: nothing of what it did is looked at before rank_sync(). */
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "config/experiment.h"
#include "config/tree.h"
#include "session/rank.h"

/* Marks of a sample: before and after each stage. */
enum { MARKS_PER_STAGE = 2 };

void rank_at_stage(struct rank *r, uint32_t stage)
{
    __atomic_store_n(&r->shared->stage, stage, __ATOMIC_RELAXED);
}

void rank_at(struct rank *r, uint64_t iteration, uint32_t stage)
{
    if (r->trace != NULL)
        recorder_turn(&r->recorder, iteration);
    __atomic_store_n(&r->shared->iteration, iteration, __ATOMIC_RELAXED);
    rank_at_stage(r, stage);
}

enum epa_status rank_stage(struct rank *r, uint32_t stage, uint32_t slot, struct epa_error *err)
{
    uint64_t begin = epa_trace_now(r->trace);
    enum epa_status status = EPA_OK;

    if (is_kind(r, stage, EPA_STAGE_EXPERTS)) {
        if (r->backend->ops->experts_create == NULL) /* the host looks at what was queued */
            status = rank_sync(r, err);
        if (status == EPA_OK)
            status = r->op->operation->between(r->op, slot, err);
        rank_noted(r, r->stage_slice[stage], begin);
        return status;
    }
    status = r->stage[stage].run(r->algorithm, problem_of(r, slot));
    rank_noted(r, r->stage_slice[stage], begin);
    if (status != EPA_OK && status != EPA_ERR_ABORTED)
        r->algorithm->explain(r->algorithm, err);
    return status;
}

enum epa_status rank_explain(struct rank *r, enum epa_status status, struct epa_error *err)
{
    if (status == EPA_OK || status == EPA_ERR_ABORTED)
        return status;
    if (r->backend->fault.status != EPA_OK && r->backend->fault.stage == EPA_FAULT_TRANSPORT)
        r->transport->ops->explain(r->transport, err);
    else if (r->backend->fault.status != EPA_OK && r->algorithm != NULL)
        r->algorithm->explain(r->algorithm, err);
    r->backend->ops->explain(r->backend, err);
    return status;
}

enum epa_status rank_sync(struct rank *r, struct epa_error *err)
{
    uint64_t begin = epa_trace_now(r->trace);
    enum epa_status status = r->backend->ops->sync(r->backend);

    if (r->backend->memory != EPA_MEMORY_HOST) /* where there is nothing to wait for */
        rank_noted(r, r->slice[SLICE_SYNC], begin);
    return rank_explain(r, status, err);
}

enum epa_status rank_barrier(struct rank *r, struct epa_error *err)
{
    uint64_t begin = epa_trace_now(r->trace);
    enum epa_status status = r->transport->ops->barrier(r->transport, experiment_of(r)->timeout_ns);

    rank_noted(r, r->slice[SLICE_BARRIER], begin);
    if (status != EPA_OK && status != EPA_ERR_ABORTED)
        r->transport->ops->explain(r->transport, err);
    return status;
}

bool rank_goes_on(const struct rank *r, enum epa_status *status)
{
    if (*status == EPA_OK && epa_aborted(r->boot))
        *status = EPA_ERR_ABORTED;
    return *status == EPA_OK;
}

enum epa_status rank_make(struct rank *r, uint32_t slot, uint64_t iteration, struct epa_error *err)
{
    uint64_t begin = epa_trace_now(r->trace);
    enum epa_status status = r->op->operation->inputs(r->op, slot, iteration);

    rank_noted(r, r->slice[SLICE_INPUTS], begin);
    epa_trace_count(r->trace, 0, r->units, r->op->operation->units(r->op, slot));
    if (status == EPA_OK || status == EPA_ERR_ABORTED)
        return status;
    r->backend->ops->explain(r->backend, err);
    (void)epa_fail(err, status, "the inputs of iteration %llu cannot be written",
                   (unsigned long long)iteration);
    return err->status;
}

enum epa_status rank_inputs(struct rank *r, uint32_t slot, uint64_t iteration,
                            struct epa_error *err)
{
    const struct operation *op = r->op->operation;
    enum epa_status status = rank_make(r, slot, iteration, err);

    if (status != EPA_OK)
        return status;
    op->traffic(r->op, slot, &r->shared->traffic);
    r->shared->traffic_n++;
    if (r->boot->world.rank == 0 && op->stats_add != NULL)
        op->stats_add(r->session->stats, experiment_of(r), r->session->source, iteration);
    return EPA_OK;
}

enum epa_status rank_between(struct rank *r, uint32_t stage, uint32_t slot, struct epa_error *err)
{
    enum epa_status status;
    uint64_t begin;

    if (!is_kind(r, stage, EPA_STAGE_DISPATCH) ||
        (stage + 1 < r->n_stages && is_kind(r, stage + 1, EPA_STAGE_EXPERTS)))
        return EPA_OK;
    begin = epa_trace_now(r->trace);
    status = r->op->operation->between(r->op, slot, err);
    rank_noted(r, r->slice[SLICE_BETWEEN], begin);
    return status;
}

enum epa_status rank_check(struct rank *r, enum epa_stage_kind kind, uint32_t slot,
                           struct epa_error *err)
{
    uint64_t *compared = &r->shared->compared, *wrong = &r->shared->wrong;
    uint64_t begin = epa_trace_now(r->trace);
    enum epa_status status = EPA_OK;

    if (kind == EPA_STAGE_SEND || kind == EPA_STAGE_EXPERTS)
        return EPA_OK;
    status = r->op->operation->check(r->op, kind, slot, compared, wrong, err);
    rank_noted(r, r->slice[SLICE_CHECK], begin);
    return status;
}

static bool cold(const struct rank *r)
{
    return r->session->verb == VERB_BENCH && experiment_of(r)->bench.cache == CACHE_COLD;
}

/* Between its marks, and done when this returns. */
static enum epa_status timed_stage(struct rank *r, uint32_t stage, uint32_t slot,
                                   struct epa_error *err)
{
    const struct epa_backend_ops *ops = r->backend->ops;
    enum epa_status status = rank_fault(r, stage, err);

    if (status == EPA_OK && cold(r))
        status = rank_explain(r, ops->flush_cache(r->backend), err);
    if (status == EPA_OK)
        status = rank_explain(r, ops->mark(r->backend, MARKS_PER_STAGE * stage), err);
    if (status == EPA_OK)
        status = rank_stage(r, stage, slot, err);
    if (status == EPA_OK)
        status = rank_explain(r, ops->mark(r->backend, MARKS_PER_STAGE * stage + 1), err);
    return status == EPA_OK ? rank_sync(r, err) : status;
}

enum epa_status rank_iteration(struct rank *r, uint32_t slot, bool apart, bool check,
                               struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < r->n_stages && status == EPA_OK; i++) {
        rank_at_stage(r, i);
        if (apart)
            status = rank_barrier(r, err);
        if (status == EPA_OK)
            status = timed_stage(r, i, slot, err);
        if (status != EPA_OK)
            return status;
        if (apart) /* so that no rank's experts or checks run inside another's stage */
            status = rank_barrier(r, err);
        if (status == EPA_OK && check)
            status = rank_check(r, r->stage[i].kind, slot, err);
        rank_at_stage(r, SESSION_ELSEWHERE);
        if (status == EPA_OK)
            status = rank_between(r, i, slot, err);
    }
    if (status == EPA_OK && check)
        r->shared->checked++;
    return status;
}

enum epa_status rank_stage_ns(struct rank *r, uint32_t stage, double *out, struct epa_error *err)
{
    enum epa_status status = r->backend->ops->elapsed(r->backend, MARKS_PER_STAGE * stage,
                                                      MARKS_PER_STAGE * stage + 1, out);

    return rank_explain(r, status, err);
}

enum epa_status rank_total_ns(struct rank *r, double *out, struct epa_error *err)
{
    double total = 0, ns = 0;

    for (uint32_t i = 0; i < r->n_stages; i++) {
        enum epa_status status = rank_stage_ns(r, i, &ns, err);

        if (status != EPA_OK)
            return status;
        total += ns;
    }
    *out = total;
    return EPA_OK;
}

/* ---- what a rank notes where somebody profiles: its names, and how its clock stands to that of
 * rank 0, before the first iteration and after the last ---- */

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

/* ---- what a rank waits for, where others can see it. Several threads of a rank may wait at once;
 * each notes over what another has noted, and whoever finds a note half written leaves it to that
 * ---- */

enum { WORDS = sizeof(struct session_wait) / sizeof(uint64_t) };

_Static_assert(sizeof(struct session_wait) % sizeof(uint64_t) == 0, "is copied by words");

/* The first word is `turn`. */
static void write_note(struct session_wait *to, const struct session_wait *note)
{
    const uint64_t *word = (const uint64_t *)(const void *)note;
    uint64_t *out = (uint64_t *)(void *)to;
    uint64_t turn = __atomic_load_n(&to->turn, __ATOMIC_RELAXED);

    /* Acquire: what follows is not written before it is ours. */
    if (turn % 2 != 0 || !__atomic_compare_exchange_n(&to->turn, &turn, turn + 1, false,
                                                      __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    /* Release, each: nothing of it is seen before `turn` is odd; status_read() looks. */
    for (uint32_t i = 1; i < WORDS; i++)
        __atomic_store_n(&out[i], word[i], __ATOMIC_RELEASE);
    __atomic_store_n(&to->turn, turn + 2, __ATOMIC_RELEASE);
}

static void waits(struct epa_wait_observer *observer, const struct epa_wait_state *w)
{
    struct rank *r = (struct rank *)(void *)((char *)observer - offsetof(struct rank, observer));
    struct session_wait note = {.kind = EPA_WAIT_NOTHING};
    struct epa_wait_state full;

    if (w != NULL) {
        full = *w;
        if (w->kind == EPA_WAIT_SIGNAL && r->algorithm != NULL &&
            r->algorithm->wait_describe != NULL)
            r->algorithm->wait_describe(r->algorithm, &full);
        note.kind = full.kind;
        note.peer = full.peer;
        note.number = full.number;
        note.seen = full.seen;
        note.wanted = full.wanted;
        note.stage = __atomic_load_n(&r->shared->stage, __ATOMIC_RELAXED);
        note.iteration = __atomic_load_n(&r->shared->iteration, __ATOMIC_RELAXED);
        note.since_ns = clock_ns() - full.waited_ns;
        if (full.what != NULL)
            snprintf(note.what, sizeof(note.what), "%s", full.what);
    }
    write_note(&r->shared->waiting, &note);
}

void rank_waits_begin(struct rank *r)
{
    r->observer.waits = waits;
    r->boot->observer = &r->observer;
    r->boot->timeout_ns = experiment_of(r)->timeout_ns;
}

void rank_waits_end(struct rank *r)
{
    r->boot->observer = NULL;
}

/* ---- expectations ---- */

/* Rows that `expect` names, against those that there will be: known as soon as the algorithm
 * has been made, so before the first iteration. Each rank comes to the same. */

/* Rows of the report, as result.c makes them; the last stands for what names none. */
static uint32_t rows_of(const struct rank *r, const char *row[SESSION_STAGES + OPEN_ROWS])
{
    uint32_t n = 0;

    if (r->clock == CLOCK_END_TO_END) {
        row[n++] = "wall";
        return n;
    }
    if (r->clock == CLOCK_GRAPH && last_kind(r) != EPA_STAGE_WHOLE) {
        row[n++] = "dispatch";
        if (is_kind(r, r->first_stages, EPA_STAGE_EXPERTS))
            row[n++] = r->stage[r->first_stages].name;
        row[n++] = "combine";
    } else if (r->clock != CLOCK_GRAPH) {
        while (n < r->n_stages) {
            row[n] = r->stage[n].name;
            n++;
        }
    }
    if (session_is_open(r->session)) {
        row[n++] = "service";
        row[n++] = "latency";
        return n;
    }
    row[n++] = "total";
    return n;
}

static bool is_row(const char *name, const char *const *row, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(row[i], name) == 0)
            return true;
    return name[0] == '\0';
}

/* "x.yaml:7:12: expect.median names 'dispach'; rows are dispatch, combine, total". */
static enum epa_status refuse(const struct rank *r, const struct expectation *e,
                              const char *const *row, uint32_t n, struct epa_error *err)
{
    const struct experiment *x = experiment_of(r);
    const char *near = text_nearest(e->row, row, n);
    const struct node *node;
    struct text rows = {0}, key = {0}, at = {0};

    text_add(&key, "expect.%s", expect_name[e->figure]);
    node = origin_find(x, key.data);
    if (node != NULL)
        text_add(&at, "%s:%u:%u: ", node->location.file, node->location.line,
                 node->location.column + node->quoted + e->at);
    for (uint32_t i = 0; i < n; i++)
        text_add(&rows, "%s%s", i == 0 ? "" : ", ", row[i]);
    (void)epa_fail(err, EPA_ERR_CONFIG,
                   "%s%s names the row '%s', and with algorithm '%s' and this clock there "
                   "%s %s%s%s%s",
                   at.bytes > 0 ? at.data : "", key.data, e->row, x->algorithm.plugin->name,
                   n == 1 ? "is only" : "are", rows.data, near != NULL ? "; did you mean '" : "",
                   near != NULL ? near : "", near != NULL ? "'?" : "");
    text_free(&rows);
    text_free(&key);
    text_free(&at);
    return EPA_ERR_CONFIG;
}

enum epa_status rank_expect_check(const struct rank *r, struct epa_error *err)
{
    const char *row[SESSION_STAGES + OPEN_ROWS];
    uint32_t rows = rows_of(r, row);

    if (r->session->verb == VERB_VERIFY) /* which takes no times */
        return EPA_OK;
    for (uint32_t i = 0; i < EXPECT_FIGURES; i++) {
        struct expectation all[EXPECT_MOST];
        struct value_error ignored;
        uint32_t n = expect_read(&experiment_of(r)->expect, i, all, &ignored);

        for (uint32_t k = 0; k < n && n != UINT32_MAX; k++)
            if (!is_row(all[k].row, row, rows))
                return refuse(r, &all[k], row, rows, err);
    }
    return EPA_OK;
}
