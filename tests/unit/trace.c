/* Tests of trace records of a rank (overflow, names) and of the collected events of all ranks on
 * one clock: offset and drift, complete flows, and records that are incomplete or corrupt.
 * tests/trace covers the written trace files. */
#include "test.h"

#include "fake_session.h"
#include "trace/trace.h"

#include "trace/write.h"

enum { RANKS = 2 };

struct noted {
    struct fake fake;
    struct recorder recorder[RANKS];
    struct gathered g;
};

static struct noted *noted_create(void)
{
    struct noted *n = calloc(1, sizeof(*n));
    struct session *s = &n->fake.session;

    fake_init(&n->fake, VERB_BENCH, RANKS, 4);
    free(s->block);
    s->trace = (struct record_shape){.lanes = 1, .turns = 2, .room = 8, .beside = {4, 4}};
    s->block_bytes = session_block_bytes(s);
    s->block = aligned_alloc(64, RANKS * s->block_bytes);
    assert_non_null(s->block);
    memset(s->block, 0, RANKS * s->block_bytes);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct record *record = session_trace(s, r);

        recorder_init(&n->recorder[r], record, &s->trace);
        record->near = true;
        (void)epa_trace_name(&n->recorder[r].trace, "work");
        recorder_ready(&n->recorder[r]);
    }
    return n;
}

static void add_event(struct noted *n, uint32_t rank, enum epa_trace_kind kind, uint64_t begin,
                      uint64_t end, uint64_t value)
{
    epa_trace_add(&n->recorder[rank].trace, 0,
                  &(struct epa_trace_event){.begin_ns = begin,
                                            .end_ns = end,
                                            .value = value,
                                            .peer = 1 - rank,
                                            .signal = 7,
                                            .kind = (uint16_t)kind});
}

static void begin_iteration(struct noted *n, uint64_t iteration)
{
    for (uint32_t r = 0; r < RANKS; r++)
        recorder_turn(&n->recorder[r], iteration);
}

static const struct gathered *gather(struct noted *n)
{
    trace_gather_free(&n->g);
    n->g = trace_gather(&n->fake.session);
    return &n->g;
}

static void noted_destroy(struct noted *n)
{
    trace_gather_free(&n->g);
    fake_finish(&n->fake);
    free(n);
}

#define TEST_OF_NOTES(name) TEST_OF(name, struct noted, n, noted_create(), noted_destroy)

TEST_OF_NOTES(an_incomplete_flow_is_cut)
{
    const struct gathered *g;
    uint32_t cut = 0;

    begin_iteration(n, 0);
    add_event(n, 0, EPA_TRACE_FLOW_BEGIN, 1000, 1000, 1); /* complete */
    add_event(n, 1, EPA_TRACE_FLOW_END, 900, 1100, 1);
    add_event(n, 0, EPA_TRACE_FLOW_BEGIN, 2000, 2000, 2); /* flow without an end */
    add_event(n, 1, EPA_TRACE_FLOW_END, 2900, 3100, 3);   /* flow without a begin */
    add_event(n, 1, EPA_TRACE_FLOW_BEGIN, 4000, 4000, 4); /* one begin, two ends */
    add_event(n, 0, EPA_TRACE_FLOW_END, 4000, 4100, 4);
    add_event(n, 0, EPA_TRACE_FLOW_END, 4200, 4300, 4);
    g = gather(n);
    assert_int_equal(g->flows, 1);
    assert_int_equal(g->cut, 5);
    for (uint64_t i = 0; i < g->n; i++)
        cut += g->event[i].cut;
    assert_int_equal(cut, 5);
}

/* The clock of rank 1 is 500 ns ahead of rank 0 at 10 s, and 1500 ns at 20 s. */
TEST_OF_NOTES(clock_drift_is_corrected)
{
    const uint64_t s = 1000000000;
    const struct gathered *g;
    struct record *record;

    record = session_trace(&n->fake.session, 1);
    record->near = false;
    record->clock[RECORD_BEFORE] = (struct record_clock){true, 10 * s, 400, 600};
    record->clock[RECORD_AFTER] = (struct record_clock){true, 20 * s, 1300, 1700};
    begin_iteration(n, 0);
    add_event(n, 0, EPA_TRACE_SLICE, 15 * s, 15 * s + 100, 0);
    add_event(n, 1, EPA_TRACE_SLICE, 15 * s + 1010, 15 * s + 1110, 0);
    g = gather(n);
    assert_int_equal(g->event[1].rank, 1);
    assert_int_equal(g->event[1].begin_ns, 15 * s + 10);
    assert_int_equal(g->event[1].end_ns, 15 * s + 110);
    assert_true(g->rank[1].clock.error_ns == 200);
    assert_true(g->rank[1].clock.drift > 99 && g->rank[1].clock.drift < 101);
}

TEST_OF_NOTES(invalid_events_are_skipped)
{
    const struct gathered *g;

    begin_iteration(n, 0);
    add_event(n, 0, EPA_TRACE_SLICE, 200, 100, 0); /* ends before it begins */
    add_event(n, 0, (enum epa_trace_kind)9, 200, 300, 0);
    n->recorder[0].trace.event[0].name = 0;
    add_event(n, 0, EPA_TRACE_SLICE, 200, 300, 0);
    n->recorder[0].trace.event[2].name = 60; /* unregistered name */
    add_event(n, 0, EPA_TRACE_FLOW_BEGIN, 200, 200, 0);
    n->recorder[0].trace.event[3].peer = 99;
    add_event(n, 0, EPA_TRACE_SLICE, 200, 300, 0);
    g = gather(n);
    assert_int_equal(g->n, 1);
}

static void add_beside(struct noted *n, enum epa_trace_beside_kind which, uint32_t lane,
                       uint64_t begin, uint64_t end)
{
    epa_trace_add_beside(&n->recorder[0].trace.beside[which],
                         &(struct epa_trace_event){.begin_ns = begin,
                                                   .end_ns = end,
                                                   .peer = EPA_TRACE_NOBODY,
                                                   .signal = lane,
                                                   .kind = EPA_TRACE_SLICE});
}

/* Iterations 1 and 2 begin at 1000 and 2000 and end at 3000. */
TEST_OF_NOTES(side_events_belong_to_the_iteration_of_their_begin)
{
    static const struct {
        uint64_t begin_ns, iteration;
        uint32_t lane;
    } want[] = {{1000, 1, 1}, {1500, 1, 2}, {2100, 2, 4 + 7}, {5000, 2, 4 + 8}};
    const struct gathered *g;
    uint32_t found = 0;

    for (uint64_t i = 1; i < 3; i++) {
        begin_iteration(n, i);
        add_event(n, 0, EPA_TRACE_SLICE, i * 1000, i * 1000 + 1000, 0);
    }
    add_beside(n, EPA_TRACE_PROXY, 0, 900, 950); /* overwritten by the fifth event */
    /* the oldest slot may be overwritten at this moment */
    add_beside(n, EPA_TRACE_PROXY, 0, 900, 950);
    add_beside(n, EPA_TRACE_PROXY, 0, 900, 1200); /* began before the first kept iteration */
    add_beside(n, EPA_TRACE_PROXY, 1, 1500, 2500);
    add_beside(n, EPA_TRACE_PROXY, 0, 3500, 3600); /* after the last iteration */
    add_beside(n, EPA_TRACE_KERNELS, 7, 2100, 2200);
    add_beside(n, EPA_TRACE_KERNELS, 8, 5000, 5100); /* belongs to a later call without a trace */
    g = gather(n);
    assert_int_equal(g->n, 2 + 4);
    for (uint64_t i = 0; i < g->n; i++) {
        if (g->event[i].beside < 0)
            continue;
        assert_int_equal(g->event[i].begin_ns, want[found].begin_ns);
        assert_int_equal(g->event[i].iteration, want[found].iteration);
        assert_int_equal(g->event[i].lane, want[found].lane);
        found++;
    }
    assert_int_equal(found, 4);
}

TEST_OF_NOTES(a_rank_without_a_record_counts_as_missing)
{
    const struct gathered *g;

    begin_iteration(n, 0);
    add_event(n, 0, EPA_TRACE_SLICE, 100, 200, 0);
    session_trace(&n->fake.session, 1)->near = false; /* rank 1: no clock comparison */
    g = gather(n);
    assert_true(g->rank[1].clock.error_ns != g->rank[1].clock.error_ns);
    session_trace(&n->fake.session, 1)->ready = 0;
    g = gather(n);
    assert_int_equal(g->missing, 1);
    assert_null(g->rank[1].record);
    assert_int_equal(g->n, 1);
}

/* ---- recorder of a rank ---- */

/* A corrupt count causes no access outside the record, and each name has one number. */
TEST(dropped_events_are_counted)
{
    static const struct record_shape shape = {.lanes = 2, .turns = 3, .room = 4};
    struct record *record = aligned_alloc(64, record_bytes(&shape));
    struct record_part part;
    struct recorder r;
    char name[16];

    memset(record, 0, record_bytes(&shape));
    recorder_init(&r, record, &shape);
    recorder_turn(&r, 0);
    for (uint32_t i = 0; i < shape.room + 3; i++)
        (void)epa_trace_slice(&r.trace, 1, 0, epa_trace_now(&r.trace), EPA_TRACE_NOBODY, 0, 0);
    for (uint32_t turn = 0; turn <= shape.turns; turn++)
        for (uint32_t lane = 0; lane < 2; lane++)
            if (record_part(record, &shape, turn, lane, &part) && part.iteration == 0) {
                assert_int_equal(part.n, lane == 1 ? shape.room : 0);
                assert_int_equal(part.dropped, lane == 1 ? 3 : 0);
            }
    r.trace.lane[1].used = UINT32_MAX;
    for (uint32_t turn = 0; turn <= shape.turns; turn++)
        if (record_part(record, &shape, turn, 1, &part))
            assert_true(part.n <= shape.room);
    assert_int_equal(epa_trace_name(NULL, "wait"), 0);
    for (uint32_t i = 0; i < 2 * EPA_TRACE_NAMES; i++) {
        snprintf(name, sizeof(name), "phase %u", i / 2);
        assert_int_equal(epa_trace_name(&r.trace, name), i / 2);
    }
    assert_int_equal(epa_trace_name(&r.trace, "one more"), 0);
    free(record);
}
