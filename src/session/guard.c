/* verify.guard: whether an algorithm writes where it must not. Its part of the heap begins a page
 * behind the start and ends a page or more before the end, and what is around it has a pattern;
 * so have the bytes behind inputs and outputs, and inputs are to stay as they are. Signals that the
 * plan did not ask for, and puts to what is not its part, the view refuses (view.c). It looks after
 * each iteration, which may be one after a peer wrote. */
#include <string.h>

#include "base/random.h"
#include "session/rank.h"

enum { GUARD_BYTES = 4096, GUARD_SIGNALS = 8, SLOTS = 2 };

struct guard {
    uint64_t heap_bytes; /* of the algorithm's part */
    uint64_t inputs[SLOTS][OP_BUFFERS];
};

static char pattern(uint64_t at)
{
    return (char)(0x5b + at * 29);
}

static void fill(char *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        p[i] = pattern(i);
}

/* The first byte that is another; n: there is none. */
static uint64_t find_change(const char *p, uint64_t n)
{
    uint64_t i = 0;

    while (i < n && p[i] == pattern(i))
        i++;
    return i;
}

static uint64_t hash(const char *p, uint64_t n)
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
    if (r->view == NULL)
        r->view = view_create(t);
    if (r->guard == NULL)
        r->guard = memory_alloc(1, sizeof(*r->guard));
    r->transport = &r->view->base;
    view_limit(r->view, r->heap_at, footprint->heap_bytes, r->signal_at, footprint->signals);
    r->guard->heap_bytes = footprint->heap_bytes;
    fill(t->heap, r->heap_at);
    fill(t->heap + end, t->heap_bytes - end);
}

static void check_heap(struct rank *r)
{
    const struct epa_transport *t = r->transport;
    uint64_t bytes = r->guard->heap_bytes, end = r->heap_at + bytes;
    uint64_t before = find_change(t->heap, r->heap_at);
    uint64_t behind = find_change(t->heap + end, t->heap_bytes - end);
    unsigned long long size = bytes;

    if (before < r->heap_at)
        rank_fail(r, EPA_ERR_MISMATCH,
                  "rank %u, iteration %llu: byte %llu before its part of this rank's heap was "
                  "written (epa_algorithm_params.heap is where that begins)",
                  t->rank, (unsigned long long)r->shared->iteration,
                  (unsigned long long)(r->heap_at - before));
    else if (end + behind < t->heap_bytes)
        rank_fail(r, EPA_ERR_MISMATCH,
                  "rank %u, iteration %llu: byte %llu of this rank's heap was written, of which "
                  "plan() asked for %llu",
                  t->rank, (unsigned long long)r->shared->iteration, size + behind, size);
}

/* ---- inputs and outputs ---- */

void rank_guard_inputs(struct rank *r, uint32_t slot)
{
    const struct operation *op = r->op->operation;
    struct op_given b[OP_BUFFERS];
    uint32_t n = 0;

    if (rank_good(r) && r->guard != NULL && op->given != NULL)
        n = op->given(r->op, slot, b);
    for (uint32_t i = 0; i < n; i++) {
        fill(b[i].at + b[i].bytes, OP_SPARE);
        if (!b[i].output)
            r->guard->inputs[slot][i] = hash(b[i].at, b[i].used);
    }
}

void rank_guard_check(struct rank *r, uint32_t slot)
{
    const struct operation *op = r->op->operation;
    unsigned long long iteration = r->shared->iteration;
    struct op_given b[OP_BUFFERS];
    uint32_t n = 0;

    if (!rank_good(r) || r->guard == NULL)
        return;
    check_heap(r);
    if (op->given != NULL)
        n = op->given(r->op, slot, b);
    for (uint32_t i = 0; i < n && rank_good(r); i++) {
        uint64_t behind = find_change(b[i].at + b[i].bytes, OP_SPARE);

        if (!b[i].output && hash(b[i].at, b[i].used) != r->guard->inputs[slot][i])
            rank_fail(r, EPA_ERR_MISMATCH, "rank %u, iteration %llu: the input '%s' was written",
                      r->boot->world.rank, iteration, b[i].name);
        else if (behind < OP_SPARE)
            rank_fail(r, EPA_ERR_MISMATCH,
                      "rank %u, iteration %llu: byte %llu of '%s' was written, which has %llu",
                      r->boot->world.rank, iteration, (unsigned long long)(b[i].bytes + behind),
                      b[i].name, (unsigned long long)b[i].bytes);
    }
}

/* ---- the end of verify ---- */

void rank_guard_end(struct rank *r)
{
    uint64_t epoch = experiment_of(r)->verify.epoch;

    if (!rank_good(r) || r->guard == NULL || epoch == 0 || r->view->newest > epoch)
        return;
    /* Of one rank nothing is signalled. */
    if (r->boot->world.size > 1)
        rank_fail(r, EPA_ERR_UNSUPPORTED,
                  "verify.epoch: %s does not begin with epa_algorithm_params.epoch, so how it "
                  "wraps around is not known",
                  experiment_of(r)->algorithm.plugin->name);
}
