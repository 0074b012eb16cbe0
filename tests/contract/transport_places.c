/* The promises of epa2a/transport.h that are about where bytes land: any size, any
 * alignment, any peer, from wherever they may come. As in transport.c, sources lie in the
 * lower half of the heap and what is put lands in the upper half. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "ranks.h"

enum { KIB = 1024, HEAP = 16 * KIB, HALF = HEAP / 2, SIGNALS = 8, ROUNDS = 300 };

static void run(void **state, uint32_t ranks, void (*body)(struct rank *))
{
    ranks_run(*state, &(struct ranks){
                          .ranks = ranks, .signals = SIGNALS, .heap_bytes = HEAP, .body = body});
}

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
    claim(r, load_byte(r, HALF) == 11 && load_byte(r, HEAP - 1) == 12, "no bytes wrote something");
}

static void zero_bytes_change_nothing_and_still_signal(void **state)
{
    run(state, 2, send_nothing);
}

/* Any size from any offset to any offset, with guards on both sides of what lands. */
static void send_unaligned(struct rank *r)
{
    for (uint64_t round = 1; goes_on(r, round, ROUNDS); round++) {
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

static void any_alignment_lands_and_nothing_beside_it(void **state)
{
    run(state, 2, send_unaligned);
}

enum { LARGE = 9 * 1024 * KIB + 3 };

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

static void megabytes_come_whole(void **state)
{
    ranks_run(
        *state,
        &(struct ranks){.ranks = 2, .signals = 1, .heap_bytes = 2 * LARGE + 5, .body = send_large});
}

/* Each rank writes its number to its own place at each peer, itself included. */
static void write_own_place(struct rank *r)
{
    for (uint64_t round = 1; goes_on(r, round, ROUNDS / 3); round++) {
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

static void an_offset_is_the_same_place_on_every_rank(void **state)
{
    run(state, 1, write_own_place);
    run(state, 4, write_own_place);
    run(state, 8, write_own_place);
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

static void stores_through_peer_heap_come_with_the_next_signal(void **state)
{
    run(state, 4, store_through_pointers);
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

static void any_source_may_lie_outside_the_heap(void **state)
{
    run(state, 2, send_from_elsewhere);
}

int main(int argc, char **argv)
{
    struct subject subject = ranks_subject(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(zero_bytes_change_nothing_and_still_signal, &subject),
        cmocka_unit_test_prestate(any_alignment_lands_and_nothing_beside_it, &subject),
        cmocka_unit_test_prestate(megabytes_come_whole, &subject),
        cmocka_unit_test_prestate(an_offset_is_the_same_place_on_every_rank, &subject),
        cmocka_unit_test_prestate(stores_through_peer_heap_come_with_the_next_signal, &subject),
        cmocka_unit_test_prestate(any_source_may_lie_outside_the_heap, &subject),
    };

    return cmocka_run_group_tests_name(argv[2], tests, NULL, NULL);
}
