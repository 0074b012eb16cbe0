/* Promises of epa2a/transport.h about order and about the destination of bytes: any size,
 * alignment, peer and source. They run over the transport given on the command line. A body runs on
 * each rank. Sources are in the lower half of the heap, for transports that read only from the
 * heap; puts arrive in the upper half. */
#include "ranks.h"

enum { HEAP = 16384, HALF = HEAP / 2, SIGNALS = 64, ROUNDS = 1000, LARGE = 9 * (1 << 20) + 3 };

/* Runs rounds in a ring: send() of the promise puts `bytes` to the next rank and raises signal 0
 * there. The receiver raises signal 1 after it has read them, so that only the order under test
 * matters. */
static void go_round(struct rank *r)
{
    for (uint64_t round = 1; goes_on(r, round, r->promise->value); round++) {
        size_t bytes = 1 + (round * 977 & 2047);

        fill(r, 0, bytes, round);
        if (!r->promise->send(r, bytes, round) || !await(r, 0, round) ||
            !is_filled(r, HALF, bytes, round, previous_of(r)) ||
            !raise_signal(r, 1, round, EPA_SIGNAL_SET, previous_of(r)) || !await(r, 1, round))
            return;
    }
}

static bool send_with_signal(struct rank *r, size_t bytes, uint64_t round)
{
    return put_signal(r, HALF, r->t->heap, bytes, 0, round, EPA_SIGNAL_SET, next_of(r));
}

static bool send_with_fence(struct rank *r, size_t bytes, uint64_t round)
{
    size_t half = bytes / 2;

    return put(r, HALF + half, r->t->heap + half, bytes - half, next_of(r)) &&
           put(r, HALF, r->t->heap, half, next_of(r)) &&
           works(r, r->t->ops->fence(r->t, next_of(r))) &&
           raise_signal(r, 0, round, EPA_SIGNAL_SET, next_of(r));
}

static void set_twice(struct rank *r)
{
    for (uint64_t round = 1; goes_on(r, round, ROUNDS); round++) {
        raise_signal(r, 0, 2 * round - 1, EPA_SIGNAL_SET, next_of(r));
        works(r, r->t->ops->fence(r->t, next_of(r)));
        raise_signal(r, 0, 2 * round, EPA_SIGNAL_SET, next_of(r));
        meet(r);
        claim(r, r->t->ops->read(r->t, 0) == 2 * round, "a signal decreased from %llu",
              (unsigned long long)(2 * round));
        meet(r);
    }
}

/* Puts the first half; the second half carries the signal. */
static bool send_fence_put_signal(struct rank *r, size_t bytes, uint64_t round)
{
    size_t half = bytes / 2;

    return put(r, HALF, r->t->heap, half, next_of(r)) &&
           works(r, r->t->ops->fence(r->t, next_of(r))) &&
           put_signal(r, HALF + half, r->t->heap + half, bytes - half, 0, round, EPA_SIGNAL_SET,
                      next_of(r));
}

/* The second put overwrites the first. */
static bool send_twice(struct rank *r, size_t bytes, uint64_t round)
{
    store_byte(r, HALF / 2, 0x55, bytes);
    return put(r, HALF, r->t->heap + HALF / 2, bytes, next_of(r)) &&
           works(r, r->t->ops->fence(r->t, next_of(r))) &&
           put(r, HALF, r->t->heap, bytes, next_of(r)) &&
           works(r, r->t->ops->fence(r->t, next_of(r))) &&
           raise_signal(r, 0, round, EPA_SIGNAL_SET, next_of(r));
}

static void ring_without_signals(struct rank *r)
{
    for (uint64_t round = 1; goes_on(r, round, ROUNDS / 10); round++) {
        size_t bytes = 1 + draw(r, 4000);

        r->shared->note[r->me][0] = bytes;
        fill(r, 0, bytes, round);
        if (!put(r, HALF, r->t->heap, bytes, next_of(r)) || !works(r, r->t->ops->quiet(r->t)) ||
            !claim(r, r->boot->barrier(r->boot) == EPA_OK, "barrier of the bootstrap") ||
            !is_filled(r, HALF, r->shared->note[previous_of(r)][0], round, previous_of(r)) ||
            !claim(r, r->boot->barrier(r->boot) == EPA_OK, "barrier of the bootstrap"))
            return;
    }
}

/* Overwrites the source as soon as quiet() permits it. */
static bool send_and_reuse(struct rank *r, size_t bytes, uint64_t round)
{
    bool good = put(r, HALF, r->t->heap, bytes, next_of(r)) && works(r, r->t->ops->quiet(r->t));

    store_byte(r, 0, 0xaa, bytes);
    return good && raise_signal(r, 0, round, EPA_SIGNAL_SET, next_of(r));
}

/* Two ranks signal each other, call quiet() and read: at least one must see the signal of the
 * other. Random pauses make both do it at the same time now and then. */
static void look_after_quiet(struct rank *r)
{
    uint64_t round;

    for (round = 1; goes_on(r, round, NOTES - 1); round++) {
        if (!meet(r))
            return;
        for (uint64_t pause = draw(r, 300); pause > 0; pause--)
            (void)__atomic_load_n(&r->shared->word[0], __ATOMIC_RELAXED);
        if (!raise_signal(r, 0, round, EPA_SIGNAL_SET, 1 - r->me) ||
            !works(r, r->t->ops->quiet(r->t)))
            return;
        r->shared->note[r->me][round] = r->t->ops->read(r->t, 0);
    }
    meet(r);
    while (--round > 0 && r->me == 0)
        claim(r, r->shared->note[0][round] == round || r->shared->note[1][round] == round,
              "round %llu: neither rank saw the other's signal after quiet()",
              (unsigned long long)round);
}

static void check_signals_are_zero(struct rank *r)
{
    for (uint32_t i = 0; i < SIGNALS; i++)
        claim(r, r->t->ops->read(r->t, i) == 0, "signal %u is %llu", i,
              (unsigned long long)r->t->ops->read(r->t, i));
    meet(r);
}

static void raise_and_reset(struct rank *r)
{
    for (uint64_t round = 1; round <= 20; round++) {
        for (uint32_t i = 0; i < SIGNALS; i++)
            raise_signal(r, i, round, EPA_SIGNAL_SET, next_of(r));
        for (uint32_t i = 0; i < SIGNALS; i++)
            await(r, i, round);
        if (!works(r, r->t->ops->reset(r->t)))
            return;
        check_signals_are_zero(r);
    }
}

static void set_one_signal(struct rank *r)
{
    static const uint64_t values[] = {1, UINT64_MAX, 7, (uint64_t)1 << 63};

    for (uint32_t i = 0; i < 4; i++) {
        enum epa_status status;

        if (!raise_signal(r, 3, values[i], EPA_SIGNAL_SET, next_of(r)))
            return;
        status = r->t->ops->wait(r->t, 3, EPA_EQ, values[i], DEFAULT_TIMEOUT_NS);
        if (!works(r, status) || !meet(r))
            return;
    }
    for (uint32_t i = 0; i < SIGNALS; i++)
        claim(r, i == 3 || r->t->ops->read(r->t, i) == 0, "signal %u was set as well", i);
}

static void add_to_all(struct rank *r)
{
    uint64_t want = 0, turns = rounds(r, ROUNDS);

    if ((r->t->flags & EPA_TRANSPORT_SIGNAL_ADD) == 0)
        return;
    for (uint64_t i = 0; i < turns; i++) {
        for (uint32_t peer = 0; peer < r->size; peer++)
            raise_signal(r, 5, r->me + 1, EPA_SIGNAL_ADD, peer);
    }
    for (uint32_t peer = 0; peer < r->size; peer++)
        want += (peer + 1) * turns;
    await(r, 5, want);
    meet(r);
    claim(r, r->t->ops->read(r->t, 5) == want, "the sum is %llu, not %llu",
          (unsigned long long)r->t->ops->read(r->t, 5), (unsigned long long)want);
}

/* Different engines may execute additions and sets. */
static void add_then_set(struct rank *r)
{
    if ((r->t->flags & EPA_TRANSPORT_SIGNAL_ADD) == 0)
        return;
    for (uint64_t round = 1; goes_on(r, round, ROUNDS); round++) {
        uint64_t add = round % 4;

        for (uint64_t i = 0; i < add; i++)
            raise_signal(r, 6, 1000, EPA_SIGNAL_ADD, next_of(r));
        works(r, r->t->ops->fence(r->t, next_of(r)));
        raise_signal(r, 6, round, EPA_SIGNAL_SET, next_of(r));
        works(r, r->t->ops->fence(r->t, next_of(r)));
        raise_signal(r, 6, 7, EPA_SIGNAL_ADD, next_of(r));
        meet(r);
        claim(r, r->t->ops->read(r->t, 6) == round + 7,
              "after additions, a set of %llu and an addition of 7 it is %llu",
              (unsigned long long)round, (unsigned long long)r->t->ops->read(r->t, 6));
        meet(r);
    }
}

/* Sends pieces until the transport returns EPA_AGAIN. A rejected call must have no effect: the sum
 * at the peer equals the accepted calls. */
static void count_what_is_taken(struct rank *r)
{
    uint64_t taken = 0;

    if ((r->t->flags & EPA_TRANSPORT_SIGNAL_ADD) == 0)
        return;
    for (uint64_t i = 0; i < rounds(r, ROUNDS); i++) {
        enum epa_status status =
            r->t->ops->put_signal(r->t, HALF, r->t->heap, 8, 2, 1, EPA_SIGNAL_ADD, next_of(r));

        if (status == EPA_OK)
            taken++;
        else if (status == EPA_AGAIN)
            works(r, r->t->ops->progress(r->t));
        else
            works(r, status);
    }
    r->shared->note[r->me][0] = taken;
    meet(r);
    claim(r, r->t->ops->read(r->t, 2) == r->shared->note[previous_of(r)][0],
          "%llu of %llu accepted additions arrived", (unsigned long long)r->t->ops->read(r->t, 2),
          (unsigned long long)r->shared->note[previous_of(r)][0]);
}

/* ---- where bytes land ---- */

static void send_nothing(struct rank *r)
{
    store_byte(r, HALF, 11, 1);
    store_byte(r, HEAP - 1, 12, 1);
    meet(r);
    put(r, HALF, r->t->heap, 0, next_of(r));
    put(r, HEAP, NULL, 0, next_of(r));
    put_signal(r, HALF, NULL, 0, 0, 1, EPA_SIGNAL_SET, next_of(r));
    await(r, 0, 1);
    meet(r);
    claim(r, load_byte(r, HALF) == 11 && load_byte(r, HEAP - 1) == 12,
          "a put of 0 bytes wrote to the heap");
}

/* Sizes and offsets are arbitrary; guard bytes enclose the destination. */
static void send_unaligned(struct rank *r)
{
    for (uint64_t round = 1; goes_on(r, round, ROUNDS / 3); round++) {
        uint64_t src = draw(r, 64), dst = HALF + 1 + draw(r, 64);
        size_t bytes = 1 + draw(r, 300);

        store_byte(r, HALF, 0x77, 512);
        r->shared->note[r->me][0] = dst;
        r->shared->note[r->me][1] = bytes;
        fill(r, src, bytes, round);
        if (!meet(r) || !put(r, dst, r->t->heap + src, bytes, next_of(r)) || !meet(r))
            return;
        dst = r->shared->note[previous_of(r)][0];
        bytes = r->shared->note[previous_of(r)][1];
        claim(r, load_byte(r, dst - 1) == 0x77 && load_byte(r, dst + bytes) == 0x77,
              "%zu bytes to offset %llu wrote beside it", bytes, (unsigned long long)dst);
        if (!is_filled(r, dst, bytes, round, previous_of(r)) || !meet(r))
            return;
    }
}

static void send_large(struct rank *r)
{
    for (uint64_t round = 1; round <= 3; round++) {
        fill(r, 1, LARGE, round);
        put_signal(r, LARGE + 5, r->t->heap + 1, LARGE, 0, round, EPA_SIGNAL_SET, next_of(r));
        if (!await(r, 0, round) || !is_filled(r, LARGE + 5, LARGE, round, previous_of(r)) ||
            !meet(r))
            return;
    }
}

/* Each rank writes its number to its own byte in the heap of each rank, including itself. */
static void write_own_place(struct rank *r)
{
    for (uint64_t round = 1; goes_on(r, round, ROUNDS / 10); round++) {
        uint64_t place = HALF + (uint64_t)r->me * 1000;

        fill(r, place - HALF, 900, round);
        for (uint32_t peer = 0; peer < r->size; peer++)
            put_signal(r, place, r->t->heap + place - HALF, 900, r->me, round, EPA_SIGNAL_SET,
                       peer);
        for (uint32_t peer = 0; peer < r->size; peer++) {
            if (!await(r, peer, round) ||
                !is_filled(r, HALF + (uint64_t)peer * 1000, 900, round, peer))
                return;
        }
        if (!meet(r))
            return;
    }
}

static void store_through_pointers(struct rank *r)
{
    bool all = (r->t->flags & EPA_TRANSPORT_LOAD_STORE) != 0;
    char letters[64];

    claim(r, r->t->rank == r->me && r->t->size == r->size, "rank %u of %u", r->t->rank, r->t->size);
    claim(r, r->t->heap_bytes == HEAP, "%llu bytes of heap", (unsigned long long)r->t->heap_bytes);
    claim(r, r->t->peer_heap[r->me] == NULL || r->t->peer_heap[r->me] == r->t->heap,
          "the own heap is at two addresses");
    claim(r, ((uintptr_t)r->t->heap & 63) == 0, "the heap is not on a 64-byte line");
    for (uint32_t peer = 0; peer < r->size; peer++) {
        char *place = epa_peer(r->t, HALF + (uint64_t)r->me * 64, peer);

        claim(r, place != NULL || !all, "rank %u is not in reach", peer);
        memset(letters, 'a' + (int)r->me, sizeof(letters));
        if (place != NULL)
            store_at(r, place, letters, sizeof(letters));
        raise_signal(r, r->me, place != NULL ? 2 : 1, EPA_SIGNAL_SET, peer);
    }
    for (uint32_t peer = 0; peer < r->size; peer++) {
        await(r, peer, 1);
        load(r, HALF + (uint64_t)peer * 64, letters, sizeof(letters));
        for (uint32_t i = 0; i < 64 && r->t->ops->read(r->t, peer) == 2; i++)
            claim(r, letters[i] == 'a' + (char)peer,
                  "byte %u of what rank %u stored has not come with its signal", i, peer);
    }
}

static void send_from_elsewhere(struct rank *r)
{
    char elsewhere[100];

    if ((r->t->flags & EPA_TRANSPORT_ANY_SOURCE) == 0)
        return;
    fill(r, 0, sizeof(elsewhere), 1);
    load(r, 0, elsewhere, sizeof(elsewhere));
    put_signal(r, HALF, elsewhere, sizeof(elsewhere), 0, 1, EPA_SIGNAL_SET, next_of(r));
    if (await(r, 0, 1))
        is_filled(r, HALF, sizeof(elsewhere), 1, previous_of(r));
    works(r, r->t->ops->quiet(r->t));
}

static const struct promise promises[] = {
    {"signals are zero after open", check_signals_are_zero, {3}},
    {"put_signal is seen after its payload", go_round, {2}, send_with_signal, ROUNDS},
    {"one to eight ranks exchange",
     go_round,
     {1, 2, 3, 4, 5, 6, 7, 8},
     send_with_signal,
     ROUNDS / 10},
    {"fence orders a signal after puts", go_round, {2, 5}, send_with_fence, ROUNDS},
    {"fence orders a signal after signals", set_twice, {2, 5}},
    {"fence orders a put_signal after puts", go_round, {2}, send_fence_put_signal, ROUNDS},
    {"fence orders a put after a put to the same place", go_round, {2}, send_twice, ROUNDS},
    {"quiet puts everything in place", ring_without_signals, {3}},
    {"quiet lets the source be used again", go_round, {2}, send_and_reuse, ROUNDS},
    {"quiet returns when others can see", look_after_quiet, {2}},
    {"reset brings signals back to zero", raise_and_reset, {3}},
    {"set replaces, and a wait for equality sees it", set_one_signal, {2}},
    {"additions of all ranks sum exactly", add_to_all, {2, 8}},
    {"fence orders sets and additions", add_then_set, {1, 3}},
    {"what was not taken was not begun", count_what_is_taken, {2}},
    {"zero bytes change nothing and still signal", send_nothing, {2}},
    {"any alignment lands, and nothing beside it", send_unaligned, {2}},
    {"megabytes come whole", send_large, {2}, .heap_bytes = 2 * LARGE + 5},
    {"an offset is the same place on every rank", write_own_place, {1, 4, 8}},
    {"stores through peer_heap come with the next signal", store_through_pointers, {4}},
    {"any source may lie outside the heap", send_from_elsewhere, {2}},
};

PROMISES_MAIN(SIGNALS, HEAP)
