/* verify.guard: detects writes outside the algorithm's memory. The algorithm's part of the heap begins
 * one page after the start and ends at least one page before the end; the guard areas around it contain
 * a pattern. So do the bytes behind inputs and outputs, and inputs must not change. The view rejects
 * signals and puts outside the plan. The check follows each iteration, so it may detect the write of a
 * peer one iteration late. */
#include "session/rank_guard.h"

#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "session/rank_status.h"
#include "session/view.h"

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

bool rank_is_guarded(const struct rank *r)
{
    const struct verify_options *v = &experiment_of(r)->verify;

    return r->session->verb == VERB_VERIFY && (v->guard || v->epoch != 0);
}

/* With the public interface the heap belongs to the library; the memory of the caller is guarded. */
static bool guards_heap(const struct rank *r)
{
    return rank_is_guarded(r) && experiment_of(r)->api == API_NONE;
}

void rank_guard_room(struct rank *r, uint64_t *heap_bytes, uint32_t *signals)
{
    if (!guards_heap(r))
        return;
    *heap_bytes = (*heap_bytes + 4095) / 4096 * 4096 + 2 * GUARD_BYTES;
    *signals += 2 * GUARD_SIGNALS;
    r->heap_at = GUARD_BYTES;
    r->signal_at = GUARD_SIGNALS;
}

void rank_guard_heap(struct rank *r, const struct epa_footprint *footprint)
{
    struct epa_transport *t = r->ep.transport;
    uint64_t end = r->heap_at + footprint->heap_bytes;

    if (!rank_good(r) || !rank_is_guarded(r))
        return;
    if (r->guard == NULL)
        r->guard = memory_alloc(1, sizeof(*r->guard));
    if (!guards_heap(r))
        return;
    (void)insert_view(r, footprint);
    fill_pattern(t->heap, r->heap_at);
    fill_pattern(t->heap + end, t->heap_bytes - end);
}

static void check_around_heap(struct rank *r)
{
    const struct epa_transport *t = r->ep.transport;
    uint64_t bytes = r->view->heap_bytes, end = r->heap_at + bytes;
    uint64_t before = find_change(t->heap, r->heap_at);
    uint64_t behind = find_change(t->heap + end, t->heap_bytes - end);
    unsigned long long size = bytes;

    if (before < r->heap_at)
        rank_fail_key(
            r, EPA_ERR_MISMATCH, OP_PLACED,
            "rank %u, iteration %llu: the algorithm wrote byte %llu before its part of this "
            "rank's heap; the part begins at epa_algorithm_params.heap",
            t->rank, (unsigned long long)r->shared->iteration,
            (unsigned long long)(r->heap_at - before));
    else if (end + behind < t->heap_bytes)
        rank_fail_key(r, EPA_ERR_MISMATCH, OP_PLACED,
                      "rank %u, iteration %llu: the algorithm wrote byte %llu of this rank's heap; "
                      "plan() requested %llu bytes",
                      t->rank, (unsigned long long)r->shared->iteration, size + behind, size);
}

/* Lists the arrays of the operation in a slot: at full size, and the bytes in use. Returns the number of
 * arrays. */
static uint32_t list_arrays(const struct rank *r, uint32_t slot, struct op_array all[OP_ARRAYS],
                            struct op_array used[OP_ARRAYS])
{
    const struct operation *op = r->op->operation;

    (void)op->arrays(r->op->params, r->op->slot[slot].units, used);
    return op->arrays(r->op->params, op->most_units(r->op->params), all);
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
    if (guards_heap(r))
        check_around_heap(r);
    n = list_arrays(r, slot, all, used);
    for (uint32_t i = 0; i < n && rank_good(r); i++) {
        const char *at = r->op->slot[slot].array[i].there;
        uint64_t behind = at != NULL ? find_change(at + all[i].bytes, OP_SPARE) : OP_SPARE;

        if (at != NULL && !all[i].output &&
            hash_bytes(at, used[i].bytes) != r->guard->inputs[slot][i])
            rank_fail_key(r, EPA_ERR_MISMATCH, OP_PLACED,
                          "rank %u, iteration %llu: the algorithm wrote the input '%s'",
                          r->comm.boot->world.rank, iteration, all[i].what);
        else if (behind < OP_SPARE)
            rank_fail_key(
                r, EPA_ERR_MISMATCH, OP_PLACED,
                "rank %u, iteration %llu: the algorithm wrote byte %llu of '%s', which has %llu",
                r->comm.boot->world.rank, iteration, (unsigned long long)(all[i].bytes + behind),
                all[i].what, (unsigned long long)all[i].bytes);
    }
}

void rank_guard_end(struct rank *r)
{
    uint64_t epoch = experiment_of(r)->verify.epoch;

    if (!rank_good(r) || !guards_heap(r) || epoch == 0 || r->view->newest > epoch)
        return;
    /* A single rank sends no signals. */
    if (r->comm.boot->world.size > 1)
        rank_fail_key(
            r, EPA_ERR_UNSUPPORTED, "verify.epoch",
            "verify.epoch: %s ignores epa_algorithm_params.epoch, so the wrap-around of its "
            "counters is untested",
            experiment_of(r)->algorithm.plugin->name);
}
