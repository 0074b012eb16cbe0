/* Stages of one rank: running, waiting and timing; the published state of the rank: position, wait and
 * trace; and the rows of a report. On a device a stage is only queued: its results are valid after
 * rank_sync(). */
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <epa2a/wait.h>
#include "base/text.h"
#include "config/experiment.h"
#include "config/expect.h"
#include "config/option_text.h"
#include "config/origin.h"
#include "config/tree.h"
#include "session/rank.h"

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

/* Records a slice of the rank's own thread, from begin_ns (epa_trace_now()) until now. */
static void note_slice(struct rank *r, uint16_t name, uint64_t begin_ns)
{
    (void)epa_trace_slice(r->trace, 0, name, begin_ns, EPA_TRACE_NOBODY, 0, 0);
}

/* ---- the first failure ---- */

bool rank_fail(struct rank *r, enum epa_status status, const char *fmt, ...)
{
    char text[sizeof(r->err.text)];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (rank_good(r))
        r->status = epa_fail(&r->err, status, "%s", text);
    return false;
}

void rank_refuse_name(struct rank *r, const char *key, const char *want, const char *const *name,
                      uint32_t n, const char *fmt, ...)
{
    const struct node *node = origin_find(experiment_of(r), key);
    struct nearest nearest = {.want = want};
    struct text text = {0};
    char sentence[400], hint[NEAREST_ROOM];
    va_list args;

    if (node != NULL)
        text_add(&text, "%s:%u:%u: ", node->location.file, node->location.line,
                 node->location.column);
    va_start(args, fmt);
    vsnprintf(sentence, sizeof(sentence), fmt, args);
    va_end(args);
    text_add(&text, "%s%s", key, sentence);
    for (uint32_t i = 0; i < n; i++) {
        nearest_try(&nearest, name[i]);
        text_add(&text, "%s%s", i == 0 ? " " : ", ", name[i]);
    }
    rank_fail(r, EPA_ERR_CONFIG, "%s%s%s", text.data, nearest.name != NULL ? "; " : "",
              nearest_hint(&nearest, hint, ""));
    text_free(&text);
}

/* Keeps the first status. Returns true if `status` is a failure with an explanation. */
static bool needs_explanation(struct rank *r, enum epa_status status)
{
    if (r->status == EPA_OK)
        r->status = status;
    return status != EPA_OK && status != EPA_ERR_ABORTED;
}

bool rank_algorithm(struct rank *r, enum epa_status status)
{
    if (needs_explanation(r, status))
        r->algorithm->explain(r->algorithm, &r->err);
    return rank_good(r);
}

bool rank_transport(struct rank *r, enum epa_status status)
{
    if (needs_explanation(r, status))
        r->transport->ops->explain(r->transport, &r->err);
    return rank_good(r);
}

bool rank_backend(struct rank *r, enum epa_status status)
{
    const struct epa_backend *b = r->backend;

    if (!needs_explanation(r, status))
        return rank_good(r);
    if (b->fault.status != EPA_OK && b->fault.stage == EPA_FAULT_TRANSPORT)
        r->transport->ops->explain(r->transport, &r->err);
    else if (b->fault.status != EPA_OK && r->algorithm != NULL)
        r->algorithm->explain(r->algorithm, &r->err);
    b->ops->explain(r->backend, &r->err);
    return false;
}

bool rank_boot(struct rank *r, enum epa_status status)
{
    if (status == EPA_ERR_TIMEOUT && needs_explanation(r, status))
        r->boot->explain(r->boot, &r->err);
    else if (needs_explanation(r, status))
        (void)epa_fail(&r->err, status, "the bootstrap exchange between ranks failed");
    return rank_good(r);
}

bool rank_goes_on(struct rank *r)
{
    if (rank_good(r) && epa_aborted(r->boot))
        r->status = EPA_ERR_ABORTED;
    return rank_good(r);
}

/* ---- steps ---- */

void rank_sync(struct rank *r)
{
    uint64_t begin = epa_trace_now(r->trace);

    if (!rank_good(r))
        return;
    (void)rank_backend(r, r->backend->ops->sync(r->backend));
    if (r->backend->memory != EPA_MEMORY_HOST) /* a host backend does not wait */
        note_slice(r, r->slice[SLICE_SYNC], begin);
}

void rank_stage(struct rank *r, uint32_t stage, uint32_t slot)
{
    uint64_t begin = epa_trace_now(r->trace);

    if (!rank_good(r))
        return;
    if (is_kind(r, stage, EPA_STAGE_EXPERTS))
        r->status = r->op->operation->between(r->op, slot, &r->err);
    else
        (void)rank_algorithm(r, r->stage[stage].run(r->algorithm, problem_of(r, slot)));
    note_slice(r, r->stage_slice[stage], begin);
}

void rank_barrier(struct rank *r)
{
    uint64_t begin = epa_trace_now(r->trace);

    if (!rank_good(r))
        return;
    (void)rank_transport(r, r->transport->ops->barrier(r->transport, experiment_of(r)->timeout_ns));
    note_slice(r, r->slice[SLICE_BARRIER], begin);
}

void rank_mark(struct rank *r, uint32_t mark)
{
    if (rank_good(r))
        (void)rank_backend(r, r->backend->ops->mark(r->backend, mark));
}

void rank_flush(struct rank *r)
{
    if (rank_good(r))
        (void)rank_backend(r, r->backend->ops->flush_cache(r->backend));
}

double rank_elapsed(struct rank *r, uint32_t from_mark, uint32_t to_mark)
{
    double ns = 0;

    if (rank_good(r))
        (void)rank_backend(r, r->backend->ops->elapsed(r->backend, from_mark, to_mark, &ns));
    return ns;
}

void rank_make(struct rank *r, uint32_t slot, uint64_t iteration)
{
    uint64_t begin = epa_trace_now(r->trace);
    enum epa_status status;

    if (!rank_good(r))
        return;
    status = op_inputs(r->op, slot, iteration);
    note_slice(r, r->slice[SLICE_INPUTS], begin);
    epa_trace_count(r->trace, 0, r->units, r->op->slot[slot].units);
    if (!needs_explanation(r, status))
        return;
    r->backend->ops->explain(r->backend, &r->err);
    (void)epa_fail(&r->err, status, "cannot write the inputs of iteration %llu",
                   (unsigned long long)iteration);
    r->status = r->err.status;
}

void rank_inputs(struct rank *r, uint32_t slot, uint64_t iteration)
{
    const struct operation *op = r->op->operation;

    rank_make(r, slot, iteration);
    if (!rank_good(r))
        return;
    op->traffic(r->op, slot, &r->shared->traffic);
    r->shared->traffic_n++;
    if (r->boot->world.rank == 0 && op->stats_add != NULL)
        op->stats_add(r->session->stats, experiment_of(r), r->session->source, iteration);
}

void rank_between(struct rank *r, uint32_t stage, uint32_t slot)
{
    uint64_t begin = epa_trace_now(r->trace);

    if (!rank_good(r) || !is_kind(r, stage, EPA_STAGE_DISPATCH) ||
        (stage + 1 < r->n_stages && is_kind(r, stage + 1, EPA_STAGE_EXPERTS)))
        return;
    r->status = r->op->operation->between(r->op, slot, &r->err);
    note_slice(r, r->slice[SLICE_BETWEEN], begin);
}

void rank_check(struct rank *r, enum epa_stage_kind kind, uint32_t slot)
{
    uint64_t begin = epa_trace_now(r->trace);

    if (!rank_good(r) || kind == EPA_STAGE_SEND || kind == EPA_STAGE_EXPERTS)
        return;
    r->status = op_check(r->op, kind, slot, &r->shared->compared, &r->shared->wrong, &r->err);
    if (!r->counts_puts)
        r->shared->share = r->op->share;
    note_slice(r, r->slice[SLICE_CHECK], begin);
}

/* A peer may begin the next dispatch as soon as it has combined. With two buffer sets in lockstep
 * that dispatch writes the other set. Otherwise a barrier after the check holds peers back; a
 * barrier in each iteration would keep ranks in step. */
void rank_check_kept(struct rank *r, uint32_t slot)
{
    bool stays = r->footprint->in_flight >= 2 && experiment_of(r)->verify.order != ORDER_PIPELINED;
    uint64_t begin = epa_trace_now(r->trace);

    if (!rank_good(r) || r->op->operation->check_kept == NULL || !op_keeps(r->shared->iteration))
        return;
    r->status = op_check_kept(r->op, slot, &r->shared->wrong, &r->err);
    note_slice(r, r->slice[SLICE_CHECK], begin);
    if (!stays)
        rank_barrier(r);
}

void rank_iteration(struct rank *r, uint32_t slot, bool apart, bool check)
{
    bool cold = r->session->verb == VERB_BENCH && experiment_of(r)->bench.cache == CACHE_COLD;

    for (uint32_t i = 0; i < r->n_stages && rank_good(r); i++) {
        rank_at_stage(r, i);
        if (apart)
            rank_barrier(r);
        rank_fault(r, i);
        if (cold)
            rank_flush(r);
        rank_mark(r, 2 * i);
        rank_stage(r, i, slot);
        rank_mark(r, 2 * i + 1);
        rank_sync(r);
        if (!rank_good(r))
            return;
        if (apart) /* so that no rank's experts or checks run inside another's stage */
            rank_barrier(r);
        if (check)
            rank_check(r, r->stage[i].kind, slot);
        rank_at_stage(r, SESSION_ELSEWHERE);
        rank_between(r, i, slot);
    }
    r->shared->checked += check && rank_good(r);
}

double rank_stage_ns(struct rank *r, uint32_t stage)
{
    return rank_elapsed(r, 2 * stage, 2 * stage + 1);
}

double rank_total_ns(struct rank *r)
{
    double total = 0;

    for (uint32_t i = 0; i < r->n_stages; i++)
        total += rank_stage_ns(r, i);
    return total;
}

/* ---- trace record of a rank: names, and the clock offset to rank 0 before the first iteration and
 * after the last one ---- */

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
    if (rank_boot(r, record_compare_clocks(r->boot, &record->near, &record->clock[RECORD_BEFORE])))
        recorder_ready(&r->recorder);
}

void rank_trace_end(struct rank *r)
{
    struct record *record = r->recorder.record;

    if (r->trace == NULL || !rank_good(r))
        return;
    rank_trace_pause(r);
    (void)rank_boot(r, record_compare_clocks(r->boot, &record->near, &record->clock[RECORD_AFTER]));
}

void rank_trace_pause(struct rank *r)
{
    if (r->trace == NULL)
        return;
    if (rank_good(r) && r->algorithm->trace_end != NULL)
        r->algorithm->trace_end(r->algorithm);
    recorder_turn_none(&r->recorder);
}

/* ---- published waits of a rank. Several threads of a rank can wait at a time: each overwrites the
 * note of another thread; a thread that finds a write in progress skips its own note ---- */

enum { WORDS = sizeof(struct session_wait) / sizeof(uint64_t) };

_Static_assert(sizeof(struct session_wait) % sizeof(uint64_t) == 0, "copied by words");

/* Copies all words but the first one, `turn`. */
static void write_note(struct session_wait *to, const struct session_wait *note)
{
    const uint64_t *word = (const uint64_t *)(const void *)note;
    uint64_t *out = (uint64_t *)(void *)to;
    uint64_t turn = __atomic_load_n(&to->turn, __ATOMIC_RELAXED);

    /* Acquire: no word is written before this thread owns the note (odd `turn`). */
    if (turn % 2 != 0 || !__atomic_compare_exchange_n(&to->turn, &turn, turn + 1, false,
                                                      __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    /* Release, each: pairs with read_rank(). No word is visible before `turn` is odd. */
    for (uint32_t i = 1; i < WORDS; i++)
        __atomic_store_n(&out[i], word[i], __ATOMIC_RELEASE);
    __atomic_store_n(&to->turn, turn + 2, __ATOMIC_RELEASE);
}

static void note_wait(struct epa_wait_observer *observer, const struct epa_wait_state *w)
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
        note.since_ns = epa_now_ns() - full.waited_ns;
        if (full.what != NULL)
            snprintf(note.what, sizeof(note.what), "%s", full.what);
    }
    write_note(&r->shared->waiting, &note);
}

void rank_waits_begin(struct rank *r)
{
    r->observer.waits = note_wait;
    r->boot->observer = &r->observer;
    r->boot->timeout_ns = experiment_of(r)->timeout_ns;
}

void rank_waits_end(struct rank *r)
{
    r->boot->observer = NULL;
}

/* ---- rows of a report, and rows that `expect` names ---- */

/* Returns a row with a single row of times. */
static struct session_row row_at(uint32_t first, enum epa_stage_kind kind, const char *name)
{
    return (struct session_row){.name = name, .kind = kind, .first = first, .n = 1};
}

uint32_t session_rows(const struct session *s, uint32_t n_stages,
                      struct session_row out[SESSION_ROWS])
{
    const struct session_notes *notes = s->notes;
    bool graph = notes->clock == CLOCK_GRAPH, open = session_is_open(s);
    bool pairs = graph && n_stages > 0 && notes->stage_kind[n_stages - 1] != EPA_STAGE_WHOLE;
    uint32_t n = 0;

    if (notes->clock == CLOCK_END_TO_END) {
        out[n++] = row_at(FIGURE_END_TO_END, EPA_STAGE_WHOLE, "wall");
        return n;
    }
    if (pairs)
        out[n++] = row_at(FIGURE_DISPATCH, EPA_STAGE_DISPATCH, "dispatch");
    for (uint32_t i = 0; i < n_stages; i++) {
        if (!graph) {
            out[n] = row_at(i, notes->stage_kind[i], notes->stage[i]);
            out[n++].is_stage = true;
        } else if (notes->stage_kind[i] == EPA_STAGE_EXPERTS) {
            out[n++] = row_at(FIGURE_EXPERTS, EPA_STAGE_EXPERTS, notes->stage[i]);
        }
    }
    if (pairs)
        out[n++] = row_at(FIGURE_COMBINE, EPA_STAGE_COMBINE, "combine");
    if (open && n_stages > 0)
        out[n++] = row_at(n_stages + OPEN_SERVICE, EPA_STAGE_WHOLE, "service");
    if (open)
        out[n++] = row_at(n_stages + OPEN_LATENCY, EPA_STAGE_SEND, "latency");
    else
        out[n++] = row_at(pairs ? FIGURE_PAIR : FIGURE_WHOLE, EPA_STAGE_WHOLE, "total");
    if (!graph && !open)
        out[n - 1].n = n_stages;
    return n;
}

struct session_row session_total(const struct session *s)
{
    struct session_row row[SESSION_ROWS];

    return row[session_rows(s, s->notes->n_stages, row) - 1];
}

double session_row_ns(const struct session *s, const struct session_row *row, uint32_t rank,
                      uint64_t sample)
{
    double sum = 0;

    for (uint32_t i = 0; i < row->n; i++)
        sum += session_times(s, rank, row->first + i)[sample];
    return sum;
}

/* The rows are known after the creation of the algorithm, so a wrong row of `expect` fails before the
 * first iteration. */

static void report_unknown_row(struct rank *r, const char *name, const struct expect_bounds *bounds,
                               const char *const *row, uint32_t n)
{
    const struct epa_option *figure = expect_figures;
    struct text key = {0};

    while (!option_is_set(figure, bounds) && figure[1].name != NULL)
        figure++;
    text_add(&key, "expect.%s.%s", name, figure->name);
    rank_refuse_name(r, key.data, name, row, n,
                     " names the row '%s'; with algorithm '%s' and this clock there %s", name,
                     experiment_of(r)->algorithm.plugin->name, n == 1 ? "is only" : "are");
    text_free(&key);
}

void rank_expect_check(struct rank *r)
{
    const struct expect_options *x = &experiment_of(r)->expect;
    struct session_row all[SESSION_ROWS];
    const char *row[SESSION_ROWS];
    uint32_t n = session_rows(r->session, r->n_stages, all);

    if (r->session->verb == VERB_VERIFY) /* verify records no times */
        return;
    for (uint32_t k = 0; k < n; k++)
        row[k] = all[k].name;
    for (uint32_t i = 0; i < x->n_rows && rank_good(r); i++) {
        uint32_t k = 0;

        while (k < n && strcmp(row[k], x->row[i].name) != 0)
            k++;
        if (k == n)
            report_unknown_row(r, x->row[i].name, &x->row[i].bounds, row, n);
    }
}
