/* In which order runs go. */
#include "test.h"

#include "cli/runs.h"

enum { KINDS = 20, REPEAT = 3, RUNS = KINDS * REPEAT };

/* As a file with repeat: 3 has them: repetitions stand side by side. */
struct made {
    struct run run[RUNS];
    uint32_t order[RUNS];
    struct runs runs;
};

static struct runs *make(struct made *m)
{
    memset(m, 0, sizeof(*m));
    for (uint32_t i = 0; i < RUNS; i++) {
        m->run[i].repetition = i % REPEAT + 1;
        m->order[i] = i;
    }
    m->runs = (struct runs){.run = m->run, .n = RUNS, .order = m->order};
    return &m->runs;
}

/* Every run from `from` to `to` has its turn once, and they are not as declared. */
static void is_mixed(const uint32_t *order, uint32_t from, uint32_t to, uint32_t repetition)
{
    bool seen[RUNS] = {false}, moved = false;

    for (uint32_t at = from; at < to; at++) {
        uint32_t i = order[at];

        assert_in_range(i, 0, RUNS - 1);
        assert_false(seen[i]);
        seen[i] = true;
        moved = moved || (at > from && i < order[at - 1]);
        if (repetition != 0)
            assert_int_equal(i % REPEAT + 1, repetition);
    }
    assert_true(moved);
}

TEST(interleaved_has_each_repetition_of_all_before_the_next)
{
    struct made m;
    bool alike = true;

    runs_order(make(&m), RUNS_INTERLEAVED, 1);
    for (uint32_t k = 0; k < REPEAT; k++)
        is_mixed(m.order, k * KINDS, (k + 1) * KINDS, k + 1);
    for (uint32_t i = 0; i < KINDS; i++)
        alike = alike && m.order[i] / REPEAT == m.order[KINDS + i] / REPEAT;
    assert_false(alike); /* each in an order of its own */
}

/* Processes of a launch, and other machines, come to the same. */
TEST(an_order_follows_from_its_seed)
{
    static const uint32_t first[] = {19, 30, 5, 27, 23, 10};
    struct made a, b;

    for (enum runs_order how = RUNS_INTERLEAVED; how <= RUNS_SHUFFLED; how++) {
        runs_order(make(&a), how, 7);
        runs_order(make(&b), how, 7);
        assert_memory_equal(a.order, b.order, sizeof(a.order));
        runs_order(make(&b), how, 8);
        assert_memory_not_equal(a.order, b.order, sizeof(a.order));
    }
    runs_order(make(&a), RUNS_SHUFFLED, 7);
    assert_memory_equal(a.order, first, sizeof(first));
}

/* With --only, or files that repeat unlike often. */
TEST(repetitions_may_be_missing)
{
    struct made m;

    make(&m);
    for (uint32_t i = 0; i < RUNS; i++)
        m.run[i].repetition = i < 30 ? 9 : 4;
    runs_order(&m.runs, RUNS_INTERLEAVED, 1);
    for (uint32_t at = 0; at < RUNS; at++)
        assert_int_equal(m.order[at] < 30, at >= 30);
}
