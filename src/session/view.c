/* The transport of an algorithm under verification: checks and counts puts and signals, and forwards
 * each call to the inner transport. */
#include "session/rank.h"
#include "session/session.h"
#include "base/random.h"

#include <stdlib.h>
#include <string.h>

struct view {
    struct epa_transport base; /* first member: the transport of the algorithm */
    struct epa_transport *inner;
    char **peer_heap;
    /* The algorithm's part of heap and signals. */
    uint64_t heap_at, heap_bytes;
    uint32_t signal_at, signals;
    uint64_t bytes;  /* put to other ranks; a signal counts 8 bytes */
    uint64_t newest; /* largest value of a signal so far */
    uint32_t failed; /* `error` is set */
    struct epa_error error;
};

static struct view *view_of(struct epa_transport *t)
{
    return (struct view *)t;
}

/* Several threads may call if the inner transport permits it; the first one sets the error. */
static enum epa_status report_outside_plan(struct view *v, const char *what, uint64_t first,
                                           uint64_t end, uint64_t at, uint64_t room, uint32_t peer)
{
    if (__atomic_exchange_n(&v->failed, 1, __ATOMIC_ACQ_REL) == 0)
        (void)epa_fail(&v->error, EPA_ERR_MISMATCH,
                       "%s %lld to %lld of rank %u: plan() requested %llu, numbered 0 to %lld",
                       what, (long long)(first - at), (long long)(end - at) - 1, peer,
                       (unsigned long long)room, (long long)room - 1);
    return EPA_ERR_MISMATCH;
}

static enum epa_status check_heap(struct view *v, uint64_t dst, size_t bytes, uint32_t peer)
{
    if (bytes == 0 ||
        (dst >= v->heap_at && bytes <= v->heap_bytes && dst - v->heap_at <= v->heap_bytes - bytes))
        return EPA_OK;
    return report_outside_plan(v, "a put writes bytes", dst, dst + bytes, v->heap_at, v->heap_bytes,
                               peer);
}

static enum epa_status check_signal(struct view *v, uint32_t signal, uint32_t peer)
{
    if (signal >= v->signal_at && signal - v->signal_at < v->signals)
        return EPA_OK;
    return report_outside_plan(v, "a signal is word", signal, (uint64_t)signal + 1, v->signal_at,
                               v->signals, peer);
}

/* Counts started calls only: the caller repeats the others. */
static enum epa_status count_call(struct view *v, enum epa_status status, uint64_t bytes,
                                  uint32_t peer)
{
    if (status == EPA_OK && peer != v->base.rank)
        __atomic_fetch_add(&v->bytes, bytes, __ATOMIC_RELAXED);
    return status;
}

static void note_value(struct view *v, uint64_t value)
{
    if (value > __atomic_load_n(&v->newest, __ATOMIC_RELAXED))
        __atomic_store_n(&v->newest, value, __ATOMIC_RELAXED);
}

static enum epa_status view_put(struct epa_transport *t, uint64_t dst, const void *src,
                                size_t bytes, uint32_t peer)
{
    struct view *v = view_of(t);
    enum epa_status status = check_heap(v, dst, bytes, peer);

    if (status != EPA_OK)
        return status;
    return count_call(v, v->inner->ops->put(v->inner, dst, src, bytes, peer), bytes, peer);
}

static enum epa_status view_put_signal(struct epa_transport *t, uint64_t dst, const void *src,
                                       size_t bytes, uint32_t signal, uint64_t value,
                                       enum epa_signal_op op, uint32_t peer)
{
    struct view *v = view_of(t);
    enum epa_status status = check_heap(v, dst, bytes, peer);

    if (status == EPA_OK)
        status = check_signal(v, signal, peer);
    if (status != EPA_OK)
        return status;
    note_value(v, value);
    status = v->inner->ops->put_signal(v->inner, dst, src, bytes, signal, value, op, peer);
    return count_call(v, status, bytes + sizeof(value), peer);
}

static enum epa_status view_signal(struct epa_transport *t, uint32_t signal, uint64_t value,
                                   enum epa_signal_op op, uint32_t peer)
{
    struct view *v = view_of(t);
    enum epa_status status = check_signal(v, signal, peer);

    if (status != EPA_OK)
        return status;
    note_value(v, value);
    status = v->inner->ops->signal(v->inner, signal, value, op, peer);
    return count_call(v, status, sizeof(value), peer);
}

static enum epa_status view_fence(struct epa_transport *t, uint32_t peer)
{
    return view_of(t)->inner->ops->fence(view_of(t)->inner, peer);
}

static enum epa_status view_quiet(struct epa_transport *t)
{
    return view_of(t)->inner->ops->quiet(view_of(t)->inner);
}

static uint64_t view_read(struct epa_transport *t, uint32_t signal)
{
    return view_of(t)->inner->ops->read(view_of(t)->inner, signal);
}

static enum epa_status view_wait(struct epa_transport *t, uint32_t signal, enum epa_compare compare,
                                 uint64_t value, uint64_t timeout_ns)
{
    return view_of(t)->inner->ops->wait(view_of(t)->inner, signal, compare, value, timeout_ns);
}

static enum epa_status view_progress(struct epa_transport *t)
{
    return view_of(t)->inner->ops->progress(view_of(t)->inner);
}

static enum epa_status view_barrier(struct epa_transport *t, uint64_t timeout_ns)
{
    return view_of(t)->inner->ops->barrier(view_of(t)->inner, timeout_ns);
}

static enum epa_status view_reset(struct epa_transport *t)
{
    return view_of(t)->inner->ops->reset(view_of(t)->inner);
}

static void view_explain(struct epa_transport *t, struct epa_error *err)
{
    struct view *v = view_of(t);

    if (v->error.status != EPA_OK)
        (void)epa_fail(err, v->error.status, "%s", v->error.text);
    else
        v->inner->ops->explain(v->inner, err);
}

static void view_close(struct epa_transport *t)
{
    struct view *v = view_of(t);

    v->inner->ops->close(v->inner);
    free(v->peer_heap);
    free(v);
}

static const struct epa_transport_ops ops = {
    .put = view_put,
    .put_signal = view_put_signal,
    .signal = view_signal,
    .fence = view_fence,
    .quiet = view_quiet,
    .read = view_read,
    .wait = view_wait,
    .progress = view_progress,
    .barrier = view_barrier,
    .reset = view_reset,
    .explain = view_explain,
    .close = view_close,
};

/* Puts a view in front of a host transport, unless it exists, and sets the algorithm's part to the
 * sizes of this plan. The view closes the inner transport. */
static struct view *insert_view(struct rank *r, const struct epa_footprint *footprint)
{
    struct epa_transport *inner = r->transport;
    struct view *v = r->view;

    if (v == NULL) {
        v = r->view = memory_alloc(1, sizeof(*v));
        v->inner = inner;
        v->peer_heap = memory_alloc(inner->size, sizeof(*v->peer_heap));
        memcpy(v->peer_heap, inner->peer_heap, inner->size * sizeof(*v->peer_heap));
        v->base = *inner;
        v->base.ops = &ops;
        v->base.peer_heap = v->peer_heap;
    }
    v->heap_at = r->heap_at;
    v->heap_bytes = footprint->heap_bytes;
    v->signal_at = r->signal_at;
    v->signals = footprint->signals;
    r->transport = &v->base;
    return v;
}

/* Removes the mapped heaps of peers, so that only puts reach them. */
static void view_put_only(struct view *v)
{
    for (uint32_t r = 0; r < v->base.size; r++)
        v->peer_heap[r] = r != v->base.rank ? NULL : v->peer_heap[r];
    v->base.flags &= ~(uint32_t)EPA_TRANSPORT_LOAD_STORE;
}

/* verify: checks that an algorithm sends the bytes that its plan claims. All reports compute `wire`,
 * `bottleneck` and "sent" from the plan; this check compares them with the puts.
 *
 * No function can count stores to a peer's heap. So after the last iteration the ranks create the
 * algorithm again, for the same problem and over the same transport without peer_heap, and run a few
 * more iterations with puts only. */

enum { COUNTED_ITERATIONS = 3, FEW_ITERATIONS = 20, SPARE_BYTES = 32 * 8 };

/* Limit of the additional heap if another launcher starts the processes: each computes its own free
 * memory, and all must make the same decision. */
static const uint64_t additional_bytes_most = 256u << 20;

/* ---- planning, before ranks start ---- */

static uint32_t flags_of_puts(const struct experiment *x)
{
    return experiment_transport_flags(x) & ~(uint32_t)EPA_TRANSPORT_LOAD_STORE;
}

static bool has_room(struct session *s)
{
    struct epa_footprint footprint = s->footprint;
    struct epa_error ignored = {EPA_OK, ""};
    bool room;

    if (s->puts.heap_bytes <= footprint.heap_bytes)
        return true;
    if (s->process_id.size > 1)
        return s->puts.heap_bytes - footprint.heap_bytes <= additional_bytes_most;
    s->footprint.heap_bytes = s->puts.heap_bytes;
    room = preflight_memory("", s, &ignored) == EPA_OK;
    s->footprint = footprint;
    return room;
}

void session_plan_puts(struct session *s)
{
    const struct experiment *x = s->experiment;
    uint32_t local = x->ranks_per_node == 0 ? x->ranks : x->ranks_per_node;
    const struct epa_world world = {.size = x->ranks, .local_size = local, .local_cores = 1};
    struct epa_problem problem = operation_problem(x);
    struct epa_error err = {EPA_OK, ""};
    const char *why = NULL;

    if (s->verb != VERB_VERIFY)
        return;
    if (x->ranks == 1)
        why = "one rank sends no puts";
    else if (fault_is_planted(x))
        why = "a fault is planted";
    else if (x->verify.stop != STOP_NONE)
        why = "a rank stops at the end";
    else if (!is_on_hosts(x))
        why = "stores of kernels cannot be counted";
    else if (s->footprint.heap_bytes == 0 && s->footprint.signals == 0)
        why = "the algorithm uses no memory of the transport";
    else if ((algorithm_of(x)->needs_host & EPA_TRANSPORT_LOAD_STORE) != 0)
        why = "the algorithm needs loads and stores";
    else if (algorithm_of(x)->plan(&problem, &world, flags_of_puts(x), x->algorithm.config,
                                   &s->puts, &err) != EPA_OK)
        why = err.text;
    else if (!has_room(s))
        why = "there is no memory for the larger heap of puts";
    snprintf(s->uncounted, sizeof(s->uncounted), "%s", why != NULL ? why : "");
    if (why != NULL)
        s->puts = (struct epa_footprint){0};
}

/* ---- a rank ---- */

/* Tolerates 1 %, or SPARE_BYTES per peer for few bytes, since the number of signals may depend on the
 * routing. */
static void compare_sent(struct rank *r, const char *stage, uint64_t claimed, uint64_t counted)
{
    uint64_t off = claimed > counted ? claimed - counted : counted - claimed;

    if (off * 100 > claimed && off > (uint64_t)(r->boot->world.size - 1) * SPARE_BYTES)
        rank_fail(
            r, EPA_ERR_MISMATCH,
            "rank %u, iteration %llu, %s: plan() claims %llu bytes sent to other ranks, but "
            "%llu were put (a signal counts 8); correct the bytes of a row, or control bytes, "
            "in its footprint",
            r->boot->world.rank, (unsigned long long)r->shared->iteration, stage,
            (unsigned long long)claimed, (unsigned long long)counted);
}

/* Runs the stages `first` to `last - 1`. Returns the number of bytes that they put. */
static uint64_t run_counted_stages(struct rank *r, struct view *v, uint32_t first, uint32_t last)
{
    uint64_t before = v->bytes;

    for (uint32_t i = first; i < last && rank_good(r); i++) {
        rank_at_stage(r, i);
        rank_stage(r, i, 0);
    }
    rank_sync(r);
    if (last > first)
        rank_check(r, r->stage[last - 1].kind, 0);
    rank_at_stage(r, SESSION_ELSEWHERE);
    return v->bytes - before;
}

static void count_iteration(struct rank *r, struct view *v, uint64_t iteration)
{
    const struct operation *op = r->op->operation;
    struct op_traffic claimed = {.flops = 0};
    uint64_t first, rest, compared = r->shared->compared; /* elements of verify's own iterations */

    rank_at(r, iteration, SESSION_ELSEWHERE);
    rank_make(r, 0, iteration);
    if (!rank_good(r))
        return;
    rank_guard_inputs(r, 0);
    op->traffic(r->op, 0, &claimed);
    first = run_counted_stages(r, v, 0, r->first_stages);
    rank_between(r, r->first_stages - 1, 0);
    rest = run_counted_stages(r, v, r->first_stages, r->n_stages);
    rank_guard_check(r, 0);
    r->shared->compared = compared;
    r->shared->put_bytes += first + rest;
    if (!rank_good(r))
        return;
    if (r->first_stages == r->n_stages) { /* one stage for all phases */
        for (uint32_t i = 1; i < op->n_phases; i++)
            claimed.phase[0].sent += claimed.phase[i].sent;
        compare_sent(r, r->stage[r->n_stages - 1].name, claimed.phase[0].sent, first);
        return;
    }
    compare_sent(r, op->phase[0].name, claimed.phase[0].sent, first);
    compare_sent(r, op->phase[1].name, claimed.phase[1].sent, rest);
}

void rank_count_puts(struct rank *r)
{
    const struct session *s = r->session;
    uint64_t first = s->iterations, n = first < FEW_ITERATIONS ? 1 : COUNTED_ITERATIONS;
    struct view *v;

    if (!rank_good(r) || s->verb != VERB_VERIFY || s->uncounted[0] != '\0')
        return;
    r->counts_puts = true;
    rank_clear_heap(r);
    rank_destroy(r);
    if (!rank_good(r))
        return;
    v = insert_view(r, &s->puts);
    view_put_only(v);
    rank_guard_heap(r, &s->puts);
    r->trace = NULL;
    rank_create(r, &s->puts, flags_of_puts(s->experiment));
    if (rank_good(r))
        (void)rank_boot(r, r->boot->barrier(r->boot));
    for (uint32_t i = 0; i < n && rank_goes_on(r); i++)
        count_iteration(r, v, first + i);
    rank_barrier(r);
}

/* verify.guard: detects writes outside the algorithm's memory. The algorithm's part of the heap begins
 * one page after the start and ends at least one page before the end; the guard areas around it contain
 * a pattern. So do the bytes behind inputs and outputs, and inputs must not change. The view rejects
 * signals and puts outside the plan. The check follows each iteration, so it may detect the write of a
 * peer one iteration late. */

enum { GUARD_BYTES = 4096, GUARD_SIGNALS = 8, SLOTS = 2 };

struct guard {
    uint64_t inputs[SLOTS][OP_ARRAYS]; /* hashes of the inputs */
};

static char pattern_byte(uint64_t at)
{
    return (char)(0x5b + at * 29);
}

static void fill_pattern(char *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        p[i] = pattern_byte(i);
}

/* Returns the offset of the first changed byte, or n without a change. */
static uint64_t find_change(const char *p, uint64_t n)
{
    uint64_t i = 0;

    while (i < n && p[i] == pattern_byte(i))
        i++;
    return i;
}

static uint64_t hash_bytes(const char *p, uint64_t n)
{
    uint64_t h = n, word;

    for (; n >= sizeof(word); p += sizeof(word), n -= sizeof(word)) {
        memcpy(&word, p, sizeof(word));
        h = random_mix(h ^ word);
    }
    for (; n > 0; n--)
        h = random_mix(h ^ (unsigned char)*p++);
    return h;
}

/* ---- the heap ---- */

bool rank_is_guarded(const struct rank *r)
{
    const struct verify_options *v = &experiment_of(r)->verify;

    return r->session->verb == VERB_VERIFY && (v->guard || v->epoch != 0);
}

void rank_guard_room(struct rank *r, uint64_t *heap_bytes, uint32_t *signals)
{
    if (!rank_is_guarded(r))
        return;
    *heap_bytes = (*heap_bytes + 4095) / 4096 * 4096 + 2 * GUARD_BYTES;
    *signals += 2 * GUARD_SIGNALS;
    r->heap_at = GUARD_BYTES;
    r->signal_at = GUARD_SIGNALS;
}

void rank_guard_heap(struct rank *r, const struct epa_footprint *footprint)
{
    struct epa_transport *t = r->transport;
    uint64_t end = r->heap_at + footprint->heap_bytes;

    if (!rank_good(r) || !rank_is_guarded(r))
        return;
    (void)insert_view(r, footprint);
    if (r->guard == NULL)
        r->guard = memory_alloc(1, sizeof(*r->guard));
    fill_pattern(t->heap, r->heap_at);
    fill_pattern(t->heap + end, t->heap_bytes - end);
}

static void check_around_heap(struct rank *r)
{
    const struct epa_transport *t = r->transport;
    uint64_t bytes = r->view->heap_bytes, end = r->heap_at + bytes;
    uint64_t before = find_change(t->heap, r->heap_at);
    uint64_t behind = find_change(t->heap + end, t->heap_bytes - end);
    unsigned long long size = bytes;

    if (before < r->heap_at)
        rank_fail(r, EPA_ERR_MISMATCH,
                  "rank %u, iteration %llu: the algorithm wrote byte %llu before its part of this "
                  "rank's heap; the part begins at epa_algorithm_params.heap",
                  t->rank, (unsigned long long)r->shared->iteration,
                  (unsigned long long)(r->heap_at - before));
    else if (end + behind < t->heap_bytes)
        rank_fail(r, EPA_ERR_MISMATCH,
                  "rank %u, iteration %llu: the algorithm wrote byte %llu of this rank's heap; "
                  "plan() requested %llu bytes",
                  t->rank, (unsigned long long)r->shared->iteration, size + behind, size);
}

/* ---- inputs and outputs ---- */

/* Lists the arrays of the operation in a slot: at full size, and the bytes in use. Returns the number of
 * arrays. */
static uint32_t list_arrays(const struct rank *r, uint32_t slot, struct op_array all[OP_ARRAYS],
                            struct op_array used[OP_ARRAYS])
{
    const struct operation *op = r->op->operation;

    (void)op->arrays(r->op->x, r->op->slot[slot].units, used);
    return op->arrays(r->op->x, op->most_units(r->op->x), all);
}

void rank_guard_inputs(struct rank *r, uint32_t slot)
{
    struct op_array all[OP_ARRAYS], used[OP_ARRAYS];
    uint32_t n = 0;

    if (rank_good(r) && r->guard != NULL)
        n = list_arrays(r, slot, all, used);
    for (uint32_t i = 0; i < n; i++) {
        char *at = r->op->slot[slot].array[i].there;

        if (at != NULL)
            fill_pattern(at + all[i].bytes, OP_SPARE);
        if (at != NULL && !all[i].output)
            r->guard->inputs[slot][i] = hash_bytes(at, used[i].bytes);
    }
}

void rank_guard_check(struct rank *r, uint32_t slot)
{
    unsigned long long iteration = r->shared->iteration;
    struct op_array all[OP_ARRAYS], used[OP_ARRAYS];
    uint32_t n;

    if (!rank_good(r) || r->guard == NULL)
        return;
    check_around_heap(r);
    n = list_arrays(r, slot, all, used);
    for (uint32_t i = 0; i < n && rank_good(r); i++) {
        const char *at = r->op->slot[slot].array[i].there;
        uint64_t behind = at != NULL ? find_change(at + all[i].bytes, OP_SPARE) : OP_SPARE;

        if (at != NULL && !all[i].output &&
            hash_bytes(at, used[i].bytes) != r->guard->inputs[slot][i])
            rank_fail(r, EPA_ERR_MISMATCH,
                      "rank %u, iteration %llu: the algorithm wrote the input '%s'",
                      r->boot->world.rank, iteration, all[i].what);
        else if (behind < OP_SPARE)
            rank_fail(
                r, EPA_ERR_MISMATCH,
                "rank %u, iteration %llu: the algorithm wrote byte %llu of '%s', which has %llu",
                r->boot->world.rank, iteration, (unsigned long long)(all[i].bytes + behind),
                all[i].what, (unsigned long long)all[i].bytes);
    }
}

/* ---- the end of verify ---- */

void rank_guard_end(struct rank *r)
{
    uint64_t epoch = experiment_of(r)->verify.epoch;

    if (!rank_good(r) || r->guard == NULL || epoch == 0 || r->view->newest > epoch)
        return;
    /* A single rank sends no signals. */
    if (r->boot->world.size > 1)
        rank_fail(r, EPA_ERR_UNSUPPORTED,
                  "verify.epoch: %s ignores epa_algorithm_params.epoch, so the wrap-around of its "
                  "counters is untested",
                  experiment_of(r)->algorithm.plugin->name);
}
