/* Link peak over the transport given on the command line: what peak_measure() of the core
 * finds, by the functions of epa2a/transport.h alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "ranks.h"
#include "session/session.h"

enum { HEAP = 3 << 20, OTHERS = 4, SIGNALS = OTHERS + PEAK_SIGNALS };

static void run(void **state, uint32_t ranks, uint64_t heap_bytes, void (*body)(struct rank *),
                bool fails)
{
    ranks_run(*state, &(struct ranks){.ranks = ranks,
                                      .signals = SIGNALS,
                                      .heap_bytes = heap_bytes,
                                      .body = body,
                                      .fails = fails});
}

static enum epa_status measure(struct rank *r, struct peak *out)
{
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = peak_measure(r->boot, r->backend, r->t, OTHERS, out, &err);

    claim(r, status == EPA_OK || status == EPA_ERR_ABORTED, "status %d: %s", status, err.text);
    claim(r, (status == EPA_OK || status == EPA_ERR_ABORTED) == (err.status == EPA_OK),
          "status %d, and the error says: %s", status, err.text);
    return status;
}

/* Twice, with fresh signals. What ranks found they compare in shared memory, to the bit. */
static void measure_twice(struct rank *r)
{
    for (int i = 0; i < 2; i++) {
        struct peak peak = {-1, -1};

        if (measure(r, &peak) != EPA_OK)
            return;
        claim(r, peak.bytes_per_ns > 0 && peak.latency_ns > 0, "%g bytes/ns, %g ns",
              peak.bytes_per_ns, peak.latency_ns);
        memcpy(r->shared->note[r->me], &peak, sizeof(peak));
        meet(r);
        claim(r, memcmp(r->shared->note[0], &peak, sizeof(peak)) == 0, "ranks differ");
        for (uint32_t s = 0; s < OTHERS; s++)
            claim(r, r->t->ops->read(r->t, s) == 0, "signal %u is not 0", s);
        if (r->me == 0)
            printf("[%u ranks: %.3g GB/s out of each, signal %.0f ns]\n", r->size,
                   peak.bytes_per_ns, peak.latency_ns);
        works(r, r->t->ops->reset(r->t));
    }
}

static void all_ranks_measure_the_same_peak(void **state)
{
    for (uint32_t n = 2; n <= 5; n++)
        run(state, n, HEAP, measure_twice, false);
}

static void measure_without_room(struct rank *r)
{
    struct peak peak = {-1, -1};

    if (measure(r, &peak) != EPA_OK)
        return;
    claim(r, !(peak.bytes_per_ns > 0), "%g bytes/ns", peak.bytes_per_ns);
    claim(r, peak.latency_ns > 0, "%g ns", peak.latency_ns);
}

static void a_heap_without_room_leaves_the_rate_unknown(void **state)
{
    run(state, 3, 64, measure_without_room, false);
}

static void measure_alone(struct rank *r)
{
    struct peak peak = {-1, -1};

    if (measure(r, &peak) == EPA_OK)
        claim(r, !(peak.bytes_per_ns > 0) && !(peak.latency_ns > 0), "%g bytes/ns, %g ns",
              peak.bytes_per_ns, peak.latency_ns);
}

static void one_rank_has_no_links(void **state)
{
    run(state, 1, HEAP, measure_alone, false);
}

/* Rank 1 gives up instead of taking part. */
static void measure_with_one_that_has_failed(struct rank *r)
{
    struct peak peak;
    enum epa_status status;

    if (r->me == 1) {
        r->boot->abort(r->boot);
        return;
    }
    status = measure(r, &peak);
    claim(r, status == EPA_ERR_ABORTED, "status %d", status);
}

static void measuring_ends_when_a_rank_has_failed(void **state)
{
    run(state, 3, HEAP, measure_with_one_that_has_failed, true);
}

int main(int argc, char **argv)
{
    struct subject subject = ranks_subject(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(all_ranks_measure_the_same_peak, &subject),
        cmocka_unit_test_prestate(a_heap_without_room_leaves_the_rate_unknown, &subject),
        cmocka_unit_test_prestate(one_rank_has_no_links, &subject),
        cmocka_unit_test_prestate(measuring_ends_when_a_rank_has_failed, &subject),
    };

    return cmocka_run_group_tests_name(argv[2], tests, NULL, NULL);
}
