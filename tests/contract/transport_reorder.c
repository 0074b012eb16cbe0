/* That reorder reorders: what the contract does not promise must fail over it,
 * now and then, or tests over it show nothing. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "ranks.h"

enum { HEAP = 65536, HALF = HEAP / 2, ROUNDS = 500, BYTES = 512 };

static void run(void **state, uint32_t ranks, void (*body)(struct rank *))
{
    ranks_run(*state,
              &(struct ranks){.ranks = ranks, .signals = 4, .heap_bytes = HEAP, .body = body});
}

/* Whether all of what rank 0 put stands here. */
static bool has_arrived(const struct rank *r, uint64_t round)
{
    for (size_t i = 0; i < BYTES; i++) {
        if (r->t->heap[HALF + i] != (char)round)
            return false;
    }
    return true;
}

/* Rank 0 puts and signals as `send` does; counts the rounds in which the signal came first,
 * or something else was there. */
static void count_wrong(struct rank *r, void (*send)(struct rank *, uint64_t round))
{
    uint64_t wrong = 0;

    for (uint64_t round = 1; round <= ROUNDS; round++) {
        if (r->me == 0) {
            memset(r->t->heap, (int)round, BYTES);
            send(r, round);
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

static void send_without_fence(struct rank *r, uint64_t round)
{
    put(r, HALF, r->t->heap, BYTES, 1);
    raise_signal(r, 0, round, EPA_SIGNAL_SET, 1);
}

static void forget_the_fence(struct rank *r)
{
    count_wrong(r, send_without_fence);
}

static void a_signal_without_fence_comes_before_its_put(void **state)
{
    run(state, 2, forget_the_fence);
}

static void send_two_puts(struct rank *r, uint64_t round)
{
    put(r, HALF, r->t->heap, BYTES / 2, 1);
    put_signal(r, HALF + BYTES / 2, r->t->heap, BYTES / 2, 0, round, EPA_SIGNAL_SET, 1);
}

static void lean_on_put_signal(struct rank *r)
{
    count_wrong(r, send_two_puts);
}

static void a_put_signal_overtakes_puts_before_it(void **state)
{
    run(state, 2, lean_on_put_signal);
}

static void send_and_spoil(struct rank *r, uint64_t round)
{
    put(r, HALF, r->t->heap, BYTES, 1);
    works(r, r->t->ops->fence(r->t, 1));
    memset(r->t->heap, -1, BYTES);
    raise_signal(r, 0, round, EPA_SIGNAL_SET, 1);
}

static void use_the_source_again(struct rank *r)
{
    count_wrong(r, send_and_spoil);
}

static void a_source_used_again_before_quiet_spoils_what_comes(void **state)
{
    run(state, 2, use_the_source_again);
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
    claim(r, r->me == 0 || stale > 0, "the later of two signals was always the last");
}

static void signals_overtake_signals(void **state)
{
    run(state, 2, set_one_signal_twice);
}

static void put_without_end(struct rank *r)
{
    uint32_t taken = 0;

    while (taken < 1000 && epa_put(r->t, HALF, r->t->heap, 8, 1 - r->me) == EPA_OK)
        taken++;
    claim(r, taken < 1000, "1000 puts were taken and none refused");
}

static void puts_must_be_tried_again_sooner_or_later(void **state)
{
    run(state, 2, put_without_end);
}

static void is_refused(struct rank *r, enum epa_status status, const char *text)
{
    struct epa_error err = {EPA_OK, ""};

    r->t->ops->explain(r->t, &err);
    claim(r, status == EPA_ERR_CONFIG && strstr(err.text, text) != NULL, "status %d: %s", status,
          err.text);
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

static void what_lies_outside_is_refused(void **state)
{
    run(state, 2, do_what_is_forbidden);
}

static void look_at_pointers(struct rank *r)
{
    bool pairs = r->subject->config != NULL;

    claim(r, (r->t->flags & EPA_TRANSPORT_LOAD_STORE) == 0, "says that all are in reach");
    for (uint32_t p = 0; p < r->size; p++) {
        bool near = p == r->me || (pairs && p / 2 == r->me / 2);

        claim(r, (r->t->peer_heap[p] != NULL) == near, "rank %u is %sin reach", p,
              near ? "not " : "");
    }
}

static void only_the_own_heap_is_in_reach(void **state)
{
    run(state, 4, look_at_pointers);
}

static void pairs_are_in_reach_when_asked_for(void **state)
{
    struct subject subject = *(const struct subject *)*state;
    const struct epa_options *options = &subject.plugin->plugin.options;
    char *config = malloc(options->size);
    void *other = &subject;

    assert_non_null(config);
    memcpy(config, options->defaults, options->size);
    for (const struct epa_option *o = options->table; o->name != NULL; o++) {
        if (strcmp(o->name, "peers") == 0)
            memcpy(config + o->offset, &o->choices[1].value, sizeof(int));
    }
    subject.config = config;
    run(&other, 5, look_at_pointers);
    free(config);
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

static void two_threads_at_once_are_found_out(void **state)
{
    run(state, 1, call_from_two_threads);
}

int main(int argc, char **argv)
{
    struct subject subject = ranks_subject(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_signal_without_fence_comes_before_its_put, &subject),
        cmocka_unit_test_prestate(a_put_signal_overtakes_puts_before_it, &subject),
        cmocka_unit_test_prestate(a_source_used_again_before_quiet_spoils_what_comes, &subject),
        cmocka_unit_test_prestate(signals_overtake_signals, &subject),
        cmocka_unit_test_prestate(puts_must_be_tried_again_sooner_or_later, &subject),
        cmocka_unit_test_prestate(what_lies_outside_is_refused, &subject),
        cmocka_unit_test_prestate(only_the_own_heap_is_in_reach, &subject),
        cmocka_unit_test_prestate(pairs_are_in_reach_when_asked_for, &subject),
        cmocka_unit_test_prestate(two_threads_at_once_are_found_out, &subject),
    };

    return cmocka_run_group_tests_name(argv[2], tests, NULL, NULL);
}
