/* Tests that the transport `reorder` reorders: usage without the promises of the contract must fail
 * now and then, or tests over it prove nothing. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.h"

enum { HEAP = 65536, HALF = HEAP / 2, ROUNDS = 500, BYTES = 512 };

/* Returns true if all bytes of the round have arrived. */
static bool has_arrived(const struct rank *r, uint64_t round)
{
    for (size_t i = 0; i < BYTES; i++) {
        if (r->t->heap[HALF + i] != (char)round)
            return false;
    }
    return true;
}

/* Rank 0 sends with send() of the promise. Counts the rounds in which the signal arrived before the
 * data. */
static void count_wrong(struct rank *r)
{
    uint64_t wrong = 0;

    for (uint64_t round = 1; round <= ROUNDS; round++) {
        if (r->me == 0) {
            memset(r->t->heap, (int)round, BYTES);
            r->promise->send(r, BYTES, round);
        } else {
            await(r, 0, round);
            wrong += has_arrived(r, round) ? 0 : 1;
        }
        meet(r);
    }
    claim(r, r->me == 0 || wrong > ROUNDS / 100, "only %llu of %d rounds went wrong",
          (unsigned long long)wrong, ROUNDS);
    claim(r, r->me == 0 || wrong < ROUNDS, "all rounds went wrong");
}

static bool send_without_fence(struct rank *r, size_t bytes, uint64_t round)
{
    return put(r, HALF, r->t->heap, bytes, 1) && raise_signal(r, 0, round, EPA_SIGNAL_SET, 1);
}

static bool send_two_puts(struct rank *r, size_t bytes, uint64_t round)
{
    bytes /= 2;
    return put(r, HALF, r->t->heap, bytes, 1) &&
           put_signal(r, HALF + bytes, r->t->heap, bytes, 0, round, EPA_SIGNAL_SET, 1);
}

static bool send_and_spoil(struct rank *r, size_t bytes, uint64_t round)
{
    if (!put(r, HALF, r->t->heap, bytes, 1) || !works(r, r->t->ops->fence(r->t, 1)))
        return false;
    memset(r->t->heap, -1, bytes);
    return raise_signal(r, 0, round, EPA_SIGNAL_SET, 1);
}

static void set_one_signal_twice(struct rank *r)
{
    uint64_t stale = 0;

    for (uint64_t round = 2; round <= 2 * ROUNDS; round += 2) {
        if (r->me == 0) {
            raise_signal(r, 0, round - 1, EPA_SIGNAL_SET, 1);
            raise_signal(r, 0, round, EPA_SIGNAL_SET, 1);
        }
        meet(r);
        stale += r->t->ops->read(r->t, 0) == round - 1 ? 1 : 0;
        meet(r);
    }
    claim(r, r->me == 0 || stale > 0, "two signals were never reordered");
}

static void put_without_end(struct rank *r)
{
    uint32_t taken = 0;

    while (taken < 1000 && epa_put(r->t, HALF, r->t->heap, 8, 1 - r->me) == EPA_OK)
        taken++;
    claim(r, taken < 1000, "1000 puts were accepted and none rejected");
}

static void is_refused(struct rank *r, enum epa_status status, const char *text)
{
    claim(r, status == EPA_ERR_CONFIG, "status %d", status);
    explains(r, text);
}

static void do_what_is_forbidden(struct rank *r)
{
    char elsewhere[8] = {0};

    is_refused(r, epa_put(r->t, HALF, elsewhere, 8, 0), "a source outside the heap");
    is_refused(r, epa_put(r->t, 0, r->t->heap + HEAP - 7, 8, 0), "a source outside the heap");
    is_refused(r, epa_put(r->t, HEAP - 7, r->t->heap, 8, 0), "heap offset");
    is_refused(r, epa_put(r->t, HALF, r->t->heap, 8, 2), "peer 2");
    is_refused(r, r->t->ops->signal(r->t, 4, 1, EPA_SIGNAL_SET, 0), "signal 4");
}

static void look_at_pointers(struct rank *r)
{
    claim(r, (r->t->flags & EPA_TRANSPORT_LOAD_STORE) == 0, "says that all are in reach");
    for (uint32_t p = 0; p < r->size; p++) {
        bool near = p == r->me || (r->promise->option != NULL && p / 2 == r->me / 2);

        claim(r, (r->t->peer_heap[p] != NULL) == near, "rank %u is %sin reach", p,
              near ? "not " : "");
    }
}

static void *make_progress(void *arg)
{
    struct epa_transport *t = arg;

    for (int i = 0; i < 10000000; i++)
        (void)t->ops->progress(t);
    return NULL;
}

static void call_from_two_threads(struct rank *r)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        pthread_t thread;

        if (freopen("/dev/null", "w", stderr) != NULL &&
            pthread_create(&thread, NULL, make_progress, r->t) == 0)
            make_progress(r->t);
        _exit(0);
    }
    claim(r, child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status),
          "two threads called at once for seconds, and nothing happened");
}

static const struct promise promises[] = {
    {"a signal without fence comes before its put", count_wrong, {2}, send_without_fence},
    {"a put_signal overtakes puts before it", count_wrong, {2}, send_two_puts},
    {"a source used again before quiet spoils what comes", count_wrong, {2}, send_and_spoil},
    {"signals overtake signals", set_one_signal_twice, {2}},
    {"puts must be tried again sooner or later", put_without_end, {2}},
    {"what lies outside is refused", do_what_is_forbidden, {2}},
    {"only the own heap is in reach", look_at_pointers, {4}},
    {"pairs are in reach when asked for", look_at_pointers, {5}, .option = "peers=pair"},
    {"two threads at once are found out", call_from_two_threads, {1}},
};

PROMISES_MAIN(4, HEAP)
