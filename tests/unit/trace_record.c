/* What a rank notes: which iterations are kept, what does not fit, and clocks compared. */
#include "test.h"

#include <pthread.h>

#include "session/record.h"

static const struct record_shape shape = {.lanes = 2, .turns = 3, .room = 4};

static struct record *record_make(struct recorder *r)
{
    size_t bytes = record_bytes(&shape);
    struct record *record = aligned_alloc(64, bytes);

    assert_non_null(record);
    memset(record, 0, bytes);
    recorder_init(r, record, &shape);
    return record;
}

/* How many events of an iteration are kept in a lane; -1: it is not there. */
static int kept(const struct record *record, uint64_t iteration, uint32_t lane, uint32_t *dropped)
{
    struct record_part part;
    int n = -1;

    for (uint32_t turn = 0; turn <= shape.turns; turn++) {
        if (record_part(record, &shape, turn, lane, &part) && part.iteration == iteration) {
            assert_int_equal(n, -1);
            n = (int)part.n;
            *dropped = part.dropped;
        }
    }
    return n;
}

static void note(struct recorder *r, uint32_t lane)
{
    (void)epa_trace_slice(&r->trace, lane, 0, epa_trace_now(&r->trace), EPA_TRACE_NOBODY, 0, 0);
}

TEST(what_does_not_fit_is_counted)
{
    struct recorder r;
    struct record *record = record_make(&r);
    uint32_t dropped = 0;

    recorder_turn(&r, 0);
    for (uint32_t i = 0; i < shape.room + 3; i++)
        note(&r, 1);
    assert_int_equal(kept(record, 0, 1, &dropped), shape.room);
    assert_int_equal(dropped, 3);
    assert_int_equal(kept(record, 0, 0, &dropped), 0);
    assert_int_equal(dropped, 0);
    free(record);
}

TEST(a_count_that_lies_leads_nowhere)
{
    struct recorder r;
    struct record *record = record_make(&r);
    uint32_t dropped;

    recorder_turn(&r, 2);
    r.trace.lane[1].used = UINT32_MAX;
    assert_int_equal(kept(record, 2, 1, &dropped), shape.room);
    free(record);
}

TEST(a_name_has_one_number)
{
    struct recorder r;
    struct record *record = record_make(&r);
    char name[16];

    assert_int_equal(epa_trace_name(NULL, "wait"), 0);
    for (uint32_t i = 0; i < EPA_TRACE_NAMES; i++) {
        snprintf(name, sizeof(name), "phase %u", i);
        assert_int_equal(epa_trace_name(&r.trace, name), i);
        assert_int_equal(epa_trace_name(&r.trace, name), i);
    }
    assert_int_equal(epa_trace_name(&r.trace, "one more"), 0);
    assert_int_equal(record->names.n, EPA_TRACE_NAMES);
    free(record);
}

/* ---- clocks ---- */

enum { RANKS = 3, BYTES = 64 };

struct launcher {
    pthread_barrier_t barrier;
    char said[RANKS][BYTES];
};

struct member {
    struct epa_bootstrap boot;
    struct launcher *launcher;
    struct record_clock clock;
    enum epa_status status;
};

static enum epa_status gather_all(struct epa_bootstrap *boot, const void *mine, size_t bytes,
                                  void *all)
{
    struct member *m = (struct member *)boot; /* boot is the first member */

    assert_true(bytes <= BYTES);
    memcpy(m->launcher->said[boot->world.rank], mine, bytes);
    pthread_barrier_wait(&m->launcher->barrier);
    for (uint32_t r = 0; r < RANKS; r++)
        memcpy((char *)all + r * bytes, m->launcher->said[r], bytes);
    pthread_barrier_wait(&m->launcher->barrier);
    return EPA_OK;
}

static void *compare_clocks(void *arg)
{
    struct member *m = arg;

    m->status = record_compare_clocks(&m->boot, &m->clock);
    return NULL;
}

/* Threads have one clock, so the difference is 0, whatever it is taken to be. */
TEST(the_difference_of_clocks_is_within_the_bounds)
{
    static const uint32_t node[RANKS] = {0, 1, 1};
    struct launcher launcher;
    struct member m[RANKS];
    pthread_t thread[RANKS];

    memset(&launcher, 0, sizeof(launcher));
    pthread_barrier_init(&launcher.barrier, NULL, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        m[r] = (struct member){
            .boot = {.world = {.rank = r, .size = RANKS, .node = node}, .allgather = gather_all},
            .launcher = &launcher,
        };
        assert_int_equal(pthread_create(&thread[r], NULL, compare_clocks, &m[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        pthread_join(thread[r], NULL);
        assert_int_equal(m[r].status, EPA_OK);
        assert_true(m[r].clock.known);
        assert_true(m[r].clock.low_ns <= 0);
        assert_true(m[r].clock.high_ns >= 0);
        assert_int_equal(record_is_near(&m[r].boot.world), r == 0);
    }
    pthread_barrier_destroy(&launcher.barrier);
}
