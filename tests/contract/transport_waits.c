/* Promises of epa2a/transport.h about waits: for signals, for all ranks, and without end. No test
 * measures time, except that a wait may not time out too early. */
#include <pthread.h>

#include "ranks.h"

enum { HEAP = 4096, SIGNALS = 16, LITMUS = 100000 };

static const uint64_t SHORT_NS = 30000000;

static void wait_for_what_is_there(struct rank *r)
{
    raise_signal(r, 1, 5, EPA_SIGNAL_SET, r->me);
    works(r, r->t->ops->quiet(r->t));
    works(r, r->t->ops->wait(r->t, 1, EPA_GE, 4, 0));
    works(r, r->t->ops->wait(r->t, 1, EPA_GE, 5, 0));
    works(r, r->t->ops->wait(r->t, 1, EPA_EQ, 5, 0));
    claim(r, r->t->ops->wait(r->t, 1, EPA_GE, 6, 0) == EPA_ERR_TIMEOUT, "5 is not >= 6");
    claim(r, r->t->ops->wait(r->t, 1, EPA_EQ, 4, 0) == EPA_ERR_TIMEOUT, "5 is not == 4");
}

static void wait_in_vain(struct rank *r)
{
    uint64_t begun = epa_now_ns(), waited;
    enum epa_status status;

    raise_signal(r, 9, 41, EPA_SIGNAL_SET, r->me);
    works(r, r->t->ops->quiet(r->t));
    status = r->t->ops->wait(r->t, 9, EPA_GE, 1234, SHORT_NS);
    waited = epa_now_ns() - begun;
    claim(r, status == EPA_ERR_TIMEOUT, "status %d", status);
    claim(r, waited >= SHORT_NS, "timed out after %llu ns", (unsigned long long)waited);
    explains(r, "signal 9 is 41, wants 1234");
}

static void wait_while_one_fails(struct rank *r)
{
    enum epa_status status = EPA_ERR_ABORTED;

    if (r->me == 0) {
        gather_ranks(r, 0, r->size); /* the other ranks are about to wait */
        r->boot->abort(r->boot);
        return;
    }
    gather_ranks(r, 0, 0);
    if (r->me % 2 == 1)
        status = epa_wait(r->t, 2, 7, DEFAULT_TIMEOUT_NS);
    else
        status = r->t->ops->barrier(r->t, DEFAULT_TIMEOUT_NS);
    claim(r, status == EPA_ERR_ABORTED, "status %d", status);
    explains(r, "another rank");
}

/* Like a caller that got EPA_AGAIN and whose peers accept no more operations. */
static void try_again_while_one_fails(struct rank *r)
{
    enum epa_status status = EPA_OK;
    uint64_t begin;

    if (r->me == 0) {
        gather_ranks(r, 0, r->size);
        r->boot->abort(r->boot);
        return;
    }
    gather_ranks(r, 0, 0);
    begin = epa_now_ns(); /* a time, not a count: rank 0 may wait for a core while a peer tries */
    while (status == EPA_OK && epa_now_ns() - begin < DEFAULT_TIMEOUT_NS)
        status = r->t->ops->progress(r->t);
    claim(r, status == EPA_ERR_ABORTED, "status %d", status);
}

static void leave_one_out(struct rank *r)
{
    enum epa_status status;

    if (r->me == r->size - 1) {
        gather_ranks(r, 0, r->size);
        return;
    }
    gather_ranks(r, 1, 2);
    status = r->t->ops->barrier(r->t, 50 * SHORT_NS); /* enough time for ranks 0 and 1 to arrive */
    claim(r, status == EPA_ERR_TIMEOUT, "status %d", status);
    explains(r, "for rank 2");
    awaits(r, 2);
    gather_ranks(r, 0, r->size);
}

/* No rank may pass barrier i before all ranks have entered it. */
static void come_and_look(struct rank *r)
{
    for (uint64_t i = 1; goes_on(r, i, 1000); i++) {
        for (uint64_t spin = draw(r, 8) == 0 ? draw(r, 3000) : 0; spin > 0; spin--)
            __atomic_load_n(&r->shared->word[0], __ATOMIC_RELAXED);
        __atomic_store_n(&r->shared->word[r->me], i, __ATOMIC_RELAXED);
        if (!meet(r))
            return;
        for (uint32_t peer = 0; peer < r->size; peer++) {
            uint64_t seen = __atomic_load_n(&r->shared->word[peer], __ATOMIC_RELAXED);

            claim(r, seen >= i && seen <= i + 1, "after barrier %llu rank %u is at %llu",
                  (unsigned long long)i, peer, (unsigned long long)seen);
        }
    }
}

static void put_and_meet(struct rank *r)
{
    for (uint64_t i = 1; goes_on(r, i, 1000); i++) {
        uint32_t to = next_of(r), from = previous_of(r);
        uint64_t seen;

        store(r, 0, &i, sizeof(i));
        raise_signal(r, 0, i, EPA_SIGNAL_SET, to);
        if (!put(r, 64, r->t->heap, sizeof(i), to) || !meet(r))
            return;
        load(r, 64, &seen, sizeof(seen));
        claim(r, seen == i, "rank %u put %llu, the heap has %llu", from, (unsigned long long)i,
              (unsigned long long)seen);
        claim(r, r->t->ops->read(r->t, 0) == i, "the signal is not visible after the barrier");
        if (!meet(r))
            return;
    }
}

/* The plainest pattern of all protocols, many times if a core is free: data, signal, read. */
static void pass_messages(struct rank *r)
{
    uint64_t seen;

    for (uint64_t i = 1; goes_on(r, i, LITMUS); i++) {
        if (r->me == 1 && !await(r, 0, i))
            return;
        load(r, 2048, &seen, sizeof(seen));
        if (r->me == 1 &&
            !claim(r, seen == i, "signal %llu arrived before its data, which are %llu",
                   (unsigned long long)i, (unsigned long long)seen))
            return;
        store(r, 0, &i, sizeof(i));
        put_signal(r, 2048, r->t->heap, sizeof(i), 0, i, EPA_SIGNAL_SET, 1 - r->me);
        if (r->me == 0 && !await(r, 0, i))
            return;
    }
}

struct caller {
    struct rank *rank;
    uint32_t number;
    bool good;
};

static void *call_alone(void *arg)
{
    struct caller *caller = arg;
    struct epa_transport *t = caller->rank->t;
    uint32_t signal = caller->number, peer = 1 - caller->rank->me;
    char text[64] = {0};

    caller->good = true;
    for (uint64_t i = 1; i <= 300 && caller->good; i++) {
        memset(text, (int)i, sizeof(text));
        caller->good =
            epa_put_signal(t, 64 * signal, text, sizeof(text), signal, i, peer) == EPA_OK &&
            epa_wait(t, signal, i, DEFAULT_TIMEOUT_NS) == EPA_OK &&
            t->heap[64 * signal] == (char)i &&
            epa_put_signal(t, 0, NULL, 0, signal + 8, i, peer) == EPA_OK &&
            epa_wait(t, signal + 8, i, DEFAULT_TIMEOUT_NS) == EPA_OK;
    }
    return NULL;
}

static void call_from_threads(struct rank *r)
{
    struct caller caller[4];
    pthread_t thread[4];

    if ((r->t->flags & EPA_TRANSPORT_THREADS) == 0)
        return;
    for (uint32_t i = 0; i < 4; i++) {
        caller[i] = (struct caller){.rank = r, .number = i};
        if (pthread_create(&thread[i], NULL, call_alone, &caller[i]) != 0)
            abort();
    }
    for (uint32_t i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        claim(r, caller[i].good, "thread %u failed", i);
    }
}

static void meet_with_nothing(struct rank *r)
{
    for (int i = 0; i < 100; i++)
        meet(r);
    works(r, r->t->ops->reset(r->t));
    meet(r);
}

static const struct promise promises[] = {
    {"wait with a limit of 0 accepts a present value", wait_for_what_is_there, {1}},
    {"a timeout names the signal, the wanted and the seen value", wait_in_vain, {2}},
    {"every wait ends when a rank has failed", wait_while_one_fails, {5}, .fails = true},
    {"trying again ends when a rank has failed", try_again_while_one_fails, {3}, .fails = true},
    {"a barrier that times out names a missing rank", leave_one_out, {3}, .fails = true},
    {"no rank passes a barrier before all have entered it", come_and_look, {1, 2, 3, 8}},
    {"after a barrier everything is in place", put_and_meet, {2, 6}},
    {"messages pass in order", pass_messages, {2}},
    {"several threads call at once where the flag says so", call_from_threads, {2}},
    {"barriers need no heap and no signals", meet_with_nothing, {3}, .bare = true},
};

PROMISES_MAIN(SIGNALS, HEAP)
