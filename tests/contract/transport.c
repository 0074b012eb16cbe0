/* The promises of epa2a/transport.h that are about order, asked of the transport given on
 * the command line. A body runs on each rank. Sources lie in the lower half of the heap,
 * for transports that read from nowhere else; what is put lands in the upper half. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "ranks.h"

enum { HEAP = 16384, HALF = HEAP / 2, SIGNALS = 64, ROUNDS = 1000 };

static void run(void **state, uint32_t ranks, void (*body)(struct rank *))
{
    ranks_run(*state, &(struct ranks){
                          .ranks = ranks, .signals = SIGNALS, .heap_bytes = HEAP, .body = body});
}

/* Rounds of a ring: `send` puts `bytes` to the next rank and raises signal 0 there. Signal
 * 1 goes back once they are read, so the only order in play is the one under test. */
static void go_round(struct rank *r, uint64_t turns,
                     bool (*send)(struct rank *, size_t bytes, uint64_t round))
{
    for (uint64_t round = 1; goes_on(r, round, turns); round++) {
        size_t bytes = 1 + (round * 977 & 2047);

        fill(r, 0, bytes, round);
        if (!send(r, bytes, round) || !await(r, 0, round) ||
            !is_filled(r, HALF, bytes, round, previous_of(r)) ||
            !raise_signal(r, 1, round, EPA_SIGNAL_SET, previous_of(r)) || !await(r, 1, round))
            return;
    }
}

static bool send_with_signal(struct rank *r, size_t bytes, uint64_t round)
{
    return put_signal(r, HALF, r->t->heap, bytes, 0, round, EPA_SIGNAL_SET, next_of(r));
}

static void ring_with_signal(struct rank *r)
{
    go_round(r, ROUNDS, send_with_signal);
}

static void put_signal_is_seen_after_its_payload(void **state)
{
    run(state, 2, ring_with_signal);
}

static void short_ring_with_signal(struct rank *r)
{
    go_round(r, ROUNDS / 10, send_with_signal);
}

static void one_to_eight_ranks_exchange(void **state)
{
    const struct subject *subject = *state;

    for (uint32_t n = 1; n <= subject->most; n++)
        run(state, n, short_ring_with_signal);
}

static bool send_with_fence(struct rank *r, size_t bytes, uint64_t round)
{
    size_t half = bytes / 2;

    return put(r, HALF + half, r->t->heap + half, bytes - half, next_of(r)) &&
           put(r, HALF, r->t->heap, half, next_of(r)) &&
           works(r, r->t->ops->fence(r->t, next_of(r))) &&
           raise_signal(r, 0, round, EPA_SIGNAL_SET, next_of(r));
}

static void ring_with_fence(struct rank *r)
{
    go_round(r, ROUNDS, send_with_fence);
}

static void fence_orders_a_signal_after_puts(void **state)
{
    run(state, 2, ring_with_fence);
    run(state, 5, ring_with_fence);
}

static void set_twice(struct rank *r)
{
    for (uint64_t round = 1; goes_on(r, round, ROUNDS); round++) {
        raise_signal(r, 0, 2 * round - 1, EPA_SIGNAL_SET, next_of(r));
        works(r, r->t->ops->fence(r->t, next_of(r)));
        raise_signal(r, 0, 2 * round, EPA_SIGNAL_SET, next_of(r));
        meet(r);
        claim(r, r->t->ops->read(r->t, 0) == 2 * round, "a signal went back from %llu",
              (unsigned long long)(2 * round));
        meet(r);
    }
}

static void fence_orders_a_signal_after_signals(void **state)
{
    run(state, 2, set_twice);
    run(state, 5, set_twice);
}

/* The first half is put, the second comes with the signal. */
static bool send_fence_put_signal(struct rank *r, size_t bytes, uint64_t round)
{
    size_t half = bytes / 2;

    return put(r, HALF, r->t->heap, half, next_of(r)) &&
           works(r, r->t->ops->fence(r->t, next_of(r))) &&
           put_signal(r, HALF + half, r->t->heap + half, bytes - half, 0, round, EPA_SIGNAL_SET,
                      next_of(r));
}

static void ring_fence_put_signal(struct rank *r)
{
    go_round(r, ROUNDS, send_fence_put_signal);
}

static void fence_orders_a_put_signal_after_puts(void **state)
{
    run(state, 2, ring_fence_put_signal);
}

/* The second put lands on the first. */
static bool send_twice(struct rank *r, size_t bytes, uint64_t round)
{
    store_byte(r, HALF / 2, 0x55, bytes);
    return put(r, HALF, r->t->heap + HALF / 2, bytes, next_of(r)) &&
           works(r, r->t->ops->fence(r->t, next_of(r))) &&
           put(r, HALF, r->t->heap, bytes, next_of(r)) &&
           works(r, r->t->ops->fence(r->t, next_of(r))) &&
           raise_signal(r, 0, round, EPA_SIGNAL_SET, next_of(r));
}

static void ring_twice(struct rank *r)
{
    go_round(r, ROUNDS, send_twice);
}

static void fence_orders_a_put_after_a_put_to_the_same_place(void **state)
{
    run(state, 2, ring_twice);
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

static void quiet_puts_everything_in_place(void **state)
{
    run(state, 3, ring_without_signals);
}

/* The source is overwritten as soon as that is allowed. */
static bool send_and_reuse(struct rank *r, size_t bytes, uint64_t round)
{
    bool good = put(r, HALF, r->t->heap, bytes, next_of(r)) && works(r, r->t->ops->quiet(r->t));

    store_byte(r, 0, 0xaa, bytes);
    return good && raise_signal(r, 0, round, EPA_SIGNAL_SET, next_of(r));
}

static void ring_and_reuse(struct rank *r)
{
    go_round(r, ROUNDS, send_and_reuse);
}

static void quiet_lets_the_source_be_used_again(void **state)
{
    run(state, 2, ring_and_reuse);
}

/* Two ranks signal each other, quiet, and look: at least one must see the other's signal.
 * The pause differs, so that now and then both do it at the very same time. */
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

static void quiet_returns_when_others_can_see(void **state)
{
    run(state, 2, look_after_quiet);
}

static void check_signals_are_zero(struct rank *r)
{
    for (uint32_t i = 0; i < SIGNALS; i++)
        claim(r, r->t->ops->read(r->t, i) == 0, "signal %u is %llu", i,
              (unsigned long long)r->t->ops->read(r->t, i));
    meet(r);
}

static void signals_are_zero_after_open(void **state)
{
    run(state, 3, check_signals_are_zero);
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

static void reset_brings_signals_back_to_zero(void **state)
{
    run(state, 3, raise_and_reset);
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
        claim(r, i == 3 || r->t->ops->read(r->t, i) == 0, "signal %u was set, too", i);
}

static void set_replaces_and_wait_for_equality_sees_it(void **state)
{
    run(state, 2, set_one_signal);
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

static void additions_of_all_ranks_sum_exactly(void **state)
{
    run(state, 2, add_to_all);
    run(state, 8, add_to_all);
}

/* Additions and sets may well be done by different hands. */
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

static void fence_orders_sets_and_additions(void **state)
{
    run(state, 1, add_then_set);
    run(state, 3, add_then_set);
}

/* Lets as many pieces go as the transport takes at once; what it did not take (EPA_AGAIN)
 * it must not have begun, so that the sum at the other end is what it took. */
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
          "%llu came of %llu that were taken", (unsigned long long)r->t->ops->read(r->t, 2),
          (unsigned long long)r->shared->note[previous_of(r)][0]);
}

static void what_was_not_taken_was_not_begun(void **state)
{
    run(state, 2, count_what_is_taken);
}

int main(int argc, char **argv)
{
    struct subject subject = ranks_subject(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(signals_are_zero_after_open, &subject),
        cmocka_unit_test_prestate(put_signal_is_seen_after_its_payload, &subject),
        cmocka_unit_test_prestate(one_to_eight_ranks_exchange, &subject),
        cmocka_unit_test_prestate(fence_orders_a_signal_after_puts, &subject),
        cmocka_unit_test_prestate(fence_orders_a_signal_after_signals, &subject),
        cmocka_unit_test_prestate(fence_orders_a_put_signal_after_puts, &subject),
        cmocka_unit_test_prestate(fence_orders_a_put_after_a_put_to_the_same_place, &subject),
        cmocka_unit_test_prestate(quiet_puts_everything_in_place, &subject),
        cmocka_unit_test_prestate(quiet_lets_the_source_be_used_again, &subject),
        cmocka_unit_test_prestate(quiet_returns_when_others_can_see, &subject),
        cmocka_unit_test_prestate(reset_brings_signals_back_to_zero, &subject),
        cmocka_unit_test_prestate(set_replaces_and_wait_for_equality_sees_it, &subject),
        cmocka_unit_test_prestate(additions_of_all_ranks_sum_exactly, &subject),
        cmocka_unit_test_prestate(fence_orders_sets_and_additions, &subject),
        cmocka_unit_test_prestate(what_was_not_taken_was_not_begun, &subject),
    };

    return cmocka_run_group_tests_name(argv[2], tests, NULL, NULL);
}
