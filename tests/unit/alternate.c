/* Tests of the alternation of two sides: two ranks per side, each a thread. The tests check the
 * order of blocks and the end of both sides. */
#include <pthread.h>
#include <string.h>
#include "test.h"

#include "session/session.h"
#include "session/alternation.h"

enum { RANKS = 2, MOST = 64 };

struct side_test {
    struct alternation *a;
    pthread_barrier_t *all; /* joins the ranks of one side */
    uint32_t side, rank, blocks;
    char *order; /* [MOST]: a letter per block of either side */
    uint32_t *n, *running;
};

/* Follows the calls of rank_loop(). */
static void *run_rank(void *arg)
{
    struct side_test *t = arg;
    uint32_t turn = 0;

    for (uint32_t i = 0;; i++) {
        pthread_barrier_wait(t->all);
        if (t->rank == 0)
            alternation_pass(t->a, t->side);
        while (!alternation_wait(t->a, t->side, &turn))
            ;
        pthread_barrier_wait(t->all);
        if (alternation_is_over(t->a) || i == t->blocks)
            break;
        /* No rank of the other side may run during this block. */
        assert_true(__atomic_fetch_add(&t->running[t->side], 1, __ATOMIC_SEQ_CST) < RANKS);
        assert_int_equal(__atomic_load_n(&t->running[1 - t->side], __ATOMIC_SEQ_CST), 0);
        if (t->rank == 0)
            t->order[(*t->n)++] = "AB"[t->side];
        pthread_barrier_wait(t->all);
        __atomic_fetch_sub(&t->running[t->side], 1, __ATOMIC_SEQ_CST);
    }
    if (t->rank == 0)
        alternation_leave(t->a, t->side);
    return NULL;
}

/* Runs both sides for the given numbers of blocks and stores their order in `order`. */
static void run_sides(struct alternation *a, const uint32_t blocks[2], char order[MOST])
{
    struct side_test t[2][RANKS];
    pthread_t thread[2][RANKS];
    pthread_barrier_t all[2];
    uint32_t n = 0, running[2] = {0, 0};

    memset(order, 0, MOST);
    for (uint32_t side = 0; side < 2; side++) {
        pthread_barrier_init(&all[side], NULL, RANKS);
        for (uint32_t r = 0; r < RANKS; r++) {
            t[side][r] =
                (struct side_test){a, &all[side], side, r, blocks[side], order, &n, running};
            pthread_create(&thread[side][r], NULL, run_rank, &t[side][r]);
        }
    }
    for (uint32_t side = 0; side < 2; side++) {
        for (uint32_t r = 0; r < RANKS; r++)
            pthread_join(thread[side][r], NULL);
        pthread_barrier_destroy(&all[side]);
    }
}

/* The order is the Thue-Morse sequence, and blocks never overlap. The shorter side ends both after
 * a pair of blocks; a limit of one nanosecond ends both after the first pair. */
TEST(blocks_alternate_until_a_side_or_the_limit_ends_both)
{
    static const struct {
        uint32_t blocks[2], first;
        uint64_t limit_ns;
        const char *order;
    } c[] = {{{8, 8}, 0, 0, "ABBABAABBAABABBA"},
             {{8, 8}, 1, 0, "BAABABBAABBABAAB"},
             {{3, 40}, 0, 0, "ABBABA"},
             {{40, 40}, 0, 1, "AB"}};

    for (size_t i = 0; i < LENGTH(c); i++) {
        struct alternation *a = alternation_create();
        char order[MOST];

        alternation_begin(a, 1, c[i].first, c[i].limit_ns);
        run_sides(a, c[i].blocks, order);
        assert_string_equal(order, c[i].order);
        assert_true(a->spent_ns > 0);
        alternation_destroy(a);
    }
}

TEST(a_side_that_died_ends_the_other)
{
    struct alternation *a = alternation_create();
    uint32_t turn = 0;

    alternation_begin(a, 1, 0, 0);
    alternation_pass(a, 0);
    assert_true(alternation_is_here(a, 0));
    assert_false(alternation_is_here(a, 1));
    assert_false(alternation_wait(a, 0, &turn));
    alternation_leave(a, 1);
    assert_true(alternation_wait(a, 0, &turn));
    assert_true(alternation_is_over(a));
    alternation_destroy(a);
}
