/* Tests of the link peak over the transport given on the command line: peak_measure() of the core
 * uses only functions of epa2a/transport.h. */
#include <unistd.h>

#include "ranks.h"
#include "session/session.h"

enum { HEAP = 3 << 20, OTHERS = 4, SIGNALS = OTHERS + PEAK_SIGNALS };

static enum epa_status measure(struct rank *r, struct peak *out)
{
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = peak_measure(r->boot, r->backend, r->t, OTHERS, out, &err);

    claim(r, status == EPA_OK || status == EPA_ERR_ABORTED, "status %d: %s", status, err.text);
    claim(r, (status == EPA_OK || status == EPA_ERR_ABORTED) == (err.status == EPA_OK),
          "status %d, and the error says: %s", status, err.text);
    return status;
}

/* With signals as stores, a measurement that included a wait for a core is invalid; on a busy
 * machine the result may be 0 (no valid measurement). */
static bool is_latency(const struct rank *r, double ns)
{
    bool stores = (r->t->flags & EPA_TRANSPORT_LOAD_STORE) != 0 && r->t->view == NULL;

    return ns > 0 ? !stores || ns < 25e3 : stores && ns == 0;
}

/* Measures twice with fresh signals. Ranks compare their results bit by bit in shared memory. */
static void measure_twice(struct rank *r)
{
    for (int i = 0; i < 2; i++) {
        struct peak peak = {-1, -1};

        if (measure(r, &peak) != EPA_OK)
            return;
        claim(r, peak.bytes_per_ns > 0 && is_latency(r, peak.latency_ns), "%g bytes/ns, %g ns",
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

static void measure_without_room(struct rank *r)
{
    struct peak peak = {-1, -1};

    if (measure(r, &peak) != EPA_OK)
        return;
    claim(r, !(peak.bytes_per_ns > 0), "%g bytes/ns", peak.bytes_per_ns);
    claim(r, is_latency(r, peak.latency_ns), "%g ns", peak.latency_ns);
}

static void measure_alone(struct rank *r)
{
    struct peak peak = {-1, -1};

    if (measure(r, &peak) == EPA_OK)
        claim(r, !(peak.bytes_per_ns > 0) && !(peak.latency_ns > 0), "%g bytes/ns, %g ns",
              peak.bytes_per_ns, peak.latency_ns);
}

/* Rank 1 aborts instead of taking part. */
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

/* per thread: ranks may be threads */
static _Thread_local const struct epa_transport_ops *true_ops;

/* Simulates other programs that use the core most of the time. */
static enum epa_status wait_for_a_core(struct epa_transport *t, uint32_t signal,
                                       enum epa_compare compare, uint64_t value,
                                       uint64_t timeout_ns)
{
    usleep(100);
    return true_ops->wait(t, signal, compare, value, timeout_ns);
}

static void measure_while_others_have_the_cores(struct rank *r)
{
    struct epa_transport_ops slow = *r->t->ops;
    struct peak peak;

    if (r->t->view != NULL && r->t->ops->device_peak != NULL)
        return; /* kernels wait without the host */
    true_ops = r->t->ops;
    slow.wait = wait_for_a_core;
    r->t->ops = &slow;
    if (measure(r, &peak) == EPA_OK) {
        claim(r, is_latency(r, peak.latency_ns), "%g ns", peak.latency_ns);
        claim(r, peak.bytes_per_ns > 0, "%g bytes/ns", peak.bytes_per_ns);
    }
    r->t->ops = true_ops;
}

/* Never succeeds. Returns EPA_ERR_TIMEOUT only for the time limit of set-up. */
static enum epa_status wait_in_vain(struct epa_transport *t, uint32_t signal,
                                    enum epa_compare compare, uint64_t value, uint64_t timeout_ns)
{
    return timeout_ns == 123456789 ? EPA_ERR_TIMEOUT : EPA_ERR_SYSTEM;
}

static void measure_in_vain(struct rank *r)
{
    const struct epa_transport_ops *ops = r->t->ops;
    struct epa_transport_ops vain = *ops;
    struct epa_error err = {EPA_OK, ""};
    char who[16];
    struct peak peak;
    enum epa_status status;

    if (r->t->view != NULL && ops->device_peak != NULL)
        return; /* kernels wait with their own limit */
    vain.wait = wait_in_vain;
    r->t->ops = &vain;
    r->boot->set_up_ns = 123456789;
    status = peak_measure(r->boot, r->backend, r->t, OTHERS, &peak, &err);
    r->t->ops = ops;
    snprintf(who, sizeof(who), "rank %u", 1 - r->me);
    claim(r, status == EPA_ERR_TIMEOUT && strstr(err.text, who) != NULL, "status %d: %s", status,
          err.text);
}

static const struct promise promises[] = {
    {"all ranks measure the same peak", measure_twice, {2, 3, 4, 5}},
    {"a heap without room leaves the rate unknown", measure_without_room, {3}, .heap_bytes = 64},
    {"one rank has no links", measure_alone, {1}},
    {"a signal that waited for a core is no measure", measure_while_others_have_the_cores, {2}},
    {"measuring ends when a rank has failed", measure_with_one_that_has_failed, {3}, .fails = true},
    {"measuring waits no longer than set-up may", measure_in_vain, {2}, .fails = true},
};

PROMISES_MAIN(SIGNALS, HEAP)
